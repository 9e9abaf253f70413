//! Reads the control groups of a process, and the limits of those groups and of all groups above them.
//!
//! The kernel's word is taken: `/proc/PID/cgroup` names the groups (cgroups(7)), `/proc/self/mountinfo` says where
//! their hierarchies are mounted (proc_pid_mountinfo(5)). Version 1, version 2 and both at once are read. A namespace
//! of control groups hides what is above its root. Such a group is reported as unread, because nobody can read its
//! limit.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Bounds how many groups above each other are read. The kernel's own bound is `cgroup.max.depth`, which by default is
/// no limit.
const DEPTH_MAX: usize = 64;
/// Says how much of a group's page cache stays, because the running program is in it. `si_mem_available` of the
/// kernel's mm/show_mem.c leaves such a part to the host.
const CACHE_KEPT_BYTES: u64 = 16 << 20;
/// Holds the value from which on a limit of version 1 means none: `PAGE_COUNTER_MAX` of the kernel's
/// include/linux/page_counter.h, in bytes.
const UNLIMITED_FROM: u64 = i64::MAX as u64 / 4096 * 4096;

/// A resource that a control group limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupResource {
    /// Memory, in bytes.
    Memory,
    /// Huge pages of one size, in bytes.
    HugePages {
        /// The size of one page, in bytes.
        page_bytes: u64,
    },
    /// Processes and threads.
    Tasks,
}

/// A limit of a control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    /// The limited resource.
    pub resource: GroupResource,
    /// The group's directory, as this host mounts it.
    pub dir: PathBuf,
    /// The file that holds the limit: `memory.max`.
    pub file: String,
    /// How much the group and the groups below it may have.
    pub limit: u64,
    /// How much the group and the groups below it have and cannot give back at once. Clean page cache does not count.
    pub used: u64,
}

/// The control groups of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlGroups {
    chains: Vec<Chain>,
    /// What could not be read of the groups, in words.
    pub unread: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Chain {
    is_v2: bool,
    /// The controllers of a hierarchy of version 1.
    controllers: BTreeSet<String>,
    /// The groups' directories: the process's group first, the topmost visible group last.
    dirs: Vec<PathBuf>,
}

/// A mounted hierarchy.
struct Mount {
    is_v2: bool,
    controllers: BTreeSet<String>,
    /// The group that is the root of what is mounted.
    root: PathBuf,
    point: PathBuf,
}

impl ControlGroups {
    /// Returns the control groups of this process.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn own() -> io::Result<ControlGroups> {
        ControlGroups::read(Path::new("/proc/self/cgroup"))
    }

    /// Returns the control groups of another process.
    ///
    /// # Errors
    /// The process has ended, or `/proc` cannot be read.
    pub fn of(pid: u32) -> io::Result<ControlGroups> {
        ControlGroups::read(&PathBuf::from(format!("/proc/{pid}/cgroup")))
    }

    fn read(file: &Path) -> io::Result<ControlGroups> {
        let mounts = fs::read("/proc/self/mountinfo")?;
        Ok(ControlGroups::parse(&fs::read_to_string(file)?, &String::from_utf8_lossy(&mounts), Path::new("/")))
    }

    /// Reads the texts of the two files. Mount points are below `base`.
    fn parse(groups: &str, mountinfo: &str, base: &Path) -> ControlGroups {
        let mounts: Vec<Mount> = mountinfo.lines().filter_map(mount).collect();
        let mut found = ControlGroups::default();
        for line in groups.lines() {
            // The lines look like `4:memory:/a/b` and `0::/a/b`.
            let mut fields = line.splitn(3, ':');
            let (Some(number), Some(names), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
                found.unread.push(format!("a control group that is told as {line:?}"));
                continue;
            };
            let is_v2 = number == "0" && names.is_empty();
            let controllers: BTreeSet<String> = names.split(',').map(str::to_owned).collect();
            if !is_v2 && !["memory", "hugetlb", "pids"].iter().any(|limiting| controllers.contains(*limiting)) {
                continue;
            }
            let shown = || if is_v2 { path.to_owned() } else { format!("{names}:{path}") };
            let path = path.strip_suffix(" (deleted)").unwrap_or(path);
            let of_this = |mount: &&Mount| mount.is_v2 == is_v2 && (is_v2 || mount.controllers == controllers);
            let below = |mount: &Mount| {
                let rest = Path::new(path).strip_prefix(&mount.root).ok()?;
                let is_plain = rest.components().all(|part| matches!(part, std::path::Component::Normal(_)));
                is_plain.then(|| rest.to_owned())
            };
            let at = mounts.iter().filter(of_this).find_map(|mount| Some((mount, below(mount)?)));
            let Some((mount, rest)) = at else {
                // The root of a hierarchy has no limits.
                if path != "/" {
                    found
                        .unread
                        .push(format!("the limits of the control group {}, which is not mounted here", shown()));
                }
                continue;
            };
            let top = base.join(mount.point.strip_prefix("/").unwrap_or(&mount.point));
            let leaf = top.join(rest);
            let dirs: Vec<PathBuf> =
                leaf.ancestors().take_while(|dir| dir.starts_with(&top)).take(DEPTH_MAX).map(Path::to_owned).collect();
            // Only the root of a whole hierarchy lacks `cgroup.type` (version 2), or has `release_agent` (version 1).
            let is_root = if is_v2 { !top.join("cgroup.type").exists() } else { top.join("release_agent").exists() };
            if top.exists() && !is_root {
                found.unread.push(format!(
                    "limits above {}: a namespace or a mount of control groups hides what is there",
                    top.display()
                ));
            }
            if !leaf.exists() {
                found.unread.push(format!("the limits of the control group {}, which is gone", shown()));
            }
            found.chains.push(Chain { is_v2, controllers, dirs });
        }
        found
    }

    /// Returns whether the process is in the group `dir` or in a group below it.
    pub fn is_in(&self, dir: &Path) -> bool {
        self.chains.iter().any(|chain| chain.dirs.iter().any(|own| own == dir))
    }

    /// Returns all limits that are set, of the process's groups and of the groups above them. The second list names the
    /// files that exist and cannot be read.
    pub fn limits(&self) -> (Vec<GroupLimit>, Vec<String>) {
        let (mut limits, mut unread) = (Vec::new(), self.unread.clone());
        for chain in &self.chains {
            for (depth, dir) in chain.dirs.iter().enumerate() {
                let mut group = Group { dir, is_v2: chain.is_v2, limits: &mut limits, unread: &mut unread };
                if chain.is_v2 || chain.controllers.contains("memory") {
                    // In version 1 before Linux 5.11, a group without `memory.use_hierarchy` is not charged for the
                    // groups below it.
                    let is_charged =
                        depth == 0 || chain.is_v2 || group.text("memory.use_hierarchy").is_none_or(|on| on != "0");
                    if is_charged {
                        group.memory();
                    }
                }
                if chain.is_v2 || chain.controllers.contains("hugetlb") {
                    group.huge_pages();
                }
                if chain.is_v2 || chain.controllers.contains("pids") {
                    group.limit(GroupResource::Tasks, "pids.max", "pids.current", 0);
                }
            }
        }
        (limits, unread)
    }

    /// Returns how many processes of the process's own memory group the kernel killed for lack of memory (`oom_kill`),
    /// and the group. The exceeded limit may be the group's, that of a group above it, or the host's memory. `None`:
    /// the kernel does not say.
    pub fn oom_kills(&self) -> Option<(PathBuf, u64)> {
        let chains = self.chains.iter().filter(|chain| chain.is_v2 || chain.controllers.contains("memory"));
        chains
            .filter_map(|chain| {
                let dir = chain.dirs.first()?;
                // `memory.events.local`, where the kernel has it, does not count what happened in groups below.
                let files: &[&str] =
                    if chain.is_v2 { &["memory.events.local", "memory.events"] } else { &["memory.oom_control"] };
                let text = files.iter().find_map(|file| fs::read_to_string(dir.join(file)).ok())?;
                Some((dir.clone(), value(&text, "oom_kill")?))
            })
            .next()
    }
}

/// Returns the hierarchy that a line of mountinfo mounts; `None` if the line mounts something else.
fn mount(line: &str) -> Option<Mount> {
    // Example: 36 35 98:0 /root /point options shared:1 - type source superoptions
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, point) = (unescaped(left.next()?), unescaped(left.next()?));
    let mut right = right.split(' ');
    let (kind, options) = (right.next()?, right.nth(1).unwrap_or_default());
    let is_v2 = match kind {
        "cgroup2" => true,
        "cgroup" => false,
        _ => return None,
    };
    // The options hold `rw` and `xattr`, too. What is no controller is in no controllers' set of /proc/PID/cgroup.
    let is_option = |option: &&str| !matches!(*option, "rw" | "ro" | "xattr" | "noprefix" | "clone_children" | "");
    let controllers =
        options.split(',').filter(is_option).filter(|o| !o.starts_with("release_agent=")).map(str::to_owned).collect();
    Some(Mount { is_v2, controllers, root: root.into(), point: point.into() })
}

/// Decodes `\040` and its like: a space, a tab, a line's end and a backslash.
fn unescaped(field: &str) -> String {
    let octals = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    octals.iter().fold(field.to_owned(), |text, (octal, plain)| text.replace(octal, plain))
}

/// Returns the number after `name`, of a file with one `name number` in each line.
fn value(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// A group whose limits are being collected.
struct Group<'a> {
    dir: &'a Path,
    is_v2: bool,
    limits: &'a mut Vec<GroupLimit>,
    unread: &'a mut Vec<String>,
}

impl Group<'_> {
    /// Returns the text of a file of the group; `None` if the group has no such file.
    fn text(&mut self, file: &str) -> Option<String> {
        let path = self.dir.join(file);
        match fs::read_to_string(&path) {
            Ok(text) => Some(text.trim().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // ENODEV means that the group was removed.
            Err(error) => {
                self.unread.push(format!("{}: {error}", path.display()));
                None
            }
        }
    }

    /// Returns the number in a file; `None` if there is no such file, or no limit.
    fn number(&mut self, file: &str) -> Option<u64> {
        let text = self.text(file)?;
        if text == "max" {
            return None;
        }
        // Some kernels' page counter of 1.8e19 bytes takes more than 64 bits.
        let number = text.parse::<u64>().ok();
        if number.is_none() {
            self.unread.push(format!("{} says {text:?}", self.dir.join(file).display()));
        }
        number.filter(|number| *number < UNLIMITED_FROM)
    }

    /// Adds a limit, if one is set. `free` says how much of the usage can be given back at once.
    fn limit(&mut self, resource: GroupResource, file: &str, used: &str, free: u64) {
        let Some(limit) = self.number(file) else { return };
        let Some(used) = self.number(used) else {
            let what = format!("how much is used of {} ({limit})", self.dir.join(file).display());
            return self.unread.push(what);
        };
        let (dir, file) = (self.dir.to_owned(), file.to_owned());
        self.limits.push(GroupLimit { resource, dir, file, limit, used: used.saturating_sub(free) });
    }

    fn memory(&mut self) {
        let limits: &[(&str, &str)] = match self.is_v2 {
            // Beyond `high` the kernel holds up those who allocate until little goes on. A guest cannot run there
            // either.
            true => &[("memory.max", "memory.current"), ("memory.high", "memory.current")],
            false => &[
                ("memory.limit_in_bytes", "memory.usage_in_bytes"),
                ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"),
            ],
        };
        let is_set = limits.iter().any(|(limit, _)| self.number(limit).is_some());
        let free = if is_set { self.text("memory.stat").map_or(0, |stat| reclaimable(&stat, self.is_v2)) } else { 0 };
        for (limit, used) in limits {
            self.limit(GroupResource::Memory, limit, used, free);
        }
    }

    fn huge_pages(&mut self) {
        let Ok(files) = fs::read_dir(self.dir) else { return };
        let names: BTreeSet<String> = files.flatten().filter_map(|file| file.file_name().into_string().ok()).collect();
        let (limit, used) = if self.is_v2 { ("max", "current") } else { ("limit_in_bytes", "usage_in_bytes") };
        for size in
            names.iter().filter_map(|name| name.strip_prefix("hugetlb.")?.strip_suffix(limit)?.strip_suffix('.'))
        {
            // The size is `2MB`, or `2MB.rsvd` for what is reserved.
            let plain = size.strip_suffix(".rsvd").unwrap_or(size);
            let Some(page_bytes) = page_bytes(plain) else { continue };
            let [limit, used] = [limit, used].map(|what| format!("hugetlb.{size}.{what}"));
            self.limit(GroupResource::HugePages { page_bytes }, &limit, &used, 0);
        }
    }
}

/// Reads a size as `2MB`, as hugetlb_cgroup_file_init of the kernel's mm/hugetlb_cgroup.c writes it.
fn page_bytes(text: &str) -> Option<u64> {
    let (digits, shift) = [("KB", 10), ("MB", 20), ("GB", 30)]
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)))?;
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Returns how much page cache the kernel lets go of before it kills a process: the clean pages of this group and of
/// the groups below it. Memory of tmpfs and memfd is no part of it.
fn reclaimable(stat: &str, is_v2: bool) -> u64 {
    let get = |name: &str| value(stat, &if is_v2 { name.to_owned() } else { format!("total_{name}") }).unwrap_or(0);
    let unclean = if is_v2 { get("file_dirty") + get("file_writeback") } else { get("dirty") + get("writeback") };
    let cache = (get("inactive_file").saturating_add(get("active_file"))).saturating_sub(unclean);
    let slab = if is_v2 { get("slab_reclaimable") / 2 } else { 0 };
    (cache - (cache / 2).min(CACHE_KEPT_BYTES)).saturating_add(slab)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A directory with files, and with mount points below it.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(files: &[(&str, &str)]) -> Tree {
            let tree = Tree(tempfile::tempdir().unwrap());
            for (name, text) in files {
                let path = tree.0.path().join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            tree
        }

        fn groups(&self, groups: &str, mounts: &str) -> ControlGroups {
            ControlGroups::parse(groups, mounts, self.0.path())
        }

        /// Returns the limits as `FILE of GROUP: USED of LIMIT`.
        fn descriptions(&self, groups: &ControlGroups) -> Vec<String> {
            let tell = |limit: GroupLimit| {
                let dir = limit.dir.strip_prefix(self.0.path()).unwrap().display().to_string();
                format!("{} of {dir}: {} of {}", limit.file, limit.used, limit.limit)
            };
            groups.limits().0.into_iter().map(tell).collect()
        }
    }

    const V2: &str =
        "30 20 0:26 / /cg rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n1 2 0:3 / / rw - ext4 /dev/x rw\n";

    #[test]
    fn version_2_with_limits_at_each_level() {
        let stat = "anon 5\ninactive_file 104857600\nactive_file 52428800\nfile_dirty 10485760\nfile_writeback 0\n\
                    slab_reclaimable 2097152\n";
        let tree = Tree::new(&[
            ("cg/cgroup.procs", ""),
            ("cg/m.slice/cgroup.type", "domain\n"),
            ("cg/m.slice/memory.max", "1073741824\n"),
            ("cg/m.slice/memory.high", "max\n"),
            ("cg/m.slice/memory.current", "838860800\n"),
            ("cg/m.slice/memory.stat", stat),
            ("cg/m.slice/a.service/memory.max", "max\n"),
            ("cg/m.slice/a.service/memory.high", "500\n"),
            ("cg/m.slice/a.service/memory.current", "400\n"),
            ("cg/m.slice/a.service/pids.max", "512\n"),
            ("cg/m.slice/a.service/pids.current", "17\n"),
            ("cg/m.slice/a.service/hugetlb.2MB.max", "8388608\n"),
            ("cg/m.slice/a.service/hugetlb.2MB.current", "2097152\n"),
            ("cg/m.slice/a.service/hugetlb.1GB.rsvd.max", "max\n"),
            ("cg/m.slice/a.service/hugetlb.1GB.rsvd.current", "0\n"),
        ]);
        let groups = tree.groups("0::/m.slice/a.service\n", V2);
        // 150 MiB are cache, less 10 MiB that are dirty, less 16 MiB that stay; half of the slab counts.
        let used = 800 * MIB - (140 - 16) * MIB - MIB;
        let expect = [
            "memory.high of cg/m.slice/a.service: 400 of 500".to_owned(),
            "hugetlb.2MB.max of cg/m.slice/a.service: 2097152 of 8388608".into(),
            "pids.max of cg/m.slice/a.service: 17 of 512".into(),
            format!("memory.max of cg/m.slice: {used} of 1073741824"),
        ];
        assert_eq!(tree.descriptions(&groups), expect);
        assert_eq!(groups.limits().1, Vec::<String>::new());
        assert!(groups.is_in(&tree.0.path().join("cg/m.slice")) && !groups.is_in(&tree.0.path().join("cg/other")));
        assert_eq!(groups.limits().0[1].resource, GroupResource::HugePages { page_bytes: 2 * MIB });
    }

    const HYBRID: &str = "32 31 0:30 / /cg/memory rw - cgroup cgroup rw,memory\n33 31 0:31 / /cg/pids rw - cgroup \
                          cgroup rw,pids\n\
                          34 31 0:32 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n35 31 0:33 / /cg/unified rw - \
                          cgroup2 cgroup2 rw\n";

    #[test]
    fn version_1_and_both_at_once() {
        let tree = Tree::new(&[
            ("cg/memory/release_agent", ""),
            ("cg/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("cg/memory/memory.usage_in_bytes", "5\n"),
            ("cg/memory/a/memory.limit_in_bytes", "377487360\n"),
            ("cg/memory/a/memory.memsw.limit_in_bytes", "377487360\n"),
            ("cg/memory/a/memory.usage_in_bytes", "200000000\n"),
            ("cg/memory/a/memory.memsw.usage_in_bytes", "210000000\n"),
            (
                "cg/memory/a/memory.stat",
                "inactive_file 7\ntotal_inactive_file 100000000\ntotal_active_file 0\ntotal_dirty 1000000\n",
            ),
            ("cg/memory/old/memory.use_hierarchy", "0\n"),
            ("cg/memory/old/memory.limit_in_bytes", "1\n"),
            ("cg/memory/old/memory.usage_in_bytes", "0\n"),
            ("cg/memory/old/b/memory.limit_in_bytes", "2\n"),
            ("cg/memory/old/b/memory.usage_in_bytes", "0\n"),
            ("cg/pids/release_agent", ""),
            ("cg/pids/p/pids.max", "40\n"),
            ("cg/pids/p/pids.current", "4\n"),
            ("cg/unified/cgroup.procs", ""),
        ]);
        let groups = tree.groups("8:pids:/p\n4:memory:/a\n2:cpu,cpuacct:/x\n0::/\n", HYBRID);
        let free = 99_000_000 - 16 * MIB;
        let expect = [
            "pids.max of cg/pids/p: 4 of 40".to_owned(),
            format!("memory.limit_in_bytes of cg/memory/a: {} of 377487360", 200_000_000 - free),
            format!("memory.memsw.limit_in_bytes of cg/memory/a: {} of 377487360", 210_000_000 - free),
        ];
        assert_eq!(tree.descriptions(&groups), expect);
        assert_eq!(groups.unread, Vec::<String>::new());
        let groups = tree.groups("4:memory:/old/b\n", HYBRID);
        assert_eq!(
            tree.descriptions(&groups),
            ["memory.limit_in_bytes of cg/memory/old/b: 0 of 2"],
            "not charged above"
        );
    }

    #[test]
    fn what_is_hidden_or_unreadable_is_told_and_not_guessed() {
        let tree = Tree::new(&[
            ("cg/cgroup.type", "domain\n"),
            ("cg/memory.max", "not a number\n"),
            ("cg/b/memory.max", "100\n"),
            ("cg/b/memory.current/is-a-directory", ""),
        ]);
        let told = |groups: &str, mounts: &str| tree.groups(groups, mounts).limits().1.join("; ");
        let hidden = told("0::/b\n", V2);
        for part in ["limits above", "namespace", "memory.current", "how much is used", "says \"not a number\""] {
            assert!(hidden.contains(part), "{part}: {hidden}");
        }
        assert!(told("0::/gone (deleted)\n", V2).contains("which is gone"));
        // A group outside of the namespace's root, a hierarchy that is not mounted, and a line that is none of either.
        assert!(told("0::/../c\n", V2).contains("/../c, which is not mounted here"));
        assert!(told("4:memory:/a\n", V2).contains("memory:/a, which is not mounted here"));
        assert_eq!(told("4:memory:/\n9:cpu:/a\n", V2), "");
        assert!(told("odd\n", V2).contains("\"odd\""));
    }

    #[test]
    fn a_mount_of_a_part_of_a_hierarchy() {
        let tree = Tree::new(&[("cg x/memory.max", "7\n"), ("cg x/memory.current", "1\n"), ("cg x/cgroup.type", "")]);
        let mounts = "30 20 0:26 /docker/abc /cg\\040x ro - cgroup2 cgroup rw\n";
        let groups = tree.groups("0::/docker/abc\n", mounts);
        assert_eq!(tree.descriptions(&groups), ["memory.max of cg x: 1 of 7"]);
        assert!(groups.unread[0].contains("limits above"));
    }

    #[test]
    fn kills_are_counted() {
        let tree = Tree::new(&[
            ("cg/memory/release_agent", ""),
            ("cg/memory/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
            ("cg/b/memory.events", "low 0\noom 9\noom_kill 8\n"),
            ("cg/b/memory.events.local", "low 0\noom 1\noom_kill 2\noom_group_kill 0\n"),
        ]);
        let kills = |groups: &str, mounts: &str| tree.groups(groups, mounts).oom_kills().map(|(_, kills)| kills);
        assert_eq!(kills("4:memory:/a\n0::/\n", HYBRID), Some(3));
        assert_eq!(kills("0::/b\n", V2), Some(2));
        assert_eq!(kills("0::/\n", V2), None);
    }

    #[test]
    fn this_process_has_groups() {
        let groups = ControlGroups::own().unwrap();
        assert_eq!(ControlGroups::of(std::process::id()).unwrap(), groups);
        groups.limits();
    }
}
