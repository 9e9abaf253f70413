//! Makes a process take only CPU that nobody else wants.
//!
//! The kernel's class for threads (SCHED_IDLE, sched(7)) counts within a control group alone: beside a guest in another
//! group such a thread still takes a third of a core. So the process goes to a group that is idle as a whole
//! (`cpu.idle`, Linux 5.15), beside all others. There the process takes 2 %. Under control groups of version 2 only a
//! process can do that, because a thread cannot leave its group.

use std::fs;
use std::path::{Path, PathBuf};

use nix::libc;

/// Names the group, right below the root of the hierarchy. The group stays when nobody is in it any more.
const IDLE_GROUP: &str = "skein-idle";
/// Names the same group where systemd owns the hierarchy: a unit with `CPUWeight=idle` (systemd 252). A name with a
/// dash would mean a slice within another.
const IDLE_SLICE: &str = "skeinidle.slice";

/// Returns the words that, before a program's own, start the program as an idle process where systemd has to be asked.
/// `None`: the program gets there by [`settle_down`]. The program has to call [`settle_down`] in any case.
pub fn starter() -> Option<Vec<String>> {
    let by_systemd = Path::new("/run/systemd/system").exists() && nix::unistd::geteuid().is_root();
    let unified = own_hierarchy().is_ok_and(|hierarchy| hierarchy.unified);
    let slice = format!("--slice={IDLE_SLICE}");
    let words =
        ["systemd-run", "--scope", "--quiet", "--collect", "--no-ask-password", &slice, "--property=CPUWeight=idle"];
    (by_systemd && unified).then(|| words.map(str::to_owned).into())
}

/// Makes the calling process an idle process. The call has to come before the process has other threads.
///
/// # Errors
/// Guests in other control groups may still lose some CPU to the process; the text says why. Whatever could be done was
/// done.
pub fn settle_down() -> Result<(), String> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads the parameters, which live as long as it, and changes nothing but how this thread, and
    // those that it will start, are scheduled.
    let scheduled = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameters) };
    let grouped = join_group();
    match scheduled {
        0 => grouped,
        _ => Err(format!("SCHED_IDLE: {}", nix::Error::last())),
    }
}

fn join_group() -> Result<(), String> {
    let hierarchy = own_hierarchy()?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    // The groups of an idle group are idle, too. Only how a group stands beside the others below the root counts.
    if let Some(top) = hierarchy.top_group(&groups) {
        let idle = hierarchy.root.join(top).join("cpu.idle");
        match fs::read_to_string(&idle) {
            Ok(text) if text.trim() == "1" => return Ok(()),
            Ok(_) if top == IDLE_SLICE => return Err(format!("{} is not 1: install {IDLE_SLICE}", idle.display())),
            Err(error) if top == IDLE_SLICE => return Err(format!("{}: {error}", idle.display())),
            _ => {}
        }
    }
    let write =
        |path: PathBuf, text: &str| fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()));
    let group = hierarchy.root.join(IDLE_GROUP);
    if hierarchy.unified {
        write(hierarchy.root.join("cgroup.subtree_control"), "+cpu")?;
    }
    fs::create_dir_all(&group).map_err(|error| format!("{}: {error}", group.display()))?;
    write(group.join("cpu.idle"), "1")?;
    write(group.join("cgroup.procs"), &std::process::id().to_string())
}

fn own_hierarchy() -> Result<Hierarchy, String> {
    let mounts =
        fs::read_to_string("/proc/self/mountinfo").map_err(|error| format!("/proc/self/mountinfo: {error}"))?;
    Ok(hierarchy(&mounts).ok_or("no control groups with a cpu controller are mounted")?)
}

/// The hierarchy whose groups have a cpu controller.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    root: PathBuf,
    /// Whether the hierarchy is of version 2.
    unified: bool,
}

impl Hierarchy {
    /// Returns the group below the root that holds a process, by the process's `/proc/PID/cgroup` (cgroups(7)).
    fn top_group<'a>(&self, groups: &'a str) -> Option<&'a str> {
        let path = |line: &'a str| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let is_own = match self.unified {
                true => controllers.is_empty(),
                false => controllers.split(',').any(|controller| controller == "cpu"),
            };
            is_own.then_some(path)
        };
        let top = groups.lines().find_map(path)?.strip_prefix('/')?.split('/').next()?;
        (!top.is_empty()).then_some(top)
    }
}

/// Finds the hierarchy in `/proc/PID/mountinfo` (proc(5)): of version 1 with the cpu controller, else of version 2.
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
    fn the_group_below_the_root_is_found() {
        let top = |unified: bool, groups| Hierarchy { root: "/".into(), unified }.top_group(groups).map(str::to_owned);
        let groups = "9:name=systemd:/a/b\n1:cpu,cpuacct:/guests/one:two\n0::/skeinidle.slice/run-r1.scope\n";
        assert_eq!(top(true, groups).as_deref(), Some("skeinidle.slice"));
        assert_eq!(top(false, groups).as_deref(), Some("guests"));
        for none in ["", "0::/\n", "nonsense", "1:cpuset:/a\n", "0::relative\n"] {
            assert_eq!((top(true, none), top(false, none)), (None, None), "{none}");
        }
    }
}
