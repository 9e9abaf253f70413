//! Checks a migration, and begins it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use skein_api::{CheckResult, MigrateOptions, ProblemKind, Refusal, Severity};
use skein_dataplane::{PathSnapshot, SessionSnapshot};
use skein_forecast::{ForecastInputs, forecast, wire_bits_per_s};
use skein_handover::MigrationId;
use skein_hypervisor::ProcessId;
use skein_inventory::check::Problem;
use skein_inventory::facts::{GuestFiles, HostFacts, PathFacts};
use skein_inventory::{HostsFile, Route, TargetLaunch};

use super::data_paths::counting;
use super::host_facts::{host_facts, network_problems};
use super::refusal::{Answered, refusal, unreached};
use crate::attempts::{AskedMigration, AttemptNumber, MigrationEnd, Placement, Starter};
use crate::clock::wait_until;
use crate::controllers::{ByHand, LeaderQuestions, Turn};
use crate::error_chain;
use crate::events::AgentEvent;
use crate::launch::Launch;
use crate::migrations::{DELTA_MEMORY_DEFAULT_PERCENT, Migrations, Offer, StartRefused};
use crate::probe::ProbeStore;
use crate::read_facts;
use crate::room::{HostRoom, agent_bytes};
use crate::to_api::{ToApi, route};
use crate::vms::{Vm, Vms};

/// Bounds the time that another host takes to send its facts: it may have to start a QEMU for them.
pub(super) const ASK_TIME: Duration = Duration::from_secs(20);
/// Bounds the wait for all paths to a host.
const PATHS_TIME: Duration = Duration::from_secs(1);
/// Bounds the wait for which packets pass a path: what is lost twice takes 1.3 to 2.5 s.
const SURVEY_TIME: Duration = Duration::from_secs(3);
/// Bounds the multifd channels that are chosen unasked.
const CHANNELS_MAX: usize = 8;

/// Checks migrations away from this host, and begins them.
pub(crate) struct MigrationStarter {
    pub(crate) vms: Arc<Vms>,
    pub(crate) migrations: Arc<Migrations>,
    pub(crate) rooms: Arc<HostRoom>,
    /// The QEMU program for definitions that name none.
    pub(crate) qemu: Option<PathBuf>,
    /// What was measured of the ways to other hosts.
    pub(crate) probes: Arc<ProbeStore>,
    pub(crate) leader_questions: Arc<LeaderQuestions>,
}

impl Starter for MigrationStarter {
    /// What the target is to start.
    type Checked = Launch;

    fn check(&self, asked: &AskedMigration) -> Result<(CheckResult, Launch), Refusal> {
        self.check(&asked.vm, &asked.to, &asked.options, None).map_err(|refusal| *refusal)
    }

    fn begin(
        &self,
        asked: &AskedMigration,
        launch: Launch,
        id: MigrationId,
        attempt: AttemptNumber,
    ) -> Result<Placement, Refusal> {
        let vm = self.vms.get(&asked.vm).map_err(|error| *Box::<Refusal>::from(error))?;
        // The cluster knows where its own moves lead.
        let turn = match asked.by_controller {
            true => None,
            false => self.allow_move(&vm, asked, id)?,
        };
        let offer = self.offer(&vm, launch, &asked.options).map_err(|refusal| *refusal)?;
        let placement = placement(&offer.indirect);
        let mut events = vec![AgentEvent::Offered { offer: offer.to_string() }];
        if let Some(before) = attempt.before {
            events.push(AgentEvent::Retried { number: attempt.number, of: attempt.of, before });
        }
        let begun = self.migrations.begin(id, &asked.vm, &asked.to, offer, &asked.options, asked.hold.as_ref());
        begun.map_err(|error| refusal(error_chain(&error), ""))?;
        turn.into_iter().for_each(Turn::begun);
        events.iter().for_each(|event| self.migrations.view().emit(id, Some(&asked.vm), event));
        Ok(placement)
    }

    fn call_off(&self, id: MigrationId) {
        self.migrations.cancel(id);
    }

    fn end(&self, id: MigrationId) -> Option<MigrationEnd> {
        let migration = self.migrations.view().get(id)?;
        Some(MigrationEnd { outcome: migration.outcome?, why: migration.why })
    }

    fn knows(&self, id: MigrationId) -> bool {
        self.migrations.view().get(id).is_some()
    }

    fn tell(&self, id: MigrationId, vm: &str, event: &AgentEvent) {
        self.migrations.view().emit(id, Some(vm), event);
    }

    fn guest(&self, vm: &str) -> Option<ProcessId> {
        Some(self.vms.get(vm).ok()?.process()?.id())
    }

    fn placement(&self, vm: &str) -> Placement {
        placement(&self.vms.get(vm).ok().and_then(|vm| vm.indirect()))
    }
}

/// Returns the placement. `indirect` is the reason why pages are not placed directly.
fn placement(indirect: &Option<String>) -> Placement {
    match indirect {
        None => Placement::Direct,
        Some(_) => Placement::ThroughQemu,
    }
}

impl MigrationStarter {
    /// Asks the cluster whether a person may move a guest, by the migration `id`. Until that has begun nobody else asks
    /// for the VM. `None`: this host has no controllers.
    fn allow_move(&self, vm: &Vm, asked: &AskedMigration, id: MigrationId) -> Result<Option<Turn>, Refusal> {
        if !self.leader_questions.has_controllers() {
            return Ok(None);
        }
        let turn = self.leader_questions.take_turn_to_move(&asked.vm, id.to_api())?;
        // What is asked replaces what was asked before.
        if let Some(id) = vm.migration() {
            return Err(refusal(StartRefused::UnderWay(id).to_string(), ""));
        }
        let what = ByHand::Move { vm: asked.vm.clone(), to: asked.to.clone(), migration: Some(id.to_api()) };
        self.leader_questions.allow(what, asked.options.without_controller)?;
        Ok(Some(turn))
    }

    /// Returns why the cluster would not let a person move a guest, if it would not. `None`: it would, or this host has
    /// no controllers.
    pub(super) fn not_allowed(&self, vm: &str, to: &str, options: &MigrateOptions) -> Option<skein_api::Problem> {
        if !self.leader_questions.has_controllers() {
            return None;
        }
        let what = ByHand::Move { vm: vm.to_owned(), to: to.to_owned(), migration: None };
        let refusal = self.leader_questions.allow(what, options.without_controller).err()?;
        let Refusal { message: what, cure } = refusal;
        Some(skein_api::Problem { kind: ProblemKind::Cluster, severity: Severity::Blocks, what, cure })
    }

    /// Makes the offer. `launch` is what the target is to start, as it was checked.
    fn offer(&self, vm: &Vm, launch: Launch, options: &MigrateOptions) -> Answered<Offer> {
        let settings = launch.definition().map(|definition| definition.migration.clone()).unwrap_or_default();
        let cores = thread::available_parallelism().map_or(2, |cores| cores.get());
        // More channels than cores only wait for each other. One channel would be worse than none.
        let fitting = cores.clamp(2, CHANNELS_MAX) as u8;
        Ok(Offer {
            launch,
            channels: options.channels.or(settings.multifd_channels).unwrap_or(fitting),
            downtime_limit_ms: options.downtime_limit_ms.unwrap_or(settings.downtime_limit_ms),
            transport: self.transport(options)?,
            indirect: vm.indirect().map(|why| format!("retried without direct placement: {why}")),
            allow_throttle: options.allow_throttle,
            delta_memory: options.delta_memory,
            without_rdma: options.without_rdma,
            has_deadline: options.deadline_s.is_some(),
            priority: settings.priority,
            keep: self.hosts_file()?.kept_ram_policy_of(self.migrations.peers().host()),
            need: Some(read_facts::guest(vm)?.need()),
        })
    }

    /// Returns how the guest's memory travels.
    ///
    /// # Errors
    /// The hosts file cannot be read. It may say how, and where the target is: what was meant is not guessed.
    fn transport(&self, options: &MigrateOptions) -> Answered<Route> {
        let hosts = self.hosts_file()?;
        let own = || hosts.transport_from(self.migrations.peers().host());
        Ok(options.transport.map_or_else(own, route))
    }

    /// Returns the content of the hosts file.
    pub(super) fn hosts_file(&self) -> Answered<HostsFile> {
        let hosts = self.migrations.peers().hosts();
        hosts.map_err(|error| Box::new(refusal(error_chain(&error), "mend the file; it is read again at once")))
    }

    /// Finds all that stands against a migration, and what the target would start. `watch` says how long to watch the
    /// guest's writing, for a better forecast.
    pub(super) fn check(
        &self,
        name: &str,
        to: &str,
        options: &MigrateOptions,
        watch: Option<Duration>,
    ) -> Answered<(CheckResult, Launch)> {
        let transport = self.transport(options)?;
        let vm = self.vms.get(name)?;
        let mut guest = read_facts::guest(&vm)?;
        self.vms.saw_composition(&vm, &guest.composition);
        let delta_memory = options.delta_memory.unwrap_or(DELTA_MEMORY_DEFAULT_PERCENT);
        guest.copy = self.rooms.copy(&vm, agent_bytes(guest.ram_bytes, delta_memory));
        let launched = vm.launched();
        let (launch, given) = vm.launch().with_images_of(&guest.composition, launched.as_ref());
        let definition = launch.definition();
        let qemu = match &launch {
            Launch::Definition(defined) => defined.definition.qemu.binary.clone(),
            Launch::CommandLine(line) => Some(line.program.clone()),
        };
        let defined = definition.map(|definition| definition.opened()).into_iter().flatten().map(|(_, path)| path);
        let disks = guest.disks.iter().map(|disk| &disk.path);
        let opened = disks.chain(&guest.ram_files).chain(defined).cloned().collect();
        let files = GuestFiles { opened, loaded: guest.loaded.clone() };
        let source = self.own_facts(qemu.clone(), &files);
        let is_here = to == self.migrations.peers().host();
        let hold = (!is_here).then(|| self.migrations.peers().hold(to));
        let (target, paths) = if is_here {
            (source.clone(), Vec::new())
        } else {
            let asked = self.migrations.peers().ask_facts(to, qemu, files, Instant::now() + ASK_TIME);
            let target = asked.map_err(|error| Box::new(refusal(error_chain(&error), unreached(to, &error))))?;
            (target, self.paths(to, &source))
        };
        let start = match &launch {
            Launch::Definition(defined) => {
                TargetLaunch::Definition { definition: &defined.definition, launched: launched.as_ref(), given: &given }
            }
            Launch::CommandLine(line) => TargetLaunch::CommandLine(&line.args),
        };
        let mut problems = skein_inventory::check::check(&guest, start, &source, &target, &paths);
        // These problems warn, and stand behind those that block.
        problems.extend(self.network_problems(to));
        drop(hold);
        // Two agents may each have a session with the other: their paths share NICs.
        let mut rates: BTreeMap<&str, u64> = BTreeMap::new();
        for path in paths.iter().filter(|path| !path.is_excluded()) {
            let rate = rates.entry(&path.local).or_default();
            *rate = path.bits_per_s.unwrap_or(0).max(*rate);
        }
        let rates: Vec<u64> = rates.into_values().filter(|rate| *rate > 0).collect();
        let settings = definition.map(|definition| definition.migration.clone()).unwrap_or_default();
        let downtime_limit = options.downtime_limit_ms.unwrap_or(settings.downtime_limit_ms);
        let fixed = ForecastInputs {
            downtime_limit: Duration::from_millis(downtime_limit),
            allow_throttle: options.allow_throttle.unwrap_or(0),
            rate_limit_bits_per_s: self.migrations.rates().limit_of_new(options.rate_bits_per_s),
            ..ForecastInputs::default()
        };
        let forecast = (!rates.is_empty()).then(|| {
            let dirty = watch.and_then(|time| read_facts::dirty_bytes_per_s(&vm, time));
            forecast(guest.ram_bytes, dirty, &rates, transport, fixed)
        });
        let (problems, forecast) = (problems.to_api(), forecast.to_api());
        Ok((CheckResult { vm: name.to_owned(), to: to.to_owned(), problems, forecast }, launch))
    }

    /// Returns the paths to a host that carry guests, or those that are excluded if there is no other, each as fast as
    /// it was measured to be, or else as its NIC here or, if the NIC's speed is not known, as it was of late.
    fn paths(&self, to: &str, source: &HostFacts) -> Vec<PathFacts> {
        let speed = |nic: &str| source.nics.iter().find(|found| found.name == nic)?.speed_bits_per_s;
        let probed = |path: &PathSnapshot| {
            let remote = path.info.remote.ip().to_string();
            self.probes.path_bits_per_s(to, &path.info.nic, &remote).map(wire_bits_per_s)
        };
        let found = || {
            self.migrations.paths(to, |paths, meter| {
                let facts = counting(paths).into_iter().map(|path| PathFacts {
                    bits_per_s: probed(&path).or_else(|| speed(&path.info.nic)).or_else(|| meter.most(&path)),
                    local: path.info.nic,
                    remote: path.info.remote.ip().to_string(),
                    source_excludes: path.excluded.here,
                    target_excludes: path.excluded.there,
                });
                facts.collect::<Vec<_>>()
            })
        };
        // The paths come one after the other.
        let mut last = found();
        let end = Instant::now() + PATHS_TIME;
        while Instant::now() < end {
            thread::sleep(PATHS_TIME / 4);
            let now = found();
            if !now.iter().all(PathFacts::is_excluded) && now.len() == last.len() {
                break;
            }
            last = now;
        }
        found()
    }

    /// Returns the problems on the way to a host. Whether large packets pass is known in a few round trips if they do;
    /// if not, this waits for the result.
    pub(super) fn network_problems(&self, host: &str) -> Vec<Problem> {
        let peers = self.migrations.peers();
        let is_surveyed = |session: &SessionSnapshot| session.peer != host || session.mtu_probes_under_way == 0;
        wait_until(SURVEY_TIME, || peers.snapshots().iter().all(is_surveyed));
        network_problems(&peers.snapshots(), host)
    }

    /// Returns the facts of this host, for a guest with these files.
    pub(super) fn own_facts(&self, qemu: Option<PathBuf>, files: &GuestFiles) -> HostFacts {
        let inquiry = self.migrations.inquiry();
        host_facts(
            self.migrations.peers().host(),
            &self.vms,
            &self.rooms,
            &inquiry,
            qemu.or_else(|| self.qemu.clone()),
            files,
            &self.probes,
        )
    }
}
