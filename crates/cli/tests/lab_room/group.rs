//! A control group with real limits, in which an agent is started.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use skein_lab_cluster::Start;

/// A control group for memory and one for tasks. Dropping it removes it with all processes that are still in it.
pub struct Group {
    is_v2: bool,
    memory: PathBuf,
    tasks: PathBuf,
}

impl Group {
    /// Makes a group. Returns `None`, and prints why, if there are no control groups.
    pub fn new() -> Option<Group> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("skein-room-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let root = Path::new("/sys/fs/cgroup");
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let is_v2 = controllers.split_whitespace().any(|name| name == "memory");
        if is_v2 {
            let _ = fs::write(root.join("cgroup.subtree_control"), "+memory +pids");
        } else if !root.join("memory/memory.limit_in_bytes").exists() {
            println!("skipped: control groups for memory are not mounted here");
            return None;
        }
        let dir = |controller: &str| if is_v2 { root.join(&name) } else { root.join(controller).join(&name) };
        let group = Group { is_v2, memory: dir("memory"), tasks: dir("pids") };
        for dir in [&group.memory, &group.tasks] {
            if let Err(error) = fs::create_dir(dir).or_else(|error| if dir.is_dir() { Ok(()) } else { Err(error) }) {
                println!("skipped: no control group can be made here: {error}");
                return None;
            }
        }
        if !group.memory.join(group.limit_file()).exists() {
            println!("skipped: control groups below {} have no memory controller", root.display());
            return None;
        }
        Some(group)
    }

    /// Returns the directory of the memory group.
    pub fn dir(&self) -> &Path {
        &self.memory
    }

    /// Returns the name of the file with the limit of memory.
    pub fn limit_file(&self) -> &'static str {
        if self.is_v2 { "memory.max" } else { "memory.limit_in_bytes" }
    }

    /// Returns how to start an agent in the group.
    pub fn start(&self, dir: &Path) -> Start {
        let script = dir.join("in-group");
        let program = env!("CARGO_BIN_EXE_skein");
        let text = format!(
            "#!/bin/sh\necho $$ >{}/cgroup.procs; echo $$ >{}/cgroup.procs\nexec {program} \"$@\"\n",
            self.memory.display(),
            self.tasks.display()
        );
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        Start { program: Some(script), ..Start::default() }
    }

    /// Limits memory, with what the group may swap.
    pub fn limit(&self, bytes: u64) {
        let write = |file: &str, value: u64| fs::write(self.memory.join(file), value.to_string());
        if self.is_v2 {
            write("memory.swap.max", 0).unwrap();
            return write("memory.max", bytes).unwrap();
        }
        // The smaller of the two limits has to grow first and shrink last. Not every kernel counts swap.
        let _ = write("memory.memsw.limit_in_bytes", bytes);
        write("memory.limit_in_bytes", bytes).unwrap();
        let _ = write("memory.memsw.limit_in_bytes", bytes);
    }

    /// Returns how many bytes are in use.
    pub fn used(&self) -> u64 {
        let file = if self.is_v2 { "memory.current" } else { "memory.usage_in_bytes" };
        fs::read_to_string(self.memory.join(file)).unwrap().trim().parse().unwrap()
    }

    /// Limits threads and processes.
    pub fn limit_tasks(&self, tasks: Option<u64>) {
        let text = tasks.map_or("max".into(), |tasks| tasks.to_string());
        fs::write(self.tasks.join("pids.max"), text).unwrap();
    }

    pub fn tasks(&self) -> u64 {
        fs::read_to_string(self.tasks.join("pids.current")).unwrap().trim().parse().unwrap()
    }

    /// Returns how many processes of the group the kernel killed.
    pub fn kills(&self) -> u64 {
        let file = if self.is_v2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.memory.join(file)).unwrap();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes have been killed, and are gone in a moment.
        let end = Instant::now() + Duration::from_secs(10);
        while [&self.memory, &self.tasks].iter().any(|dir| dir.is_dir() && fs::remove_dir(dir).is_err()) {
            if Instant::now() > end {
                return println!("{} stays: it is not empty", self.memory.display());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
