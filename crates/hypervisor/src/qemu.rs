//! QEMU processes: from a description of a machine to a command line, and the process that runs it.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::devices::{Boot, Cdrom, DiskOptions, Display, Storage, Tpm};
use crate::qmp::{QemuVersion, Qmp, QmpError};

/// The environment variable that names the QEMU program to use where a [`Config`] names none.
pub const BINARY_VARIABLE: &str = "SKEIN_QEMU";
const BINARY_DEFAULT: &str = "qemu-system-x86_64";
/// What is kept of QEMU's standard error: its end.
pub(crate) const STDERR_BYTES_MAX: usize = 16 << 10;

/// Where the guest's RAM lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryBackend {
    /// A shared memfd, which others can map: `memory-backend-memfd,share=on`.
    #[default]
    Memfd,
    /// QEMU's default.
    Anonymous,
}

/// Huge pages of the host under the guest's RAM; they must be reserved (`vm.nr_hugepages`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum HugePages {
    /// 2 MiB.
    #[serde(rename = "2M")]
    Size2M,
    /// 1 GiB.
    #[serde(rename = "1G")]
    Size1G,
}

impl HugePages {
    /// As QEMU writes it.
    fn as_str(self) -> &'static str {
        match self {
            Self::Size2M => "2M",
            Self::Size1G => "1G",
        }
    }
}

/// The guest's first serial port.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Serial {
    /// There is none.
    #[default]
    None,
    /// Appended to this file.
    File(PathBuf),
    /// A unix socket that QEMU listens on.
    Socket(PathBuf),
}

/// A named virtio-serial port, at the end of a unix socket that QEMU listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// What the guest finds in `/sys/class/virtio-ports/*/name`.
    pub name: String,
    /// The socket.
    pub socket: PathBuf,
}

/// How QEMU's block layer uses the host's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DiskCache {
    /// Past it (O_DIRECT): needed where source and target are different kernels.
    #[default]
    None,
    /// Through it: for file systems without O_DIRECT; coherent only within one kernel.
    Writeback,
}

/// What a disk's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskFormat {
    /// The disk's own.
    #[default]
    Raw,
    /// QEMU's, with its backing files if it names any.
    Qcow2,
}

/// A virtio disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The image, or a block device.
    pub path: PathBuf,
    /// Whether the path is a block device: QEMU has another driver for those.
    pub block_device: bool,
    /// What its bytes are.
    pub format: DiskFormat,
    /// How it is cached.
    pub cache: DiskCache,
    /// Whether QEMU locks the image. A source gives its lock up when it stops for the switchover, and a target takes it
    /// then, so this protects from strangers, not from source and target both running.
    pub locked: bool,
    /// Whether the guest may only read it.
    pub read_only: bool,
    /// How the guest sees it, and how QEMU reads it.
    pub options: DiskOptions,
}

impl Disk {
    /// A raw image past the page cache, not locked.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            block_device: false,
            format: DiskFormat::Raw,
            cache: DiskCache::None,
            locked: false,
            read_only: false,
            options: DiskOptions::default(),
        }
    }

    fn blockdev(&self, number: usize) -> OsString {
        let format = if self.format == DiskFormat::Raw { "raw" } else { "qcow2" };
        let direct = if self.cache == DiskCache::None { "on" } else { "off" };
        let read_only = if self.read_only { ",read-only=on" } else { "" };
        let file = if self.block_device { "host_device" } else { "file" };
        let locking = if self.locked { "auto" } else { "off" };
        let mut node = OsString::from(format!(
            "driver={format},node-name=disk{number},cache.direct={direct}{read_only}{},file.driver={file},\
             file.locking={locking}{},file.filename=",
            self.options.format_options(),
            self.options.file_options(),
        ));
        node.push(escape(&self.path));
        node
    }
}

/// A NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// Its address, `52:54:00:...`: the same on source and target.
    pub mac: String,
    /// A PCI device: `virtio-net-pci`, `e1000e`...
    pub model: String,
    /// What it is plugged into.
    pub backend: NicBackend,
    /// Whether the kernel moves a tap's packets (`/dev/vhost-net`), not QEMU.
    pub vhost: bool,
    /// Pairs of queues of a virtio card and its tap, which has to be made so; none: one, and no negotiation of more.
    pub queues: Option<u8>,
}

impl Nic {
    /// A virtio NIC without vhost.
    pub fn new(mac: impl Into<String>, backend: NicBackend) -> Self {
        Self { mac: mac.into(), model: "virtio-net-pci".into(), backend, vhost: false, queues: None }
    }
}

/// What a NIC is plugged into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NicBackend {
    /// A tap device that exists in QEMU's network namespace.
    Tap(String),
    /// The rest of a `-netdev` argument with its type, without its id: `user,restrict=on`.
    Other(String),
}

/// Whether this QEMU waits for a migration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Incoming {
    /// It boots.
    #[default]
    No,
    /// It waits for [`Monitor::migrate_incoming`](crate::Monitor::migrate_incoming).
    Defer,
    /// It listens at once.
    Uri(String),
}

/// A machine, and where its sockets are. Source and target differ in the sockets and in `incoming` only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The program; none: `$SKEIN_QEMU`, or `qemu-system-x86_64`. A wrapper script must `exec` it.
    pub binary: Option<PathBuf>,
    /// Directory of its firmware (`-L`), for a QEMU that is not installed.
    pub firmware: Option<PathBuf>,
    /// Shown by `ps`.
    pub name: String,
    /// `q35`, `pc`, `pc-q35-7.2`...
    pub machine: String,
    /// `tcg`, `kvm`.
    pub accel: String,
    /// The CPU model.
    pub cpu: String,
    /// Virtual CPUs.
    pub cpus: u32,
    /// RAM in KiB, a multiple of 8.
    pub memory_kib: u64,
    /// Where the RAM lives.
    pub memory: MemoryBackend,
    /// Huge pages under a memfd; none: the kernel's choice.
    pub hugepages: Option<HugePages>,
    /// Kernel, initramfs and command line of a direct boot.
    pub kernel: Option<PathBuf>,
    /// See `kernel`.
    pub initrd: Option<PathBuf>,
    /// See `kernel`.
    pub append: String,
    /// What runs before the guest's software.
    pub boot: Boot,
    /// A TPM.
    pub tpm: Option<Tpm>,
    /// The SMBIOS table of the machine: `uuid`, and the keys of QEMU's `-smbios type=1`.
    pub system: Vec<(String, String)>,
    /// What follows `-rtc`; empty: universal time.
    pub rtc: String,
    /// A graphics card, and the unix socket that its picture is at.
    pub display: Option<Display>,
    /// Disks.
    pub disks: Vec<Disk>,
    /// CD drives.
    pub cdroms: Vec<Cdrom>,
    /// NICs.
    pub nics: Vec<Nic>,
    /// First serial port.
    pub serial: Serial,
    /// virtio-serial ports.
    pub ports: Vec<Port>,
    /// Where QMP listens. A unix socket's path has at most 107 bytes.
    pub qmp: PathBuf,
    /// Whether it waits for a migration.
    pub incoming: Incoming,
    /// Whether the guest stays stopped until `cont` (`-S`).
    pub paused: bool,
    /// Whether QEMU ends where the guest would reboot.
    pub no_reboot: bool,
    /// Whether QEMU gives up the system calls that it does not need (`-sandbox`), so that a guest that breaks out of it
    /// finds fewer. It can start no other program then: no network scripts or helpers.
    pub sandbox: bool,
    /// More arguments, last.
    pub extra: Vec<OsString>,
}

impl Config {
    /// A q35 machine with one CPU under TCG and `memory_kib` KiB of RAM that listens for QMP on `qmp`.
    pub fn new(name: impl Into<String>, memory_kib: u64, qmp: impl Into<PathBuf>) -> Self {
        Self {
            binary: None,
            firmware: None,
            name: name.into(),
            machine: "q35".into(),
            accel: "tcg".into(),
            cpu: "max".into(),
            cpus: 1,
            memory_kib,
            memory: MemoryBackend::default(),
            hugepages: None,
            kernel: None,
            initrd: None,
            append: String::new(),
            boot: Boot::default(),
            tpm: None,
            system: Vec::new(),
            rtc: String::new(),
            display: None,
            disks: Vec::new(),
            cdroms: Vec::new(),
            nics: Vec::new(),
            serial: Serial::None,
            ports: Vec::new(),
            qmp: qmp.into(),
            incoming: Incoming::No,
            paused: false,
            no_reboot: true,
            sandbox: false,
            extra: Vec::new(),
        }
    }

    /// The same machine as a migration's target: it waits for [`Monitor::migrate_incoming`] and then for `cont`.
    ///
    /// [`Monitor::migrate_incoming`]: crate::Monitor::migrate_incoming
    pub fn as_incoming(self) -> Self {
        Self { incoming: Incoming::Defer, paused: true, ..self }
    }

    /// The program that will run.
    pub fn program(&self) -> PathBuf {
        let named = || std::env::var_os(BINARY_VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
        self.binary.clone().or_else(named).unwrap_or_else(|| BINARY_DEFAULT.into())
    }

    /// The arguments, without the program.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut args = Arguments(Vec::new());
        args.option("-name", &self.name);
        args.flags(["-nodefaults", "-no-user-config"]);
        if self.no_reboot {
            args.flags(["-no-reboot"]);
        }
        args.option("-display", "none");
        if self.sandbox {
            args.option("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
        }
        if let Some(directory) = &self.firmware {
            args.option("-L", directory);
        }
        args.option("-accel", &self.accel);
        let machine = &format!("{}{}", self.machine, self.boot.machine_options());
        match self.memory {
            MemoryBackend::Anonymous => args.option("-machine", machine),
            MemoryBackend::Memfd => {
                let huge = self.hugepages.map(|size| format!(",hugetlb=on,hugetlbsize={}", size.as_str()));
                let huge = huge.unwrap_or_default();
                args.option(
                    "-object",
                    format!("memory-backend-memfd,id=ram0,share=on{huge},size={}K", self.memory_kib),
                );
                args.option("-machine", format!("{machine},memory-backend=ram0"));
            }
        }
        args.option("-m", format!("{}K", self.memory_kib));
        args.option("-cpu", &self.cpu);
        args.option("-smp", self.cpus.to_string());
        if let Some(kernel) = &self.kernel {
            args.option("-kernel", kernel);
            args.option("-append", &self.append);
        }
        if let Some(initrd) = &self.initrd {
            args.option("-initrd", initrd);
        }
        for (name, value) in self.boot.arguments() {
            args.option(name, value);
        }
        self.platform(&mut args);
        let mut storage = Storage::new(&self.machine, &self.disks);
        for (number, disk) in self.disks.iter().enumerate() {
            args.option("-blockdev", disk.blockdev(number));
            storage.disk(number, disk).into_iter().for_each(|(name, value)| args.option(name, value));
        }
        for (number, cdrom) in self.cdroms.iter().enumerate() {
            storage.cdrom(number, cdrom).into_iter().for_each(|(name, value)| args.option(name, value));
        }
        for (number, nic) in self.nics.iter().enumerate() {
            let backend = match &nic.backend {
                NicBackend::Tap(tap) => {
                    let vhost = if nic.vhost { ",vhost=on" } else { "" };
                    let queues = nic.queues.map(|queues| format!(",queues={queues}")).unwrap_or_default();
                    format!("tap,id=net{number},ifname={tap},script=no,downscript=no{queues}{vhost}")
                }
                NicBackend::Other(rest) => match rest.split_once(',') {
                    Some((kind, options)) => format!("{kind},id=net{number},{options}"),
                    None => format!("{rest},id=net{number}"),
                },
            };
            args.option("-netdev", backend);
            // No option ROM: it is a file that firmware directories may lack, and nothing boots from here.
            // A vector for each queue, one for changes and one for control (hw/virtio/virtio-net-pci.c).
            let queues = nic.queues.map(|queues| format!(",mq=on,vectors={}", 2 * u32::from(queues) + 2));
            let queues = queues.unwrap_or_default();
            args.option("-device", format!("{},netdev=net{number},mac={},romfile={queues}", nic.model, nic.mac));
        }
        match &self.serial {
            Serial::None => {}
            Serial::File(path) => {
                args.chardev("file", "serial0", path, ",append=on");
                args.option("-serial", "chardev:serial0");
            }
            Serial::Socket(path) => {
                args.chardev("socket", "serial0", path, ",server=on,wait=off");
                args.option("-serial", "chardev:serial0");
            }
        }
        if !self.ports.is_empty() {
            args.option("-device", "virtio-serial-pci");
        }
        for (number, port) in self.ports.iter().enumerate() {
            args.chardev("socket", &format!("port{number}"), &port.socket, ",server=on,wait=off");
            args.option("-device", format!("virtserialport,chardev=port{number},name={}", port.name));
        }
        args.chardev("socket", "qmp0", &self.qmp, ",server=on,wait=off");
        args.option("-mon", "chardev=qmp0,mode=control");
        match &self.incoming {
            Incoming::No => {}
            Incoming::Defer => args.option("-incoming", "defer"),
            Incoming::Uri(uri) => args.option("-incoming", uri),
        }
        if self.paused {
            args.flags(["-S"]);
        }
        args.0.extend(self.extra.iter().cloned());
        args.0
    }
}

impl Config {
    /// TPM, SMBIOS, clock and display.
    fn platform(&self, args: &mut Arguments) {
        if let Some(tpm) = &self.tpm {
            args.chardev("socket", "tpm0", &tpm.socket, "");
            args.option("-tpmdev", "emulator,id=tpmdev0,chardev=tpm0");
            args.option("-device", format!("{},tpmdev=tpmdev0", tpm.model));
        }
        let texts = self.system.iter().filter(|(key, _)| key != "uuid");
        let texts: String = texts.map(|(key, text)| format!(",{key}={}", text.replace(',', ",,"))).collect();
        if let Some((_, uuid)) = self.system.iter().find(|(key, _)| key == "uuid") {
            args.option("-uuid", uuid);
        }
        if !texts.is_empty() {
            args.option("-smbios", format!("type=1{texts}"));
        }
        if !self.rtc.is_empty() {
            args.option("-rtc", &self.rtc);
        }
        if let Some(display) = &self.display {
            let mut vnc = OsString::from("unix:");
            vnc.push(escape(&display.vnc));
            args.option("-vnc", vnc);
            args.option("-device", &display.card);
            args.option("-device", "qemu-xhci,id=usb0");
            args.option("-device", "usb-tablet,bus=usb0.0");
        }
    }
}

struct Arguments(Vec<OsString>);

impl Arguments {
    fn option(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.0.extend([name.into(), value.as_ref().into()]);
    }

    fn flags<const N: usize>(&mut self, names: [&str; N]) {
        self.0.extend(names.map(OsString::from));
    }

    fn chardev(&mut self, kind: &str, id: &str, path: &Path, options: &str) {
        let mut value = OsString::from(format!("{kind},id={id},path="));
        value.push(escape(path));
        value.push(options);
        self.option("-chardev", value);
    }
}

/// QEMU's option parser takes a comma in a value only doubled.
pub(crate) fn escape(path: &Path) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let mut escaped = Vec::new();
    for &byte in path.as_os_str().as_bytes() {
        escaped.extend(std::iter::repeat_n(byte, if byte == b',' { 2 } else { 1 }));
    }
    OsString::from_vec(escaped)
}

/// Why a QEMU cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program cannot be run.
    #[error("starting {program}; install qemu-system-x86, or name a QEMU with {BINARY_VARIABLE}")]
    Start {
        /// The program.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It ended by itself.
    #[error("QEMU ended with {status}: {stderr}")]
    Ended {
        /// How: `exit status: 1`, `signal: 9 (SIGKILL)`.
        status: String,
        /// What it wrote to standard error.
        stderr: String,
    },
    /// Its control socket does not work.
    #[error("QMP of a new QEMU ({stderr})")]
    Qmp {
        /// What QEMU wrote to standard error.
        stderr: String,
        /// What went wrong.
        source: QmpError,
    },
    /// It runs and does not answer. It was killed.
    #[error(
        "it did not answer on its QMP socket within {} s of its start, and was killed; does what its command line leads to \
         (sockets, storage) answer? QEMU said: {stderr}",
        after.as_secs()
    )]
    Silent {
        /// The time it had.
        after: Duration,
        /// What it wrote to standard error.
        stderr: String,
    },
    /// It does not say which version it is.
    #[error("{program} --version says {said:?}; is it QEMU?")]
    Version {
        /// The program.
        program: PathBuf,
        /// The beginning of what it wrote.
        said: String,
    },
    /// The file for its output cannot be written.
    #[error("opening {path}, QEMU's log")]
    Log {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The process cannot be observed.
    #[error("observing QEMU")]
    Process(#[source] io::Error),
}

/// The version of a QEMU program, by its own word.
pub fn version_of(program: &Path) -> Result<QemuVersion, Error> {
    const DEADLINE: Duration = Duration::from_secs(10);
    let start = |source| Error::Start { program: program.into(), source };
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = Killed(command.spawn().map_err(start)?);
    let said = Arc::default();
    let reader = collect(child.0.stdout.take().expect("is piped"), Arc::clone(&said));
    let end = Instant::now() + DEADLINE;
    while !reader.is_finished() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    let said = text(&said);
    parse_version(&said)
        .ok_or_else(|| Error::Version { program: program.into(), said: said.chars().take(80).collect() })
}

/// The numbers of `QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)`.
fn parse_version(text: &str) -> Option<QemuVersion> {
    let numbers = text.strip_prefix("QEMU emulator version ")?.split([' ', '\n']).next()?;
    let mut numbers = numbers.split('.').map(|number| number.parse().ok());
    let mut next = || numbers.next()?;
    Some(QemuVersion { major: next()?, minor: next()?, micro: next()? })
}

/// A running QEMU. Killed when dropped.
#[derive(Debug)]
pub struct Qemu {
    child: Killed,
    stderr: Arc<Mutex<Vec<u8>>>,
    /// Its control socket.
    pub qmp: Qmp,
    command_line: Vec<OsString>,
}

impl Qemu {
    /// Starts QEMU and waits up to `deadline` until it answers.
    ///
    /// `command` makes the command that runs a program: [`Command::new`], or one that runs it elsewhere, such as in a
    /// network namespace. It must end in an `exec` of the program, so that its process is QEMU's.
    pub fn start(config: &Config, command: impl FnOnce(&Path) -> Command, deadline: Duration) -> Result<Self, Error> {
        let end = Instant::now() + deadline;
        let program = config.program();
        let mut command = command(&program);
        command.args(config.arguments()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let command_line =
            std::iter::once(command.get_program()).chain(command.get_args()).map(OsStr::to_owned).collect();
        // A socket left over by an earlier QEMU would be connected to in place of the new one's.
        let _ = std::fs::remove_file(&config.qmp);
        let mut child = Killed(command.spawn().map_err(|source| Error::Start { program, source })?);
        let stderr = Arc::default();
        collect(child.0.stderr.take().expect("is piped"), Arc::clone(&stderr));

        let ended = || match child.0.try_wait().map_err(Error::Process)? {
            None => Ok(()),
            Some(status) => {
                // Let the reader see the last words.
                std::thread::sleep(Duration::from_millis(50));
                Err(Error::Ended { status: status.to_string(), stderr: text(&stderr) })
            }
        };
        let qmp = first_connection(|wait| Qmp::connect(&config.qmp, wait), ended, || text(&stderr), end)?;
        Ok(Self { child, stderr, qmp, command_line })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// The whole command line as it was run, wrapper and all.
    pub fn command_line(&self) -> &[OsString] {
        &self.command_line
    }

    /// The end of what it wrote to standard error.
    pub fn stderr(&self) -> String {
        text(&self.stderr)
    }

    /// CPU time it has used so far, all threads.
    pub fn cpu_time(&self) -> Result<Duration, Error> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).map_err(Error::Process)?;
        // proc(5): fields 14 and 15, in ticks; the name before them is in parentheses and may hold anything.
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let ticks: u64 =
            after_name.split_ascii_whitespace().skip(11).take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
        // SAFETY: sysconf takes no pointers.
        let hz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
        Ok(Duration::from_millis(ticks * 1000 / hz))
    }

    /// How it ended, if it did.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.child.0.try_wait().map_err(Error::Process)
    }

    /// Waits up to `deadline` for it to end.
    pub fn wait(&mut self, deadline: Duration) -> Result<Option<ExitStatus>, Error> {
        let end = Instant::now() + deadline;
        loop {
            let status = self.try_wait()?;
            if status.is_some() || Instant::now() >= end {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills it now, and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill();
    }
}

/// Connects to a new QEMU's control socket, as long as it lives and until `end`. `alive` fails if it has ended; `said`
/// is what it wrote.
pub(crate) fn first_connection<T>(
    connect: impl Fn(Duration) -> Result<T, QmpError>,
    mut alive: impl FnMut() -> Result<(), Error>,
    said: impl Fn() -> String,
    end: Instant,
) -> Result<T, Error> {
    loop {
        alive()?;
        let left = end.saturating_duration_since(Instant::now());
        match connect(left.min(Duration::from_millis(100))) {
            Ok(connected) => return Ok(connected),
            Err(QmpError::Connect { .. } | QmpError::Timeout { .. } | QmpError::Closed) if !left.is_zero() => {}
            Err(source) => return Err(Error::Qmp { stderr: said(), source }),
        }
    }
}

/// A process that is killed when dropped.
#[derive(Debug)]
pub(crate) struct Killed(pub(crate) Child);

impl Killed {
    fn kill(&mut self) {
        // Fails only if it has ended and been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Has a process end with the thread that starts it, if that is killed: nobody would know of it.
pub(crate) fn end_with_thread(command: &mut Command) {
    // SAFETY: between fork and exec, one async-signal-safe call that takes integers.
    unsafe {
        command.pre_exec(|| {
            nix::errno::Errno::result(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL)).map(drop).map_err(Into::into)
        });
    }
}

/// Keeps the end of what a process writes, until it ends.
pub(crate) fn collect(mut from: impl Read + Send + 'static, into: Arc<Mutex<Vec<u8>>>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let mut kept = into.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            kept.extend_from_slice(&buffer[..count]);
            let excess = kept.len().saturating_sub(STDERR_BYTES_MAX);
            kept.drain(..excess);
        }
    })
}

pub(crate) fn text(stderr: &Mutex<Vec<u8>>) -> String {
    words(&stderr.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

/// What a process wrote, for an error message.
pub(crate) fn words(bytes: &[u8]) -> String {
    match String::from_utf8_lossy(bytes).trim() {
        "" => "it wrote nothing".into(),
        said => said.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(config: &Config) -> String {
        config.arguments().iter().map(|a| a.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_whole_command_line() {
        let mut config = Config::new("vm", 262_144, "/run/a,b/qmp");
        config.firmware = Some("/opt/share".into());
        config.kernel = Some("/k".into());
        config.initrd = Some("/i".into());
        config.append = "quiet".into();
        config.disks = vec![Disk::new("/d")];
        config.nics = vec![
            Nic::new("52:54:00:00:00:01", NicBackend::Tap("tap0".into())),
            Nic::new("52:54:00:00:00:02", NicBackend::Other("user,restrict=on".into())),
        ];
        config.serial = Serial::File("/log".into());
        config.ports = vec![Port { name: "p".into(), socket: "/p".into() }];
        config.incoming = Incoming::Defer;
        config.paused = true;
        config.extra = vec!["-d".into(), "int".into()];
        assert_eq!(
            line(&config),
            "-name vm -nodefaults -no-user-config -no-reboot -display none -L /opt/share -accel tcg \
             -object memory-backend-memfd,id=ram0,share=on,size=262144K -machine q35,memory-backend=ram0 -m 262144K -cpu max -smp 1 \
             -kernel /k -append quiet -initrd /i \
             -blockdev driver=raw,node-name=disk0,cache.direct=on,file.driver=file,file.locking=off,file.filename=/d \
             -device virtio-blk-pci,drive=disk0 \
             -netdev tap,id=net0,ifname=tap0,script=no,downscript=no \
             -device virtio-net-pci,netdev=net0,mac=52:54:00:00:00:01,romfile= \
             -netdev user,id=net1,restrict=on -device virtio-net-pci,netdev=net1,mac=52:54:00:00:00:02,romfile= \
             -chardev file,id=serial0,path=/log,append=on -serial chardev:serial0 \
             -device virtio-serial-pci -chardev socket,id=port0,path=/p,server=on,wait=off \
             -device virtserialport,chardev=port0,name=p \
             -chardev socket,id=qmp0,path=/run/a,,b/qmp,server=on,wait=off -mon chardev=qmp0,mode=control \
             -incoming defer -S -d int"
        );
    }

    #[test]
    fn a_managed_machine_and_its_target() {
        let mut config = Config::new("vm", 2_097_152, "/q");
        config.no_reboot = false;
        config.sandbox = true;
        config.hugepages = Some(HugePages::Size2M);
        config.disks = vec![
            Disk { format: DiskFormat::Qcow2, locked: true, cache: DiskCache::Writeback, ..Disk::new("/s/a") },
            Disk { block_device: true, read_only: true, ..Disk::new("/dev/b") },
        ];
        let tap = NicBackend::Tap("t0".into());
        config.nics = vec![Nic { vhost: true, model: "e1000e".into(), ..Nic::new("52:54:00:00:00:01", tap) }];
        let source = line(&config);
        assert_eq!(
            source,
            "-name vm -nodefaults -no-user-config -display none \
             -sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny -accel tcg \
             -object memory-backend-memfd,id=ram0,share=on,hugetlb=on,hugetlbsize=2M,size=2097152K \
             -machine q35,memory-backend=ram0 -m 2097152K -cpu max -smp 1 \
             -blockdev driver=qcow2,node-name=disk0,cache.direct=off,file.driver=file,file.locking=auto,file.filename=/s/a \
             -device virtio-blk-pci,drive=disk0 \
             -blockdev driver=raw,node-name=disk1,cache.direct=on,read-only=on,file.driver=host_device,\
             file.locking=off,file.filename=/dev/b -device virtio-blk-pci,drive=disk1 \
             -netdev tap,id=net0,ifname=t0,script=no,downscript=no,vhost=on \
             -device e1000e,netdev=net0,mac=52:54:00:00:00:01,romfile= \
             -chardev socket,id=qmp0,path=/q,server=on,wait=off -mon chardev=qmp0,mode=control"
        );
        assert_eq!(line(&config.as_incoming()), format!("{source} -incoming defer -S"));
    }

    #[test]
    fn anonymous_memory_has_no_backend() {
        let mut config = Config::new("vm", 65_536, "/q");
        config.memory = MemoryBackend::Anonymous;
        config.machine = "pc-i440fx-7.2".into();
        assert!(line(&config).contains("-machine pc-i440fx-7.2 -m 65536K"));
        assert!(!line(&config).contains("-object"));
    }

    fn scratch() -> PathBuf {
        std::env::temp_dir().join(format!("skein-qemu-test-{}", std::process::id()))
    }

    #[test]
    fn versions() {
        let version = |text| parse_version(text).map(|v| v.to_string());
        let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright (c) 2003-2022";
        assert_eq!(version(debian).as_deref(), Some("7.2.22"));
        assert_eq!(version("QEMU emulator version 10.0.2\nCopyright").as_deref(), Some("10.0.2"));
        for other in ["", "QEMU emulator version ", "QEMU emulator version 7", "GNU sed 4.9"] {
            assert_eq!(version(other), None, "{other}");
        }
        let error = version_of(Path::new("true")).unwrap_err();
        assert!(error.to_string().ends_with("is it QEMU?"), "{error}");
    }

    #[test]
    fn a_program_that_is_not_there() {
        let mut config = Config::new("vm", 65_536, scratch());
        config.binary = Some("/nonexistent/qemu".into());
        let error = Qemu::start(&config, |p| Command::new(p), Duration::from_secs(1)).unwrap_err();
        assert!(matches!(error, Error::Start { .. }));
    }

    #[test]
    fn a_program_that_ends_says_why() {
        let config = Config::new("vm", 65_536, scratch());
        let shell = |_: &Path| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo no such machine >&2; exit 3"]);
            command
        };
        let error = Qemu::start(&config, shell, Duration::from_secs(5)).unwrap_err();
        assert_eq!(error.to_string(), "QEMU ended with exit status: 3: no such machine");
    }

    #[test]
    fn a_program_that_never_answers_is_killed() {
        let config = Config::new("vm", 65_536, scratch());
        let pid_file = scratch().with_extension("pid");
        let path = pid_file.clone();
        let shell = move |_: &Path| {
            let mut command = Command::new("sh");
            command.arg("-c").arg(format!("echo $$ > {}; exec sleep 60", path.display()));
            command
        };
        let error = Qemu::start(&config, shell, Duration::from_millis(300)).unwrap_err();
        assert!(matches!(error, Error::Qmp { source: QmpError::Connect { .. }, .. }), "{error:?}");
        let pid = std::fs::read_to_string(&pid_file).unwrap();
        std::fs::remove_file(&pid_file).unwrap();
        assert!(!Path::new("/proc").join(pid.trim()).exists());
    }
}
