//! Says what may be asked for. This is the one place that says so, for commands and for the agent.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::Path;

use skein_units::{Rate, RateError};

use super::console::{
    CONSOLE_INPUT_BYTES_MAX, CONSOLE_OUTPUT_BYTES_MAX, CONSOLE_WAIT_MS_MAX, ConsoleRequest, ConsoleView,
};
use super::hold::{HoldOptions, SwitchWindow};
use super::reply::Refusal;
use super::request::{API_VERSION, MigrateOptions, Request, RequestLine, VmOrigin};

/// Bounds the seconds that a guest may have for shutting down: a day.
pub const STOP_TIMEOUT_RANGE_S: RangeInclusive<u64> = 0..=86_400;
/// Bounds the seconds until the guest has to be about to move: 30 days.
pub const DEADLINE_RANGE_S: RangeInclusive<u64> = 1..=30 * 86_400;
/// Bounds the seconds for which a guest may be held: 30 days.
pub const HOLD_RANGE_S: RangeInclusive<u64> = DEADLINE_RANGE_S;
/// Bounds how often a migration may be begun again.
pub const RETRIES_RANGE: RangeInclusive<u32> = 0..=1000;
/// Bounds a migration's priority. A greater priority goes first.
pub const PRIORITY_RANGE: RangeInclusive<u8> = 0..=100;
/// Bounds the milliseconds that a guest may be stopped: QEMU's bounds of `downtime-limit`.
pub const DOWNTIME_LIMIT_RANGE_MS: RangeInclusive<u64> = 1..=2_000_000;
/// Bounds the multifd channels of a migration; 0 means one stream.
pub const MULTIFD_CHANNELS_RANGE: RangeInclusive<u8> = 0..=64;
/// Bounds the per cent by which a guest may be throttled.
pub const ALLOW_THROTTLE_PERCENT_RANGE: RangeInclusive<u8> = 1..=99;
/// Bounds the memory for knowing what the target holds, in per cent of a guest's RAM.
pub const DELTA_MEMORY_PERCENT_RANGE: RangeInclusive<f64> = 0.0..=100.0;
/// Bounds the name of a VM.
pub const NAME_BYTES_MAX: usize = 63;
/// Bounds a request id: a UUID and what a program puts before it.
pub const REQUEST_ID_CHARS_MAX: usize = 128;

/// Bounds the seconds for which a host holds a limit of the cluster's: a day.
const LIMIT_TIME_RANGE_S: RangeInclusive<u64> = 1..=86_400;
/// Bounds the seconds for which a host takes no guests before it is switched off: an hour.
const CLOSED_TIME_RANGE_S: RangeInclusive<u64> = 0..=3_600;
/// Bounds the seconds for which a host takes no guests that is updated: two days.
const UPDATE_TIME_RANGE_S: RangeInclusive<u64> = 1..=172_800;
/// Bounds the id of an update: an operation's id and a host's name.
const UPDATE_ID_BYTES_MAX: usize = 400;
/// Bounds the moments of a window, in seconds since 1970 began: what a time of day can be made of, up to the year 9999.
const WINDOW_RANGE_UNIX_S: RangeInclusive<u64> = 0..=253_402_300_799;
/// Bounds a host name: a certificate's common name (RFC 5280, appendix A.1).
const HOST_BYTES_MAX: usize = 64;
/// Bounds the path of a unix socket (`sun_path` of unix(7), without its end).
const SOCKET_BYTES_MAX: usize = 107;
/// Bounds the words that say who has a console: a token's name, or a host's with what it is.
const HOLDER_BYTES_MAX: usize = 128;
/// Bounds a position in what a console carries, so that bytes can be added to it.
const POSITION_RANGE: RangeInclusive<u64> = 0..=1 << 62;
/// Bounds a path (PATH_MAX of linux/limits.h).
const PATH_BYTES_MAX: usize = 4096;
/// Says how many bytes of a refused text a message shows.
const SHOWN_BYTES_MAX: usize = 80;

/// Refuses a version of the API that this agent does not speak. `None` means the first version.
///
/// # Errors
///
/// The version is not known here.
pub fn check_version(api: Option<u32>) -> Result<(), Refusal> {
    let Some(api) = api.filter(|api| !(1..=API_VERSION).contains(api)) else { return Ok(()) };
    let cure = "use the `skein` of the agent's version, or upgrade the agent";
    refuse(format!("version {api} of the API is not known here, only 1 to {API_VERSION}"), cure)
}

impl RequestLine {
    /// Refuses an unknown version, a missing or malformed request id, and what [`Request::check`] refuses.
    ///
    /// # Errors
    ///
    /// What is wrong, and what to do.
    pub fn check(&self) -> Result<(), Refusal> {
        check_version(self.api)?;
        check_request(self.request_id.as_deref(), &self.request)
    }
}

/// Refuses a malformed request id, one where there can be none, and what [`Request::check`] refuses.
pub(super) fn check_request(id: Option<&str>, request: &Request) -> Result<(), Refusal> {
    if let Some(id) = id {
        request_id(id)?;
        let may_have_id = matches!(
            request,
            Request::Migrate { .. } | Request::MigrateHeld { .. } | Request::VmStart { .. } | Request::VmForget { .. }
        );
        if !may_have_id {
            let cure = "leave it out: asked again, such a request does what it says again";
            return refuse("only a migration, a start or a forgetting has a request id".into(), cure);
        }
    }
    request.check()
}

impl Request {
    /// Returns whether the request changes nothing, neither begins anything.
    pub fn only_shows(&self) -> bool {
        matches!(
            self,
            Request::VmList
                | Request::VmShow { .. }
                | Request::HostList
                | Request::HostShow { .. }
                | Request::NetShow { .. }
                | Request::NetProbes
                | Request::HostSample
                | Request::MigrationList
                | Request::MigrationShow { .. }
                | Request::MigrationRecord { .. }
                | Request::Version
        )
    }

    /// Refuses what makes no sense on any host: numbers beyond their range, and malformed names. A number that passes
    /// can be added to a time, and a name that passes can be written into a log.
    pub fn check(&self) -> Result<(), Refusal> {
        match self {
            Request::VmStart { from: VmOrigin::Definition { file, text: _ }, options: _ } => file_name(file),
            Request::VmStart { from: VmOrigin::Name(name), options: _ } => vm(name),
            Request::VmAdopt { qmp, name } => {
                socket(qmp)?;
                name.iter().try_for_each(|name| vm(name))
            }
            Request::VmShow { name }
            | Request::VmResume { name }
            | Request::VmForget { name }
            | Request::VmOffer { name } => vm(name),
            Request::VmConsole(asked) => asked.check(),
            Request::VmReserve { reservation, offer: _ } => request_id(reservation),
            Request::MigrationWithdraw { id } => request_id(id),
            Request::VmRelease { name, reservation, keep: _ } => {
                vm(name)?;
                request_id(reservation)
            }
            Request::VmStop { name, timeout_s, force: _ } => {
                vm(name)?;
                within("timeout_s", Some(*timeout_s), &STOP_TIMEOUT_RANGE_S)
            }
            Request::NetShow { name } | Request::NetProbe { to: name } => host(name),
            Request::HostShow { name } => name.iter().try_for_each(|name| host(name)),
            Request::Check { vm: name, to, options } | Request::Migrate { vm: name, to, options, detach: _ } => {
                vm(name)?;
                host(to)?;
                options.check()
            }
            Request::MigrateHeld { vm: name, to, options, hold, detach: _ } => {
                vm(name)?;
                host(to)?;
                options.check()?;
                hold.check()
            }
            Request::MigrationSwitch { id, deadline_s } => {
                migration(id)?;
                within("deadline_s", *deadline_s, &DEADLINE_RANGE_S)
            }
            Request::MigrationShow { id }
            | Request::MigrationRecord { id }
            | Request::MigrationWatch { id }
            | Request::MigrationCancel { id }
            | Request::MigrationResolve { id, other_host_is_off: _ } => migration(id),
            Request::MigrationLimit { id, rate_bits_per_s } => {
                migration(id)?;
                rate(*rate_bits_per_s)
            }
            Request::MigrationRestart { id, hold, allow_throttle } => {
                migration(id)?;
                hold.iter().try_for_each(HoldOptions::check)?;
                within("allow_throttle", *allow_throttle, &ALLOW_THROTTLE_PERCENT_RANGE)
            }
            Request::HostLimit { rate_bits_per_s, for_s } => {
                rate(*rate_bits_per_s)?;
                within("for_s", Some(*for_s), &LIMIT_TIME_RANGE_S)
            }
            Request::HostUpdate { id, how: _, order: _, for_s } => {
                if id.is_empty() || id.len() > UPDATE_ID_BYTES_MAX || id.chars().any(char::is_control) {
                    return refuse("the id of an update is wrong".into(), "give an id of at most 400 bytes");
                }
                within("for_s", Some(*for_s), &UPDATE_TIME_RANGE_S)
            }
            Request::HostClose { for_s, power_off: _, stays_on: _ } => {
                within("for_s", Some(*for_s), &CLOSED_TIME_RANGE_S)
            }
            Request::VmList
            | Request::HostList
            | Request::NetProbes
            | Request::HostSample
            | Request::MigrationList
            | Request::Version => Ok(()),
        }
    }
}

impl ConsoleRequest {
    /// Refuses malformed names, positions that cannot be, more input than a request may have, and long waits.
    ///
    /// # Errors
    ///
    /// What is wrong, and what it may be.
    pub fn check(&self) -> Result<(), Refusal> {
        vm(&self.name)?;
        request_id(&self.session)?;
        holder(&self.by)?;
        within("bytes of input", Some(self.input.0.len()), &(0..=CONSOLE_INPUT_BYTES_MAX))?;
        within("input_at", Some(self.input_at), &POSITION_RANGE)?;
        within("after", Some(self.after), &POSITION_RANGE)?;
        within("wait_ms", Some(self.wait_ms), &(0..=CONSOLE_WAIT_MS_MAX))
    }
}

impl ConsoleView {
    /// Refuses positions that cannot be, and more output than is kept.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub fn check(&self) -> Result<(), Refusal> {
        within("bytes of output", Some(self.output.0.len()), &(0..=CONSOLE_OUTPUT_BYTES_MAX))?;
        within("at", Some(self.at), &POSITION_RANGE)?;
        within("typed", Some(self.typed), &POSITION_RANGE)?;
        self.holder.iter().try_for_each(|words| holder(words))
    }
}

impl MigrateOptions {
    /// Refuses numbers beyond their range.
    ///
    /// # Errors
    ///
    /// Which number, and what it may be.
    pub fn check(&self) -> Result<(), Refusal> {
        within("priority", self.priority, &PRIORITY_RANGE)?;
        within("downtime_limit_ms", self.downtime_limit_ms, &DOWNTIME_LIMIT_RANGE_MS)?;
        within("deadline_s", self.deadline_s, &DEADLINE_RANGE_S)?;
        within("channels", self.channels, &MULTIFD_CHANNELS_RANGE)?;
        within("allow_throttle", self.allow_throttle, &ALLOW_THROTTLE_PERCENT_RANGE)?;
        within("delta_memory", self.delta_memory, &DELTA_MEMORY_PERCENT_RANGE)?;
        rate(self.rate_bits_per_s)?;
        within("retries", Some(self.retries), &RETRIES_RANGE)
    }
}

impl HoldOptions {
    /// Refuses numbers beyond their range, and a window that is over before it opens.
    ///
    /// # Errors
    ///
    /// What is wrong, and what it may be.
    pub fn check(&self) -> Result<(), Refusal> {
        within("longest_s", self.longest_s, &HOLD_RANGE_S)?;
        let Some(SwitchWindow { from_unix_s: from, until_unix_s: until }) = self.window else { return Ok(()) };
        within("from_unix_s", Some(from), &WINDOW_RANGE_UNIX_S)?;
        within("until_unix_s", until, &WINDOW_RANGE_UNIX_S)?;
        match until {
            Some(until) if until <= from => {
                refuse("the window is over before it opens".into(), "until_unix_s has to be greater than from_unix_s")
            }
            _ => Ok(()),
        }
    }
}

pub(super) fn refuse(message: String, cure: impl Into<String>) -> Result<(), Refusal> {
    Err(Refusal { message, cure: cure.into() })
}

pub(super) fn within<T: PartialOrd + Display>(
    what: &str,
    number: Option<T>,
    range: &RangeInclusive<T>,
) -> Result<(), Refusal> {
    match number {
        Some(number) if !range.contains(&number) => {
            refuse(format!("{what} cannot be {number}"), format!("it may be {} to {}", range.start(), range.end()))
        }
        _ => Ok(()),
    }
}

/// Checks a limit of a rate. `None` lifts the limit.
fn rate(bits_per_s: Option<u64>) -> Result<(), Refusal> {
    match bits_per_s {
        Some(bits) if Rate::of_bits_per_s(bits).is_none() => {
            refuse(format!("rate_bits_per_s cannot be {bits}"), RateError::OutOfRange.to_string())
        }
        _ => Ok(()),
    }
}

/// Returns a text in quotes, short and without what drives a terminal or turns the direction of writing.
pub(super) fn shown(text: &str) -> String {
    let is_unfit = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut text = text.replace(is_unfit, "\u{fffd}");
    if text.len() > SHOWN_BYTES_MAX {
        text.truncate(text.floor_char_boundary(SHOWN_BYTES_MAX - '…'.len_utf8()));
        text.push('…');
    }
    format!("'{text}'")
}

/// Returns whether a VM may have that name.
pub fn is_vm_name(name: &str) -> bool {
    let is_first = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let rest = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b));
    name.starts_with(is_first) && rest && name.len() <= NAME_BYTES_MAX
}

fn request_id(id: &str) -> Result<(), Refusal> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"._:-".contains(&b);
    if (1..=REQUEST_ID_CHARS_MAX).contains(&id.len()) && id.bytes().all(fits) {
        return Ok(());
    }
    let cure = format!("it has 1 to {REQUEST_ID_CHARS_MAX} of a-z A-Z 0-9 . _ : -, such as a UUID");
    refuse(format!("{} is no request id", shown(id)), cure)
}

/// Checks the words that say who has a console, which others are shown.
fn holder(words: &str) -> Result<(), Refusal> {
    if (1..=HOLDER_BYTES_MAX).contains(&words.len()) && !words.contains(char::is_control) {
        return Ok(());
    }
    refuse(format!("{} says not who has a console", shown(words)), "give a name of 1 to 128 bytes")
}

pub(super) fn vm(name: &str) -> Result<(), Refusal> {
    if is_vm_name(name) {
        return Ok(());
    }
    let cure = format!("names have 1 to {NAME_BYTES_MAX} of a-z 0-9 . _ - and begin with a letter or digit");
    refuse(format!("{} is no name of a VM", shown(name)), cure)
}

/// Checks a host name, which is as in certificates, in lower case (`skein ca issue`).
pub(super) fn host(name: &str) -> Result<(), Refusal> {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
    if (1..=HOST_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits) {
        return Ok(());
    }
    let cure = "give the name that its identity has, of a-z 0-9 . _ -: `skein host list` shows those that are known";
    refuse(format!("{} is no name of a host", shown(name)), cure)
}

/// Checks the beginning of a migration's id, or a VM's name.
fn migration(id: &str) -> Result<(), Refusal> {
    let cure = "give the beginning of its id, or its VM's name: `skein migration list` shows them";
    match id {
        "" => refuse("an empty id names no migration".into(), cure),
        _ if is_vm_name(id) => Ok(()),
        _ => refuse(format!("{} is neither the beginning of a migration's id nor a VM's name", shown(id)), cure),
    }
}

fn socket(path: &Path) -> Result<(), Refusal> {
    let text = path.to_string_lossy();
    let cure = "give its path from the root, such as /run/vm7.qmp";
    if text.is_empty() || text.contains(char::is_control) || !path.is_absolute() {
        return refuse(format!("{} is no path of a socket", shown(&text)), cure);
    }
    if path.as_os_str().len() > SOCKET_BYTES_MAX {
        let cure = "make a short symbolic link to its directory, and give the path over that";
        return refuse(format!("a unix socket's path has {SOCKET_BYTES_MAX} bytes at most: {}", shown(&text)), cure);
    }
    Ok(())
}

/// Checks the name of a file. The name stands in messages.
fn file_name(name: &str) -> Result<(), Refusal> {
    match name.len() {
        0..=PATH_BYTES_MAX => Ok(()),
        _ => refuse(format!("the name of the definition's file is too long: {}", shown(name)), "give a shorter one"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Transport;

    fn migrate(options: MigrateOptions) -> Request {
        Request::Migrate { vm: "v1".into(), to: "b".into(), options, detach: true }
    }

    fn refused(request: &Request) -> String {
        let Refusal { message, cure } = request.check().expect_err(&format!("{request:?}"));
        assert!(!cure.is_empty() && message.len() + cure.len() < 400, "{message}: {cure}");
        assert!(!message.contains(char::is_control), "{message:?}");
        format!("{message}: {cure}")
    }

    #[test]
    fn numbers_have_their_bounds() {
        let usual = MigrateOptions::default();
        let most = MigrateOptions {
            priority: Some(100),
            downtime_limit_ms: Some(2_000_000),
            deadline_s: Some(30 * 86_400),
            channels: Some(64),
            transport: Some(Transport::Tcp),
            allow_throttle: Some(99),
            delta_memory: Some(100.0),
            rate_bits_per_s: Some(8_000_000),
            without_rdma: true,
            retries: 1000,
            without_controller: true,
        };
        for options in [usual.clone(), most.clone()] {
            assert_eq!(migrate(options.clone()).check(), Ok(()));
            assert_eq!(Request::Check { vm: "v1".into(), to: "b".into(), options }.check(), Ok(()));
        }
        for (options, says) in [
            (MigrateOptions { priority: Some(101), ..usual.clone() }, "priority cannot be 101: it may be 0 to 100"),
            (MigrateOptions { downtime_limit_ms: Some(0), ..usual.clone() }, "downtime_limit_ms cannot be 0"),
            (MigrateOptions { downtime_limit_ms: Some(2_000_001), ..usual.clone() }, "it may be 1 to 2000000"),
            (MigrateOptions { deadline_s: Some(0), ..usual.clone() }, "deadline_s cannot be 0"),
            (MigrateOptions { deadline_s: Some(u64::MAX), ..usual.clone() }, "it may be 1 to 2592000"),
            (MigrateOptions { channels: Some(65), ..usual.clone() }, "channels cannot be 65: it may be 0 to 64"),
            (MigrateOptions { retries: u32::MAX, ..usual.clone() }, "it may be 0 to 1000"),
            (
                MigrateOptions { allow_throttle: Some(0), ..usual.clone() },
                "allow_throttle cannot be 0: it may be 1 to 99",
            ),
            (MigrateOptions { allow_throttle: Some(100), ..usual.clone() }, "it may be 1 to 99"),
            (
                MigrateOptions { delta_memory: Some(-0.1), ..usual.clone() },
                "delta_memory cannot be -0.1: it may be 0 to",
            ),
            (MigrateOptions { delta_memory: Some(f64::NAN), ..usual.clone() }, "it may be 0 to 100"),
        ] {
            let told = refused(&migrate(options.clone()));
            assert!(told.contains(says), "{told}");
            assert_eq!(refused(&Request::Check { vm: "v1".into(), to: "b".into(), options }), told);
        }
        let stop = |timeout_s| Request::VmStop { name: "v1".into(), timeout_s, force: true };
        assert_eq!(stop(86_400).check(), Ok(()));
        assert!(refused(&stop(u64::MAX)).contains("18446744073709551615: it may be 0 to 86400"));
    }

    #[test]
    fn what_is_asked_of_a_console_has_its_bounds() {
        let usual = || ConsoleRequest {
            name: "v1".into(),
            session: "7f".into(),
            by: "host:a".into(),
            wait_ms: 10_000,
            input: crate::ConsoleBytes(vec![0; 8 << 10]),
            ..Default::default()
        };
        assert_eq!(usual().check(), Ok(()));
        type Change = dyn Fn(&mut ConsoleRequest);
        let cases: [(&str, &Change); 7] = [
            ("no name of a VM", &|of| of.name = "../v1".into()),
            ("no request id", &|of| of.session = String::new()),
            ("says not who", &|of| of.by = "a\nb".into()),
            ("bytes of input cannot be 8193", &|of| of.input.0.push(7)),
            ("input_at cannot be", &|of| of.input_at = u64::MAX),
            ("after cannot be", &|of| of.after = u64::MAX),
            ("wait_ms cannot be 10001: it may be 0 to 10000", &|of| of.wait_ms = 10_001),
        ];
        for (says, change) in cases {
            let mut asked = usual();
            change(&mut asked);
            let told = refused(&Request::VmConsole(Box::new(asked)));
            assert!(told.contains(says), "{told} for {says}");
        }
        let view = ConsoleView { output: crate::ConsoleBytes(vec![7; 64 << 10]), ..ConsoleView::default() };
        assert_eq!(view.check(), Ok(()));
        assert!(ConsoleView { at: u64::MAX, ..view.clone() }.check().is_err());
        assert!(ConsoleView { typed: u64::MAX, ..view.clone() }.check().is_err());
        assert!(ConsoleView { holder: Some("\u{1b}[2J".into()), ..view.clone() }.check().is_err());
        assert!(ConsoleView { output: crate::ConsoleBytes(vec![7; (64 << 10) + 1]), ..view }.check().is_err());
    }

    #[test]
    fn names_are_names() {
        let long = "a".repeat(5000);
        for odd in ["", "a\nb", "a\0", "A", "a b", "ü", "\u{1b}[2J", "../v1", &long] {
            let name = || odd.to_owned();
            for request in [
                Request::VmShow { name: name() },
                Request::VmForget { name: name() },
                Request::VmResume { name: name() },
                Request::VmStop { name: name(), timeout_s: 1, force: false },
                Request::VmStart { from: VmOrigin::Name(name()), options: Default::default() },
                Request::VmAdopt { qmp: "/run/vm7.qmp".into(), name: Some(name()) },
                Request::Migrate { vm: name(), to: "b".into(), options: Default::default(), detach: false },
            ] {
                assert!(refused(&request).contains("no name of a VM"), "{odd:?}");
            }
            for request in [
                Request::HostShow { name: Some(name()) },
                Request::Check { vm: "v1".into(), to: name(), options: Default::default() },
            ] {
                assert!(refused(&request).contains("no name of a host"), "{odd:?}");
            }
            for request in [
                Request::MigrationShow { id: name() },
                Request::MigrationRecord { id: name() },
                Request::MigrationWatch { id: name() },
                Request::MigrationCancel { id: name() },
                Request::MigrationLimit { id: name(), rate_bits_per_s: None },
                Request::MigrationResolve { id: name(), other_host_is_off: true },
            ] {
                let says = if odd.is_empty() { "an empty id" } else { "neither the beginning" };
                assert!(refused(&request).contains(says), "{odd:?}");
            }
        }
        for bits in [0, 1, 7_999_999, u64::MAX] {
            for request in [
                Request::MigrationLimit { id: "v1".into(), rate_bits_per_s: Some(bits) },
                Request::HostLimit { rate_bits_per_s: Some(bits), for_s: 1 },
                migrate(MigrateOptions { rate_bits_per_s: Some(bits), ..MigrateOptions::default() }),
            ] {
                let refusal = request.check().unwrap_err();
                assert!(refusal.cure.contains("8 Mbit/s to"), "{refusal:?}");
            }
        }
        for good in ["v1", "0123456789abcdef", "0", "web-1.example_2"] {
            assert_eq!(Request::MigrationCancel { id: good.into() }.check(), Ok(()));
            assert_eq!(Request::VmShow { name: good.into() }.check(), Ok(()));
            assert_eq!(Request::HostShow { name: Some(good.into()) }.check(), Ok(()));
        }
        assert_eq!(Request::HostShow { name: None }.check(), Ok(()));
    }

    #[test]
    fn a_hold_has_its_bounds() {
        let check = |longest_s, window: Option<(u64, Option<u64>)>| {
            let window = window.map(|(from_unix_s, until_unix_s)| SwitchWindow { from_unix_s, until_unix_s });
            let (vm, to, options) = ("v1".into(), "b".into(), MigrateOptions::default());
            let hold = HoldOptions { longest_s, window };
            Request::MigrateHeld { vm, to, options, hold, detach: true }.check().map_err(|refusal| refusal.message)
        };
        assert_eq!(check(None, None), Ok(()));
        assert_eq!(check(Some(60), Some((100, Some(101)))), Ok(()));
        for (longest_s, window, says) in [
            (Some(0), None, "longest_s cannot be 0"),
            (None, Some((u64::MAX, None)), "from_unix_s cannot be"),
            (None, Some((100, Some(100))), "the window is over before it opens"),
        ] {
            assert!(check(longest_s, window).unwrap_err().starts_with(says), "{says}");
        }
        let switch = |deadline_s| Request::MigrationSwitch { id: "v1".into(), deadline_s }.check();
        assert!(switch(Some(1)).is_ok() && switch(Some(0)).is_err());
    }

    #[test]
    fn a_line_is_of_a_version_that_is_known_and_only_migrations_and_starts_have_request_ids() {
        let line = |api, request_id: Option<&str>, request| RequestLine {
            api,
            request_id: request_id.map(str::to_owned),
            request,
        };
        let good = || migrate(MigrateOptions::default());
        for id in ["1", "plan-7:web1", "0f8fad5b-d9cb-469f-a165-70867728950e", &"x".repeat(128)] {
            assert_eq!(line(Some(1), Some(id), good()).check(), Ok(()), "{id}");
        }
        assert_eq!(line(None, None, Request::VmList).check(), Ok(()));
        let refused = |line: RequestLine| line.check().unwrap_err().message;
        for api in [0, 2, u32::MAX] {
            assert!(refused(line(Some(api), None, good())).contains("only 1 to 1"), "{api}");
        }
        for id in ["", "a b", "ü", "a\n", "a/b", &"x".repeat(129)] {
            assert!(refused(line(None, Some(id), good())).contains("is no request id"), "{id:?}");
        }
        let stop = Request::VmStop { name: "v1".into(), timeout_s: 1, force: false };
        assert!(refused(line(None, Some("1"), stop)).contains("only a migration, a start or a forgetting"));
        let from = VmOrigin::Name("v1".into());
        let start = Request::VmStart { from, options: Default::default() };
        assert_eq!(line(None, Some("1"), start).check(), Ok(()));
        assert!(
            refused(line(None, Some("1"), migrate(MigrateOptions { retries: 1001, ..Default::default() })))
                .contains("retries cannot be 1001")
        );
    }

    #[test]
    fn paths_are_paths() {
        let adopt = |qmp: &str| Request::VmAdopt { qmp: qmp.into(), name: None };
        assert_eq!(adopt("/run/vm 7.qmp").check(), Ok(()));
        for (odd, says) in [
            ("", "no path of a socket"),
            ("vm7.qmp", "from the root"),
            ("/run/a\nb", "no path of a socket"),
            (&format!("/{}", "a".repeat(107)), "107 bytes at most"),
        ] {
            assert!(refused(&adopt(odd)).contains(says), "{odd}");
        }
        let start = |file: String| Request::VmStart {
            from: VmOrigin::Definition { file, text: "name = 'v1'\n".into() },
            options: Default::default(),
        };
        assert_eq!(start("web1.toml".into()).check(), Ok(()));
        assert!(refused(&start("a".repeat(5000))).contains("too long"));
    }
}
