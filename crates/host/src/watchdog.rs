//! The kernel's watchdog devices, by `Documentation/watchdog/watchdog-api.rst` of Linux: what the kernel says of one
//! before it is opened, and one that is open.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc::c_int;
use nix::sys::stat::{major, minor};

/// What the kernel says of a watchdog (`Documentation/ABI/testing/sysfs-class-watchdog`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchdogFacts {
    /// What the driver calls the watchdog.
    pub identity: String,
    /// Whether the kernel never stops the watchdog once it is started.
    pub nowayout: bool,
    /// The shortest timeout that the driver takes, in seconds. 0: the driver does not say.
    pub min_timeout_s: u32,
    /// The longest, in seconds. 0: the driver does not say.
    pub max_timeout_s: u32,
    /// How long before the reset the driver acts already, in seconds. 0: it does not.
    pub pretimeout_s: u32,
}

/// Returns what the kernel says of a watchdog. This opens nothing, as that would start the watchdog.
///
/// # Errors
///
/// The path is no device, or none of the kernel's class of watchdogs, or the kernel says something that is not
/// understood.
pub fn watchdog_facts(device: &Path) -> io::Result<WatchdogFacts> {
    let file = fs::metadata(device)?;
    if !file.file_type().is_char_device() {
        return Err(io::Error::other("that is no character device"));
    }
    facts_in(&PathBuf::from(format!("/sys/dev/char/{}:{}", major(file.rdev()), minor(file.rdev()))))
}

/// Reads the files of a watchdog's directory of `/sys`.
fn facts_in(dir: &Path) -> io::Result<WatchdogFacts> {
    let read = |name: &str| match fs::read_to_string(dir.join(name)) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    let number = |name: &str| match read(name)? {
        None => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| odd(format!("its {name} is '{text}'"))),
    };
    let missing = |name: &str| {
        odd(format!("{} has no file {name}: the device is no watchdog as /dev/watchdog0 is", dir.display()))
    };
    let identity = read("identity")?.ok_or_else(|| missing("identity"))?;
    let nowayout = number("nowayout")?.ok_or_else(|| missing("nowayout"))?;
    Ok(WatchdogFacts {
        identity,
        nowayout: nowayout == 1,
        min_timeout_s: number("min_timeout")?.unwrap_or(0),
        max_timeout_s: number("max_timeout")?.unwrap_or(0),
        pretimeout_s: number("pretimeout")?.unwrap_or(0),
    })
}

fn odd(words: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, words)
}

/// A watchdog that is open, and therefore counts. Dropping it closes the device: the kernel feeds it once more then,
/// and it goes on counting unless the kernel may stop it (`nowayout`).
#[derive(Debug)]
pub struct OpenWatchdog(File);

impl OpenWatchdog {
    /// Opens a watchdog. That starts and feeds it.
    ///
    /// # Errors
    ///
    /// Another program has it open (`EBUSY`), or its driver cannot start it.
    pub fn open(device: &Path) -> io::Result<OpenWatchdog> {
        // Should it be another kind of file by now, nothing waits for that.
        let file = OpenOptions::new().write(true).custom_flags(nix::libc::O_NONBLOCK).open(device)?;
        Ok(OpenWatchdog(file))
    }

    /// Has the watchdog reset the host so many seconds after each feed from now on, feeds it, and returns the seconds
    /// that the driver says it has taken.
    ///
    /// # Errors
    ///
    /// The driver does not take this time.
    pub fn set_timeout_s(&self, timeout_s: u32) -> io::Result<u32> {
        let mut seconds = c_int::try_from(timeout_s).map_err(io::Error::other)?;
        // SAFETY: the descriptor is open, and both calls read and write one int, which outlives them
        // (WDIOC_SETTIMEOUT, WDIOC_GETTIMEOUT of include/uapi/linux/watchdog.h).
        unsafe {
            set_timeout(self.0.as_raw_fd(), &raw mut seconds)?;
            get_timeout(self.0.as_raw_fd(), &raw mut seconds)?;
        }
        u32::try_from(seconds).map_err(|_| odd(format!("its timeout is {seconds} s")))
    }

    /// Feeds the watchdog.
    ///
    /// # Errors
    ///
    /// The driver reports one.
    pub fn feed(&self) -> io::Result<()> {
        // Any byte but 'V' says only that all is well.
        (&self.0).write_all(&[0])
    }
}

nix::ioctl_readwrite!(set_timeout, b'W', 6, c_int);
nix::ioctl_read!(get_timeout, b'W', 7, c_int);

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, text)| fs::write(dir.path().join(name), format!("{text}\n")).unwrap());
        dir
    }

    #[test]
    fn what_the_kernel_says_of_a_watchdog_is_read() {
        let files =
            [("identity", "SP5100 TCO timer"), ("nowayout", "1"), ("min_timeout", "1"), ("max_timeout", "65535")];
        let mut facts = WatchdogFacts {
            identity: "SP5100 TCO timer".into(),
            nowayout: true,
            min_timeout_s: 1,
            max_timeout_s: 65_535,
            pretimeout_s: 0,
        };
        assert_eq!(facts_in(dir(&files).path()).unwrap(), facts);
        let more = [&files[..], &[("pretimeout", "9"), ("nowayout", "0")]].concat();
        (facts.nowayout, facts.pretimeout_s) = (false, 9);
        assert_eq!(facts_in(dir(&more).path()).unwrap(), facts);
    }

    #[test]
    fn what_is_no_watchdog_or_not_understood_is_an_error() {
        let words = |files: &[(&str, &str)]| facts_in(dir(files).path()).unwrap_err().to_string();
        assert!(words(&[]).contains("no file identity"), "{}", words(&[]));
        assert!(words(&[("identity", "x")]).contains("no file nowayout"));
        assert!(words(&[("identity", "x"), ("nowayout", "yes")]).contains("its nowayout is 'yes'"));
        assert!(words(&[("identity", "x"), ("nowayout", "1"), ("max_timeout", "-1")]).contains("'-1'"));
        assert!(watchdog_facts(Path::new("/dev/null")).unwrap_err().to_string().contains("no file identity"));
        assert!(watchdog_facts(Path::new("/")).unwrap_err().to_string().contains("no character device"));
        assert!(watchdog_facts(Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn what_is_no_watchdog_takes_no_timeout() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = OpenWatchdog::open(file.path()).unwrap();
        assert!(open.set_timeout_s(10).is_err());
        open.feed().unwrap();
        assert_eq!(fs::read(file.path()).unwrap(), [0], "never the letter that stops a watchdog");
    }
}
