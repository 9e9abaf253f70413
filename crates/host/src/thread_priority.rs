//! Raises the priority of threads for whose work a guest stands still.

use rustix::process::setpriority_process;
use rustix::thread::gettid;

/// Puts a thread before all that runs as usual, and behind what an administrator has put before that.
const RAISED_NICENESS: i32 = -10;

/// Gives the calling thread CPU soon where cores are busy, from now on. The same holds for threads and processes that
/// the thread starts, so it must start nothing that works long. The call is for threads that do little while a guest
/// stands still.
///
/// Linux has niceness for each thread (sched(7)). Without the capability for niceness (CAP_SYS_NICE) nothing changes.
pub fn raise_thread_priority() {
    let _ = setpriority_process(Some(gettid()), RAISED_NICENESS);
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    #[test]
    fn of_the_calling_thread_alone() {
        let nice = || getpriority_process(Some(gettid())).unwrap();
        let before = nice();
        let promptly = std::thread::spawn(move || {
            raise_thread_priority();
            nice()
        });
        let promptly = promptly.join().unwrap();
        assert!(
            promptly == RAISED_NICENESS || promptly == before && !rustix::process::geteuid().is_root(),
            "{promptly}"
        );
        assert_eq!(nice(), before);
    }
}
