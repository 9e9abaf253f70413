//! Times of day and of the week, by the clock on the wall.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const MINUTES_OF_DAY: u16 = 24 * 60;

/// A minute of the week, by a local clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockTime {
    /// 0: Monday.
    day: u8,
    /// The minute of the day.
    minute: u16,
}

impl ClockTime {
    /// Returns the minute of a day of the week, which 0 begins with Monday. `None`: there is no such day or minute.
    pub fn new(day: u8, minute: u16) -> Option<ClockTime> {
        (day < 7 && minute < MINUTES_OF_DAY).then_some(ClockTime { day, minute })
    }

    /// Returns the minute at so many seconds since 1970 by UTC, of a clock that is so many seconds ahead of UTC.
    pub fn of_unix(seconds: i64, utc_offset_s: i32) -> ClockTime {
        const DAY_S: i64 = 86_400;
        let local = seconds.saturating_add(i64::from(utc_offset_s));
        // 1970-01-01 was a Thursday. Both remainders are within their types.
        let day = (local.div_euclid(DAY_S) + 3).rem_euclid(7) as u8;
        let minute = (local.rem_euclid(DAY_S) / 60) as u16;
        ClockTime { day, minute }
    }
}

/// Times of some days: `mon-fri 08:00-18:00`, `sat,sun`, `22:00-06:00`. A window whose end is not after its beginning
/// ends on the day after, and is of the day on which it begins. The clock is the one on the wall: a window in which the
/// clock is put forward is an hour shorter, and one in which the clock is put back an hour longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeWindow {
    /// Whether the window begins on a day.
    days: [bool; 7],
    /// The first minute of the day.
    from: u16,
    /// The minute after the last; 1440: midnight.
    to: u16,
}

/// Why a text is not a window. The message says what to write.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum TimeWindowError {
    #[error("the days are {}, with commas or hyphens between: mon-fri, or sat,sun", DAYS.join(", "))]
    Day,
    #[error("write times like 08:00-18:00, from 00:00 to 24:00")]
    Time,
    #[error("the window has no time: write 00:00-24:00 for whole days")]
    Empty,
    #[error("write days, times, or both: mon-fri 08:00-18:00")]
    Shape,
}

impl TimeWindow {
    /// Returns whether the window holds at a time.
    pub fn holds(&self, time: ClockTime) -> bool {
        let today = self.days[usize::from(time.day)];
        if self.from < self.to {
            return today && (self.from..self.to).contains(&time.minute);
        }
        let yesterday = self.days[usize::from((time.day + 6) % 7)];
        (today && time.minute >= self.from) || (yesterday && time.minute < self.to)
    }
}

impl fmt::Display for TimeWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.days.iter().all(|day| *day) {
            let days: Vec<&str> = DAYS.into_iter().zip(self.days).filter(|(_, is)| *is).map(|(day, _)| day).collect();
            write!(f, "{} ", days.join(","))?;
        }
        let (from, to) = (self.from, self.to);
        write!(f, "{:02}:{:02}-{:02}:{:02}", from / 60, from % 60, to / 60, to % 60)
    }
}

impl FromStr for TimeWindow {
    type Err = TimeWindowError;

    fn from_str(text: &str) -> Result<TimeWindow, TimeWindowError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (days, times) = match words[..] {
            [word] if word.contains(':') => (None, Some(word)),
            [word] => (Some(word), None),
            [days, times] => (Some(days), Some(times)),
            _ => return Err(TimeWindowError::Shape),
        };
        let days = days.map_or(Ok([true; 7]), parse_days)?;
        let (from, to) = times.map_or(Ok((0, MINUTES_OF_DAY)), parse_times)?;
        Ok(TimeWindow { days, from, to })
    }
}

/// Parses `mon-fri,sun`. A range may go over the end of the week: `sat-mon`.
fn parse_days(text: &str) -> Result<[bool; 7], TimeWindowError> {
    let day = |name: &str| DAYS.iter().position(|day| day.eq_ignore_ascii_case(name)).ok_or(TimeWindowError::Day);
    let mut days = [false; 7];
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (day(first)?, day(last)?);
        for nth in 0..=(last + 7 - first) % 7 {
            days[(first + nth) % 7] = true;
        }
    }
    Ok(days)
}

fn parse_times(text: &str) -> Result<(u16, u16), TimeWindowError> {
    let (from, to) = text.split_once('-').ok_or(TimeWindowError::Time)?;
    let (from, to) = (parse_minute(from)?, parse_minute(to)?);
    if from == to || from == MINUTES_OF_DAY || to == 0 && from == 0 {
        return Err(TimeWindowError::Empty);
    }
    Ok((from, if to == 0 { MINUTES_OF_DAY } else { to }))
}

/// Parses `08:00` or `8:00` into a minute of the day, up to `24:00`.
fn parse_minute(text: &str) -> Result<u16, TimeWindowError> {
    let (hour, minute) = text.split_once(':').ok_or(TimeWindowError::Time)?;
    let number = |text: &str, digits: std::ops::RangeInclusive<usize>, most: u16| {
        let fits = digits.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u16>().ok().filter(|number| fits && *number <= most).ok_or(TimeWindowError::Time)
    };
    let minutes = number(hour, 1..=2, 24)? * 60 + number(minute, 2..=2, 59)?;
    if minutes <= MINUTES_OF_DAY { Ok(minutes) } else { Err(TimeWindowError::Time) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(window: &str, day: u8, minute: u16) -> bool {
        window.parse::<TimeWindow>().unwrap().holds(ClockTime::new(day, minute).unwrap())
    }

    #[test]
    fn windows_hold_when_they_say() {
        for (window, day, minute, is) in [
            ("mon-fri 08:00-18:00", 0, 480, true),
            ("mon-fri 08:00-18:00", 0, 479, false),
            ("mon-fri 08:00-18:00", 4, 1079, true),
            ("mon-fri 08:00-18:00", 4, 1080, false),
            ("mon-fri 08:00-18:00", 5, 600, false),
            ("sat,sun", 6, 0, true),
            ("sat-mon", 0, 1439, true),
            ("sat-mon", 1, 0, false),
            ("8:00-9:00", 3, 500, true),
            // Over midnight: it is of the day on which it begins.
            ("fri 22:00-06:00", 4, 1320, true),
            ("fri 22:00-06:00", 5, 359, true),
            ("fri 22:00-06:00", 5, 360, false),
            ("fri 22:00-06:00", 4, 0, false),
            ("sun 22:00-06:00", 0, 0, true),
            ("22:00-00:00", 2, 1439, true),
            ("22:00-24:00", 2, 0, false),
        ] {
            assert_eq!(holds(window, day, minute), is, "{window} on day {day} at minute {minute}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, error) in [
            ("", TimeWindowError::Shape),
            ("mon 08:00-18:00 more", TimeWindowError::Shape),
            ("monday", TimeWindowError::Day),
            ("mon-", TimeWindowError::Day),
            ("mon 08:00", TimeWindowError::Time),
            ("mon 8-18", TimeWindowError::Time),
            ("08:00-25:00", TimeWindowError::Time),
            ("08:60-09:00", TimeWindowError::Time),
            ("08:0-09:00", TimeWindowError::Time),
            ("+8:00-09:00", TimeWindowError::Time),
            ("24:01-09:00", TimeWindowError::Time),
            ("09:00-09:00", TimeWindowError::Empty),
            ("00:00-00:00", TimeWindowError::Empty),
            ("24:00-08:00", TimeWindowError::Empty),
        ] {
            assert_eq!(text.parse::<TimeWindow>(), Err(error), "{text:?}");
        }
    }
}
