//! Starts child processes that end with this process, and keeps what they write.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

/// Bounds what is kept of QEMU's standard error: the end of it.
pub(crate) const STDERR_BYTES_MAX: usize = 16 << 10;

/// A process that is killed when dropped.
#[derive(Debug)]
pub(crate) struct Killed(pub(crate) Child);

impl Killed {
    pub(crate) fn kill(&mut self) {
        // The call fails only if the process has ended and been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Makes a process end with the thread that starts it, if that thread is killed: nobody would know of the process.
pub(crate) fn end_with_thread(command: &mut Command) {
    // SAFETY: between fork and exec, one async-signal-safe call that takes integers.
    unsafe {
        command.pre_exec(|| {
            nix::errno::Errno::result(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL)).map(drop).map_err(Into::into)
        });
    }
}

/// Keeps the end of what a process writes, until the process ends.
pub(crate) fn collect(mut from: impl Read + Send + 'static, into: Arc<Mutex<Vec<u8>>>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let mut kept = into.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            kept.extend_from_slice(&buffer[..count]);
            let excess = kept.len().saturating_sub(STDERR_BYTES_MAX);
            kept.drain(..excess);
        }
    })
}

pub(crate) fn text(stderr: &Mutex<Vec<u8>>) -> String {
    words(&stderr.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

/// Returns what a process wrote, for an error message.
pub(crate) fn words(bytes: &[u8]) -> String {
    match plain(bytes) {
        said if said.is_empty() => "it wrote nothing".into(),
        said => said,
    }
}

/// Returns what a process wrote, without the control characters that a terminal would obey.
pub(crate) fn plain(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).replace('\t', " ");
    text.replace(|char: char| char.is_control() && char != '\n', "").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_no_words() {
        assert_eq!(words(b"\x1b[2Jboom\r\nand\tmore\n"), "[2Jboom\nand more");
        assert_eq!(words(b"\r\n\x07"), "it wrote nothing");
    }
}
