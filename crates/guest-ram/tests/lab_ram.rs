//! The RAM of real QEMUs: mapped, written and read from both sides, and why it cannot be mapped. The guests do not run.
// Timeout: 300 s
// QEMU: 7.2 10
// Cores: 0.6

use std::error::Error as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::json;
use skein_guest_ram::{AccessError, FindError, Memory, Ram, RamBlock, find, find_private, find_shared};
use skein_hypervisor::{Config, HugePages, MemoryBackend, Monitor, Process, connect_started, spawn_detached};
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// What QEMU's loader writes into the guest's RAM, and where.
const LOADED: (u64, u64) = (0x1234_5678_9abc_def0, 40 * MIB + 0x10);

struct Vm {
    process: Process,
    monitor: Monitor,
    directory: TempDir,
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.process.kill(DEADLINE);
    }
}

impl Vm {
    /// A stopped guest with this RAM.
    fn start(memory_mib: u64, change: impl FnOnce(&mut Config)) -> Self {
        let directory = TempDir::with_prefix("skein-lab-ram").unwrap();
        let mut config = Config::new("lab", memory_mib << 10, directory.path().join("qmp"));
        config.paused = true;
        let (value, address) = LOADED;
        config.extra.extend(["-device".into(), format!("loader,addr={address:#x},data={value:#x},data-len=8").into()]);
        change(&mut config);
        let (process, log) = spawn_detached(&config, &directory.path().join("log"), |p| Command::new(p)).unwrap();
        let monitor = connect_started(&process, &log, &config.qmp, DEADLINE).unwrap();
        Self { process, monitor, directory }
    }

    /// One whose RAM is memory backend `ram0`, made by these options.
    fn with_backend(memory_mib: u64, backend: &str) -> Self {
        Self::start(memory_mib, |config| {
            config.memory = MemoryBackend::Anonymous;
            config.machine = "q35,memory-backend=ram0".into();
            config.extra.extend(["-object".into(), format!("{backend},id=ram0,size={memory_mib}M").into()]);
        })
    }

    fn blocks(&self) -> Vec<RamBlock> {
        self.monitor.ram_blocks().unwrap()
    }

    fn block(&self, name: &str) -> RamBlock {
        self.blocks().into_iter().find(|block| block.name == name).unwrap_or_else(|| panic!("no block {name}"))
    }

    fn map(&self, name: &str) -> Result<Memory, FindError> {
        find_shared(self.process.id().pid, &self.block(name))
    }

    /// What QEMU has at a guest-physical address.
    fn memory(&self, address: u64, bytes: u64) -> Vec<u8> {
        let file = self.directory.path().join("memory");
        self.monitor.execute("pmemsave", json!({ "val": address, "size": bytes, "filename": file })).unwrap();
        fs::read(file).unwrap()
    }
}

fn pattern(bytes: u64, seed: u64) -> Vec<u8> {
    (0..bytes / 8).flat_map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed).to_ne_bytes()).collect()
}

/// Bytes go both ways, where block offset and guest-physical address are the same.
fn check(vm: &Vm, ram: &Memory) {
    let (value, address) = LOADED;
    let mut seen = [0; 8];
    for read in [Memory::read, Memory::read_by_file, Memory::read_in_process] {
        read(ram, address, &mut seen).unwrap();
        assert_eq!(u64::from_le_bytes(seen), value, "what QEMU wrote");
    }
    let data = pattern(3 * MIB, ram.bytes());
    // Not above 640 KiB: there the guest sees the BIOS.
    for (at, bytes) in [(0, 640 << 10), (10 * MIB - 5, 3 * MIB), (ram.bytes() - 8, 8)] {
        let data = &data[..bytes as usize];
        ram.write(at, data).unwrap();
        assert!(vm.memory(at, bytes) == data, "what QEMU sees of {bytes} bytes at {at}");
        let mut out = vec![0; data.len()];
        for read in [Memory::read, Memory::read_by_file, Memory::read_in_process] {
            read(ram, at, &mut out).unwrap();
            assert!(out == data);
        }
    }
    let extents = ram.data_extents().unwrap();
    assert!(extents.iter().any(|extent| extent.contains(&(11 * MIB))), "{extents:?}");
    assert!(!ram.is_zero(10 * MIB, MIB).unwrap());
    ram.zero(10 * MIB - 5, 3 * MIB).unwrap();
    assert!(ram.is_zero(10 * MIB - 5, 3 * MIB).unwrap());
    assert!(vm.memory(10 * MIB - 5, 3 * MIB).iter().all(|&byte| byte == 0));
}

#[test]
fn a_memfd() {
    for incoming in [false, true] {
        let vm = Vm::start(64, |config| {
            if incoming {
                *config = config.clone().as_incoming();
            }
        });
        let ram = vm.map("ram0").unwrap();
        assert_eq!((ram.bytes(), ram.page_bytes()), (64 * MIB, PAGE));
        assert!(!ram.can_shrink(), "QEMU seals its memfd");
        // The BIOS has not run: nothing is there but what was loaded.
        let extents = ram.data_extents().unwrap();
        assert!(extents.iter().map(|extent| extent.end - extent.start).sum::<u64>() <= 2 * MIB, "{extents:?}");
        assert!(!ram.is_zero(0, 64 * MIB).unwrap() && ram.is_zero(48 * MIB, 16 * MIB).unwrap());
        assert_eq!(ram.data_extents().unwrap(), extents, "looking takes no memory");
        check(&vm, &ram);

        // It stays when QEMU goes.
        ram.write(20 * MIB, b"here").unwrap();
        vm.process.kill(DEADLINE).unwrap();
        let mut out = [0; 4];
        ram.read(20 * MIB, &mut out).unwrap();
        ram.write(30 * MIB, b"still").unwrap();
        assert!(matches!(ram.read_in_process(20 * MIB, &mut [0]), Err(AccessError::Process { .. })));
        assert_eq!(&out, b"here");
    }
}

#[test]
fn a_process_that_is_gone() {
    let vm = Vm::start(64, |_| {});
    let block = vm.block("ram0");
    vm.process.kill(DEADLINE).unwrap();
    let error = find_shared(vm.process.id().pid, &block).unwrap_err();
    assert!(matches!(error, FindError::NoProcess(_)), "{error}");
}

#[test]
fn a_file_in_shared_memory() {
    let file = PathBuf::from(format!("/dev/shm/skein-lab-ram-{}", std::process::id()));
    let vm = Vm::with_backend(64, &format!("memory-backend-file,share=on,mem-path={}", file.display()));
    // QEMU and the mapping keep it.
    fs::remove_file(&file).unwrap();
    let ram = vm.map("ram0").unwrap();
    assert!(ram.can_shrink());
    check(&vm, &ram);
}

/// The bytes of QEMU's memory that are its own, in bytes.
fn private_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}

#[test]
fn private_ram() {
    // What nobody touched of a private file need not be zero.
    let vm = Vm::with_backend(64, "memory-backend-memfd,share=off");
    let error = find(vm.process.id().pid, &vm.block("ram0")).err().unwrap();
    assert!(matches!(&error, FindError::Private(name) if name == "ram0"), "{error}");

    let vm = Vm::with_backend(256, "memory-backend-ram");
    assert!(matches!(vm.map("ram0"), Err(FindError::Private(name)) if name == "ram0"));
    let pid = vm.process.id().pid;
    let ram = find_private(pid, &vm.block("ram0")).unwrap();
    assert!(ram.bytes() == 256 * MIB && !ram.outlives_qemu());
    let (value, address) = LOADED;
    let mut seen = [0; 8];
    ram.read(address, &mut seen).unwrap();
    assert_eq!(u64::from_le_bytes(seen), value, "what QEMU wrote");
    let data = pattern(3 * MIB, 5);
    for (at, bytes) in [(0, 640 << 10), (10 * MIB - 5, 3 * MIB), (ram.bytes() - 8, 8)] {
        let data = &data[..bytes as usize];
        ram.write(at, data).unwrap();
        assert!(vm.memory(at, bytes) == data, "what QEMU sees of {bytes} bytes at {at}");
        let mut out = vec![0; data.len()];
        ram.read_in_qemu(at, &mut out).unwrap();
        assert!(out == data);
    }
    assert!(!ram.is_zero(10 * MIB, MIB).unwrap());
    ram.zero(10 * MIB - 5, 3 * MIB).unwrap();
    assert!(ram.is_zero(10 * MIB - 5, 3 * MIB).unwrap());
    // Neither looking nor making zero what is zero takes memory.
    let before = private_bytes(pid);
    assert!(ram.is_zero(64 * MIB, 192 * MIB - 8).unwrap());
    ram.zero(64 * MIB, 192 * MIB - 8).unwrap();
    let mut out = vec![1; MIB as usize];
    ram.read(64 * MIB, &mut out).unwrap();
    assert!(out.iter().all(|&byte| byte == 0));
    assert!(ram.is_zero(64 * MIB, MIB).unwrap(), "what was read");
    assert!(private_bytes(pid) < before + MIB, "{before} {}", private_bytes(pid));
    // Nothing is written into a process that has ended, whoever gets its number.
    vm.process.kill(DEADLINE).unwrap();
    for error in [
        ram.write(0, b"late").unwrap_err(),
        ram.zero(0, 8).unwrap_err(),
        ram.read(0, &mut [0]).unwrap_err(),
        ram.is_zero(0, 8).unwrap_err(),
    ] {
        assert!(matches!(error, AccessError::Process { .. }), "{error}");
    }
}

#[test]
fn devices_have_theirs_to_themselves() {
    let vm = Vm::start(64, |config| config.extra.extend(["-vga".into(), "std".into()]));
    let blocks = vm.blocks();
    assert!(["ram0", "pc.bios", "0000:00:01.0/vga.vram"].iter().all(|name| blocks.iter().any(|b| &b.name == name)));
    for block in blocks.iter().filter(|block| block.name != "ram0") {
        let error = find_shared(vm.process.id().pid, block).unwrap_err();
        // 7.2 tells the addresses of backends only.
        let told = vm.monitor.version().major > 7;
        assert_eq!(block.host_address.is_some(), told, "{block:?}");
        match error {
            FindError::Private(_) if told => assert!(find(vm.process.id().pid, block).is_err(), "{block:?}"),
            FindError::NoAddress(_) if !told => {}
            other => panic!("{block:?}: {other}"),
        }
    }
}

#[test]
fn a_file_on_a_disk() {
    let directory = TempDir::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let file = directory.path().join("ram");
    let vm = Vm::with_backend(64, &format!("memory-backend-file,share=on,mem-path={}", file.display()));
    match vm.map("ram0") {
        Err(FindError::NotInMemory { path, .. }) => assert_eq!(Path::new(&path), file),
        // Some filesystems (btrfs, overlayfs) show another device number in the map than the file has.
        Err(FindError::Replaced { .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn several_nodes() {
    let vm = Vm::start(128, |config| {
        config.memory = MemoryBackend::Anonymous;
        config.extra.extend(
            [
                "-object",
                "memory-backend-memfd,id=a,share=on,size=64M",
                "-object",
                "memory-backend-memfd,id=b,share=on,size=64M",
                "-numa",
                "node,memdev=a",
                "-numa",
                "node,memdev=b",
            ]
            .map(Into::into),
        );
    });
    let (a, b) = (vm.map("a").unwrap(), vm.map("b").unwrap());
    check(&vm, &a);
    let (for_a, for_b) = (pattern(MIB, 1), pattern(MIB, 2));
    a.write(50 * MIB, &for_a).unwrap();
    b.write(50 * MIB, &for_b).unwrap();
    assert!(vm.memory(50 * MIB, MIB) == for_a);
    assert!(vm.memory((64 + 50) * MIB, MIB) == for_b);
}

/// Above 3 GiB of a PC's memory there is a hole in what the guest sees, none in the block.
#[test]
fn more_than_fits_below_the_hole() {
    let vm = Vm::start(5 << 10, |_| {});
    let ram = vm.map("ram0").unwrap();
    assert_eq!(ram.bytes(), 5 << 30);
    // q35 has 2 GiB below.
    let data = pattern(MIB, 3);
    ram.write((2 << 30) + 7 * MIB, &data).unwrap();
    assert!(vm.memory((4 << 30) + 7 * MIB, MIB) == data);
}

#[test]
fn a_full_tmpfs_is_an_error() {
    let mountpoint = Mounted::tmpfs("size=16m");
    let file = mountpoint.0.path().join("ram");
    let vm = Vm::with_backend(64, &format!("memory-backend-file,share=on,mem-path={}", file.display()));
    let ram = vm.map("ram0").unwrap();
    let data = pattern(MIB, 4);
    let refused = (0..64).find_map(|n| ram.write(n * MIB, &data).err().map(|error| (n, error)));
    let (written, error) = refused.expect("64 MiB do not fit into 16");
    assert!((14..=16).contains(&written), "{written} MiB fitted");
    assert!(matches!(&error, AccessError::NoMemory { .. }), "{error}");
    let source = error.source().unwrap().downcast_ref::<io::Error>().unwrap();
    assert_eq!(source.raw_os_error(), Some(nix::libc::ENOSPC));

    // All else goes on.
    ram.zero(0, 64 * MIB).unwrap();
    assert!(ram.is_zero(0, 64 * MIB).unwrap());
    ram.write(MIB, &data).unwrap();
    assert!(vm.memory(MIB, MIB) == data);
}

struct Mounted(TempDir);

impl Mounted {
    fn tmpfs(options: &str) -> Self {
        let directory = TempDir::with_prefix("skein-lab-ram").unwrap();
        mount(Some("none"), directory.path(), Some("tmpfs"), MsFlags::empty(), Some(options)).unwrap();
        Self(directory)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}

/// Reserves 2 MiB pages, and gives them back.
struct Reserved(String);

const NR_HUGEPAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

impl Reserved {
    fn pages(more: u64) -> Option<Self> {
        let count = || fs::read_to_string(NR_HUGEPAGES).ok()?.trim().parse::<u64>().ok();
        let before = count()?;
        let reserved = Self(before.to_string());
        fs::write(NR_HUGEPAGES, (before + more).to_string()).ok()?;
        (count()? >= before + more).then_some(reserved)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let _ = fs::write(NR_HUGEPAGES, &self.0);
    }
}

#[test]
fn huge_pages() {
    let Some(_reserved) = Reserved::pages(48) else {
        println!("skipped: 48 huge pages cannot be reserved here");
        return;
    };
    let vm = Vm::start(64, |config| config.hugepages = Some(HugePages::Size2M));
    let block = vm.block("ram0");
    let ram = vm.map("ram0").unwrap();
    assert_eq!((block.page_bytes, ram.page_bytes(), ram.bytes()), (2 * MIB, 2 * MIB, 64 * MIB));
    check(&vm, &ram);
    let all = 0..64 * MIB;
    assert_eq!(ram.data_extents().unwrap(), [all]);
    drop((ram, vm));

    // More than there are: none is kept for QEMU.
    let vm = Vm::with_backend(128, "memory-backend-memfd,share=on,hugetlb=on,hugetlbsize=2M,reserve=off");
    match vm.map("ram0") {
        // The kernel keeps none for this mapping either, and says so at once.
        Err(FindError::Map { source, .. }) => assert_eq!(source.raw_os_error(), Some(nix::libc::ENOMEM)),
        other => panic!("{other:?}"),
    }
}

/// What the first write of a GiB costs, and the next; figures, no limits.
#[test]
fn first_writes() {
    for piece in [256 << 10, 4 << 10] {
        let vm = Vm::start(1 << 10, |_| {});
        let ram = vm.map("ram0").unwrap();
        let data = pattern(piece, 5);
        let rates = [(); 2].map(|()| {
            let begin = Instant::now();
            for at in (0..ram.bytes()).step_by(piece as usize) {
                ram.write(at, &data).unwrap();
            }
            ram.bytes() as f64 / begin.elapsed().as_secs_f64() / 1e9
        });
        println!("1 GiB in {piece} bytes: {:.2} GB/s, again {:.2}", rates[0], rates[1]);
    }
}
