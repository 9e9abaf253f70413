//! A guest in one QEMU, and its move to another.

use std::io::{Read, Seek, SeekFrom};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use skein_hypervisor::{
    Config, Disk, DiskCache, Incoming, MigrationInfo, MigrationStatus, Nic, NicBackend, Port, Qemu, QemuVersion,
    Serial, Tuning, version_of,
};
use skein_workload::{BEAT_PORT, CONTROL_PORT, Params};
use tempfile::TempDir;

use crate::beats::{Beats, Gaps};
use crate::image::{Image, SharedDisk};
use crate::workload_client::{self, WorkloadClient};
use crate::{Error, MemoryBackend};

/// The time for QEMU to answer on its control socket.
const START_DEADLINE: Duration = Duration::from_secs(30);
/// How many bytes of the console an error shows.
const CONSOLE_BYTES: u64 = 2000;

/// By how much RAM of an odd size is larger than its MiB; see [`Spec::odd_ram`].
const ODD_KIB: u64 = 8;

/// The specification of a guest, which is the same for source and target.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The name, which `ps` shows, and which is part of the names of directories.
    pub name: String,
    /// What the guest boots from.
    pub image: Image,
    /// The RAM in MiB; see [`Spec::memory_mb_for`].
    pub memory_mb: u32,
    /// The number of virtual CPUs.
    pub cpus: u32,
    /// The machine type: `q35`, `pc-q35-7.2`...
    pub machine: String,
    /// Where the RAM lies.
    pub memory: MemoryBackend,
    /// Whether the RAM is 8 KiB more than `memory_mb`. `None`: if this spec's QEMU needs it. Set it where source and
    /// target are of different versions.
    ///
    /// QEMU before 9.0 loses writes of an emulated CPU during a migration: it takes the dirty bits of 64 pages at a
    /// time and forgets to tell the CPU's TLB to notice the next write to them (mended by the change "physmem: Fix
    /// migration dirty bitmap coherency with TCG memory access"). RAM whose size is no multiple of 64 pages is taken
    /// page by page, by slower code that does not forget. Measured with QEMU 7.2: without this, 3 of some 40 migrations
    /// of a rewriting guest left its kernel spinning on a lock that had no holder; with it, none of 120. QEMU 10.0:
    /// none of 80 without it; with it, a migration of 0.7 s takes 2.0 s.
    pub odd_ram: Option<bool>,
    /// Whether an agent's guest says during a migration which pages it does not use. Other guests do not.
    pub free_page_hint: bool,
    /// The parameters of the workload.
    pub params: Params,
    /// The disk. `params.disk_mb` says how much of it the workload uses.
    pub disk: Option<SharedDisk>,
    /// The MAC of the NIC, and the tap that it is plugged into, which must exist in QEMU's network namespace.
    pub nic: Option<(String, String)>,
    /// The QEMU program. `None`: `$SKEIN_QEMU`, or `qemu-system-x86_64`.
    pub qemu: Option<PathBuf>,
    /// The firmware directory of that QEMU.
    pub firmware: Option<PathBuf>,
    /// More arguments for QEMU.
    pub extra: Vec<String>,
}

impl Spec {
    /// Returns a guest with one CPU on a q35 machine, a shared memfd as RAM, no disk and no NIC.
    pub fn new(name: impl Into<String>, image: Image, memory_mb: u32, params: Params) -> Self {
        Self {
            name: name.into(),
            image,
            memory_mb,
            cpus: 1,
            machine: "q35".into(),
            memory: MemoryBackend::Memfd,
            odd_ram: None,
            free_page_hint: false,
            params,
            disk: None,
            nic: None,
            qemu: None,
            firmware: None,
            extra: Vec::new(),
        }
    }

    /// Returns the RAM in MiB that a guest needs whose workload fills `fill_mb`. Debian's kernel 6.1 kept 78 MiB of 140
    /// for itself, 171 of 1024, 346 of 4096 and 613 of 16384, and some has to be left.
    pub fn memory_mb_for(fill_mb: u32) -> u32 {
        fill_mb + 110 + (fill_mb / 16).min(250) + fill_mb / 48
    }

    fn config(&self, directory: &Path, incoming: Incoming, begin: Begin) -> Result<Config, Error> {
        let mut config = Config::new(&self.name, u64::from(self.memory_mb) * 1024, directory.join("qmp"));
        config.binary = self.qemu.clone();
        let odd_ram = match self.odd_ram {
            Some(odd) => odd,
            None => version_of(&config.program())? < QemuVersion { major: 9, minor: 0, micro: 0 },
        };
        config.memory_kib += if odd_ram { ODD_KIB } else { 0 };
        config.firmware = self.firmware.clone();
        config.machine = self.machine.clone();
        config.memory = self.memory;
        config.cpus = self.cpus;
        config.kernel = Some(self.image.kernel.clone());
        config.initrd = Some(self.image.initrd.clone());
        config.append = self.append("ttyS0");
        config.disks = self.disk.iter().map(|disk| Disk { cache: disk.cache(), ..Disk::new(disk.path()) }).collect();
        config.nics = self.nic.iter().map(|(mac, tap)| Nic::new(mac, NicBackend::Tap(tap.clone()))).collect();
        config.serial = Serial::File(directory.join("console"));
        config.ports = [(CONTROL_PORT, "control"), (BEAT_PORT, "beat")]
            .map(|(name, socket)| Port { name: name.into(), socket: directory.join(socket) })
            .into();
        config.incoming = incoming;
        config.paused = begin == Begin::Paused;
        config.extra = self.extra.iter().map(Into::into).collect();
        Ok(config)
    }

    fn append(&self, console: &str) -> String {
        // Mitigations cost an emulated CPU much and protect nothing here. A panic must end QEMU (with -no-reboot).
        format!("console={console} quiet panic=-1 mitigations=off nokaslr {}", self.params.command_line())
    }

    /// Returns the same guest as a VM file, for an agent. `control` and `beat` are where its QEMU is to listen for
    /// clients of the workload. `console` is the file to which its console is appended. `args` are QEMU's further
    /// arguments, besides [`Spec::extra`].
    ///
    /// `odd_ram` and `memory` are not part of it: the agent knows when RAM has to be odd, and memory is always shared.
    pub fn definition(&self, [control, beat]: [&Path; 2], console: &Path, args: &[String]) -> String {
        let quoted = |text: &str| format!("'{text}'");
        let path = |path: &Path| quoted(&path.to_string_lossy());
        let mut words: Vec<String> = args.to_vec();
        if let Some(firmware) = &self.firmware {
            words.extend(["-L".into(), firmware.display().to_string()]);
        }
        words.extend(["-device".into(), "virtio-serial-pci".into()]);
        for (number, (port, socket)) in [(CONTROL_PORT, control), (BEAT_PORT, beat)].into_iter().enumerate() {
            let socket = socket.display();
            words.extend(["-chardev".into(), format!("socket,id=port{number},path={socket},server=on,wait=off")]);
            words.extend(["-device".into(), format!("virtserialport,chardev=port{number},name={port}")]);
        }
        // The first serial port is the agent's.
        let console = console.display();
        words.extend(["-chardev".into(), format!("file,id=console,path={console},append=on")]);
        words.extend(["-serial".into(), "chardev:console".into()]);
        words.extend(self.extra.iter().cloned());
        if self.free_page_hint {
            // QEMU reads the hints in a thread of the device's own.
            let device = "virtio-balloon-pci,free-page-hint=on,iothread=hints";
            words.extend(["-object", "iothread,id=hints", "-device", device].map(String::from));
        }
        let mut text = format!(
            "name = '{}'\nmemory = '{} MiB'\ncpus = {}\nmachine = '{}'\naccel = 'tcg'\nkernel = {}\ninitrd = {}\n\
             append = '{}'\n",
            self.name,
            self.memory_mb,
            self.cpus,
            self.machine,
            path(&self.image.kernel),
            path(&self.image.initrd),
            self.append("ttyS1")
        );
        if let Some(disk) = &self.disk {
            let cache = if disk.cache() == DiskCache::None { "none" } else { "writeback" };
            text += &format!("[[disk]]\npath = {}\nformat = 'raw'\ncache = '{cache}'\n", path(&disk.path()));
        }
        if let Some((mac, tap)) = &self.nic {
            text += &format!("[[nic]]\ntap = '{tap}'\nmac = '{mac}'\n");
        }
        text += "[qemu]\n";
        if let Some(binary) = &self.qemu {
            text += &format!("binary = {}\n", path(binary));
        }
        let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        text + &format!("args = [{}]\n", words.join(", "))
    }
}

/// A guest's QEMU, with the channels into the guest. It is killed and cleaned up when dropped.
#[derive(Debug)]
pub struct Guest {
    /// The process and its control socket.
    pub qemu: Qemu,
    agent: WorkloadClient,
    beats: Beats,
    odd_ram: bool,
    directory: TempDir,
}

/// Whether a guest runs as soon as it can.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    Running,
    Paused,
}

impl Guest {
    /// Starts a guest that boots. `command`: see [`Qemu::start`].
    ///
    /// # Errors
    ///
    /// [`Error::Start`] if QEMU does not start, or an error of its sockets.
    pub fn boot(spec: &Spec, command: impl FnOnce(&Path) -> Command) -> Result<Self, Error> {
        Self::start(spec, Incoming::No, Begin::Running, command)
    }

    /// Starts a QEMU that waits for `migrate-incoming`. The guest runs there as soon as it has arrived.
    ///
    /// # Errors
    ///
    /// Those of [`Guest::boot`].
    pub fn incoming(spec: &Spec, command: impl FnOnce(&Path) -> Command) -> Result<Self, Error> {
        Self::start(spec, Incoming::Defer, Begin::Running, command)
    }

    /// Does the same as [`Guest::incoming`], but the guest stays stopped until `cont`.
    ///
    /// # Errors
    ///
    /// Those of [`Guest::boot`].
    pub fn incoming_paused(spec: &Spec, command: impl FnOnce(&Path) -> Command) -> Result<Self, Error> {
        Self::start(spec, Incoming::Defer, Begin::Paused, command)
    }

    fn start(
        spec: &Spec,
        incoming: Incoming,
        begin: Begin,
        command: impl FnOnce(&Path) -> Command,
    ) -> Result<Self, Error> {
        let directory = tempfile::Builder::new()
            .prefix(&format!("skein-{}-", spec.name))
            .tempdir()
            .map_err(Error::io("creating a directory in", std::env::temp_dir()))?;
        let config = spec.config(directory.path(), incoming, begin)?;
        let qemu = Qemu::start(&config, command, START_DEADLINE)?;
        let connect = |name: &str| {
            let path = directory.path().join(name);
            UnixStream::connect(&path).map_err(Error::io("connecting to", path))
        };
        let agent = WorkloadClient::new(connect("control")?);
        let beats = Beats::collect(connect("beat")?).map_err(Error::io("reading", directory.path()))?;
        let odd_ram = config.memory_kib % 1024 != 0;
        Ok(Self { qemu, agent, beats, odd_ram, directory })
    }

    /// Returns a directory for sockets and files of this QEMU, which is removed with it.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the client for commands to the workload.
    pub fn agent(&mut self) -> &mut WorkloadClient {
        &mut self.agent
    }

    /// Returns the heartbeat from this QEMU.
    pub fn beats(&self) -> &Beats {
        &self.beats
    }

    /// Returns the end of what the guest wrote on its console while it was in this QEMU.
    pub fn console(&self) -> String {
        let read = || {
            let mut file = std::fs::File::open(self.directory.path().join("console"))?;
            let start = file.metadata()?.len().saturating_sub(CONSOLE_BYTES);
            file.seek(SeekFrom::Start(start))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok::<_, std::io::Error>(String::from_utf8_lossy(&bytes).trim().to_owned())
        };
        read().unwrap_or_default()
    }

    /// Waits until the workload has filled everything and runs. Returns the time it took from this call.
    ///
    /// # Errors
    ///
    /// [`Error::Ended`] if QEMU ends, [`Error::NotReady`] if the time is over, or an error of the channel.
    pub fn wait_ready(&mut self, deadline: Duration) -> Result<Duration, Error> {
        const ASK_EVERY: Duration = Duration::from_millis(50);
        const LOOK_EVERY: Duration = Duration::from_millis(200);
        let start = Instant::now();
        let mut asked = None;
        loop {
            let status = match asked {
                None => self.agent.send("status").map(|id| {
                    asked = Some(id);
                    None
                }),
                Some(id) => self.agent.answer(id, LOOK_EVERY),
            };
            match status {
                Ok(None) => {}
                Ok(Some(answer)) => {
                    if workload_client::parse::<workload_client::Status>("status", answer)?.ready {
                        return Ok(start.elapsed());
                    }
                    asked = None;
                    std::thread::sleep(ASK_EVERY);
                }
                Err(error) => return Err(self.ended().unwrap_or(error)),
            }
            if start.elapsed() > deadline {
                return Err(self
                    .ended()
                    .unwrap_or_else(|| Error::NotReady { after: deadline, console: self.console() }));
            }
        }
    }

    /// Returns the error that QEMU has ended, if it has.
    fn ended(&mut self) -> Option<Error> {
        // QEMU's sockets close before the process is gone, as gigabytes have to be freed.
        let status = self.qemu.wait(Duration::from_secs(3)).ok()??;
        Some(Error::Ended { status, stderr: self.qemu.stderr(), console: self.console() })
    }

    /// Starts a migration to nowhere and cancels it, if RAM of an odd size makes a QEMU's first migration stall its
    /// guest. Otherwise does nothing. Call it a second or more before a migration whose pauses matter.
    ///
    /// At the start all pages count as dirty, and QEMU before 9.0 looks through the CPU's TLB for each of them (see
    /// [`Spec::odd_ram`]); later only for those written since. Measured with a resting guest of 1 GiB: its longest
    /// pause in a migration, apart from the switchover, was 520 ms, and after this call 10 ms.
    ///
    /// # Errors
    ///
    /// [`Error::Qmp`] if QEMU does not obey.
    pub fn take_first_stall(&mut self) -> Result<(), Error> {
        const DEADLINE: Duration = Duration::from_secs(60);
        if !self.odd_ram {
            return Ok(());
        }
        let qmp = &mut self.qemu.qmp;
        qmp.tune(&Tuning { return_path: false, max_bandwidth: 1, ..Tuning::default() })?;
        qmp.migrate("exec:cat >/dev/null")?;
        let end = Instant::now() + DEADLINE;
        while qmp.migration()?.status != MigrationStatus::Active && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        qmp.query("migrate_cancel")?;
        let info = qmp.wait_migrated(DEADLINE, |_| {})?;
        match info.status {
            MigrationStatus::Cancelled => Ok(()),
            _ => Err(Error::Migration { info: Box::new(info), target: "nowhere".into() }),
        }
    }

    /// Waits up to `deadline` for a beat from this QEMU.
    ///
    /// # Errors
    ///
    /// [`Error::Ended`] if QEMU ends, or [`Error::Agent`] if no beat comes.
    pub fn wait_beat(&self, deadline: Duration) -> Result<(), Error> {
        let end = Instant::now() + deadline;
        while self.beats.last().is_none() {
            if Instant::now() > end {
                return Err(Error::Agent(format!("no beat of the guest within {} ms", deadline.as_millis())));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

/// A migration, as both QEMUs and the guest saw it.
#[derive(Debug, Clone)]
pub struct Migration {
    /// The source QEMU's report.
    pub info: MigrationInfo,
    /// The time from the command to the source's completion.
    pub total: Duration,
    /// What the guest missed. `None`: it has no heartbeat.
    pub gaps: Option<Gaps>,
}

/// Moves a guest. `target` listens on `listen`, and `source` connects to `connect` (the same address for a direct
/// migration, or the two ends of a tunnel). Waits up to `deadline` for completion, calling `progress` with the state,
/// and then until the guest beats on the target.
///
/// # Errors
///
/// [`Error::Migration`] if the migration fails, or an error of a QEMU or of the channel.
pub fn migrate(
    source: &mut Guest,
    target: &mut Guest,
    (listen, connect): (&str, &str),
    tuning: &Tuning,
    deadline: Duration,
    progress: impl FnMut(&MigrationInfo),
) -> Result<Migration, Error> {
    /// How long beats are collected before and after.
    const SETTLE: Duration = Duration::from_millis(500);
    target.qemu.qmp.tune(tuning)?;
    target.qemu.qmp.migrate_incoming(listen)?;
    source.qemu.qmp.tune(tuning)?;
    let since = Instant::now() - SETTLE;
    let start = Instant::now();
    source.qemu.qmp.migrate(connect)?;
    let info = source.qemu.qmp.wait_migrated(deadline, progress)?;
    let total = start.elapsed();
    if info.status != MigrationStatus::Completed {
        return Err(Error::Migration { info: Box::new(info), target: target.qemu.stderr() });
    }
    let beating = source.beats.last().is_some();
    if beating {
        target.wait_beat(workload_client::QUICK_COMMAND_TIME)?;
        std::thread::sleep(SETTLE);
    }
    let gaps = Gaps::between(&source.beats.since(since), &target.beats.since(since));
    Ok(Migration { info, total, gaps })
}
