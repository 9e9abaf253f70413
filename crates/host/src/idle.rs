//! Threads that take only CPU that nobody else wants.
//!
//! The kernel's class for them (SCHED_IDLE, sched(7)) counts within a control group alone: beside a guest in another group such
//! a thread still takes a third of a core. So it goes to a group of its own that is idle as a whole (`cpu.idle`, Linux 5.15), beside
//! all others: then it takes 2 %.

use std::fs;
use std::path::{Path, PathBuf};

use nix::libc;

/// The group, right below the root of the hierarchy. It stays when nobody is in it any more.
const GROUP: &str = "skein-idle";

/// Makes the calling thread one of them.
///
/// # Errors
/// Guests in other control groups may still lose some CPU to it: why, in words. Whatever could be done was done.
pub fn settle_down() -> Result<(), String> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads the parameters, which live as long as it, and changes nothing but how this thread is scheduled.
    let scheduled = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameters) };
    let grouped = join_group();
    match scheduled {
        0 => grouped,
        _ => Err(format!("SCHED_IDLE: {}", nix::Error::last())),
    }
}

fn join_group() -> Result<(), String> {
    let mounts =
        fs::read_to_string("/proc/self/mountinfo").map_err(|error| format!("/proc/self/mountinfo: {error}"))?;
    let hierarchy = hierarchy(&mounts).ok_or("no control groups with a cpu controller are mounted")?;
    let group = hierarchy.root.join(GROUP);
    let said = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let write = |file: &str, text: &str| {
        let path = group.join(file);
        fs::write(&path, text).map_err(|error| said(&path, error))
    };
    fs::create_dir_all(&group).map_err(|error| said(&group, error))?;
    if hierarchy.unified {
        // Only threads of processes that are in the root group themselves may go there (cgroups(7), "Thread mode").
        write("cgroup.type", "threaded")?;
    }
    write("cpu.idle", "1")?;
    let thread = nix::unistd::gettid().to_string();
    write(if hierarchy.unified { "cgroup.threads" } else { "tasks" }, &thread)
}

/// Where groups with a cpu controller are.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    root: PathBuf,
    /// Version 2.
    unified: bool,
}

/// By `/proc/PID/mountinfo` (proc(5)): that of version 1 with the cpu controller, else that of version 2.
fn hierarchy(mounts: &str) -> Option<Hierarchy> {
    let mount = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let root = PathBuf::from(place.split(' ').nth(4)?);
        let mut kind = kind.split(' ');
        match kind.next()? {
            "cgroup" => {
                kind.nth(1)?.split(',').any(|option| option == "cpu").then_some(Hierarchy { root, unified: false })
            }
            "cgroup2" => Some(Hierarchy { root, unified: true }),
            _ => None,
        }
    };
    let found: Vec<Hierarchy> = mounts.lines().filter_map(mount).collect();
    found.into_iter().min_by_key(|hierarchy| hierarchy.unified)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_controller_is_found() {
        let two = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let one = "31 24 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
                   32 24 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";
        let found = |mounts: &str| hierarchy(mounts).map(|found| (found.root, found.unified));
        assert_eq!(found(two), Some(("/sys/fs/cgroup".into(), true)));
        assert_eq!(found(&format!("{two}{one}")), Some(("/sys/fs/cgroup/cpu,cpuacct".into(), false)));
        for none in ["", "nonsense\n", "1 2 3 - \n", "30 24 0:26 / /tmp rw - tmpfs tmpfs rw,cpu\n"] {
            assert_eq!(found(none), None);
        }
    }

    #[test]
    fn a_thread_that_settles_down_goes_on() {
        // Whether it gets a group depends on who runs this.
        std::thread::spawn(|| println!("{:?}", settle_down())).join().unwrap();
    }
}
