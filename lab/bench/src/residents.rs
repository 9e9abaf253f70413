//! The guests of a stage: where they are, and how they are booted, verified, and booted again.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use skein_hypervisor::{Config, MemoryBackend};
use skein_lab_guest::{Error, Guest, Image, Params, PortAddress, SharedDisk, Spec};

use crate::{
    agents::Agents,
    boot::{ANSWER_DEADLINE, Adjust, Boot, boot_deadline, slowly},
    carry::Kit,
    case::{Moves, Scene},
    error::BenchError,
    mover::{Carrier, Mover},
    results::GuestCheck,
    site::{HOSTS, Site},
};

/// A guest, and the number of the host that it is on.
pub struct Resident {
    /// The specification of the guest.
    pub spec: Spec,
    /// The guest's QEMU now.
    pub guest: Guest,
    /// The number of its host now.
    pub host: usize,
}

impl Resident {
    /// Starts a QEMU for the guest on the other host, which waits for it.
    ///
    /// # Errors
    ///
    /// [`BenchError`] if the QEMU does not start.
    pub fn start_incoming(&self, site: &Site) -> Result<Guest, BenchError> {
        let command = site.command(HOSTS[1 - self.host], program(&self.spec))?;
        Ok(Guest::incoming(&self.spec, |_| command)?)
    }

    /// Lets the guest check all its memory.
    ///
    /// # Errors
    ///
    /// The error of the workload's channel.
    pub fn verify(&mut self) -> Result<GuestCheck, Error> {
        let deadline = ANSWER_DEADLINE + slowly(self.spec.params.fill_mb);
        self.guest.agent().verify(deadline).map(GuestCheck::from)
    }

    fn wait_ready(&mut self, interrupt: &AtomicBool) -> Result<(), BenchError> {
        let end = Instant::now() + boot_deadline(&self.spec);
        loop {
            // The wait is in short steps, so that Ctrl-C is noticed.
            match self.guest.wait_ready(Duration::from_secs(1)) {
                Ok(_) => return Ok(()),
                Err(_) if interrupt.load(Ordering::Relaxed) => return Err(BenchError::Interrupted),
                Err(Error::NotReady { .. }) if Instant::now() < end => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The guests of a stage: those of the bench, and further sets for movers that need others.
#[derive(Default)]
pub struct Household {
    /// The bench's own guests.
    pub own: Vec<Resident>,
    /// The same guests with RAM elsewhere, for a mover whose name says so.
    pub elsewhere: Vec<Resident>,
    /// The agents with their guests.
    pub agents: Option<Agents>,
    /// Where RAM usually lies.
    memory: MemoryBackend,
}

impl Household {
    /// Boots all guests, and waits until they have filled their memory.
    ///
    /// # Errors
    ///
    /// [`BenchError`] if a guest does not boot.
    pub fn boot(boot: Boot<'_>, image: &Image) -> Result<Self, BenchError> {
        let Boot { stage, site, adjust, movers, interrupt, .. } = boot;
        let count = stage.moves.guests();
        let host = |n: u32| match stage.moves {
            Moves::Together(_) => 0,
            Moves::BothWays => n as usize % 2,
        };
        // Each set has taps of its own, as far as there are enough.
        let specs = |name: &str, memory: MemoryBackend, nic: u32| {
            let spec =
                |n| Ok((Spec { memory, ..spec(stage, site, image, adjust, format!("{name}{n}"), nic + n)? }, host(n)));
            (0..count).map(spec).collect::<Result<Vec<_>, BenchError>>()
        };
        let start = |specs: Vec<(Spec, usize)>| {
            let start = |(spec, host): (Spec, usize)| {
                let command = site.command(HOSTS[host], program(&spec))?;
                Ok(Resident { guest: Guest::boot(&spec, |_| command)?, spec, host })
            };
            specs.into_iter().map(start).collect::<Result<Vec<_>, BenchError>>()
        };
        let mut household = Self { memory: adjust.memory, ..Self::default() };
        let by_bench = || movers.iter().filter(|mover| !mover.is_of_agents()).map(|mover| mover.memory(adjust.memory));
        if by_bench().any(|memory| memory == adjust.memory) {
            household.own = start(specs("bench", adjust.memory, 0)?)?;
        }
        if let Some(memory) = by_bench().find(|memory| *memory != adjust.memory) {
            household.elsewhere = start(specs("other", memory, 2 * count)?)?;
        }
        for resident in household.own.iter_mut().chain(&mut household.elsewhere) {
            resident.wait_ready(interrupt)?;
        }
        if movers.iter().any(|mover| mover.is_of_agents()) {
            household.agents = Some(Agents::boot(boot, specs("agents", adjust.memory, count)?)?);
        }
        Ok(household)
    }

    /// Returns the bench's guests that `mover` moves.
    pub fn residents(&mut self, mover: Mover) -> &mut Vec<Resident> {
        if mover.memory(self.memory) == self.memory { &mut self.own } else { &mut self.elsewhere }
    }

    /// Lets the guests run that `mover` moves, and stops the others, which would take CPU. Sets the agents up as
    /// `mover` needs them.
    ///
    /// # Errors
    ///
    /// [`BenchError`] if a QEMU or an agent does not obey.
    pub fn make_way_for(&mut self, mover: Mover, site: &Site, kit: &Kit) -> Result<(), BenchError> {
        let own_move = !mover.is_of_agents() && mover.memory(self.memory) == self.memory;
        let others_move = !mover.is_of_agents() && !own_move;
        let sets = [&self.own, &self.elsewhere].into_iter().filter(|set| !set.is_empty()).count();
        if sets > 1 || self.agents.is_some() {
            for (residents, runs) in [(&mut self.own, own_move), (&mut self.elsewhere, others_move)] {
                for resident in residents {
                    let command = if runs { "cont" } else { "stop" };
                    resident.guest.qemu.qmp.query(command).map_err(Error::from)?;
                }
            }
        }
        let Some(agents) = &mut self.agents else { return Ok(()) };
        let Carrier::Agents { data, .. } = mover.carrier() else { return agents.stop() };
        agents.set_data(data, site, kit)?;
        agents.resume()
    }

    /// Lets every guest that `mover` moves check all its memory.
    pub fn verify(&mut self, mover: Mover) -> Vec<Result<GuestCheck, Error>> {
        match &self.agents {
            Some(agents) if mover.is_of_agents() => (0..agents.guests.len()).map(|n| agents.verify(n)).collect(),
            _ => self.residents(mover).iter_mut().map(Resident::verify).collect(),
        }
    }
}

/// Returns the specification of a guest. `n` is the number of its NIC in the site.
fn spec(stage: &Scene, site: &Site, image: &Image, adjust: &Adjust, name: String, n: u32) -> Result<Spec, BenchError> {
    let guest = &stage.guest;
    let nic = site.guest_nic(n);
    let params = Params {
        fill_mb: guest.fill_mb,
        freed_mb: guest.freed_mb,
        compressible: guest.compressible,
        rewrite_mb: guest.rewrite_mb,
        rewrite: guest.rewrite,
        rate: guest.rewrite_pages_per_s,
        threads: guest.vcpus,
        seed: u64::from(n) + 1,
        // All memory is verified after each migration. Before that, verifying would only take CPU.
        verify_rate: 0,
        disk_mb: guest.disk_mb,
        build: guest.software,
        ip: nic.as_ref().map(|(_, _, ip)| PortAddress { ip: *ip, prefix: 24 }),
        ..Params::default()
    };
    let mut spec = Spec::new(name, image.clone(), guest.memory_mb, params);
    spec.cpus = guest.vcpus;
    spec.machine = adjust.machine.clone().unwrap_or(spec.machine);
    if guest.disk_mb > 0 {
        spec.disk = Some(SharedDisk::create(&std::env::temp_dir(), guest.disk_mb)?);
    }
    spec.free_page_hint = stage.free_page_hint;
    spec.nic = nic.map(|(mac, tap, _)| (mac, tap));
    spec.qemu = adjust.qemu.clone();
    spec.firmware = adjust.firmware.clone();
    Ok(spec)
}

/// Returns the program of a guest's QEMU.
fn program(spec: &Spec) -> PathBuf {
    let mut config = Config::new("", 1, "");
    config.binary = spec.qemu.clone();
    config.program()
}
