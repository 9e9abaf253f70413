//! Keeps threads near the hardware that they serve.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use skein_network::CoreList;

/// Lets the calling thread run on these cores alone, from now on. Memory that the thread touches first is then near
/// these cores, too (Documentation/admin-guide/mm/numa_memory_policy.rst, "local allocation").
///
/// Cores that the thread may not use, as an administrator has it (taskset(1), `CPUAffinity=`), are passed over. Where
/// none is left, nothing changes.
pub fn stay_on(cores: &CoreList) {
    let this_thread = Pid::from_raw(0);
    let Ok(allowed) = sched_getaffinity(this_thread) else { return };
    let mut set = CpuSet::new();
    let mut is_empty = true;
    for core in cores.0.iter().map(|core| *core as usize) {
        // Cores beyond the set's size are not told: the C library's has 1024.
        if allowed.is_set(core) == Ok(true) {
            is_empty &= set.set(core).is_err();
        }
    }
    if !is_empty {
        let _ = sched_setaffinity(this_thread, &set);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn own() -> Vec<u32> {
        let set = sched_getaffinity(Pid::from_raw(0)).unwrap();
        (0..CpuSet::count() as u32).filter(|core| set.is_set(*core as usize).unwrap()).collect()
    }

    #[test]
    fn the_calling_thread_alone_stays_on_its_cores() {
        let before = own();
        let last = *before.last().unwrap();
        let others = CoreList(before.iter().copied().filter(|core| *core != last).collect());
        let stayed = thread::spawn(move || {
            stay_on(&CoreList([last].into()));
            let alone = own();
            stay_on(&CoreList([1000, 8000].into()));
            stay_on(&others);
            (alone, own())
        });
        let (alone, after_none) = stayed.join().unwrap();
        assert_eq!(
            (alone, after_none),
            (vec![last], vec![last]),
            "cores that are not there, or not allowed, change nothing"
        );
        assert_eq!(own(), before);
    }
}
