//! The options of a hold, and how a held migration is shown.

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};
use skein_api::cluster::VmMigration;
use skein_api::{DEADLINE_RANGE_S, HOLD_RANGE_S, HoldOptions, HoldView, Migration, Role, SwitchWindow};
use skein_units::{about_bytes, duration, parse_millis};

use super::text::clean_line;

/// Whether a migration is held, and how.
#[derive(clap::Args)]
pub struct HoldArgs {
    /// Copy it until it would switch within its downtime limit, and then hold it: the target is kept fresh, and the
    /// guest runs here until `skein migration switch`, or a window. Returns once it is held
    #[arg(long, conflicts_with = "check")]
    pub hold: bool,
    #[command(flatten)]
    times: HoldTimes,
}

/// How a migration is held. The command has an argument `hold`, without which these say nothing.
#[derive(clap::Args)]
pub struct HoldTimes {
    /// Have it switch by itself at this time: 22:00 (the next time that this host's clock says so), or a local date and
    /// time, 2026-12-01T22:00
    #[arg(long, value_name = "TIME", requires = "hold", conflicts_with = "switch_between", value_parser = parse_moment)]
    switch_at: Option<Moment>,
    /// Have it switch by itself between these times of the day, such as 22:00-23:00, or call it off at the second
    /// of these; of the next day if they are over today
    #[arg(long, value_name = "FROM-UNTIL", requires = "hold", value_parser = parse_times)]
    switch_between: Option<(Time, Time)>,
    /// Call it off if it was held for so long, such as 8h [default: 24h, or until it is to switch by itself]
    #[arg(long, value_name = "TIME", requires = "hold", value_parser = parse_seconds)]
    max_hold: Option<u64>,
}

/// A moment as a person says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The next time that the clock says so.
    TimeOfDay(Time),
    Date(DateTime),
}

impl HoldArgs {
    /// Returns how the migration is held; `None`: it is not.
    ///
    /// # Errors
    ///
    /// A moment is in the past.
    pub fn options(&self) -> anyhow::Result<Option<HoldOptions>> {
        let options = self.times.options()?;
        Ok(self.hold.then_some(options))
    }
}

impl HoldTimes {
    /// Returns how the migration is held.
    ///
    /// # Errors
    ///
    /// A moment is in the past.
    pub fn options(&self) -> anyhow::Result<HoldOptions> {
        self.options_at(&Zoned::now())
    }

    fn options_at(&self, now: &Zoned) -> anyhow::Result<HoldOptions> {
        let window = match (self.switch_at, self.switch_between) {
            (Some(at), _) => Some((moment(at, now)?, None)),
            (None, Some((from, until))) => {
                let (from, until) = between(from, until, now)?;
                Some((from, Some(until)))
            }
            (None, None) => None,
        };
        let unix_s = |time: Timestamp| u64::try_from(time.as_second()).unwrap_or(0);
        let window =
            window.map(|(from, until)| SwitchWindow { from_unix_s: unix_s(from), until_unix_s: until.map(unix_s) });
        Ok(HoldOptions { longest_s: self.max_hold, window })
    }
}

fn parse_time(text: &str) -> Option<Time> {
    Time::strptime("%H:%M", text.trim()).ok()
}

fn parse_moment(text: &str) -> Result<Moment, String> {
    let date = || ["%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"].iter().find_map(|form| DateTime::strptime(form, text).ok());
    let moment = parse_time(text).map(Moment::TimeOfDay).or_else(|| date().map(Moment::Date));
    moment.ok_or_else(|| "write a time of the day, 22:00, or a date and time, 2026-12-01T22:00".into())
}

fn parse_times(text: &str) -> Result<(Time, Time), String> {
    let times = text.split_once('-').and_then(|(from, until)| Some((parse_time(from)?, parse_time(until)?)));
    match times {
        Some((from, until)) if from != until => Ok((from, until)),
        _ => Err("write two different times of the day, such as 22:00-23:00".into()),
    }
}

/// Parses a time into whole seconds, rounded up.
pub fn parse_seconds(text: &str) -> Result<u64, String> {
    const { assert!(*HOLD_RANGE_S.end() == *DEADLINE_RANGE_S.end()) };
    let seconds = parse_millis(text).map_err(|error| error.to_string())?.div_ceil(1000);
    let days = HOLD_RANGE_S.end() / 86_400;
    let within = HOLD_RANGE_S.contains(&seconds).then_some(seconds);
    within.ok_or_else(|| format!("it may be 1ms to {days} days ({}h)", days * 24))
}

/// Returns the next moment at which the clock says `time`, on `days` days after today or later. Where a clock that is
/// put forward leaves the time out, it is the moment as much later; where a clock that is put back has it twice, the
/// first.
fn next(time: Time, days: i64, now: &Zoned) -> anyhow::Result<Timestamp> {
    let on = |days: i64| -> anyhow::Result<Timestamp> {
        let date = now.date().checked_add(days.days())?;
        Ok(date.to_datetime(time).to_zoned(now.time_zone().clone())?.timestamp())
    };
    let today = on(days)?;
    if today > now.timestamp() { Ok(today) } else { on(days + 1) }
}

fn moment(at: Moment, now: &Zoned) -> anyhow::Result<Timestamp> {
    match at {
        Moment::TimeOfDay(time) => next(time, 0, now),
        Moment::Date(date) => {
            let at = date.to_zoned(now.time_zone().clone())?.timestamp();
            anyhow::ensure!(at > now.timestamp(), "--switch-at {date} is over: leave it out, or give a later time");
            Ok(at)
        }
    }
}

/// Returns the window that is open now, or else the next one.
fn between(from: Time, until: Time, now: &Zoned) -> anyhow::Result<(Timestamp, Timestamp)> {
    // The window that is under way, or ends next, ends at the next time that the clock says so.
    let end = next(until, 0, now)?;
    let end_local = end.to_zoned(now.time_zone().clone());
    // It begins before that: on the same day, or on the day before where it goes over midnight.
    let days = if from < until { 0 } else { 1 };
    let begin = end_local.date().checked_sub(days.days())?.to_datetime(from).to_zoned(now.time_zone().clone())?;
    let begin = begin.timestamp();
    // Where a clock is put forward, all of the window may be left out.
    Ok((begin, end.max(begin + 1.minute())))
}

/// Returns a moment of the API as the local clock says it; the text itself if it is no moment.
fn local(time: &str) -> String {
    let zoned = time.parse::<Timestamp>().map(|time| time.to_zoned(TimeZone::system()));
    zoned.map_or_else(|_| clean_line(time), |zoned| zoned.strftime("%Y-%m-%d %H:%M:%S %Z").to_string())
}

/// Returns what there is to say of a hold: `held since …`, `3 MiB to copy, would stand still for 40 ms`,
/// `switches at …`.
pub fn hold_words(hold: &HoldView) -> Vec<String> {
    let fresh = hold.dirty_bytes.zip(hold.downtime_ms);
    let words = [
        hold.since.as_deref().map(|since| format!("held since {}", local(since))),
        fresh.map(|(bytes, ms)| format!("{} to copy, would stand still for {}", about_bytes(bytes), duration(ms))),
        hold.switches_from.as_deref().map(|from| format!("switches at {}", local(from))),
        hold.called_off_at.as_deref().map(|at| format!("called off at {}", local(at))),
    ];
    words.into_iter().flatten().collect()
}

/// Returns a migration that the controller told of as an agent would tell of it.
pub fn as_told(migration: VmMigration) -> Migration {
    let VmMigration { id, vm, source, target, begun, hold, rate_limit, .. } = migration;
    Migration { begun, hold, rate_limit, ..Migration::new(id, &vm, Role::Source, &source, &target) }
}

/// Returns how a held migration goes on that the agent of this host knows.
pub fn held_hints(migration: &Migration) -> String {
    let id = migration.id;
    format!(
        "  to have it switch   skein migration switch {id}\n  \
         to watch it         skein migration watch {id}\n  \
         to call it off      skein migration cancel {id}\n"
    )
}

/// Returns what is said of a migration that has come to be held.
pub fn held_text(migration: &Migration, hints: &str) -> String {
    let (vm, source, target) =
        (clean_line(&migration.vm), clean_line(&migration.source), clean_line(&migration.target));
    let words = migration.hold.as_ref().map(hold_words).unwrap_or_default();
    let mut text = format!("{vm} is held: it runs on {source}, and {target} is kept fresh\n");
    text.extend(words.iter().map(|line| format!("  {line}\n")));
    text + hints
}

/// Returns what is said of a migration whose guest is to switch. `migration` has how fresh the target was before.
pub fn switch_text(migration: &Migration, watch: &str) -> String {
    let (vm, target) = (clean_line(&migration.vm), clean_line(&migration.target));
    let fresh = migration.hold.as_ref().and_then(|hold| hold.downtime_ms);
    let expected = match fresh {
        Some(ms) => format!("it is expected to stand still for at most {}", duration(ms)),
        None => "it switches as soon as its copy has converged".into(),
    };
    format!("{vm} switches to {target}: {expected}\n  to watch it      {watch}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Zoned {
        text.parse().unwrap()
    }

    fn time(text: &str) -> Time {
        parse_time(text).unwrap()
    }

    fn shown(moment: Timestamp, now: &Zoned) -> String {
        moment.to_zoned(now.time_zone().clone()).strftime("%Y-%m-%d %H:%M %Z").to_string()
    }

    #[test]
    fn a_time_of_the_day_is_the_next_one_and_a_date_is_not_over() {
        let now = at("2026-12-01T21:00:00[Europe/Berlin]");
        let next = |text: &str| moment(parse_moment(text).unwrap(), &now).map(|moment| shown(moment, &now));
        assert_eq!(next("22:00").unwrap(), "2026-12-01 22:00 CET");
        assert_eq!(next("20:59").unwrap(), "2026-12-02 20:59 CET");
        assert_eq!(next("2026-12-24T22:00").unwrap(), "2026-12-24 22:00 CET");
        assert!(next("2026-12-01 20:00").unwrap_err().to_string().contains("is over"));
        for odd in ["", "25:00", "22", "10pm", "2026-12-01", "tomorrow"] {
            assert!(parse_moment(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn a_window_is_the_one_that_is_open_or_the_next() {
        for (now, from, until, begins, ends) in [
            ("2026-12-01T21:00:00", "22:00", "23:00", "12-01 22:00 CET", "12-01 23:00 CET"),
            ("2026-12-01T22:30:00", "22:00", "23:00", "12-01 22:00 CET", "12-01 23:00 CET"),
            ("2026-12-01T23:00:00", "22:00", "23:00", "12-02 22:00 CET", "12-02 23:00 CET"),
            ("2026-12-01T21:00:00", "23:00", "01:00", "12-01 23:00 CET", "12-02 01:00 CET"),
            ("2026-12-01T00:30:00", "23:00", "01:00", "11-30 23:00 CET", "12-01 01:00 CET"),
        ] {
            let now = at(&format!("{now}[Europe/Berlin]"));
            let window = between(time(from), time(until), &now).unwrap();
            let window = [window.0, window.1].map(|moment| shown(moment, &now)[5..].to_owned());
            assert_eq!(window, [begins, ends], "{now}");
        }
        assert!(parse_times("22:00-22:00").is_err() && parse_times("22:00").is_err());
    }

    #[test]
    fn where_clocks_are_changed_a_time_is_the_first_or_as_much_later() {
        // On 29 March 2026 the clock goes from 2:00 to 3:00, on 25 October from 3:00 back to 2:00.
        let spring = at("2026-03-28T22:00:00[Europe/Berlin]");
        assert_eq!(shown(next(time("02:30"), 0, &spring).unwrap(), &spring), "2026-03-29 03:30 CEST");
        let autumn = at("2026-10-24T22:00:00[Europe/Berlin]");
        assert_eq!(shown(next(time("02:30"), 0, &autumn).unwrap(), &autumn), "2026-10-25 02:30 CEST");
        let window = between(time("02:15"), time("02:45"), &spring).unwrap();
        assert!(window.0 < window.1 && window.0 > spring.timestamp());
        // A window over the change is as long as its clock times say.
        let window = between(time("01:00"), time("04:00"), &autumn).unwrap();
        assert_eq!(window.1.duration_since(window.0).as_hours(), 4);
    }

    #[test]
    fn options_are_what_was_asked_for() {
        let now = at("2026-12-01T21:00:00[Europe/Berlin]");
        let times = |max_hold| HoldTimes { switch_at: None, switch_between: None, max_hold };
        let options = times(Some(60)).options_at(&now).unwrap();
        assert_eq!(options, HoldOptions { longest_s: Some(60), window: None });
        assert!(HoldArgs { hold: true, times: times(None) }.options().unwrap().is_some());
        assert_eq!(HoldArgs { hold: false, times: times(None) }.options().unwrap(), None);
        let between = Some((time("22:00"), time("23:00")));
        let window = HoldTimes { switch_between: between, ..times(None) }.options_at(&now).unwrap().window;
        let window = window.unwrap();
        assert_eq!(window.until_unix_s.unwrap() - window.from_unix_s, 3600);
        assert!(parse_seconds("721h").is_err() && parse_seconds("8h") == Ok(28_800));
    }
}
