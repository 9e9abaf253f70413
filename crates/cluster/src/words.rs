//! Errors in words, and who is said to have done what nobody asked for.

use std::error::Error;

use skein_api::Refusal;
use skein_api::cluster::UnixMs;

/// Names who began what nobody asked for.
pub(crate) const NOBODY: &str = "the controller";

/// Returns what an agent refused, with what to do about it, in one line.
pub(crate) fn refusal_words(refusal: Refusal) -> String {
    match refusal.cure.as_str() {
        "" => refusal.message,
        cure => format!("{}: {cure}", refusal.message),
    }
}

/// Says what to do about a host whose agent takes no guest.
pub(crate) fn open_words(host: &str) -> String {
    format!("boot {host}; or, if it is neither booted nor switched off any more: skein host resume {host}")
}

/// Says that a host is to stay empty, and what to do about that.
pub(crate) fn not_active_words(host: &str) -> (String, String) {
    (format!("'{host}' takes no guests: it is in maintenance, or being drained"), format!("skein host resume {host}"))
}

/// Returns `1 VM stays` or `3 VMs stay`.
pub(crate) fn vms_words(number: usize, one: &str, more: &str) -> String {
    match number {
        1 => format!("1 VM {one}"),
        _ => format!("{number} VMs {more}"),
    }
}

/// Returns an error with its causes, in one line.
pub fn error_chain(error: &dyn Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(of) = cause {
        words += &format!(": {of}");
        cause = of.source();
    }
    words
}

/// Returns a time in words, by the minute.
pub(crate) fn utc_words(at: UnixMs) -> String {
    let minutes = at.0 / 60_000;
    let (days, of_day) = (minutes / 1440, minutes % 1440);
    // Years begin in March here, so that a leap day is a year's last; 146 097 days are 400 years.
    let since_march = days + 719_468;
    let (era, of_era) = (since_march / 146_097, since_march % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", of_day / 60, of_day % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_by_the_minute() {
        let told = |seconds: u64| utc_words(UnixMs(seconds * 1000 + 999));
        assert_eq!(told(0), "1970-01-01 00:00 UTC");
        assert_eq!(told(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(told(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(told(1_772_323_200), "2026-03-01 00:00 UTC");
        assert_eq!(told(1_795_851_045), "2026-11-28 07:30 UTC");
        assert_eq!(told(4_107_542_400), "2100-03-01 00:00 UTC");
    }
}
