//! Plans moves: which guest goes where, in which order, and why. A plan takes a while in a large cluster, so that the
//! controller asks for plans and goes on; they are made from a copy of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use skein_placement::policy::dynamic::{BadRound, Config, History, Move, MoveReason, Round, decide};
use skein_placement::policy::forecast::Outlook;
use skein_placement::problem::{GuestId, HostId, NOWHERE, Problem};
use skein_placement::schedule::{
    Action, ConcurrencyLimits, Job, JobFlaw, Left, Network, Obstacle, Plan, Port, Power, StepId, plan as schedule,
    waits_for_room,
};
use skein_placement::score::Score;
use skein_placement::search::repair;
use skein_placement::state::State;
use skein_placement_model::cluster::model::{Cluster, Guest, HostState};
use skein_placement_model::cluster::{Compiled, Names, compile};
use skein_placement_model::explain::{Placing, why_moved};
use thiserror::Error;

use crate::leaving::Leaving;
use crate::pace::{SETUP_MS, setups_ms};
use crate::power_planner::{PowerPlan, PowerPlanError, PowerWant, decide_power};
use crate::seen::{CPU, MEMORY, RATE_UNKNOWN, Seen};
use crate::sound::{LeftOut, compile_sound};

/// How long the search for a placement goes on, in its steps: enough for thousands of guests.
const REPAIR_STEPS: u64 = 200_000;
/// How many orders of moves are tried.
const SCHEDULE_BUDGET: u64 = 200;
/// How many hosts that sleep are tried, each by itself, when guests find no place.
const ASLEEP_TRIED_MAX: usize = 8;
/// How long a guest takes to start, in milliseconds, as far as a plan cares.
const START_MS: u64 = 5_000;
/// The reasons of a guest that cannot be moved are told of this many hosts.
const HOSTS_TOLD_MAX: usize = 4;

/// What is to be planned.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    /// The cluster as it is.
    pub cluster: Cluster,
    /// What is wanted.
    pub want: Want,
    /// The most migrations at once, by host; of other hosts, [`ConcurrencyLimits::default`].
    pub limits: Vec<(String, ConcurrencyLimits)>,
    /// What a host moves each way, in bytes of guests' memory per second, where it is known: by the moves that were
    /// made, or what its NICs carry.
    pub rates: Vec<(String, f64)>,
    /// The hosts that sleep and can wake.
    pub asleep: Vec<String>,
    /// The guests that the cluster has where they go, and that are still elsewhere.
    pub leaving: Vec<Leaving>,
}

/// Hosts that guests must not go to, by guest: their agents refused.
pub type Excluded = BTreeMap<String, BTreeSet<String>>;

/// What is wanted.
#[derive(Clone, Debug, PartialEq)]
pub enum Want {
    /// No guest is on a host. The cluster has the host in maintenance.
    Empty {
        /// The host.
        host: String,
    },
    /// A guest is on another host, whichever is best.
    Elsewhere {
        /// The guest.
        vm: String,
    },
    /// Guests that run nowhere run on some host. The cluster has them on none.
    Start {
        /// The guests.
        vms: Vec<String>,
    },
    /// Less is broken, and load is better spread.
    Better(Box<Better>),
    /// It is decided which hosts sleep, and which wake.
    Power(Box<PowerWant>),
    /// Guests are on these hosts, as far as they can be.
    At {
        /// Guests and hosts.
        places: Vec<(String, String)>,
    },
}

/// What a round of optimisation goes by.
#[derive(Clone, Debug, PartialEq)]
pub struct Better {
    /// How much is done, and how often.
    pub config: Config,
    /// What guests are expected to use of a CPU, in thousandths.
    pub outlooks: BTreeMap<String, Outlook>,
    /// The rounds of the last day.
    pub rounds: Vec<PastRound>,
    /// The time, by the clock that never jumps.
    pub now_ms: u64,
}

/// A round that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastRound {
    /// When, by the clock that never jumps.
    pub at_ms: u64,
    /// The VMs that were moved.
    pub vms: Vec<String>,
    /// Whether hosts that are short were looked at.
    pub is_relief: bool,
}

/// A plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Planned {
    /// The moves, in the order in which they begin, and the guests that cannot be moved.
    pub moves: Vec<PlannedMove>,
    /// How long it takes, in milliseconds; `None`: nobody knows what the hosts' links carry.
    pub forecast_ms: Option<u64>,
    /// Whether hosts that are short were looked at, in a round of optimisation.
    pub is_relief: bool,
    /// Why a round of optimisation makes no move. Empty: it makes some, or nothing is short.
    pub why_none: String,
    /// The hosts that sleep, and would have a place for guests that find none now.
    pub wake: Vec<String>,
    /// Which hosts sleep, and which wake, if that was asked for.
    pub power: Option<Box<PowerPlan>>,
    /// The rules and settings that placement cannot use: it is planned without them.
    pub left_out: Vec<LeftOut>,
}

/// A planned move.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedMove {
    /// The guest.
    pub vm: String,
    /// The host where it is then.
    pub from: String,
    /// The host where it goes. `None`: it cannot be moved.
    pub to: Option<String>,
    /// Why it goes there, or why it cannot be moved.
    pub reason: String,
    /// The moves that have to be over before, as indices.
    pub waits: Vec<u32>,
    /// The guests of [`PlanRequest::leaving`] that have to have left the target before.
    pub after: Vec<String>,
    /// How long the move takes, in milliseconds; `None`: nobody knows what the links carry.
    pub forecast_ms: Option<u64>,
}

/// Why there is no plan.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum PlanError {
    #[error("placement cannot use the cluster's rules and settings")]
    Cluster(#[source] Box<skein_placement_model::cluster::CompileError>),
    #[error("the moves cannot be ordered")]
    Schedule(#[from] JobFlaw),
    #[error("no VM '{0}' runs on a host that reports")]
    NoVm(String),
    #[error("too many plans are being made at the moment: try again later")]
    Busy,
    #[error("the planner failed, which is a mistake in Skein: report it with the log of skein-controller")]
    Failed,
    #[error("what is known of the cluster's load makes no sense")]
    Round(#[from] BadRound),
    #[error("it cannot be decided which hosts sleep")]
    Power(#[from] PowerPlanError),
}

/// Makes a plan without what placement cannot use.
pub(crate) fn plan_sound(request: &PlanRequest) -> Result<Planned, PlanError> {
    match plan_whole(request) {
        Err(PlanError::Cluster(_) | PlanError::Power(PowerPlanError::Cluster(_))) => {
            let mut request = request.clone();
            let made = compile_sound(&mut request.cluster);
            let (_, left_out) = made.map_err(|error| PlanError::Cluster(Box::new(error)))?;
            Ok(Planned { left_out, ..plan_whole(&request)? })
        }
        planned => planned,
    }
}

/// Makes a plan with all rules and settings.
fn plan_whole(request: &PlanRequest) -> Result<Planned, PlanError> {
    let planned = plan_awake(request)?;
    let without_place = |planned: &Planned| planned.moves.iter().filter(|of| of.to.is_none()).count();
    let left = without_place(&planned);
    if left == 0 || request.asleep.is_empty() {
        return Ok(planned);
    }
    let each = request.asleep.iter().take(ASLEEP_TRIED_MAX).map(|host| vec![host.clone()]);
    for wake in each.chain([request.asleep.clone()]) {
        let mut with = request.clone();
        let hosts = with.cluster.hosts.iter_mut().filter(|host| wake.contains(&host.name));
        hosts.for_each(|host| host.state = HostState::Online);
        if without_place(&plan_awake(&with)?) < left {
            return Ok(Planned { wake, ..planned });
        }
    }
    Ok(planned)
}

/// Makes a plan with the hosts that are awake.
fn plan_awake(request: &PlanRequest) -> Result<Planned, PlanError> {
    match &request.want {
        Want::Empty { host } => empty(request, host),
        Want::Elsewhere { vm } => elsewhere(request, vm),
        Want::Start { .. } => starts(request),
        Want::Better(better) => round(request, better),
        Want::At { places } => at(request, places),
        Want::Power(want) => {
            let power = decide_power(&request.cluster, &request.rates, want)?;
            Ok(Planned { power: Some(Box::new(power)), ..Planned::default() })
        }
    }
}

fn compiled(cluster: &Cluster) -> Result<Compiled, PlanError> {
    compile(cluster).map_err(|error| PlanError::Cluster(Box::new(error)))
}

/// Empties a host, but for guests that are pinned there. First only its own guests move; if that does not suffice,
/// others make room, too; and if that does not suffice, hosts get more load than they have CPUs for, which slows guests
/// down and stops none.
fn empty(request: &PlanRequest, host: &str) -> Result<Planned, PlanError> {
    let is_here = |guest: &Guest| guest.host.as_deref() == Some(host);
    // Other hosts that are emptied have plans of their own.
    let closed = request.cluster.hosts.iter().filter(|of| of.name != host && of.state != HostState::Online);
    let closed: BTreeSet<&str> = closed.map(|of| of.name.as_str()).collect();
    let mut all = request.cluster.clone();
    hold(&mut all, |guest| {
        !guest.optimize && is_here(guest) || guest.host.as_deref().is_some_and(|on| closed.contains(on))
    });
    let pinned = all.guests.iter().filter(|guest| is_here(guest) && !guest.optimize).count();
    let mut alone = all.clone();
    hold(&mut alone, |guest| guest.host.is_some() && !is_here(guest));
    let mut overloaded = all.clone();
    overloaded.guests.iter_mut().for_each(|guest| guest.load.clear());
    let mut best: Option<(Compiled, Vec<HostId>)> = None;
    for cluster in [&alone, &all, &overloaded] {
        let compiled = compiled(cluster)?;
        let mut goal = repair(&compiled.problem, &compiled.problem.initial, 1, REPAIR_STEPS);
        take_back(&compiled, &mut goal);
        let left = stuck(&compiled, &goal, host);
        if best.as_ref().is_none_or(|(of, goal)| left < stuck(of, goal, host)) {
            best = Some((compiled, goal));
        }
        if left <= pinned {
            break;
        }
    }
    let Some((best, mut goal)) = best else { return Ok(Planned::default()) };
    spread(&best, &mut goal);
    let guests = (0..goal.len() as GuestId).filter(|guest| {
        let from = best.problem.initial[*guest as usize];
        best.names.host(from) == host && goal[*guest as usize] == from
    });
    let left = guests.map(|guest| match best.names.guest(guest) {
        name if is_pinned(request, name) => {
            (guest, format!("it is pinned here: skein property set vm {name} pinned=no"))
        }
        _ => (guest, obstacles(&best, &goal, guest)),
    });
    let left = left.collect();
    let mut planned = ordered(request, &best, &goal, left)?;
    for of in planned.moves.iter_mut().filter(|of| of.from == host && of.to.is_some()) {
        let Some(guest) = best.names.guest_named(&of.vm) else { continue };
        if of.to.as_deref() == Some(best.names.host(goal[guest as usize])) {
            of.reason = picked(&best, &goal, guest);
        }
    }
    Ok(planned)
}

/// Returns whether a guest is to stay where it is.
fn is_pinned(request: &PlanRequest, vm: &str) -> bool {
    request.cluster.guests.iter().any(|guest| guest.name == vm && !guest.optimize)
}

/// Has guests stay where they are, also on a host that takes no guests.
fn hold(cluster: &mut Cluster, stays: impl Fn(&Guest) -> bool) {
    for guest in cluster.guests.iter_mut().filter(|guest| stays(guest)) {
        (guest.optimize, guest.owners) = (false, guest.host.clone().map(|host| vec![host]));
    }
}

/// Leaves guests where they are that have no place, or whose place breaks what must hold: a repair weighs one breach
/// against another, and a move must make none.
fn take_back(compiled: &Compiled, goal: &mut [HostId]) {
    let initial = &compiled.problem.initial;
    for (to, from) in goal.iter_mut().zip(initial).filter(|(to, _)| **to == NOWHERE) {
        *to = *from;
    }
    // A guest that stays may be in the way of another.
    loop {
        let mut moved = (0..goal.len() as GuestId).filter(|guest| goal[*guest as usize] != initial[*guest as usize]);
        let Some(guest) = moved.find(|guest| !hard_at(compiled, goal, *guest).is_empty()) else { return };
        goal[guest as usize] = initial[guest as usize];
    }
}

/// Returns what rules out a host, in words.
fn hard(placing: &mut Placing, host: HostId) -> Vec<String> {
    placing.against(host).into_iter().filter(|reason| reason.is_hard).map(|reason| reason.what).collect()
}

/// Returns how many guests stay on a host.
fn stuck(compiled: &Compiled, goal: &[HostId], host: &str) -> usize {
    let stays = |(now, then): (&HostId, &HostId)| compiled.names.host(*now) == host && then == now;
    compiled.problem.initial.iter().zip(goal).filter(|pair| stays(*pair)).count()
}

/// Finds places for guests that run nowhere, with all other guests where they are.
fn starts(request: &PlanRequest) -> Result<Planned, PlanError> {
    let mut alone = request.cluster.clone();
    hold(&mut alone, |guest| guest.host.is_some());
    let compiled = compiled(&alone)?;
    let mut goal = repair(&compiled.problem, &compiled.problem.initial, 1, REPAIR_STEPS);
    take_back(&compiled, &mut goal);
    spread(&compiled, &mut goal);
    let nowhere = (0..goal.len() as GuestId).filter(|guest| compiled.problem.initial[*guest as usize] == NOWHERE);
    let moves = nowhere.map(|guest| {
        let to = goal[guest as usize];
        let reason = match to {
            NOWHERE => obstacles(&compiled, &goal, guest),
            _ => picked(&compiled, &goal, guest),
        };
        PlannedMove {
            vm: compiled.names.guest(guest).to_owned(),
            from: String::new(),
            to: (to != NOWHERE).then(|| compiled.names.host(to).to_owned()),
            reason,
            waits: Vec::new(),
            after: Vec::new(),
            forecast_ms: Some(START_MS),
        }
    });
    Ok(Planned { moves: moves.collect(), forecast_ms: Some(START_MS), ..Planned::default() })
}

/// Has guests that are started or moved be on the host with the fewest guests of those that are as good.
fn spread(compiled: &Compiled, goal: &mut [HostId]) {
    let mut state = State::new(&compiled.problem, goal);
    for guest in 0..goal.len() as GuestId {
        let now = goal[guest as usize];
        if compiled.problem.initial[guest as usize] == now || now == NOWHERE {
            continue;
        }
        let others = |host: HostId| state.guests_on(host).len() - usize::from(host == now);
        let is_as_good = |host: &HostId| state.shift_score(guest, *host) <= Score::default();
        let mut fewer: Vec<HostId> = (0..compiled.problem.hosts.len() as HostId).filter(is_as_good).collect();
        fewer.sort_by_key(|host| (others(*host), *host));
        let mut placing = Placing::new(compiled, goal, guest);
        let found =
            fewer.into_iter().take_while(|host| others(*host) < others(now)).find(|host| placing.accepts(*host));
        if let Some(to) = found {
            state.shift(guest, to);
            goal[guest as usize] = to;
        }
    }
}

/// Moves a guest to the best other host, with all other guests where they are.
fn elsewhere(request: &PlanRequest, vm: &str) -> Result<Planned, PlanError> {
    let compiled = compiled(&request.cluster)?;
    let guest = compiled.names.guest_named(vm).ok_or_else(|| PlanError::NoVm(vm.to_owned()))?;
    let initial = &compiled.problem.initial;
    let from = initial[guest as usize];
    let mut placing = Placing::new(&compiled, initial, guest);
    let state = State::new(&compiled.problem, initial);
    let others = (0..compiled.problem.hosts.len() as HostId).filter(|host| *host != from);
    let can: Vec<HostId> = others.filter(|host| hard(&mut placing, *host).is_empty()).collect();
    let best = can.iter().min_by_key(|host| (state.shift_score(guest, **host), state.guests_on(**host).len(), **host));
    let mut goal = initial.clone();
    let Some(&to) = best else {
        let left = vec![(guest, obstacles(&compiled, initial, guest))];
        return ordered(request, &compiled, &goal, left);
    };
    goal[guest as usize] = to;
    let mut planned = ordered(request, &compiled, &goal, Vec::new())?;
    for found in planned.moves.iter_mut().filter(|found| found.vm == vm && found.to.is_some()) {
        found.reason = picked(&compiled, &goal, guest);
    }
    Ok(planned)
}

/// Decides a round of optimisation.
fn round(request: &PlanRequest, better: &Better) -> Result<Planned, PlanError> {
    let compiled = compiled(&request.cluster)?;
    let (problem, names) = (&compiled.problem, &compiled.names);
    let seen = Seen::new(&request.cluster, &compiled, &better.outlooks, &request.rates, better.now_ms);
    let view = seen.view(&compiled);
    let decided = decide(&better.config, &view, &history(names, &better.rounds))?;
    let mut goal = problem.initial.clone();
    let from_host = decided.moves.iter().filter(|of| of.from != NOWHERE);
    from_host.for_each(|of| goal[of.guest as usize] = of.to);
    take_back(&compiled, &mut goal);
    let mut planned = ordered(request, &compiled, &goal, Vec::new())?;
    planned.is_relief = decided.is_relief;
    if planned.moves.is_empty() {
        planned.why_none = none_words(&better.config, &decided, names);
    }
    for of in &mut planned.moves {
        if let Some(found) = decided.moves.iter().find(|found| names.guest(found.guest) == of.vm && of.to.is_some()) {
            of.reason = round_reason(names, found);
        }
    }
    Ok(planned)
}

/// Returns the rounds of the last day, with the guests' present indices.
fn history(names: &Names, rounds: &[PastRound]) -> History {
    let mut history = History::default();
    for round in rounds {
        let guests = round.vms.iter().filter_map(|vm| names.guest_named(vm));
        let moved =
            |guest| Move { guest, from: NOWHERE, to: NOWHERE, why: MoveReason::Balance, saves_s: 0.0, sends_s: 0.0 };
        let of = Round { moves: guests.map(moved).collect(), is_relief: round.is_relief, ..Round::default() };
        history.remember_round(round.at_ms / 1000, &of);
    }
    history
}

/// Says why a round makes no move for the load. Empty: no host is short.
fn none_words(config: &Config, decided: &Round, names: &Names) -> String {
    if !decided.is_relief && config.aggressiveness > 1 {
        return format!(
            "load was looked at less than {} s ago, and is not before that time is over",
            config.interval_s
        );
    }
    let Some(Move { guest, from, to, saves_s, sends_s, .. }) = decided.unworthy else { return String::new() };
    let (vm, from, to) = (names.guest(guest), names.host(from), names.host(to));
    format!(
        "the best move, {vm} from {from} to {to}, costs {sends_s:.1} s of traffic and saves {:.1} s of an overloaded \
         host: at aggressiveness {} it has to save {:.1} s",
        saves_s.max(0.0),
        config.aggressiveness,
        sends_s * config.price()
    )
}

/// Says why a round moves a guest, what that costs, and what it gains.
fn round_reason(names: &Names, of: &Move) -> String {
    let why = match of.why {
        MoveReason::Broken { .. } => format!("less is broken than on {}", names.host(of.from)),
        MoveReason::Short { resource, free, start } => {
            let row = &names.rows[resource];
            let (free, start) = (row.text(free.max(0)), row.text(start));
            format!("{} has {free} of {row} free, and should have {start}", names.host(of.from))
        }
        MoveReason::Balance => {
            format!("{} is more likely to become short than {}", names.host(of.from), names.host(of.to))
        }
    };
    format!("{why}; costs {:.1} s of traffic, saves {:.0} s of an overloaded host", of.sends_s, of.saves_s.max(0.0))
}

/// Moves guests to where they are wanted, as far as they can be there: all of them together first, since a rule may
/// keep them together.
fn at(request: &PlanRequest, places: &[(String, String)]) -> Result<Planned, PlanError> {
    let compiled = compiled(&request.cluster)?;
    let initial = &compiled.problem.initial;
    let mut goal = initial.clone();
    let mut wanted: Vec<GuestId> = Vec::new();
    for (vm, host) in places {
        let to = compiled.names.hosts.iter().position(|name| name == host).map(|at| at as HostId);
        let (Some(guest), Some(to)) = (compiled.names.guest_named(vm), to) else { continue };
        goal[guest as usize] = to;
        wanted.push(guest);
    }
    let mut left = Vec::new();
    // The last of those that are in each other's way stay away.
    while let Some(at) = wanted.iter().rposition(|guest| !hard_at(&compiled, &goal, *guest).is_empty()) {
        let guest = wanted.remove(at);
        let (vm, host) = (compiled.names.guest(guest), compiled.names.host(goal[guest as usize]));
        let why = match is_pinned(request, vm) {
            true => format!("it is pinned where it is, or somebody moves it: skein vm show {vm}"),
            false => format!("{host}: {}", hard_at(&compiled, &goal, guest).join(", ")),
        };
        left.push((guest, why));
        goal[guest as usize] = initial[guest as usize];
    }
    let mut planned = ordered(request, &compiled, &goal, left)?;
    for of in &mut planned.moves {
        if places.iter().any(|(vm, host)| of.vm == *vm && of.to.as_ref() == Some(host)) {
            of.reason = "it comes home, as was asked for".into();
        }
    }
    Ok(planned)
}

/// Returns what rules out the host where a guest is to be, in words.
fn hard_at(compiled: &Compiled, goal: &[HostId], guest: GuestId) -> Vec<String> {
    hard(&mut Placing::new(compiled, goal, guest), goal[guest as usize])
}

/// Says why a guest goes where it goes, with all other guests where the plan has them.
fn picked(compiled: &Compiled, goal: &[HostId], guest: GuestId) -> String {
    let (from, to) = (compiled.problem.initial[guest as usize], goal[guest as usize]);
    let mut placing = Placing::new(compiled, goal, guest);
    let is_open = |host: &HostId| compiled.names.states[*host as usize] == HostState::Online;
    let others: Vec<HostId> = (0..compiled.problem.hosts.len() as HostId)
        .filter(|host| *host != to && *host != from && is_open(host))
        .collect();
    let (can, cannot): (Vec<HostId>, Vec<HostId>) = others.into_iter().partition(|host| placing.accepts(*host));
    let named = |host: HostId, why: &[String]| format!("{}: {}", compiled.names.host(host), why.join(", "));
    let mut words = Vec::new();
    if can.is_empty() {
        let mut told: Vec<String> =
            cannot.iter().take(HOSTS_TOLD_MAX).map(|host| named(*host, &hard(&mut placing, *host))).collect();
        if cannot.len() > told.len() {
            told.push(format!("and {} more", cannot.len() - told.len()));
        }
        let others = if told.is_empty() { "no other takes guests".to_owned() } else { told.join("; ") };
        words.push(format!("the only host that can take it ({others})"));
    } else {
        let state = State::new(&compiled.problem, goal);
        let here = state.shift_score(guest, to);
        let next = can.iter().copied().min_by_key(|host| (state.shift_score(guest, *host), *host));
        let number = can.len() + 1;
        match next.filter(|next| state.shift_score(guest, *next) > here) {
            Some(next) => {
                let soft: Vec<String> = placing.against(next).into_iter().map(|reason| reason.what).collect();
                let why = if soft.is_empty() { "load is spread less well there".to_owned() } else { soft.join(", ") };
                words.push(format!("the best of {number} hosts that can take it ({})", named(next, &[why])));
            }
            None => words.push(format!("one of {number} hosts that can take it, and none is better")),
        }
    }
    let host = &compiled.problem.hosts[to as usize];
    for (row, name) in compiled.names.rows.iter().enumerate() {
        let here = compiled.problem.guests.iter().zip(goal).filter(|(_, host)| **host == to);
        let used: i64 = here.map(|(guest, _)| guest.demand[row]).sum();
        match name.name.as_str() {
            MEMORY => words.push(format!("{} of memory stay free", name.text(host.capacity[row] - used))),
            CPU => words.push(format!("its guests leave {} idle", name.text(host.capacity[row] - used))),
            _ => {}
        }
    }
    words.join("; ")
}

/// Says for each host why a guest cannot go there.
fn obstacles(compiled: &Compiled, assignment: &[HostId], guest: GuestId) -> String {
    let from = compiled.problem.initial[guest as usize];
    let mut placing = Placing::new(compiled, assignment, guest);
    let mut words = Vec::new();
    for host in (0..compiled.problem.hosts.len() as HostId).filter(|host| *host != from) {
        if compiled.names.states[host as usize] != HostState::Online {
            continue;
        }
        let hard = hard(&mut placing, host);
        let why = if hard.is_empty() { "no room beside the others".to_owned() } else { hard.join(", ") };
        words.push(format!("{}: {why}", compiled.names.host(host)));
    }
    let more = words.len().saturating_sub(HOSTS_TOLD_MAX);
    words.truncate(HOSTS_TOLD_MAX);
    if more > 0 {
        words.push(format!("and {more} more hosts"));
    }
    if words.is_empty() { "no other host takes guests".to_owned() } else { words.join("; ") }
}

/// Orders the moves that lead to a goal.
fn ordered(
    request: &PlanRequest,
    compiled: &Compiled,
    goal: &[HostId],
    left: Vec<(GuestId, String)>,
) -> Result<Planned, PlanError> {
    let job = job(request, compiled, goal);
    let plan = schedule(&job, 1, SCHEDULE_BUDGET)?;
    let names = &compiled.names;
    let waits = waits_for_room(&job, &plan);
    let mut planned = moves(request, compiled, goal, &plan, &waits);
    for unplanned in &plan.left {
        if let Left::Guest { guest, from, obstacle, .. } = unplanned {
            planned.moves.push(unmoved(names, *guest, *from, obstacle_words(&compiled.problem, names, *obstacle)));
        }
    }
    for (guest, why) in left {
        planned.moves.push(unmoved(names, guest, compiled.problem.initial[guest as usize], why));
    }
    Ok(planned)
}

fn unmoved(names: &Names, guest: GuestId, from: HostId, reason: String) -> PlannedMove {
    PlannedMove {
        vm: names.guest(guest).to_owned(),
        from: names.host(from).to_owned(),
        to: None,
        reason,
        waits: Vec::new(),
        after: Vec::new(),
        forecast_ms: None,
    }
}

/// Returns the migrations of a plan. Steps for which a migration waits are migrations, too: no host is switched. Links
/// and limits are seen to as the migrations go: one copies while the next is set up.
fn moves(request: &PlanRequest, compiled: &Compiled, goal: &[HostId], plan: &Plan, waits: &[Vec<StepId>]) -> Planned {
    let mut planned = Planned::default();
    let mut end_ms = 0;
    let is_known = |host: &str| request.rates.iter().any(|(name, _)| name == host);
    let ms = |seconds: f64| (seconds * 1e3) as u64;
    let mut index = vec![None; plan.steps.len()];
    for (id, step) in plan.steps.iter().enumerate() {
        let Action::Migrate { guest, from, to } = step.action else { continue };
        index[id] = Some(planned.moves.len() as u32);
        let why = why_moved(compiled, &compiled.problem.initial, goal, guest);
        let reason =
            if goal[guest as usize] == to { why.to_string() } else { "makes room for others on its way".into() };
        planned.moves.push(PlannedMove {
            vm: compiled.names.guest(guest).to_owned(),
            from: compiled.names.host(from).to_owned(),
            to: Some(compiled.names.host(to).to_owned()),
            reason,
            waits: waits[id].iter().filter_map(|before| index[*before]).collect(),
            after: Vec::new(),
            forecast_ms: is_known(compiled.names.host(from)).then(|| ms(step.end - step.start) + SETUP_MS),
        });
        end_ms = end_ms.max(ms(step.end));
    }
    // As many of the moves from a host as may be under way are set up at a time.
    let setups = compiled.names.hosts.iter().map(|host| {
        let limit = request.limits.iter().find(|(name, _)| name == host);
        let at_once = limit.map_or(ConcurrencyLimits::default().outgoing, |(_, limits)| limits.outgoing);
        setups_ms(planned.moves.iter().filter(|of| of.from == *host).count(), at_once)
    });
    let setups = setups.max().unwrap_or(0);
    let is_known = planned.moves.iter().all(|of| of.forecast_ms.is_some());
    planned.forecast_ms = is_known.then_some(end_ms + setups);
    planned
}

fn job(request: &PlanRequest, compiled: &Compiled, goal: &[HostId]) -> Job {
    let names = &compiled.names.hosts;
    let (hosts, guests) = (names.len(), goal.len());
    let rate = |name: &String| {
        let found = request.rates.iter().find(|(host, _)| host == name);
        found.map_or(RATE_UNKNOWN, |(_, rate)| *rate).clamp(1e3, 1e15)
    };
    let limit = |name: &String| {
        request.limits.iter().find(|(host, _)| host == name).map_or_else(Default::default, |(_, limits)| *limits)
    };
    let port = |name: &String| Port { outward: rate(name), inward: rate(name), switch: None };
    let power = compiled.names.states.iter().map(|state| {
        let is_on = *state != HostState::Offline;
        Power { on: is_on, on_at_end: is_on, ..Power::ALWAYS }
    });
    Job {
        problem: compiled.problem.clone(),
        goal: goal.to_vec(),
        traffic: compiled.traffic.clone(),
        start_seconds: vec![0.0; guests],
        stop_seconds: vec![0.0; guests],
        network: Network { ports: names.iter().map(port).collect(), switches: Vec::new() },
        limits: names.iter().map(limit).collect::<Vec<_>>(),
        power: power.take(hosts).collect(),
        running: Vec::new(),
    }
}

fn obstacle_words(problem: &Problem, names: &Names, obstacle: Obstacle) -> String {
    match obstacle {
        Obstacle::Room { resource, short } if resource < problem.resources.len() => {
            let row = &names.rows[resource];
            format!("on the way there are {} of {row} too few", row.text(short))
        }
        Obstacle::Rule { group } => format!("{} would not hold on the way", names.group(group)),
        Obstacle::Limit { host } => format!("no more migrations are allowed on {}", names.host(host)),
        Obstacle::Off { host } => format!("{} is off", names.host(host)),
        Obstacle::Bandwidth { .. } => "it writes to its memory faster than the links carry".into(),
        Obstacle::Aside | Obstacle::Room { .. } => "others have to make room first".into(),
    }
}
