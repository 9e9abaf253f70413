//! Raises the priority of threads for whose work a guest stands still, and lowers that of threads nobody waits for.

use rustix::process::setpriority_process;
use rustix::thread::gettid;

/// Puts a thread before all that runs as usual, and behind what an administrator has put before that.
const RAISED_NICENESS: i32 = -10;
/// Puts a thread behind all that runs as usual, with a tenth of what such a thread gets of a core that both want:
/// sched_prio_to_weight in Linux' kernel/sched/core.c.
const LOWERED_NICENESS: i32 = 10;

/// Gives the calling thread CPU soon where cores are busy, from now on. The same holds for threads and processes that
/// the thread starts, so it must start nothing that works long. The call is for threads that do little while a guest
/// stands still.
///
/// Linux has niceness for each thread (sched(7)). Without the capability for niceness (CAP_SYS_NICE) nothing changes.
pub fn raise_thread_priority() {
    let _ = setpriority_process(Some(gettid()), RAISED_NICENESS);
}

/// Gives the calling thread CPU after others where cores are busy, from now on. The same holds for threads and
/// processes that the thread starts. The call is for threads whose work makes what follows cheaper, and for which
/// nothing waits meanwhile.
pub fn lower_thread_priority() {
    let _ = setpriority_process(Some(gettid()), LOWERED_NICENESS);
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    fn nice() -> i32 {
        getpriority_process(Some(gettid())).unwrap()
    }

    /// Returns the niceness of a thread that has changed its priority so.
    fn nice_after(change: fn()) -> i32 {
        let changed = std::thread::spawn(move || {
            change();
            nice()
        });
        changed.join().unwrap()
    }

    #[test]
    fn is_lowered_for_the_calling_thread_alone() {
        let before = nice();
        assert_eq!(nice_after(lower_thread_priority), before.max(LOWERED_NICENESS));
        assert_eq!(nice(), before);
    }

    #[test]
    fn is_raised_for_the_calling_thread_alone() {
        let before = nice();
        let promptly = nice_after(raise_thread_priority);
        assert!(
            promptly == RAISED_NICENESS || promptly == before && !rustix::process::geteuid().is_root(),
            "{promptly}"
        );
        assert_eq!(nice(), before);
    }
}
