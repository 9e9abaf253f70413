//! Checks what guests and their agent depend on: disk, QEMU, KVM, memory, CPUs, limits, clock.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use skein_host::{ControlGroups, GroupResource, cpu_latency_us};
use skein_hypervisor::QemuVersion;
use skein_hypervisor::kvm::{self, KvmError};
use skein_identity::{CipherPolicy, CipherSpeeds};
use skein_units::{about_bytes, exact_bytes};

use super::finding::{Finding, Severity, bad, chain, ok, warn};

/// The room that the state directory needs, and the room that is enough. A journal is a few KiB for each migration
/// under way, and an event log is the same for each migration that there was.
const ROOM_BYTES_LEAST: u64 = 16 << 20;
const ROOM_BYTES_GOOD: u64 = 256 << 20;
/// Writing a record slower than this is a warning. Two records are written while the guest stands still, one at each
/// end.
const SYNC_SLOW: Duration = Duration::from_millis(20);
/// The oldest QEMU that was tried, and the major version of the newest.
const QEMU_OLDEST: (u64, u64) = (7, 2);
const QEMU_NEWEST_MAJOR: u64 = 10;
/// QEMU before this version loses writes of emulated guests while it migrates them.
const QEMU_TCG_MAJOR: u64 = 9;
/// What it means if there is no KVM.
const NO_KVM_TEXT: &str = "guests are emulated, many times slower";
/// The least limit of open files. A migration has up to 128 connections, and two sockets for each of up to 66 streams.
/// This is enough for ten migrations.
const FILES_LEAST: u64 = 4096;
/// The least limit of tasks. A migration has two threads for each connection and each stream.
const TASKS_LEAST: u64 = 4096;

/// Checks the agent's directory: its room, and how long a record takes to reach the disk.
pub fn state(dir: &Path) -> Vec<Finding> {
    let shown = dir.display();
    let file = match Probe::create(dir) {
        Ok(file) => file,
        Err(error) => {
            return vec![match error.kind() {
                ErrorKind::NotFound => ok("state", format!("{shown} is not there yet: the agent makes it")),
                ErrorKind::PermissionDenied => {
                    warn("state", format!("{shown} is not open to this user"), "run this as root (sudo)")
                }
                _ => bad(
                    "state",
                    format!("cannot write to {shown}: {error}"),
                    "make it writable, and make room on its disk; until then the agent begins no migration",
                ),
            }];
        }
    };
    match file.measure() {
        Ok((room, memory, sync)) => judge_state(dir, room, memory, sync),
        Err(error) => vec![bad("state", format!("cannot write to {shown}: {error}"), "make room on its disk")],
    }
}

/// A file that is removed when this value is dropped.
struct Probe {
    path: PathBuf,
    file: File,
}

impl Probe {
    fn create(dir: &Path) -> io::Result<Probe> {
        let path = dir.join(format!(".doctor-{}", std::process::id()));
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        Ok(Probe { path, file })
    }

    /// Returns the free bytes, whether the file system is only in memory, and how long a small record takes to reach
    /// the disk (the median of five).
    fn measure(&self) -> io::Result<(u64, bool, Duration)> {
        let system = fstatfs(&self.file)?;
        let room = system.blocks_available().saturating_mul(system.block_size().try_into().unwrap_or(0));
        let mut times = [Duration::ZERO; 5];
        for time in &mut times {
            let begin = Instant::now();
            (&self.file).write_all(&[0; 256])?;
            self.file.sync_data()?;
            *time = begin.elapsed();
        }
        times.sort();
        Ok((room, system.filesystem_type() == TMPFS_MAGIC, times[2]))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn judge_state(dir: &Path, room: u64, memory: bool, sync: Duration) -> Vec<Finding> {
    let shown = dir.display();
    let free = about_bytes(room);
    let ms = sync.as_secs_f64() * 1000.0;
    let mut findings = vec![match room {
        0..ROOM_BYTES_LEAST => {
            bad("state", format!("{shown} has {free} free"), "make room: the agent begins no migration on a full disk")
        }
        ROOM_BYTES_LEAST..ROOM_BYTES_GOOD => {
            warn("state", format!("{shown} has {free} free"), "make room before it is full")
        }
        _ => ok(
            "state",
            format!("{shown} is writable, {free} free, a record takes {}", skein_units::measured::millis(ms)),
        ),
    }];
    if memory {
        let cure = "move it to a disk: after a power cut nothing would be known of a guest that was being handed over";
        findings.push(bad("state", format!("{shown} is in memory only (tmpfs)"), cure));
    }
    if sync > SYNC_SLOW {
        let what = format!(
            "{shown} takes {} for a record, and a guest stands still for two",
            skein_units::measured::millis(ms)
        );
        findings.push(warn("state", what, "move it to a faster disk, or one with a power-safe cache"));
    }
    findings
}

/// Checks QEMU, and what runs guests' instructions.
pub fn hypervisor(program: Option<PathBuf>) -> Vec<Finding> {
    let program = program.or_else(|| std::env::var_os(skein_hypervisor::BINARY_VARIABLE).map(Into::into));
    let program = program.unwrap_or_else(|| "qemu-system-x86_64".into());
    match skein_hypervisor::version_of(&program) {
        Ok(version) => {
            let kvm = judge_kvm(kvm::works(Some(&program)));
            vec![judge_qemu(&program, &version, kvm.severity == Severity::Ok), kvm]
        }
        Err(error) => {
            let mut findings = vec![bad("qemu", chain(error), "apt-get install qemu-system-x86, or give --qemu")];
            if let Err(error @ KvmError::Device(_)) = kvm::works(Some(&program)) {
                findings.push(judge_kvm(Err(error)));
            }
            findings
        }
    }
}

fn judge_qemu(program: &Path, version: &QemuVersion, kvm: bool) -> Finding {
    let (major, minor) = (u64::from(version.major), u64::from(version.minor));
    let what = format!("QEMU {major}.{minor}.{}, {}", version.micro, program.display());
    if (major, minor) < QEMU_OLDEST {
        return bad("qemu", what + ", is too old", "7.2 is the oldest that works: upgrade it");
    }
    if major > QEMU_NEWEST_MAJOR {
        return warn(
            "qemu",
            what + ", is newer than any that was tried",
            "7.2 to 10.x were; try it before you rely on it",
        );
    }
    if !kvm && major < QEMU_TCG_MAJOR {
        let what = what + ": before 9.0 it loses writes of emulated guests that are moved";
        return warn("qemu", what, "use KVM, or QEMU 9.0 or later");
    }
    ok("qemu", what)
}

fn judge_kvm(tried: Result<(), KvmError>) -> Finding {
    match tried {
        Ok(()) => ok("kvm", "works: a small guest ran"),
        Err(error) => warn("kvm", format!("{error}: {NO_KVM_TEXT}"), error.cure()),
    }
}

/// Checks the pages of guests' RAM.
pub fn memory() -> Vec<Finding> {
    let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok();
    let mut findings: Vec<Finding> = setting.as_deref().and_then(judge_huge_pages).into_iter().collect();
    let pools = fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let mut pools: Vec<(u64, u64, u64)> = pools.filter_map(|pool| pool_of(&pool.path())).collect();
    pools.sort();
    for (page, total, free) in pools.into_iter().filter(|(_, total, _)| *total > 0) {
        let page = exact_bytes(page);
        findings.push(ok(
            "memory",
            format!("{free} of {total} huge pages of {page} are free, for VMs with hugepages = \"{page}\""),
        ));
    }
    findings
}

/// Returns the size of a pool's pages in bytes, how many there are, and how many are free.
fn pool_of(dir: &Path) -> Option<(u64, u64, u64)> {
    let kib: u64 = dir.file_name()?.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    let number = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse().ok();
    Some((kib.checked_mul(1024)?, number("nr_hugepages")?, number("free_hugepages")?))
}

/// Judges a setting like `always [madvise] never`, of Documentation/admin-guide/mm/transhuge.rst.
fn judge_huge_pages(setting: &str) -> Option<Finding> {
    let chosen = setting.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))?;
    Some(match chosen {
        "never" => warn(
            "memory",
            "transparent huge pages are off: guests run slower, and their RAM arrives by 4 KiB at a time",
            "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled (QEMU asks for them)",
        ),
        _ => ok("memory", format!("transparent huge pages: {chosen}; QEMU asks for them")),
    })
}

/// Checks whether the CPUs are kept at a low frequency, and says how deeply they sleep.
pub fn cpu() -> Vec<Finding> {
    let cpus =
        fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten().map(|cpu| cpu.path().join("cpufreq"));
    let read = |path: PathBuf| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    let governors = cpus
        .filter(|cpu| cpu.is_dir())
        .map(|cpu| (read(cpu.join("scaling_driver")), read(cpu.join("scaling_governor"))));
    let idle = Path::new("/sys/devices/system/cpu/cpu0/cpuidle");
    let states = fs::read_dir(idle).into_iter().flatten().flatten().map(|state| state.path()).filter_map(|state| {
        let us = read(state.join("latency")).parse().ok()?;
        (read(state.join("disable")) != "1").then(|| (us, read(state.join("name"))))
    });
    judge_governors(governors.collect()).into_iter().chain(judge_sleep(states.max(), cpu_latency_us())).collect()
}

/// Says in which state CPUs sleep most deeply, by its latency in microseconds and name, and which latency is asked for
/// now.
fn judge_sleep(deepest: Option<(u32, String)>, asked_us: Option<u32>) -> Option<Finding> {
    let (us, name) = deepest?;
    let kept = match asked_us {
        None => {
            return Some(warn(
                "cpu sleep",
                format!(
                    "CPUs take up to {us} µs to wake ({name}), and there is no /dev/cpu_dma_latency to prevent that"
                ),
                "use a kernel with CONFIG_PM, as distributions' are: an agent keeps CPUs awake while guests move",
            ));
        }
        Some(asked) if asked < us => format!("; kept to {asked} µs now"),
        Some(_) => "; not while guests move".to_owned(),
    };
    Some(ok("cpu sleep", format!("CPUs take up to {us} µs to wake ({name}){kept}")))
}

/// Judges the drivers and governors of all CPUs. There are none where they cannot be seen, as in most VMs.
fn judge_governors(mut governors: Vec<(String, String)>) -> Option<Finding> {
    governors.sort();
    governors.dedup();
    let (driver, governor) = governors.first()?;
    // With these two drivers, powersave is the governor that follows the load
    // (Documentation/admin-guide/pm/intel_pstate.rst).
    let slow = |(driver, governor): &(String, String)| {
        governor == "powersave" && driver != "intel_pstate" && !driver.starts_with("amd-pstate-epp")
    };
    Some(match governors.iter().any(slow) {
        true => warn(
            "cpu",
            "the governor powersave keeps CPUs at their lowest frequency",
            "cpupower frequency-set -g schedutil (or performance)",
        ),
        false => ok("cpu", format!("governor {governor} ({driver})")),
    })
}

/// Measures how fast this CPU computes the ciphers of connections.
pub fn ciphers() -> Finding {
    judge_ciphers(CipherSpeeds::of_this_cpu())
}

fn judge_ciphers(speeds: &CipherSpeeds) -> Finding {
    let what = format!("a core seals {speeds}");
    if speeds.aes_is_slow() {
        return warn(
            "ciphers",
            format!("{what}: without instructions for AES, connections to and from this host are slow"),
            "if this host is a VM, give it its host's CPU model; on an isolated network --plain-data does without",
        );
    }
    let first = CipherPolicy::Auto.allowed(speeds).first();
    ok("ciphers", format!("{what}; --cipher auto prefers {first}"))
}

/// Checks what the agent may open and start. Without an agent it checks this process, whose limits an agent started
/// here would have.
pub fn limits(agent: Option<i32>) -> Vec<Finding> {
    let process = agent.map_or("self".to_owned(), |pid| pid.to_string());
    let whose = if agent.is_some() { "the agent" } else { "an agent started from here" };
    let Ok(limits) = fs::read_to_string(format!("/proc/{process}/limits")) else { return Vec::new() };
    let groups = match agent.and_then(|pid| u32::try_from(pid).ok()) {
        Some(pid) => ControlGroups::of(pid),
        None => ControlGroups::own(),
    };
    let tasks =
        groups.unwrap_or_default().limits().0.into_iter().filter(|limit| limit.resource == GroupResource::Tasks);
    let tasks = tasks.map(|limit| limit.limit).min().map(|limit| limit.to_string());
    judge_limits(whose, &limits, tasks.as_deref())
}

fn judge_limits(whose: &str, limits: &str, tasks: Option<&str>) -> Vec<Finding> {
    // Unlimited is as good as any number.
    let soft = |name: &str| {
        limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse::<u64>().ok()
    };
    let mut findings = Vec::new();
    if let Some(files) = soft("Max open files").filter(|files| *files < FILES_LEAST) {
        let what = format!("{whose} may have {files} open files: few migrations at once need more");
        findings.push(warn("limits", what, "LimitNOFILE=65536 in its unit, or ulimit -n 65536"));
    }
    let tasks = tasks.and_then(|tasks| tasks.trim().parse::<u64>().ok());
    if let Some(tasks) = tasks.into_iter().chain(soft("Max processes")).min().filter(|tasks| *tasks < TASKS_LEAST) {
        let what = format!("{whose} may have {tasks} threads: few migrations at once need more");
        findings.push(warn("limits", what, "TasksMax=16384 and LimitNPROC=infinity in its unit"));
    }
    if findings.is_empty() {
        findings.push(ok("limits", format!("{whose} may open enough files and start enough threads")));
    }
    findings
}

/// Checks the clock, which matters only to the dates of certificates and to the times in logs.
pub fn clock() -> Option<Finding> {
    Some(match skein_host::clock_synchronised()? {
        true => ok("clock", "is kept right"),
        false => warn(
            "clock",
            "nobody keeps the clock right: identities have dates, and logs of two hosts are read together",
            "apt-get install chrony, or timedatectl set-ntp true",
        ),
    })
}

#[cfg(test)]
mod tests {

    use super::super::finding::Severity::{Bad, Ok as Good, Warn};
    use super::*;

    fn severities(findings: &[Finding]) -> Vec<Severity> {
        findings.iter().map(|finding| finding.severity).collect()
    }

    #[test]
    fn a_disk_is_tried_and_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let findings = state(dir.path());
        assert!(findings[0].what.contains(dir.path().to_str().unwrap()), "{findings:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(severities(&state(&dir.path().join("none"))), [Good]);
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(severities(&state(&file)), [Bad]);
        let (ms, dir) = (Duration::from_millis, Path::new("/d"));
        assert_eq!(severities(&judge_state(dir, 1 << 40, false, ms(1))), [Good]);
        assert_eq!(severities(&judge_state(dir, 100 << 20, false, ms(30))), [Warn, Warn]);
        assert_eq!(severities(&judge_state(dir, 0, true, ms(1))), [Bad, Bad]);
    }

    #[test]
    fn versions_are_judged() {
        let judged = |major, minor, kvm| {
            let version = QemuVersion { major, minor, micro: 0 };
            judge_qemu(Path::new("qemu"), &version, kvm).severity
        };
        assert_eq!(
            [judged(7, 1, true), judged(7, 2, true), judged(10, 1, true), judged(11, 0, true)],
            [Bad, Good, Good, Warn]
        );
        assert_eq!([judged(8, 2, false), judged(9, 0, false)], [Warn, Good]);
        let missing = judge_kvm(Err(KvmError::Device(ErrorKind::NotFound)));
        assert!(missing.severity == Warn && missing.cure.contains("kvm_intel"), "{missing:?}");
        assert_eq!(judge_kvm(Ok(())).severity, Good);
        assert_eq!(severities(&hypervisor(Some("/no/such/qemu".into())))[0], Bad);
    }

    #[test]
    fn how_deeply_cpus_sleep_is_told() {
        let deepest = Some((890, "C10".to_owned()));
        let told = |asked| judge_sleep(deepest.clone(), asked).unwrap();
        assert_eq!(told(Some(2_000_000_000)).what, "CPUs take up to 890 µs to wake (C10); not while guests move");
        assert_eq!(told(Some(3)).what, "CPUs take up to 890 µs to wake (C10); kept to 3 µs now");
        assert_eq!(told(None).severity, Severity::Warn);
        assert!(judge_sleep(None, Some(3)).is_none(), "a VM sees no such states");
    }

    #[test]
    fn settings_are_judged() {
        let huge_pages = |text| judge_huge_pages(text).map(|finding| finding.severity);
        assert_eq!(huge_pages("always madvise [never]\n"), Some(Warn));
        assert_eq!(huge_pages("always [madvise] never\n"), Some(Good));
        assert_eq!(huge_pages("odd"), None);
        let governors = |all: &[(&str, &str)]| {
            judge_governors(all.iter().map(|(driver, governor)| ((*driver).into(), (*governor).into())).collect())
                .map(|finding| finding.severity)
        };
        assert_eq!(governors(&[]), None);
        assert_eq!(governors(&[("intel_pstate", "powersave")]), Some(Good));
        assert_eq!(governors(&[("acpi-cpufreq", "schedutil"), ("acpi-cpufreq", "powersave")]), Some(Warn));
    }

    #[test]
    fn limits_are_judged() {
        let limits = |files: &str, processes: &str| {
            format!(
                "Limit   Soft Limit  Hard Limit  Units\nMax processes   {processes}  1000 processes\nMax open files   \
                 {files}  9 files\n"
            )
        };
        let judged = |files, processes, tasks| severities(&judge_limits("x", &limits(files, processes), tasks));
        assert_eq!(judged("65536", "unlimited", Some("max\n")), [Good]);
        assert_eq!(judged("1024", "unlimited", Some("100\n")), [Warn, Warn]);
        assert_eq!(judged("65536", "512", None), [Warn]);
        assert_eq!(severities(&judge_limits("x", "odd", Some("odd"))), [Good]);
        assert_eq!(severities(&super::limits(None)).len(), 1);
    }

    #[test]
    fn a_cpu_without_aes_is_told() {
        let speeds =
            |aes_128_gcm, aegis_128x2| CipherSpeeds { aes_128_gcm, chacha20_poly1305: 900_000_000, aegis_128x2 };
        let fast = judge_ciphers(&speeds(5_000_000_000, 14_000_000_000));
        let shown = "a core seals AES-128-GCM 5.0 GB/s, ChaCha20-Poly1305 0.9 GB/s, AEGIS-128X2 14.0 GB/s; --cipher \
                     auto prefers AEGIS-128X2";
        assert_eq!(fast, ok("ciphers", shown));
        let slow = judge_ciphers(&speeds(90_000_000, 60_000_000));
        assert_eq!(slow.severity, Severity::Warn);
        assert!(slow.what.contains("AES-128-GCM 0.1 GB/s") && !slow.cure.is_empty(), "{slow:?}");
    }
}
