//! The guests of a stage: where they are, booted, verified, booted anew.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use skein_hypervisor::Config;
use skein_lab_guest::{Address, Error, Guest, Image, Params, SharedDisk, Spec};

use crate::{
    bench::{Adjust, BenchError},
    case::{Moves, Stage},
    record::Verdict,
    site::{HOSTS, Site},
};

/// For a guest to boot, before it fills its memory.
const BOOT_DEADLINE: Duration = Duration::from_secs(90);

/// For a guest to answer, besides the time that its work takes.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// A guest, and the number of the host that it is on.
pub struct Resident {
    /// What it is.
    pub spec: Spec,
    /// Its QEMU now.
    pub guest: Guest,
    /// Its host now.
    pub host: usize,
}

impl Resident {
    /// Starts a QEMU for it on the other host, that waits for it to come.
    pub fn target(&self, site: &Site) -> Result<Guest, BenchError> {
        let command = site.command(HOSTS[1 - self.host], program(&self.spec))?;
        Ok(Guest::incoming(&self.spec, |_| command)?)
    }

    /// The guest's own check of all its memory.
    pub fn verify(&mut self) -> Result<Verdict, Error> {
        let deadline = ANSWER_DEADLINE + slowly(self.spec.params.fill_mb);
        let verdict = self.guest.agent().verify(deadline)?;
        Ok(Verdict {
            ok: verdict.is_good(),
            pages: verdict.pages,
            bad_pages: verdict.bad,
            bad_blocks: verdict.bad_blocks,
        })
    }

    fn wait_ready(&mut self, interrupt: &AtomicBool) -> Result<(), BenchError> {
        let end = Instant::now() + BOOT_DEADLINE + slowly(self.spec.params.fill_mb);
        loop {
            // In short steps, so that Ctrl-C is heard.
            match self.guest.wait_ready(Duration::from_secs(1)) {
                Ok(_) => return Ok(()),
                Err(_) if interrupt.load(Ordering::Relaxed) => return Err(BenchError::Interrupted),
                Err(Error::NotReady { .. }) if Instant::now() < end => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Boots all guests of a stage, side by side, and waits until they have filled their memory.
pub fn boot(
    stage: &Stage,
    site: &Site,
    image: &Image,
    adjust: &Adjust,
    interrupt: &AtomicBool,
) -> Result<Vec<Resident>, BenchError> {
    let mut residents = Vec::new();
    for n in 0..stage.moves.guests() {
        let spec = spec(stage, site, image, adjust, n)?;
        let host = match stage.moves {
            Moves::Together(_) => 0,
            Moves::BothWays => n as usize % 2,
        };
        let command = site.command(HOSTS[host], program(&spec))?;
        residents.push(Resident { guest: Guest::boot(&spec, |_| command)?, spec, host });
    }
    for resident in &mut residents {
        resident.wait_ready(interrupt)?;
    }
    Ok(residents)
}

fn spec(stage: &Stage, site: &Site, image: &Image, adjust: &Adjust, n: u32) -> Result<Spec, BenchError> {
    let guest = &stage.guest;
    let nic = site.guest_nic(n);
    let params = Params {
        fill_mb: guest.fill_mb,
        compressible: guest.compressible,
        rewrite_mb: guest.rewrite_mb,
        rate: guest.rewrite_pages_per_s,
        threads: guest.vcpus,
        seed: u64::from(n) + 1,
        // All is verified after each migration; before, it would only take CPU.
        verify_rate: 0,
        disk_mb: guest.disk_mb,
        ip: nic.as_ref().map(|(_, _, ip)| Address { ip: *ip, prefix: 24 }),
        ..Params::default()
    };
    let mut spec = Spec::new(format!("bench{n}"), image.clone(), guest.memory_mb, params);
    spec.cpus = guest.vcpus;
    spec.machine = adjust.machine.clone().unwrap_or(spec.machine);
    spec.memory = adjust.memory;
    if guest.disk_mb > 0 {
        spec.disk = Some(SharedDisk::create(&std::env::temp_dir(), guest.disk_mb)?);
    }
    spec.nic = nic.map(|(mac, tap, _)| (mac, tap));
    spec.qemu = adjust.qemu.clone();
    spec.firmware = adjust.firmware.clone();
    Ok(spec)
}

/// The program that a guest's QEMU will be.
fn program(spec: &Spec) -> PathBuf {
    let mut config = Config::new("", 1, "");
    config.binary = spec.qemu.clone();
    config.program()
}

/// Time for an emulated guest to write or check this much.
fn slowly(mb: u32) -> Duration {
    Duration::from_secs(u64::from(mb) / 20)
}
