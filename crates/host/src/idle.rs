//! Threads that take only CPU that nobody else wants.

use nix::libc;

/// Makes the calling thread one of them: SCHED_IDLE (sched(7)). Does what it can; a thread that it cannot be done for goes on
/// as before.
pub fn settle_down() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads the parameters, which live as long as it, and changes nothing but how this thread is scheduled.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameters) };
}
