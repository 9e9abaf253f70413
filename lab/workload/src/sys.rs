//! What pid 1 needs of the kernel.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use skein_workload::{PAGE_BYTES, Page, PortAddress};

fn check(what: &str, result: i64) -> Result<i64, String> {
    if result < 0 { Err(format!("{what}: {}", io::Error::last_os_error())) } else { Ok(result) }
}

/// Mounts /proc, /sys and /dev.
///
/// # Errors
///
/// What could not be mounted.
pub fn mount_all() -> Result<(), String> {
    for (kind, at) in [(c"proc", c"/proc"), (c"sysfs", c"/sys"), (c"devtmpfs", c"/dev")] {
        // This fails if the directory exists already, or else the mount reports the error.
        let _ = fs::create_dir(at.to_str().unwrap_or_default());
        // SAFETY: all pointers are NUL-terminated constants, or null where the call allows it.
        let result = unsafe { libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) };
        check(&format!("mounting {at:?}"), result.into())?;
    }
    Ok(())
}

/// Mounts a file system in memory that may grow to nearly all of the memory.
///
/// # Errors
///
/// Why it could not be mounted.
pub fn mount_memory(at: &str) -> Result<(), String> {
    fs::create_dir_all(at).map_err(|e| format!("{at}: {e}"))?;
    let place = std::ffi::CString::new(at).map_err(|e| format!("{at}: {e}"))?;
    // SAFETY: all pointers are NUL-terminated strings that live over the call.
    let result =
        unsafe { libc::mount(c"tmpfs".as_ptr(), place.as_ptr(), c"tmpfs".as_ptr(), 0, c"size=90%".as_ptr().cast()) };
    check(&format!("mounting {at}"), result.into()).map(drop)
}

/// Loads the modules that the initramfs lists, in its order.
///
/// # Errors
///
/// The first module that could not be loaded.
pub fn load_modules() -> Result<(), String> {
    let order = fs::read_to_string("/modules/order").map_err(|e| format!("/modules/order: {e}"))?;
    for name in order.lines() {
        let file = File::open(format!("/modules/{name}")).map_err(|e| format!("/modules/{name}: {e}"))?;
        // SAFETY: the descriptor is open for the duration of the call and the parameters are a constant string.
        let result = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), 0) };
        check(&format!("loading {name}"), result)?;
    }
    Ok(())
}

/// Gives the first NIC an address, and brings it and the loopback up.
///
/// # Errors
///
/// What could not be configured.
pub fn configure_nic(address: PortAddress) -> Result<(), String> {
    let nics = fs::read_dir("/sys/class/net").map_err(|e| format!("/sys/class/net: {e}"))?;
    let mut names: Vec<String> = nics.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| name != "lo");
    names.sort();
    let name = names.first().ok_or("skein.ip needs a virtio NIC")?;

    // SAFETY: socket() takes no pointers.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    check("socket", socket.into())?;
    // SAFETY: the descriptor is fresh and owned by nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let set = |nic: &str, request: libc::Ioctl, value: libc::__c_anonymous_ifr_ifru| {
        // SAFETY: ifreq is plain data; all zeros is a valid value.
        let mut wanted: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in wanted.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(nic.bytes()) {
            *to = from as libc::c_char;
        }
        wanted.ifr_ifru = value;
        // SAFETY: the request is one of those that read an ifreq, which lives over the call.
        let result = unsafe { libc::ioctl(socket.as_raw_fd(), request, &wanted) };
        check(&format!("configuring {nic}"), result.into())
    };
    let inet = |ip: std::net::Ipv4Addr| {
        let wanted = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: 0,
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
            sin_zero: [0; 8],
        };
        // SAFETY: sockaddr_in and sockaddr have the same size and both are plain data.
        let ifru_addr = unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(wanted) };
        libc::__c_anonymous_ifr_ifru { ifru_addr }
    };
    let up = libc::__c_anonymous_ifr_ifru { ifru_flags: (libc::IFF_UP | libc::IFF_RUNNING) as i16 };
    set("lo", libc::SIOCSIFFLAGS, up)?;
    set(name, libc::SIOCSIFADDR, inet(address.ip))?;
    set(name, libc::SIOCSIFNETMASK, inet(address.mask()))?;
    set(name, libc::SIOCSIFFLAGS, up)?;
    Ok(())
}

/// Opens the virtio-serial port of this name for non-blocking use. Returns `None` if there is no such port.
pub fn open_port(name: &str) -> Option<File> {
    for entry in fs::read_dir("/sys/class/virtio-ports").ok()?.flatten() {
        let found = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if found.trim_end() == name {
            let device = format!("/dev/{}", entry.file_name().to_str()?);
            return OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(device).ok();
        }
    }
    None
}

/// Waits up to 10 s until there is something to read.
pub fn wait_readable(file: &File) {
    let mut wanted = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd that lives over the call.
    unsafe { libc::poll(&mut wanted, 1, 10_000) };
}

/// Returns CLOCK_MONOTONIC in nanoseconds.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the timespec lives over the call, which cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps.
pub fn sleep_ns(ns: u64) {
    std::thread::sleep(std::time::Duration::from_nanos(ns));
}

/// Gives the calling thread priority over all ordinary ones.
pub fn realtime_priority() {
    let wanted = libc::sched_param { sched_priority: 50 };
    // SAFETY: the parameter lives over the call. Root of the guest may do this; if not, beats are only less regular.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &wanted) };
}

/// Returns how much RAM can be used without swapping or killing, in MiB.
///
/// # Errors
///
/// Why that cannot be read.
pub fn available_mb() -> Result<u32, String> {
    /// What is left for the threads' stacks and for what the kernel allocates later.
    const KEEP_KIB: u32 = 16 << 10;
    let meminfo = fs::read_to_string("/proc/meminfo").map_err(|e| format!("/proc/meminfo: {e}"))?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: u32 = line
        .and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok())
        .ok_or("/proc/meminfo does not say what is available")?;
    Ok(kib.saturating_sub(KEEP_KIB) >> 10)
}

/// Returns the number of this guest's CPUs.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns fresh zeroed pages, in huge pages where the kernel has them, for the rest of the program's life.
///
/// # Errors
///
/// Why the kernel does not give the memory.
pub fn map_pages(count: usize) -> Result<&'static mut [Page], String> {
    if count == 0 {
        return Ok(&mut []);
    }
    let bytes = count * PAGE_BYTES;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping touches no existing memory.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return Err(format!("mapping {bytes} bytes: {}", io::Error::last_os_error()));
    }
    // SAFETY: the mapping is `bytes` long, page-aligned, readable, writable, zeroed, never unmapped and known to
    // nobody else; any bits are valid words.
    Ok(unsafe { std::slice::from_raw_parts_mut(address.cast(), count) })
}

/// Ends the guest.
pub fn power_off() -> ! {
    // SAFETY: no arguments but a constant. Does not return when allowed, and pid 1 is.
    unsafe { libc::reboot(libc::RB_POWER_OFF) };
    std::process::exit(0)
}
