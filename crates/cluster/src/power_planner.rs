//! Decides which hosts can sleep, and which have to wake, from a copy of the cluster: it takes a while in a large one.

use std::collections::{BTreeMap, BTreeSet};

use skein_placement::policy::BadView;
use skein_placement::policy::forecast::Outlook;
use skein_placement::policy::power::{Against, Config, History, Need, Role, decide};
use skein_placement_model::cluster::model::Cluster;
use skein_placement_model::cluster::{CompileError, Names, compile};
use thiserror::Error;

use crate::seen::Seen;

/// How many moves are told of a host that goes to sleep.
const MOVES_TOLD_MAX: usize = 20;

/// What a decision goes by.
#[derive(Clone, Debug, PartialEq)]
pub struct PowerWant {
    /// How much is kept free.
    pub config: Config,
    /// What guests are expected to use of a CPU, in thousandths.
    pub outlooks: BTreeMap<String, Outlook>,
    /// The hosts that do not go to sleep whatever is used, and why.
    pub barred: BTreeMap<String, String>,
    /// The hosts that are off. Guests are on none of them.
    pub off: BTreeSet<String>,
    /// Those of them that can wake.
    pub can_wake: BTreeSet<String>,
    /// What was decided before.
    pub history: History,
    /// The time, by the clock that never jumps.
    pub now_ms: u64,
}

/// What was decided.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PowerPlan {
    /// The host that goes to sleep, and what that is decided by.
    pub sleep: Option<(String, Vec<String>)>,
    /// The host that wakes, and why.
    pub wake: Option<(String, String)>,
    /// Why each other host does not go to sleep.
    pub against: BTreeMap<String, String>,
    /// For the next decision.
    pub history: History,
}

/// Why nothing can be decided.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum PowerPlanError {
    #[error("placement cannot use the cluster's rules and settings")]
    Cluster(#[source] Box<CompileError>),
    #[error("what is known of the cluster's load makes no sense")]
    View(#[from] BadView),
}

/// Decides.
pub(crate) fn decide_power(
    cluster: &Cluster,
    rates: &[(String, f64)],
    want: &PowerWant,
) -> Result<PowerPlan, PowerPlanError> {
    let compiled = compile(cluster).map_err(|error| PowerPlanError::Cluster(Box::new(error)))?;
    let names = &compiled.names;
    let seen = Seen::new(cluster, &compiled, &want.outlooks, rates, want.now_ms);
    let role = |name: &String| Role {
        is_asleep: want.off.contains(name),
        opted_out: want.barred.contains_key(name),
        ..Role::default()
    };
    let roles: Vec<Role> = names.hosts.iter().map(role).collect();
    let view = seen.view(&compiled);
    let decided = decide(&want.config, &view, &roles, &want.history)?;
    let mut history = want.history;
    history.remember_decision(view.now_s, &decided);
    let against = decided.against.iter().filter(|(_, against)| *against != Against::Asleep).map(|(host, against)| {
        let name = names.host(*host);
        let words = match want.barred.get(name) {
            Some(barred) => barred.clone(),
            None => against_words(names, &want.config, *against),
        };
        (name.to_owned(), words)
    });
    let against = against.collect();
    let sleep = decided.sleep.map(|sleep| {
        let to = |(guest, to): &(u32, u32)| format!("{} has a place on {}", names.guest(*guest), names.host(*to));
        let mut reasons: Vec<String> = sleep.moves.iter().take(MOVES_TOLD_MAX).map(to).collect();
        let more = sleep.moves.len() - reasons.len();
        if more > 0 {
            reasons.push(format!("{more} more guests have a place elsewhere"));
        }
        (names.host(sleep.host).to_owned(), reasons)
    });
    // The host with the most memory, of those that can wake.
    let memory = |name: &&String| {
        let host = names.hosts.iter().position(|of| of == *name);
        host.and_then(|host| compiled.problem.hosts[host].capacity.first().copied())
    };
    let wake = decided.wake.and_then(|(_, need)| {
        let host = want.can_wake.iter().rev().max_by_key(memory)?;
        Some((host.clone(), need_words(names, need)))
    });
    Ok(PowerPlan { sleep, wake, against, history })
}

fn against_words(names: &Names, config: &Config, against: Against) -> String {
    match against {
        Against::Asleep => "it sleeps".into(),
        Against::OptedOut => "it never sleeps".into(),
        Against::Stores => "others need its disks".into(),
        Against::AwakeMin { .. } | Against::Quorum { .. } => "no fewer hosts may be awake (power.hosts_min)".into(),
        Against::Stays { guest } => format!("{} cannot leave it", names.guest(guest)),
        Against::NoPlace { guest } => format!("{} has no place elsewhere that leaves enough free", names.guest(guest)),
        Against::Loss { of, guest } => {
            let (of, guest) = (names.host(of), names.guest(guest));
            format!("{guest} would have no place if {of} failed, too (power.spare_hosts)")
        }
        Against::Needed { need } => format!("a host would have to wake at once: {}", need_words(names, need)),
        Against::Settling { .. } => {
            format!("it could sleep, and has to have been able to for {} s first (power.settle_s)", config.settle_s)
        }
        Against::AfterAnother => "another host goes to sleep before".into(),
        Against::Waking => "the hosts that are awake have too little free".into(),
    }
}

fn need_words(names: &Names, need: Need) -> String {
    match need {
        Need::AwakeMin | Need::Quorum => "fewer hosts are awake than should be (power.hosts_min)".into(),
        Need::Short { resource, free, start } => {
            let row = &names.rows[resource];
            let (free, start) = (row.text(free.max(0)), row.text(start));
            format!("the hosts that are awake have {free} of {row} free together, and should have {start}")
        }
        Need::NoPlace { guest } => format!("{} has no place on the hosts that are awake", names.guest(guest)),
    }
}
