//! Runs code in another network namespace.

use std::fs::File;
use std::io;
use std::path::Path;
use std::thread;

use nix::sched::{CloneFlags, setns};

/// Runs `work` in a thread of its own inside the network namespace that `path` names (`/run/netns/NAME` or
/// `/proc/PID/ns/net`) and returns the result of `work`. The calling thread stays where it is. Sockets made inside
/// belong to that namespace for as long as they live, wherever they are used.
///
/// Only *network* state changes: `/sys` still shows the old namespace, `/proc/sys/net` and `/proc/thread-self/net` the
/// new one.
///
/// # Errors
/// The namespace cannot be opened or entered: it is gone, or the caller is not root.
///
/// # Panics
/// With the panic of `work`, if `work` panics.
pub fn enter<T: Send>(path: &Path, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let namespace = File::open(path)?;
    thread::scope(|scope| {
        let inside = scope.spawn(move || {
            setns(&namespace, CloneFlags::CLONE_NEWNET)?;
            Ok(work())
        });
        inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
