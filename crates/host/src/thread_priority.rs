//! Threads for whose work a guest stands still.

use rustix::process::setpriority_process;
use rustix::thread::gettid;

/// Before all that runs as usual, behind what an administrator has put before that.
const RAISED_NICENESS: i32 = -10;

/// From now on the calling thread gets CPU soon where cores are busy, and so do threads and processes that it starts:
/// it must start nothing that works long. For threads that do little, and that a guest stands still for.
///
/// Linux has niceness for each thread (sched(7)). Without the capability for that (CAP_SYS_NICE) nothing changes.
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
