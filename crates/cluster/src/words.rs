//! Errors in words, and who is said to have done what nobody asked for.

use std::error::Error;

use jiff::Timestamp;
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

/// Says that a guest runs on one host and on others, and what to do.
pub(crate) fn double_words(vm: &str, host: &str, others: &[String]) -> String {
    let others = others.join(" and ");
    format!("'{vm}' RUNS TWICE, on {host} and {others}: stop one of them at once (on its host: skein vm stop {vm})")
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
    let time = i64::try_from(at.0).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.map_or_else(|| "no date".to_owned(), |time| time.strftime("%F %H:%M UTC").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_by_the_minute() {
        let told = |seconds: u64| utc_words(UnixMs(seconds * 1000 + 999));
        assert_eq!(told(1_795_851_045), "2026-11-28 07:30 UTC");
        assert_eq!(utc_words(UnixMs(u64::MAX)), "no date");
    }
}
