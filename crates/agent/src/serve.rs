//! Commands: what `skein vm`, `skein migrate` and the others ask of the agent of their host.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufReader};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use skein_api::{
    API_VERSION, CheckResult, FailureReason, HostView, LogEntry, MigrateOptions, Migration, Outcome, PROGRESS_PERIOD,
    Refusal, Reply, Request, RequestLine, VersionView, read_line, write_line,
};
use skein_dataplane::{NetworkProblem, PathSnapshot, SessionSnapshot};
use skein_handover::MigrationId;
use skein_hypervisor::QmpError;
use skein_inventory::check::{Problem, ProblemKind, Severity};
use skein_inventory::facts::{GuestFiles, HostFacts, PathFacts};
use skein_inventory::forecast::{ForecastInputs, forecast};
use skein_inventory::printable;
use skein_inventory::{HostsFile, Route, TargetLaunch};
use tracing::{info, warn};

use crate::begun_requests::BegunRequests;
use crate::clock::wait_until;
use crate::error_chain;
use crate::launch::Launch;
use crate::migrations::{Capacity, DELTA_MEMORY_DEFAULT_PERCENT, Migrations, Offer, StartRefused};
use crate::own_socket::OwnSocket;
use crate::peers::AskError;
use crate::permit::Permit;
use crate::read_facts;
use crate::room::{HostRoom, agent_bytes};
use crate::to_api::{ToApi, migration_id, role, route};
use crate::vms::{Vm, VmError, Vms};

/// Commands at once.
const CLIENTS_MAX: usize = 128;
/// A client says what it wants at once.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// One that does not read what it is told is left.
const WRITE_TIME: Duration = Duration::from_secs(10);
/// How long another host may take to say what it has: it may have to start a QEMU to know.
const ASK_TIME: Duration = Duration::from_secs(20);
/// The same in a list of hosts, which is of those that answer at once …
const LIST_ASK_TIME: Duration = Duration::from_secs(3);
/// … and asks nobody after this.
const LIST_TIME: Duration = Duration::from_secs(5);
/// Hosts that are asked at once for it.
pub(crate) const LIST_ASKED_MAX: usize = 32;
/// All paths to a host are there by then, if they are to be.
const PATHS_TIME: Duration = Duration::from_secs(1);
/// Which packets pass a path is known by then: what is lost twice takes 1.3 to 2.5 s.
const SURVEY_TIME: Duration = Duration::from_secs(3);
/// How often progress is told at most.
const PROGRESS_MIN: Duration = Duration::from_millis(100);
/// How long a guest's writing is watched for a forecast.
const DIRTY_TIME: Duration = Duration::from_secs(1);
/// A migration whose outcome is certain is tidied up by then, at both ends.
const SETTLE_TIME: Duration = Duration::from_secs(3);
/// Pause before a migration is begun again.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// So much is said of a request that cannot be read.
const ANSWER_BYTES_MAX: usize = 300;
/// Most multifd channels that are chosen unasked.
const CHANNELS_MAX: usize = 8;

/// What commands are answered from.
pub(crate) struct RequestServer {
    pub(crate) vms: Arc<Vms>,
    pub(crate) migrations: Migrations,
    pub(crate) rooms: Arc<HostRoom>,
    /// Where this host's agent listens.
    pub(crate) addresses: Vec<String>,
    /// The QEMU program where a definition names none.
    pub(crate) qemu: Option<PathBuf>,
    pub(crate) stopping: AtomicBool,
    pub(crate) clients: Arc<AtomicUsize>,
    pub(crate) begun_requests: BegunRequests,
}

/// A migration that a command asks for.
struct MigrateRequest<'a> {
    vm: &'a str,
    to: &'a str,
    options: &'a MigrateOptions,
    /// Answer as soon as it is begun.
    detach: bool,
    /// See [`RequestLine::request_id`].
    request_id: Option<&'a str>,
}

fn refusal(message: impl Into<String>, cure: impl Into<String>) -> Refusal {
    Refusal { message: message.into(), cure: cure.into() }
}

impl From<VmError> for Box<Refusal> {
    fn from(error: VmError) -> Box<Refusal> {
        Box::new(refusal(error_chain(&error), error.cure()))
    }
}

/// What to do about a host that did not answer.
fn unreached(host: &str, error: &AskError) -> String {
    let nobody_listens = matches!(error, AskError::Unreachable { source, .. } if source.is_refused());
    let first = if nobody_listens { format!("is skein-agent running on {host}? Else ") } else { String::new() };
    format!("{first}see `skein host show {host}`, and `skein doctor` on both hosts")
}

/// Whether there is something that a QEMU may listen on.
fn is_socket(path: &Path) -> Answered<()> {
    let shown = path.display();
    let cure = "give the path of its QMP socket: PATH in QEMU's -qmp unix:PATH,server=on,wait=off";
    let what = match fs::metadata(path).map(|found| found.file_type()) {
        Ok(kind) if kind.is_socket() => return Ok(()),
        Ok(kind) if kind.is_dir() => format!("{shown} is a directory, and no socket"),
        Ok(kind) if kind.is_file() => format!("{shown} is a regular file, and no socket"),
        Ok(_) => format!("{shown} is no socket"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => format!("there is no {shown}"),
        Err(error) => format!("{shown} cannot be looked at: {error}"),
    };
    Err(Box::new(refusal(what, cure)))
}

/// Why a QEMU was not adopted; where there was no connection, no other program has the socket.
fn unadopted(path: &Path, error: VmError) -> Box<Refusal> {
    match &error {
        VmError::Qmp { source: QmpError::Connect { source, .. }, .. } => {
            let shown = path.display();
            Box::new(match source.kind() {
                io::ErrorKind::ConnectionRefused => {
                    refusal(format!("nobody listens on {shown}"), "is its QEMU still running?")
                }
                _ => refusal(format!("cannot connect to {shown}: {source}"), "may root connect to it?"),
            })
        }
        _ => error.into(),
    }
}

/// A reply or a refusal.
pub(crate) type Answered<T> = Result<T, Box<Refusal>>;

/// Takes commands until the agent stops.
pub(crate) fn serve(desk: &Arc<RequestServer>, socket: &OwnSocket) {
    while !desk.stopping.load(Ordering::SeqCst) {
        match socket.accept() {
            Ok(Some(stream)) => take(desk, stream),
            Ok(None) => {}
            Err(error) => {
                warn!("cannot accept commands: {error}");
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn take(desk: &Arc<RequestServer>, stream: UnixStream) {
    let stream = Arc::new(stream);
    let refuse = |message: &str, cure: &str| {
        let _ = stream.set_write_timeout(Some(REQUEST_TIME));
        let _ = write_line(&mut &*stream, &Reply::Error(refusal(message, cure)));
    };
    let Some(place) = Permit::take(&desk.clients, CLIENTS_MAX) else {
        return refuse("too many commands at once", "wait until some of them are over");
    };
    let (desk, own) = (desk.clone(), stream.clone());
    let work = move || {
        let _place = place;
        if let Err(error) = desk.read_requests(&own) {
            info!("a command hung up: {error}");
        }
    };
    if let Err(error) = thread::Builder::new().name("command".into()).spawn(work) {
        warn!("a command is refused: {error}");
        refuse("the agent cannot start a thread", "this host has no room for more: see its limits and its memory");
    }
}

impl RequestServer {
    fn read_requests(&self, stream: &UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(REQUEST_TIME))?;
        stream.set_write_timeout(Some(WRITE_TIME))?;
        let mut say = |reply: &Reply| write_line(&mut &*stream, reply);
        let line: RequestLine = match read_line(&mut BufReader::new(stream)) {
            Ok(line) => line,
            Err(error) => {
                let what = printable(error_chain(&error), ANSWER_BYTES_MAX);
                return say(&Reply::Error(refusal(what, "is the command of the agent's version?")));
            }
        };
        let reply = match line.check() {
            Ok(()) => self.answer(line, &mut say).unwrap_or_else(|refusal| Reply::Error(*refusal)),
            Err(refusal) => Reply::Error(refusal),
        };
        say(&reply)
    }

    fn answer(&self, line: RequestLine, say: &mut dyn FnMut(&Reply) -> io::Result<()>) -> Answered<Reply> {
        let shown = |vm: Arc<Vm>| Reply::Vm(Box::new(vm.show()));
        let request_id = line.request_id.as_deref();
        Ok(match line.request {
            Request::VmStart { from, options } => shown(self.start_vm(from, options)?),
            Request::VmAdopt { qmp, name } => {
                is_socket(&qmp)?;
                shown(self.vms.adopt(&qmp, name).map_err(|error| unadopted(&qmp, error))?)
            }
            Request::VmList => Reply::Vms { vms: self.vms.all().iter().map(|vm| vm.show()).collect() },
            Request::VmShow { name } => {
                let vm = self.vms.get(&name)?;
                self.vms.look(&vm);
                shown(vm)
            }
            Request::VmStop { name, timeout_s, force } => {
                shown(self.vms.stop(&name, Duration::from_secs(timeout_s), force)?)
            }
            Request::VmResume { name } => shown(self.vms.resume(&name)?),
            Request::VmForget { name } => {
                self.vms.forget(&name)?;
                Reply::Done
            }
            Request::Version => {
                Reply::Version(VersionView { release: env!("CARGO_PKG_VERSION").into(), api: API_VERSION })
            }
            Request::HostList => Reply::Hosts { hosts: self.hosts()? },
            Request::HostShow { name } => Reply::Host(Box::new(self.host(name)?)),
            Request::Check { vm, to, options } => Reply::Check(self.check(&vm, &to, &options, Some(DIRTY_TIME))?.0),
            Request::Migrate { vm, to, options, detach } => {
                let wanted = MigrateRequest { vm: &vm, to: &to, options: &options, detach, request_id };
                self.migrate(&wanted, say)?
            }
            Request::MigrationList => Reply::Migrations { migrations: self.migrations.view().list(100) },
            Request::MigrationShow { id } => Reply::Migration(Box::new(self.find(&id)?)),
            Request::MigrationWatch { id } => {
                let id = migration_id(self.find(&id)?.id);
                Reply::Migration(Box::new(self.follow(id, say)?))
            }
            Request::MigrationCancel { id } => {
                let migration = self.find(&id)?;
                let id = migration_id(migration.id);
                if migration.outcome.is_some() || !self.migrations.cancel(id) {
                    return Err(Box::new(refusal(format!("migration {} is over", migration.id), "")));
                }
                let is_settled = || self.view(id).is_ok_and(|migration| migration.outcome.is_some());
                wait_until(Duration::from_secs(5), is_settled);
                let now = self.view(id)?;
                if now.outcome.is_none() && now.why.is_none() {
                    let cure = "it cannot be called off any more; follow it with `skein migration watch`";
                    return Err(Box::new(refusal("the guest is the target's already", cure)));
                }
                Reply::Migration(Box::new(now))
            }
            Request::MigrationResolve { id, other_host_is_off } => {
                let migration = self.find(&id)?;
                if !other_host_is_off {
                    let cure = "make sure that the other host is off, and say so with --other-host-is-off";
                    return Err(Box::new(refusal("without proof the guest could run twice", cure)));
                }
                if !migration.in_doubt {
                    let message = format!("migration {} is not in doubt", migration.id);
                    return Err(Box::new(refusal(message, "see `skein migration show`")));
                }
                let id = migration_id(migration.id);
                self.migrations.prove(id, role(migration.role));
                let is_settled = || self.view(id).is_ok_and(|migration| migration.outcome.is_some());
                wait_until(Duration::from_secs(10), is_settled);
                Reply::Migration(Box::new(self.view(id)?))
            }
        })
    }

    fn find(&self, text: &str) -> Answered<Migration> {
        let found = self.migrations.view().find(text);
        found.map_err(|message| Box::new(refusal(message, "see `skein migration list`")))
    }

    /// A migration with what is known of its paths.
    fn view(&self, id: MigrationId) -> Answered<Migration> {
        let unknown = || Box::new(refusal(format!("there is no migration {id}"), "see `skein migration list`"));
        let mut migration = self.migrations.view().get(id).ok_or_else(unknown)?;
        let peer =
            if migration.source == self.migrations.peers().host() { &migration.target } else { &migration.source };
        migration.paths = self.migrations.paths(peer, |paths, meter| {
            let path = |path: PathSnapshot| skein_api::PathView {
                bits_per_s: meter.rate(&path).unwrap_or(0),
                nic: path.info.nic,
                remote: path.info.remote.ip().to_string(),
                usable: path.status.usable,
                sent_bytes: path.status.sent_bytes,
            };
            paths.into_iter().map(path).collect()
        });
        Ok(migration)
    }

    /// Tells what is new of a migration until it is over.
    fn follow(&self, id: MigrationId, say: &mut dyn FnMut(&Reply) -> io::Result<()>) -> Answered<Migration> {
        let mut seen = 0;
        loop {
            let mut migration = self.view(id)?;
            if migration.outcome.is_some() {
                // Whoever goes on at once, with `vm list` or back again, finds everything in order.
                let is_settled = || self.migrations.view().get(id).is_none_or(|migration| migration.stage.is_none());
                wait_until(SETTLE_TIME, is_settled);
                return self.view(id);
            }
            migration.events.clear();
            let gone = |_| Box::new(refusal("nobody listens", ""));
            say(&Reply::Progress(Box::new(migration))).map_err(gone)?;
            let since = Instant::now();
            seen = self.migrations.view().wait(id, seen, PROGRESS_PERIOD);
            if self.stopping.load(Ordering::SeqCst) {
                let cure = "the migration is taken up when it is back: `skein migration watch`";
                return Err(Box::new(refusal("the agent stops", cure)));
            }
            let is_over = self.migrations.view().get(id).is_none_or(|migration| migration.outcome.is_some());
            if !is_over {
                thread::sleep(PROGRESS_MIN.saturating_sub(since.elapsed()));
            }
        }
    }

    fn migrate(&self, wanted: &MigrateRequest<'_>, say: &mut dyn FnMut(&Reply) -> io::Result<()>) -> Answered<Reply> {
        let MigrateRequest { vm: name, to, options, detach, request_id } = *wanted;
        if let Some(id) = request_id.and_then(|id| self.begun_requests.get(id, Instant::now())) {
            return Ok(Reply::Migration(Box::new(if detach { self.view(id)? } else { self.follow(id, say)? })));
        }
        let (mut tries, mut allowed) = (0, options.retries);
        loop {
            let (check, launch) = self.check(name, to, options, None)?;
            if check.blocks() {
                return Ok(Reply::Check(check));
            }
            if !check.problems.is_empty() && tries == 0 {
                let _ = say(&Reply::Check(check));
            }
            let vm = self.vms.get(name)?;
            let offer = self.offer(&vm, launch, options)?;
            let was_direct = offer.indirect.is_none();
            let note = LogEntry::Note { text: offer.to_string() };
            let begin = || {
                let id = self.migrations.begin(name, to, offer, options)?;
                self.migrations.view().log(id, note);
                Ok(id)
            };
            let begun = match request_id {
                Some(request_id) if tries == 0 => self.begun_requests.get_or_begin(request_id, Instant::now(), begin),
                Some(request_id) => begin().inspect(|id| self.begun_requests.replace(request_id, *id, Instant::now())),
                None => begin(),
            };
            let id = begun.map_err(|error: StartRefused| Box::new(refusal(error_chain(&error), "")))?;
            if detach {
                return Ok(Reply::Migration(Box::new(self.view(id)?)));
            }
            let migration = self.follow(id, say)?;
            let may_pass = migration.outcome == Some(Outcome::CalledOff)
                && !matches!(migration.why, Some(FailureReason::Cancelled));
            // Without direct placement it is another thing: that is tried unasked.
            allowed += u32::from(was_direct && vm.indirect().is_some());
            if !may_pass || tries >= allowed {
                return Ok(Reply::Migration(Box::new(migration)));
            }
            tries += 1;
            // Who watches learns why.
            let _ = say(&Reply::Progress(Box::new(migration)));
            info!(vm = name, to, "migration {id} came to nothing; try {tries} of {allowed} follows");
            thread::sleep(RETRY_PAUSE);
        }
    }

    /// `launch`: what the target is to start, as it was checked.
    fn offer(&self, vm: &Vm, launch: Launch, options: &MigrateOptions) -> Answered<Offer> {
        let settings = launch.definition().map(|definition| definition.migration.clone()).unwrap_or_default();
        let cores = thread::available_parallelism().map_or(2, |cores| cores.get());
        // More channels than cores only wait for each other; one would do worse than none.
        let fitting = cores.clamp(2, CHANNELS_MAX) as u8;
        Ok(Offer {
            launch,
            channels: options.channels.or(settings.multifd_channels).unwrap_or(fitting),
            downtime_limit_ms: options.downtime_limit_ms.unwrap_or(settings.downtime_limit_ms),
            transport: self.transport(options)?,
            indirect: vm.indirect().map(|why| format!("retried without direct placement: {why}")),
            allow_throttle: options.allow_throttle,
            delta_memory: options.delta_memory,
            has_deadline: options.deadline_s.is_some(),
            priority: settings.priority,
            keep: self.listed()?.kept_ram_policy_of(self.migrations.peers().host()),
            need: Some(read_facts::guest(vm)?.need()),
        })
    }

    /// How the guest's memory travels. Errors: the file of hosts cannot be read. It may say how, and where the target
    /// is: what was meant is not guessed.
    fn transport(&self, options: &MigrateOptions) -> Answered<Route> {
        let hosts = self.listed()?;
        let own = || hosts.transport_from(self.migrations.peers().host());
        Ok(options.transport.map_or_else(own, route))
    }

    /// What the file of hosts says.
    fn listed(&self) -> Answered<HostsFile> {
        let hosts = self.migrations.peers().hosts();
        hosts.map_err(|error| Box::new(refusal(error_chain(&error), "mend the file; it is read again at once")))
    }

    /// All that speaks against a migration, and what the target would start. `watch`: how long to watch the guest's
    /// writing, for a better forecast.
    fn check(
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
        // They warn, and stand behind what blocks.
        problems.extend(self.network_problems(to));
        drop(hold);
        // Two agents may each have a session with the other: their paths share NICs.
        let mut rates: BTreeMap<&str, u64> = BTreeMap::new();
        for path in &paths {
            let rate = rates.entry(&path.local).or_default();
            *rate = path.bits_per_s.unwrap_or(0).max(*rate);
        }
        let rates: Vec<u64> = rates.into_values().filter(|rate| *rate > 0).collect();
        let settings = definition.map(|definition| definition.migration.clone()).unwrap_or_default();
        let downtime_limit = options.downtime_limit_ms.unwrap_or(settings.downtime_limit_ms);
        let fixed = ForecastInputs {
            downtime_limit: Duration::from_millis(downtime_limit),
            allow_throttle: options.allow_throttle.unwrap_or(0),
            ..ForecastInputs::default()
        };
        let forecast = (!rates.is_empty()).then(|| {
            let dirty = watch.and_then(|time| read_facts::dirty_bytes_per_s(&vm, time));
            forecast(guest.ram_bytes, dirty, &rates, transport, fixed)
        });
        let (problems, forecast) = (problems.to_api(), forecast.to_api());
        Ok((CheckResult { vm: name.to_owned(), to: to.to_owned(), problems, forecast }, launch))
    }

    /// The paths to a host, each as fast as its NIC here, or where that does not tell, as it was of late.
    fn paths(&self, to: &str, source: &HostFacts) -> Vec<PathFacts> {
        let speed = |nic: &str| source.nics.iter().find(|found| found.name == nic)?.speed_bits_per_s;
        let usable = || {
            self.migrations.paths(to, |paths, meter| {
                let facts = paths.into_iter().filter(|path| path.status.usable).map(|path| PathFacts {
                    bits_per_s: speed(&path.info.nic).or_else(|| meter.most(&path)),
                    local: path.info.nic,
                    remote: path.info.remote.ip().to_string(),
                });
                facts.collect::<Vec<_>>()
            })
        };
        // They come one after the other.
        let mut last = usable();
        let end = Instant::now() + PATHS_TIME;
        while Instant::now() < end {
            thread::sleep(PATHS_TIME / 4);
            let now = usable();
            if !now.is_empty() && now.len() == last.len() {
                break;
            }
            last = now;
        }
        usable()
    }

    /// What is not as it should be on the way to a host. Whether large packets pass is known in a few round trips where
    /// they do; where not, this waits for it.
    fn network_problems(&self, host: &str) -> Vec<Problem> {
        let peers = self.migrations.peers();
        let is_surveyed = |session: &SessionSnapshot| session.peer != host || session.mtu_probes_under_way == 0;
        wait_until(SURVEY_TIME, || peers.snapshots().iter().all(is_surveyed));
        network_problems(&peers.snapshots(), host)
    }

    /// What this host is and has, for a guest with these files.
    pub(crate) fn own_facts(&self, qemu: Option<PathBuf>, files: &GuestFiles) -> HostFacts {
        let inquiry = self.migrations.inquiry();
        host_facts(
            self.migrations.peers().host(),
            &self.vms,
            &self.rooms,
            &inquiry,
            qemu.or_else(|| self.qemu.clone()),
            files,
        )
    }

    /// Every host that is known, each with what it says of itself.
    fn hosts(&self) -> Answered<Vec<HostView>> {
        let hosts = self.known_hosts()?;
        let workers = hosts.len().min(LIST_ASKED_MAX);
        let end = Instant::now() + LIST_TIME;
        let (left, done) = (Mutex::new(hosts.into_iter()), Mutex::new(Vec::new()));
        let work = || {
            loop {
                let next = left.lock().next();
                let Some(mut host) = next else { return };
                if host.is_local || Instant::now() < end {
                    self.fill_in(&mut host, LIST_ASK_TIME);
                } else {
                    host.note = format!("too many hosts before it do not answer: see `skein host show {}`", host.name);
                }
                done.lock().push(host);
            }
        };
        thread::scope(|scope| {
            for _ in 1..workers {
                // Where there is no thread to be had, those that are there do it all.
                let _ = thread::Builder::new().name("hosts".into()).spawn_scoped(scope, work);
            }
            work();
        });
        let mut hosts = done.into_inner();
        hosts.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(hosts)
    }

    fn host(&self, name: Option<String>) -> Answered<HostView> {
        let name = name.unwrap_or_else(|| self.migrations.peers().host().to_owned());
        let known = self.known_hosts()?.into_iter().find(|host| host.name == name);
        let mut host = known.unwrap_or_else(|| HostView {
            name,
            addresses: Vec::new(),
            is_local: false,
            reachable: None,
            note: "not in the list of hosts: its name is looked up".into(),
            problems: Vec::new(),
            facts: None,
        });
        self.fill_in(&mut host, ASK_TIME);
        Ok(host)
    }

    /// This host and those of the file, nobody asked.
    pub(crate) fn known_hosts(&self) -> Answered<Vec<HostView>> {
        let peers = self.migrations.peers();
        let known = self.listed()?;
        let own = HostView {
            name: peers.host().to_owned(),
            addresses: self.addresses.clone(),
            is_local: true,
            reachable: Some(true),
            note: String::new(),
            problems: Vec::new(),
            facts: None,
        };
        let others = known.hosts.into_iter().filter(|host| host.name != own.name).map(|host| HostView {
            name: host.name,
            addresses: host.addresses.iter().map(ToString::to_string).collect(),
            is_local: false,
            reachable: None,
            note: String::new(),
            problems: Vec::new(),
            facts: None,
        });
        let others: Vec<HostView> = others.collect();
        Ok([own].into_iter().chain(others).collect())
    }

    /// Asks a host what it is and has, for so long.
    fn fill_in(&self, host: &mut HostView, time: Duration) {
        if host.is_local {
            host.facts = Some(self.own_facts(None, &GuestFiles::default()).to_api());
            return;
        }
        let peers = self.migrations.peers();
        match peers.ask_facts(&host.name, None, GuestFiles::default(), Instant::now() + time) {
            Ok(facts) => (host.reachable, host.facts) = (Some(true), Some(facts.to_api())),
            // One that is in contact may be slow.
            Err(error) => (host.reachable, host.note) = (Some(peers.contact(&host.name)), error_chain(&error)),
        }
        host.problems = self.network_problems(&host.name).to_api();
    }
}

/// What is not as it should be on the way to a host, as its sessions found out.
fn network_problems(sessions: &[SessionSnapshot], host: &str) -> Vec<Problem> {
    let faults = sessions.iter().filter(|session| session.peer == host).flat_map(|session| &session.problems);
    let problem = |fault: &NetworkProblem| Problem {
        kind: match fault {
            NetworkProblem::NicsLeftOut { .. } => ProblemKind::NicsUnused,
            NetworkProblem::LargePacketsLost { .. } => ProblemKind::LargePacketsLost,
        },
        severity: Severity::Warns,
        // The other end's NICs have names that it tells.
        what: printable(fault.what(host), ANSWER_BYTES_MAX * 2),
        cure: printable(fault.cure(), ANSWER_BYTES_MAX * 2),
    };
    faults.map(problem).collect()
}

/// What a host is and has, for a guest with these files.
pub(crate) fn host_facts(
    name: &str,
    vms: &Vms,
    rooms: &HostRoom,
    inquiry: &crate::migrations::Inquiry,
    qemu: Option<PathBuf>,
    files: &GuestFiles,
) -> HostFacts {
    let none = skein_inventory::facts::MigrationSlots { limit: 0, used: 0 };
    let capacity = inquiry.capacity();
    let stopping =
        || Capacity { incoming: none, outgoing: none, kept_ram_bytes: 0, journal: Err("the agent stops".into()) };
    let Capacity { incoming, outgoing, kept_ram_bytes, journal } = capacity.unwrap_or_else(stopping);
    let qemu = qemu.as_deref();
    let room = rooms.room();
    read_facts::host(read_facts::HostQuestion {
        name,
        qemu,
        files,
        vms,
        kept_ram_bytes,
        room,
        incoming,
        outgoing,
        journal,
    })
}
