//! Which hosts sleep, which wake, and by which guards.
//!
//! Once a minute it is decided, from what guests are expected to use, whether a host can sleep or has to wake
//! ([`skein_placement::policy::power`]). A guard keeps a host awake whatever the decision, and whoever asks
//! ([`Controller::sleep_bar`]); some keep it awake only where nobody asks ([`Controller::sleeps_not_by_itself`]).

use std::collections::{BTreeMap, BTreeSet};

use skein_api::VmState;
use skein_api::cluster::{
    Contact, FencingDevice, HostMode, HostPower, Operation, OperationKind, OperationState, PowerStage, PowerStatus,
    SleepBy, UnixMs,
};
use skein_inventory::definition::Definition;
use skein_placement::policy::power::Config;
use skein_placement_model::cluster::model::{Cluster, HostState};
use skein_units::TimeWindow;

use crate::error_chain;
use crate::operations::Pending;
use crate::operations::keeps_state;
use crate::planner::{Excluded, PlanError, Planned, Want};
use crate::power_planner::PowerWant;
use crate::records::{HostRecord, PowerRoundRecord};
use crate::state::{Controller, PlanBasis, PlanPurpose, Planted};
use crate::time::Now;
use crate::words::NOBODY;

/// The name of the only record of a decision.
const LAST: &str = "last";

/// Says what is wrong with the hours in which hosts may sleep.
pub(crate) fn wrong_hours(text: &str) -> Option<String> {
    text.split(';').find_map(|part| part.trim().parse::<TimeWindow>().err()).map(|error| error.to_string())
}

impl Controller {
    // ---- guards ----

    /// Returns why a host is not put to sleep, whoever asks. `own`: the operation that is to do so, if it has begun.
    pub(crate) fn sleep_bar(&self, host: &str, own: Option<&str>) -> Option<String> {
        let Some(found) = self.tables.hosts.get(host).map(|found| &found.value) else { return Some("no host".into()) };
        match found.contact {
            Contact::Online if self.reporting(host).is_some() => {}
            Contact::Asleep => return Some("it sleeps already".into()),
            Contact::Off => return Some("it is off".into()),
            _ => return Some("its agent does not report".into()),
        }
        if let Some(trouble) = &found.power.trouble {
            return Some(format!("{trouble}; when that is mended: skein host wake {host}"));
        }
        self.never_sleeps(host, found)
            .or_else(|| self.fencing_held())
            .or_else(|| self.is_busy(host, own))
            .or_else(|| self.keeps_awake(host))
            .or_else(|| self.too_few_awake(host, own))
    }

    /// Returns why a host never sleeps, by what is set and where it is.
    fn never_sleeps(&self, host: &str, found: &HostRecord) -> Option<String> {
        let settings = &found.settings;
        let set = format!("skein property set host {host}");
        if settings.storage {
            return Some("others need its disks (storage=yes)".into());
        }
        match (&settings.fencing, settings.sleep) {
            (_, SleepBy::Never) => return Some("by its settings it never sleeps (sleep=never)".into()),
            (None, _) => return Some(format!("it has no device to wake it: skein host fencing set {host} --help")),
            (Some(FencingDevice::Agent { .. }), SleepBy::Device) => {
                return Some(format!("its fence agent cannot shut it down in order: {set} sleep=agent"));
            }
            _ => {}
        }
        let Some(needed) = &self.needed_at else {
            return Some("it is not known where controllers and the store's members run".into());
        };
        let own = found.ips();
        if own.is_empty() {
            return Some(format!(
                "its agent does not tell its addresses, so a controller may be on it: {set} sleep=never"
            ));
        }
        own.iter().any(|ip| needed.contains(ip)).then(|| "a controller or a member of etcd runs on it".into())
    }

    /// Returns what is being done with a host that must not be in the middle when the host goes to sleep.
    pub(crate) fn is_busy(&self, host: &str, own: Option<&str>) -> Option<String> {
        let drain = own.and_then(|own| self.tables.operations.get(own)).and_then(|own| own.value.power.as_ref());
        let drain = drain.and_then(|power| power.drain.as_deref());
        let is_other = |of: &&Operation| Some(of.id.as_str()) != own && Some(of.id.as_str()) != drain;
        let of_host = |of: &&Operation| match &of.kind {
            OperationKind::Drain { host: of, .. }
            | OperationKind::Fence { host: of, .. }
            | OperationKind::Sleep { host: of, .. }
            | OperationKind::Wake { host: of, .. }
            | OperationKind::Autostart { host: of, .. }
            | OperationKind::Resume { host: of, .. } => of == host,
            _ => false,
        };
        if let Some(open) = self.open_operations().filter(is_other).find(of_host) {
            return Some(format!("operation {} is about it", open.id));
        }
        let updates = |of: &&Operation| {
            let mut hosts = of.update.iter().flat_map(|of| &of.hosts);
            !of.state.is_over() && hosts.any(|of| of.host == host && !of.state.is_over())
        };
        if let Some(open) = self.open_operations().filter(is_other).find(updates) {
            return Some(format!("operation {} is to update it", open.id));
        }
        let mut others = self.open_operations().filter(is_other).flat_map(|of| &of.moves);
        if let Some(of) = others.find(|of| !of.state.is_over() && (of.from == host || of.to.as_deref() == Some(host))) {
            return Some(format!("{} is to leave it, or to come to it", of.vm));
        }
        if own.is_some() {
            // Its own drain moves its guests.
            return None;
        }
        let mut migrations = self.observed.values().flat_map(|observed| observed.migrations.values());
        let under_way = migrations.find(|of| of.outcome.is_none() && (of.source == host || of.target == host));
        under_way.map(|of| format!("{} is in a migration from it or to it", of.vm))
    }

    /// Returns which VM keeps a host awake: what is on it cannot be had elsewhere.
    fn keeps_awake(&self, host: &str) -> Option<String> {
        for vm in self.vms_on(host) {
            let record = &self.tables.vms.get(&vm)?.value;
            if self.has_guest(&vm) {
                if record.settings.pinned {
                    return Some(format!("{vm} is pinned to it"));
                }
                continue;
            }
            let definition = record.definition.as_deref().map(|text| Definition::parse(text, "definition"));
            match definition {
                Some(Err(_)) => return Some(format!("{vm} is off, and its definition cannot be read")),
                None => return Some(format!("{vm} is off, and only this host knows how it is started")),
                Some(Ok(definition)) if keeps_state(&definition) => {
                    return Some(format!("{vm} is off, and its UEFI variables or its TPM are on it"));
                }
                _ => {}
            }
        }
        None
    }

    fn too_few_awake(&self, host: &str, own: Option<&str>) -> Option<String> {
        if self.has(Planted::AwakeMinForgotten) {
            return None;
        }
        let least = self.tables.settings.value.power.hosts_min as usize;
        let goes = |name: &String| {
            self.open_operations().any(|of| {
                let is_it = matches!(&of.kind, OperationKind::Sleep { host: of, .. } if of == name);
                is_it && Some(of.id.as_str()) != own
            })
        };
        let takes = |(name, found): &(&String, &crate::tables::Stored<HostRecord>)| {
            let (contact, mode) = (found.value.contact, found.value.mode);
            name.as_str() != host && contact == Contact::Online && mode == HostMode::Active && !goes(name)
        };
        let awake = self.tables.hosts.iter().filter(takes).count();
        (awake < least).then(|| format!("{awake} others are awake, and {least} have to be (power.hosts_min)"))
    }

    /// Returns why a host is not put to sleep by itself, though somebody may ask for it.
    fn sleeps_not_by_itself(&self, host: &str) -> Option<String> {
        let found = &self.tables.hosts.get(host)?.value;
        if found.mode != HostMode::Active {
            return Some("it is in maintenance, or being drained".into());
        }
        let is_missing = |of: &HostRecord| matches!(of.contact, Contact::Lost | Contact::Joined);
        if let Some((name, _)) = self.tables.hosts.iter().find(|(_, of)| is_missing(&of.value)) {
            return Some(format!("{name} does not report: what is free is not known"));
        }
        let least_s = u64::from(self.tables.settings.value.power.awake_min_s);
        let woken = found.power.woken.filter(|woken| self.wall.0 < woken.0.saturating_add(least_s * 1000));
        woken.map(|_| format!("it woke less than {least_s} s ago (power.awake_min_s)"))
    }

    /// Returns whether a host is being shut down to sleep: then it says nothing any more, and is not lost.
    pub(crate) fn is_stopping(&self, host: &str) -> bool {
        self.open_operations().any(|of| {
            let is_it = matches!(&of.kind, OperationKind::Sleep { host: of, .. } if of == host);
            is_it && of.power.as_ref().is_some_and(|power| power.stage == PowerStage::Stopping)
        })
    }

    /// Returns whether a host that says nothing is not lost: it shuts itself down, or is booted, and has no guest.
    pub(crate) fn may_be_silent(&self, host: &str) -> bool {
        self.is_stopping(host) || self.updating(host).is_some()
    }

    /// Returns the operation that wakes a host.
    pub(crate) fn waking(&self, host: &str) -> Option<&Operation> {
        self.open_operations().find(|of| matches!(&of.kind, OperationKind::Wake { host: of, .. } if of == host))
    }

    /// Returns the hosts that are being woken, and take guests then.
    pub(crate) fn are_woken(&self) -> impl Iterator<Item = String> {
        let woken = self.open_operations().filter_map(|of| match &of.kind {
            OperationKind::Wake { host, .. } if of.state == OperationState::Running => Some(host),
            _ => None,
        });
        let is_taking = |host: &&String| {
            let found = self.tables.hosts.get(*host).map(|found| &found.value);
            found.is_some_and(|found| found.mode == HostMode::Active && found.contact == Contact::Asleep)
        };
        woken.filter(is_taking).cloned()
    }

    /// Returns the hosts that sleep and can wake.
    pub(crate) fn can_wake(&self) -> BTreeSet<String> {
        let can = |(name, found): &(&String, &crate::tables::Stored<HostRecord>)| {
            let record = &found.value;
            let is_able = record.settings.fencing.is_some() && record.power.trouble.is_none();
            record.contact == Contact::Asleep
                && is_able
                && record.mode == HostMode::Active
                && self.waking(name).is_none()
        };
        self.tables.hosts.iter().filter(can).map(|(name, _)| name.clone()).collect()
    }

    /// Returns whether a host that reports has a guest, or anything that is not off.
    pub(crate) fn has_guests_now(&self, host: &str) -> bool {
        let seen = self.observed.get(host).map(|observed| observed.vms.values());
        let is_here = seen.into_iter().flatten().any(|vm| vm.state != VmState::Stopped);
        is_here || !self.guests_on(host).is_empty()
    }

    /// Returns whether a host may only not have told yet that its guests have left: that a guest has come is told by
    /// the host that it came to, and that ends the drain.
    pub(crate) fn tells_of_leavers(&self, now: Now, host: &str, drain: &Operation) -> bool {
        let until = drain.ended.map_or(0, |ended| ended.0 + LEFT_TOLD_MS);
        self.has_guests_now(host) && now.wall.0 < until
    }

    // ---- decisions ----

    /// Decides, when it is time, which hosts sleep and which wake.
    pub(crate) fn tick_power(&mut self, now: Now) {
        let set = &self.tables.settings.value.power;
        let is_any = self.tables.hosts.values().any(|host| host.value.contact == Contact::Asleep);
        if !set.saving && !is_any {
            return self.forget_round();
        }
        // A new leader first hears of all hosts.
        let asked_ms = *self.power.asked_ms.get_or_insert(now.mono_ms);
        if now.ms_since(asked_ms) < self.settings.power_round_ms {
            return;
        }
        self.power.asked_ms = Some(now.mono_ms);
        let holds = |part: &str| part.trim().parse::<TimeWindow>().is_ok_and(|window| window.holds(now.clock_time()));
        let is_time = set.hours.as_deref().is_none_or(|hours| hours.split(';').any(holds));
        if set.saving && is_time {
            return self.ask_power(now);
        }
        let why = match set.saving {
            true => "by power.hours no host sleeps now",
            false => "power.saving is off",
        };
        let sleepers = self.can_wake().into_iter();
        let automatic = |name: &String| {
            let asleep = self.tables.hosts.get(name).and_then(|found| found.value.power.asleep.as_ref());
            asleep.is_some_and(|asleep| asleep.automatic)
        };
        // One after the other, since many that start at once draw much power.
        if let Some(host) = sleepers.filter(automatic).min() {
            self.begin_wake(now, &host, NOBODY, vec![why.into()]);
        }
        self.note_round(now, why.into(), BTreeMap::new());
    }

    fn ask_power(&mut self, now: Now) {
        if self.plans.values().any(|asked| matches!(asked.purpose, PlanPurpose::Power)) {
            return;
        }
        self.ask_plan_for(PlanPurpose::Power, PlanBasis::Power { now_ms: now.mono_ms });
    }

    /// Returns what is wanted of hosts' power, and the cluster as it will be once those are awake that wake.
    pub(crate) fn power_wanted(&self, now_ms: u64) -> (Want, Cluster) {
        let mut cluster = self.model(&Excluded::new(), Pending::All);
        let (mut barred, mut off) = (BTreeMap::new(), BTreeSet::new());
        let mut closed = 0;
        for host in &mut cluster.hosts {
            let name = &host.name;
            let Some(found) = self.tables.hosts.get(name).map(|found| &found.value) else { continue };
            if self.waking(name).is_some() && found.mode == HostMode::Active {
                // It will be there soon.
                host.state = HostState::Online;
                barred.insert(name.clone(), "it wakes".to_owned());
                continue;
            }
            if found.contact != Contact::Online {
                off.insert(name.clone());
                continue;
            }
            closed += usize::from(found.mode != HostMode::Active || self.closed(name).is_some());
            let why = self.sleep_bar(name, None).or_else(|| self.sleeps_not_by_itself(name));
            barred.extend(why.map(|why| (name.clone(), why)));
        }
        let set = &self.tables.settings.value.power;
        let config = Config {
            awake_min: set.hosts_min as usize + closed,
            spare: set.spare_hosts as usize,
            settle_s: set.settle_s,
        };
        let want = PowerWant {
            config,
            outlooks: self.optimizer.outlooks(),
            barred,
            off,
            can_wake: self.can_wake(),
            history: self.power.history,
            now_ms,
        };
        (Want::Power(Box::new(want)), cluster)
    }

    /// Takes a decision over. What has changed since it was asked for is looked at again.
    pub(crate) fn power_planned(&mut self, now: Now, result: Result<Planned, PlanError>) {
        let plan = match result {
            Ok(Planned { power: Some(plan), .. }) => plan,
            Ok(_) => return,
            Err(error) => return self.note_round(now, error_chain(&error), BTreeMap::new()),
        };
        if !self.tables.settings.value.power.saving {
            return;
        }
        self.power.history = plan.history;
        let mut decision = "no host goes to sleep or wakes".to_owned();
        if let Some((host, why)) = plan.wake.filter(|(host, _)| self.can_wake().contains(host)) {
            decision = format!("{host} wakes: {why}");
            self.begin_wake(now, &host, NOBODY, vec![why]);
        } else if let Some((host, mut reasons)) = plan.sleep {
            let bar = self.sleep_bar(&host, None).or_else(|| self.sleeps_not_by_itself(&host));
            // What is under way changes the loads.
            if bar.is_none() && self.runs.is_empty() {
                decision = format!("{host} goes to sleep");
                let others = plan.against.iter().map(|(other, why)| format!("{other} stays awake: {why}"));
                reasons.extend(others.take(REASONS_MAX));
                self.begin_sleep(now, &host, true, NOBODY, reasons);
            }
        }
        self.note_round(now, decision, plan.against);
    }

    /// Keeps a decision, if it is another one than before.
    fn note_round(&mut self, now: Now, decision: String, against: BTreeMap<String, String>) {
        let known = self.tables.power.get(LAST).map(|found| &found.value);
        if known.is_none_or(|known| (&known.decision, &known.against) != (&decision, &against)) {
            self.tables.put(LAST, PowerRoundRecord { at: now.wall, decision, against });
        }
    }

    fn forget_round(&mut self) {
        self.power.asked_ms = None;
        self.tables.delete::<PowerRoundRecord>(LAST);
    }

    // ---- what is shown ----

    pub(crate) fn power_view(&self, name: &str, record: &HostRecord) -> Option<HostPower> {
        let power = &record.power;
        let asleep = power.asleep.as_ref();
        let round = self.tables.power.get(LAST).map(|found| &found.value);
        let because = round.and_then(|round| round.against.get(name)).filter(|_| record.contact == Contact::Online);
        let view = HostPower {
            asleep_since: asleep.map(|asleep| asleep.since),
            asleep_by: asleep.map(|asleep| asleep.by.clone()),
            trouble: power.trouble.clone(),
            awake_because: because.cloned(),
            slept_ms: power.slept_ms(self.wall),
        };
        (view != HostPower::default()).then_some(view)
    }

    /// Returns what is to be said of the power of all hosts.
    pub fn power_status(&self, now: UnixMs) -> PowerStatus {
        let round = self.tables.power.get(LAST).map(|found| &found.value);
        PowerStatus {
            saving: self.tables.settings.value.power.saving,
            asleep: self.host_counts().asleep,
            slept_ms: self.tables.hosts.values().map(|host| host.value.power.slept_ms(now)).sum(),
            decision: round.map(|round| round.decision.clone()).unwrap_or_default(),
            decided: round.map(|round| round.at),
        }
    }
}

/// How many other hosts' reasons are kept with the decision that a host sleeps.
const REASONS_MAX: usize = 50;
/// How long after its drain a host may still tell of guests that have left, in milliseconds.
const LEFT_TOLD_MS: u64 = 60_000;
