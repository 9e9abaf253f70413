//! Whether this host takes guests: not while it is about to be switched off.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use tracing::{info, warn};

/// Until when the host takes no guests. It is in a file that does not outlive a boot, so that an agent that is started
/// again knows.
pub(super) struct Closing {
    path: PathBuf,
    /// By the kernel's clock since the boot.
    until: Mutex<Option<Duration>>,
}

fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

impl Closing {
    pub(super) fn read(path: PathBuf) -> Closing {
        let seconds = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
        Closing { path, until: Mutex::new(seconds.map(Duration::from_secs)) }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.until.lock().is_some_and(|until| since_boot() < until)
    }

    /// Closes the host for a time.
    ///
    /// # Errors
    /// That cannot be written down.
    pub(super) fn close(&self, time: Duration) -> io::Result<()> {
        let until = since_boot() + time;
        fs::write(&self.path, until.as_secs().to_string())?;
        info!("this host takes no guests for {} s: it is about to be switched off", time.as_secs());
        *self.until.lock() = Some(until);
        Ok(())
    }

    /// Opens the host again.
    pub(super) fn open(&self) {
        if self.until.lock().take().is_some() {
            info!("this host takes guests again");
        }
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn!("{} cannot be removed: {error}", self.path.display());
            }
            _ => {}
        }
    }
}
