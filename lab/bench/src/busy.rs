//! Guests' work on all cores of the machine, in a control group of its own, as guests are kept on a host.
//!
//! Another group is for the host's own programs: the agents, and what they start. Both groups weigh the same, as
//! systemd's `machine.slice` and `system.slice` do. So the guests lose what a mover takes beyond what is idle, however
//! modest its threads are within their own group. The guests' work is a loop of a shell on each core. The kernel's
//! account of the group says what CPU they got.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use crate::process::{Process, ProcessError};

/// The file in which the kernel lists what is mounted.
const MOUNTS: &str = "/proc/self/mounts";

/// The time for the processes of a group to end.
const GONE_DEADLINE: Duration = Duration::from_secs(2);

/// Why there can be no work for guests.
#[derive(Debug, thiserror::Error)]
pub enum BusyError {
    /// There are no control groups.
    #[error("no control groups with the cpu controller are mounted here")]
    NoHierarchy,
    /// A file of a control group failed.
    #[error("the control group's {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file of a control group has an unexpected content.
    #[error("{0} does not say what the group used")]
    Account(PathBuf),
    /// The work could not be started or ended.
    #[error("the guests' work")]
    Process(#[from] ProcessError),
}

/// The two groups, and the work in that of the guests. Dropping this removes them.
#[derive(Debug)]
pub struct Busy {
    guests: Group,
    host: Group,
    directory: tempfile::TempDir,
}

/// Guests at work. Dropping this ends them.
#[derive(Debug)]
pub struct AtWork {
    _loops: Vec<Process>,
}

impl Busy {
    /// Makes the groups. `name` must be unique on this machine.
    ///
    /// # Errors
    ///
    /// [`BusyError`] if there are no control groups, or one cannot be made.
    pub fn new(name: &str) -> Result<Self, BusyError> {
        let mounts = fs::read_to_string(MOUNTS).map_err(file(Path::new(MOUNTS)))?;
        let hierarchy =
            Hierarchy::of(&mounts, |root| fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default());
        let hierarchy = hierarchy.ok_or(BusyError::NoHierarchy)?;
        let group = |part| Group::make(&hierarchy, &format!("{name}-{part}"));
        let directory = tempfile::tempdir().map_err(file(&std::env::temp_dir()))?;
        Ok(Self { guests: group("guests")?, host: group("host")?, directory })
    }

    /// Returns the files by which a process gets into the group of the host's own programs.
    pub fn host(&self) -> Members {
        self.host.members.clone()
    }

    /// Makes guests work on every core.
    ///
    /// # Errors
    ///
    /// [`BusyError`] if the work cannot be started.
    pub fn work(&self) -> Result<AtWork, BusyError> {
        let work = |n| {
            let mut command = Command::new("sh");
            command.args(["-c", "while :; do :; done"]);
            let process = Process::start(command, &self.directory.path().join(format!("{n}")))?;
            self.guests.members.add(process.pid())?;
            Ok::<_, BusyError>(process)
        };
        Ok(AtWork { _loops: (0..cores()).map(work).collect::<Result<_, _>>()? })
    }

    /// Returns a function that reads how many seconds of CPU the guests have had so far. It returns `None` once the
    /// group is gone.
    pub fn account(&self) -> impl Fn() -> Option<f64> + Send + 'static {
        let (file, kind) = (self.guests.account.clone(), self.guests.kind);
        move || kind.used_s(&fs::read_to_string(&file).ok()?)
    }
}

/// Returns the number of cores that guests work on: those that this program may use.
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32)
}

/// The files that make a process a member of a group.
#[derive(Clone, Debug)]
pub struct Members(Vec<PathBuf>);

impl Members {
    /// Makes a process, and what it will start, members.
    ///
    /// # Errors
    ///
    /// [`BusyError::File`] if a file cannot be written.
    pub fn add(&self, pid: u32) -> Result<(), BusyError> {
        self.0.iter().try_for_each(|path| fs::write(path, pid.to_string()).map_err(file(path)))
    }
}

/// The hierarchies in which control groups are made.
#[derive(Debug, PartialEq, Eq)]
enum Hierarchy {
    /// The hierarchy of all controllers, of cgroups(7) version 2.
    Unified(PathBuf),
    /// The hierarchies of version 1: that of the cpu controller, and that of its account, which may be the same.
    Separate { cpu: PathBuf, account: PathBuf },
}

/// The format of a group's account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The line `usage_usec N` of `cpu.stat`.
    Unified,
    /// The content of `cpuacct.usage`, in nanoseconds.
    Separate,
}

impl Kind {
    fn used_s(self, text: &str) -> Option<f64> {
        let (number, a_second) = match self {
            Kind::Unified => (text.lines().find_map(|line| line.strip_prefix("usage_usec "))?, 1e6),
            Kind::Separate => (text, 1e9),
        };
        Some(number.trim().parse::<u64>().ok()? as f64 / a_second)
    }
}

impl Hierarchy {
    /// Finds the hierarchy in the text of proc_pid_mounts(5). `controllers` returns the controllers of a root of
    /// version 2, which may have only those that version 1 does not have.
    fn of(mounts: &str, controllers: impl Fn(&Path) -> String) -> Option<Self> {
        let mounts: Vec<(PathBuf, &str, &str)> = mounts
            .lines()
            .filter_map(|line| {
                let mut fields = line.split(' ').skip(1);
                Some((fields.next()?.into(), fields.next()?, fields.next()?))
            })
            .collect();
        let unified = mounts.iter().find(|(root, kind, _)| {
            *kind == "cgroup2" && controllers(root).split_whitespace().any(|controller| controller == "cpu")
        });
        let separate = |controller: &str| {
            let mut found = mounts.iter().filter(|(_, kind, _)| *kind == "cgroup");
            found.find(|(_, _, options)| options.split(',').any(|o| o == controller)).map(|(root, _, _)| root.clone())
        };
        match unified {
            Some((root, _, _)) => Some(Hierarchy::Unified(root.clone())),
            None => Some(Hierarchy::Separate { cpu: separate("cpu")?, account: separate("cpuacct")? }),
        }
    }
}

/// A control group, which is removed when dropped. Its processes have to have ended by then.
#[derive(Debug)]
struct Group {
    directories: Vec<PathBuf>,
    members: Members,
    account: PathBuf,
    kind: Kind,
}

impl Group {
    fn make(hierarchy: &Hierarchy, name: &str) -> Result<Self, BusyError> {
        let (directories, account, kind) = match hierarchy {
            Hierarchy::Unified(root) => {
                let control = root.join("cgroup.subtree_control");
                fs::write(&control, "+cpu").map_err(file(&control))?;
                (vec![root.join(name)], root.join(name).join("cpu.stat"), Kind::Unified)
            }
            Hierarchy::Separate { cpu, account } => {
                let mut directories = vec![cpu.join(name), account.join(name)];
                directories.dedup();
                (directories, account.join(name).join("cpuacct.usage"), Kind::Separate)
            }
        };
        let members = Members(directories.iter().map(|directory| directory.join("cgroup.procs")).collect());
        let group = Self { directories, members, account, kind };
        for directory in &group.directories {
            fs::create_dir_all(directory).map_err(file(directory))?;
        }
        let account = fs::read_to_string(&group.account).map_err(file(&group.account))?;
        group.kind.used_s(&account).ok_or_else(|| BusyError::Account(group.account.clone()))?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let end = Instant::now() + GONE_DEADLINE;
        for directory in &self.directories {
            // A process that was just killed may still be in the group for a moment.
            while directory.exists() && remove(directory).is_err() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Removes a group, and those that its members may have made below it. The groups' files are removed with them.
fn remove(group: &Path) -> io::Result<()> {
    for entry in fs::read_dir(group)?.flatten().filter(|entry| entry.path().is_dir()) {
        remove(&entry.path())?;
    }
    fs::remove_dir(group)
}

fn file(path: &Path) -> impl FnOnce(io::Error) -> BusyError {
    let path = path.to_owned();
    move |source| BusyError::File { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_both_versions() {
        let two = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let one = "cgroup /c/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n";
        let mixed = "none /c/cpu cgroup rw,cpu 0 0\nnone /c/cpuset cgroup rw,cpuset 0 0\n\
                     none /c/acct cgroup rw,cpuacct 0 0\ncgroup2 /c/unified cgroup2 rw 0 0\n";
        let of = |mounts: &str, controllers: &str| Hierarchy::of(mounts, |_| controllers.into());
        let separate = |cpu: &str, account: &str| Hierarchy::Separate { cpu: cpu.into(), account: account.into() };
        assert_eq!(of(two, "cpuset cpu io\n"), Some(Hierarchy::Unified("/sys/fs/cgroup".into())));
        assert_eq!(of(two, "cpuset io\n"), None);
        assert_eq!(of(one, ""), Some(separate("/c/cpu,cpuacct", "/c/cpu,cpuacct")));
        assert_eq!(of(mixed, ""), Some(separate("/c/cpu", "/c/acct")));
        assert_eq!(of("", "cpu"), None);
    }

    #[test]
    fn accounts_of_both_versions() {
        let two = "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n";
        assert_eq!(Kind::Unified.used_s(two), Some(2.5));
        assert_eq!(Kind::Separate.used_s("1500000000\n"), Some(1.5));
        assert_eq!(Kind::Unified.used_s("1500000000\n"), None);
        assert_eq!(Kind::Separate.used_s(two), None);
    }
}
