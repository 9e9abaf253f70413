//! Answers what people and programs ask of a controller.

use std::collections::BTreeSet;

use skein_api::cluster::{
    ClusterSettings, Contact, FenceRequest, HostSettings, MigrateRequest, Move, MoveState, Operation, OperationKind,
    OperationState, OptimizeRequest, VmSettings,
};
use skein_api::{HoldOptions, MigrateOptions, VmState};
use skein_placement_model::cluster::printable;
use skein_units::RatePlan;

use crate::answer::{Answer, Ask, Asked, RefusedKind};
use crate::planner::Want;
use crate::power::wrong_hours;
use crate::records::{HostRecord, RemovedRecord, RepeatRecord, RuleRecord, VmRecord};
use crate::rules;
use crate::state::{Controller, PlanPurpose};
use crate::time::Now;
use crate::view::{is_guest, is_on_its_way};
use crate::{error_chain, fencing_device};

/// See [`Config::aggressiveness`](skein_placement::policy::dynamic::Config::aggressiveness).
const AGGRESSIVENESS: std::ops::RangeInclusive<u8> = 1..=5;
/// For how long a request that is repeated under the same key gets the same answer, in milliseconds: a day.
const REPEAT_MS: u64 = 86_400_000;
/// How many requests that are too old to be repeated are forgotten when one more is remembered.
const REPEATS_FORGOTTEN: usize = 16;
/// How long ago an agent may have reported that counts as reporting now, in milliseconds: some report periods.
const FRESH_MS: u64 = 3000;

/// Returns whether a request is too old to be repeated.
fn is_too_old(now: Now, request: &RepeatRecord) -> bool {
    now.wall.0.saturating_sub(request.at.0) > REPEAT_MS
}

pub(crate) fn no_host(name: &str) -> Answer {
    let cure = "see skein host list; a host joins with skein join";
    Answer::refused(RefusedKind::NotFound, format!("there is no host '{name}'"), cure)
}

pub(crate) fn see_host(host: &str) -> String {
    format!("see skein host show {host}")
}

pub(crate) fn no_vm(name: &str) -> Answer {
    Answer::refused(RefusedKind::NotFound, format!("there is no VM '{name}'"), "see skein vm list")
}

/// Returns the key under which it is remembered what a request began.
pub(crate) fn repeat_key(asked: &Asked) -> Option<String> {
    asked.repeat.as_ref().map(|key| format!("{}/{key}", asked.by))
}

fn changed(what: &str) -> Answer {
    Answer::refused(RefusedKind::Changed, format!("{what} changed since you looked"), "look again, and ask again")
}

impl Controller {
    /// Answers, or returns `None` if the answer takes a plan.
    pub(crate) fn answer(&mut self, now: Now, asked: Asked) -> Option<Answer> {
        let repeat = repeat_key(&asked);
        if let Some(answer) = repeat.as_ref().and_then(|repeat| self.repeated(now, repeat, &asked)) {
            return Some(answer);
        }
        let what = asked.what.clone();
        let is_new_rule = changes_plans(&asked.ask);
        let answer = match asked.ask {
            Ask::Drain { host, request } => self.drain(now, &host, &request, asked.id, &asked.by),
            Ask::Fence { host, request } => Some(self.fence(now, &host, &request, &asked.by)),
            Ask::ReadPower { host } => {
                let ask = Ask::ReadPower { host: host.clone() };
                self.read_power(&host, Asked { ask, ..asked })
            }
            Ask::Sleep { host } => Some(self.sleep_host(now, &host, &asked.by)),
            Ask::Update { request } => self.update_hosts(now, &request, asked.id, &asked.by),
            Ask::Wake { host } => Some(self.wake_host(now, &host, &asked.by)),
            Ask::Resume { .. } => self.ask_to_resume(now, asked.clone()),
            Ask::CreateVm { request } => self.create_vm(now, &request, asked.id, &asked.by),
            Ask::StartVm { vm, request } => self.start_vm(now, &vm, &request, asked.id, &asked.by),
            Ask::StopVm { vm, request } => Some(self.stop_vm(now, &vm, &request, &asked.by)),
            Ask::DeleteVm { vm } => Some(self.delete_vm(now, &vm, &asked.by)),
            Ask::Migrate { vm, request, breaks } => self.migrate(now, &vm, &request, &breaks, (asked.id, &asked.by)),
            Ask::OfMigration { .. } => self.ask_source(now, asked.clone()),
            Ask::Optimize { request } => self.optimize(now, &request, asked.id, &asked.by),
            Ask::SetSettings { settings, version } => Some(self.set_settings(*settings, version)),
            Ask::SetRule { name, rule, version } => Some(self.set_rule(&name, rule, version)),
            Ask::RemoveRule { name } => Some(self.remove_rule(&name)),
            Ask::Cancel { operation } => Some(self.cancel(now, &operation)),
            Ask::SetHost { host, settings, version } => Some(self.set_host(&host, settings, version)),
            Ask::RemoveHost { host, force } => Some(self.remove_host(now, &host, force, &asked.by)),
            Ask::SetVm { vm, settings, version } => Some(self.set_vm(&vm, settings, version)),
            Ask::NewTicket { id, host, expires_s, secret_sha256 } => {
                Some(self.new_ticket(now, &id, host, expires_s, secret_sha256, &asked.by))
            }
            Ask::Join { host, boot_id, ticket, secret_sha256, certificate_sha256 } => {
                Some(self.join(now, (&host, boot_id.as_deref()), &ticket, &secret_sha256, &certificate_sha256))
            }
            Ask::RenewCertificate { host, shown_sha256, signed_sha256 } => {
                Some(self.renew_certificate(&host, &shown_sha256, &signed_sha256))
            }
            Ask::StartByHand { host, vm, is_here } => Some(self.start_by_hand(&host, &vm, is_here)),
            Ask::MoveByHand { host, vm, to, migration } => Some(self.move_by_hand(&host, &vm, &to, migration)),
            // The VM's host does it; here it is only noted.
            Ask::OpenConsole { vm } if self.tables.vms.contains_key(&vm) => Some(Answer::Done),
            Ask::OpenConsole { vm } => Some(no_vm(&vm)),
            Ask::NewToken { name, role, expires_s, secret_sha256 } => {
                Some(self.new_token(now, name, role, expires_s, secret_sha256))
            }
            Ask::RemoveToken { name } => Some(self.remove_token(now, &name)),
            Ask::Refused { status, detail } => Some(Answer::refused(RefusedKind::Other(status), detail, String::new())),
        };
        if is_new_rule && !matches!(answer, Some(Answer::Refused(_))) {
            self.epoch += 1;
            self.left_out.clear();
        }
        if let Some(answer) = &answer {
            self.remember_repeat(now, repeat, what, answer);
        }
        answer
    }

    /// Remembers what was begun by a request that may come again under the same key. What would be done is not kept.
    pub(crate) fn remember_repeat(&mut self, now: Now, repeat: Option<String>, request: String, answer: &Answer) {
        if let (Some(repeat), Answer::Operation(operation)) = (repeat, answer) {
            self.forget_repeats(now);
            let record = RepeatRecord { request, operation: operation.id.clone(), at: now.wall };
            self.tables.put(&repeat, record);
        }
    }

    /// Forgets some of the requests that are too old to be repeated: more than are remembered meanwhile.
    fn forget_repeats(&mut self, now: Now) {
        let old = self.tables.repeats.iter().filter(|(_, found)| is_too_old(now, &found.value));
        let old: Vec<String> = old.take(REPEATS_FORGOTTEN).map(|(key, _)| key.clone()).collect();
        old.iter().for_each(|key| self.tables.delete::<RepeatRecord>(key));
    }

    /// Returns the answer to a request that came before under the same key.
    fn repeated(&mut self, now: Now, repeat: &str, asked: &Asked) -> Option<Answer> {
        let found = self.tables.repeats.get(repeat).map(|found| found.value.clone())?;
        if is_too_old(now, &found) {
            self.tables.delete::<RepeatRecord>(repeat);
            return None;
        }
        if found.request != asked.what {
            let message = format!("this idempotency key was used for another request: {}", found.request);
            return Some(Answer::refused(RefusedKind::Conflict, message, "choose a new key for each request"));
        }
        let operation = self.operation(&found.operation);
        Some(operation.map_or_else(
            || {
                Answer::refused(
                    RefusedKind::NotFound,
                    "its operation is not remembered any more",
                    "skein operation list",
                )
            },
            |operation| Answer::Operation(Box::new(operation)),
        ))
    }

    fn fence(&mut self, now: Now, host: &str, request: &FenceRequest, by: &str) -> Answer {
        let Some(found) = self.tables.hosts.get(host) else { return no_host(host) };
        if !request.is_off {
            return self.switch_off(now, host, by);
        }
        match found.value.contact {
            Contact::Lost | Contact::Joined => {}
            // One that is updated or goes to sleep is silent for long, and does not count as lost.
            Contact::Online if self.session_of(host).is_none() && self.silent_ms(now, host) >= self.host_lease_ms() => {
            }
            Contact::Online => return self.still_reports(now, host),
            // Guests that found no place before are tried again.
            Contact::Off if !self.lost_guests(host).is_empty() && !self.fails_over(host) => {}
            Contact::Off | Contact::Asleep => {
                return Answer::conflict(format!("'{host}' is known to be off already"), see_host(host));
            }
        }
        if let Some(answer) = self.answers(now, host) {
            return answer;
        }
        self.proven_off(now, host, by).map_or(Answer::Done, |operation| Answer::Operation(Box::new(operation)))
    }

    /// Says why a host does not count as lost.
    pub(crate) fn still_reports(&self, now: Now, host: &str) -> Answer {
        let (silent_ms, lease_ms) = (self.silent_ms(now, host), self.host_lease_ms());
        if self.session_of(host).is_some() && silent_ms < FRESH_MS {
            return Answer::conflict(format!("the agent of '{host}' reports: the host is not off"), see_host(host));
        }
        let (silent_s, lease_s) = (silent_ms / 1000, lease_ms / 1000);
        let message =
            format!("nothing was heard of '{host}' for {silent_s} s: it counts as lost after {lease_s} s, and not yet");
        let left_s = lease_ms.saturating_sub(silent_ms) / 1000 + 1;
        Answer::conflict(message, format!("ask again in {left_s} s"))
    }

    fn migrate(
        &mut self,
        now: Now,
        vm: &str,
        request: &MigrateRequest,
        breaks: &[String],
        (asked, by): (u64, &str),
    ) -> Option<Answer> {
        let Some(found) = self.tables.vms.get(vm).map(|found| found.value.clone()) else { return Some(no_vm(vm)) };
        if let Some(operation) = self.operation_of(vm) {
            let message = format!("'{vm}' is in an operation already: {operation}");
            return Some(Answer::conflict(message, format!("follow it: skein operation watch {operation}")));
        }
        if let Some((message, cure)) = self.moving_words(vm) {
            return Some(Answer::conflict(message, cure));
        }
        let is_off = self.off_host(vm).is_some();
        let host = found.host.as_deref().unwrap_or_default();
        if self.tables.hosts.get(host).is_some_and(|of| of.value.contact == Contact::Lost) {
            let cure = format!("if {host} is off: skein host fence {host} --is-off, and '{vm}' starts elsewhere");
            let cure = self.unless_answering(host, cure);
            return Some(Answer::conflict(format!("'{vm}' is on '{host}', which does not report"), cure));
        }
        if self.is_long_missing(vm) {
            let message = format!("'{host}' has '{vm}' no more, and no host that reports has it");
            return Some(Answer::conflict(message, "see that all hosts report: skein host list"));
        }
        let Some(from) = found.host.clone().filter(|_| is_guest(found.state) || is_off) else {
            let message = format!("'{vm}' is off, and no host that reports has it");
            return Some(Answer::conflict(message, format!("start it: skein vm start {vm} --cluster")));
        };
        if is_off && request.hold.is_some() {
            return Some(Answer::conflict(
                format!("'{vm}' is off: there is nothing to hold"),
                "leave out what holds it",
            ));
        }
        let options = MigrateOptions { rate_bits_per_s: request.rate_bits_per_s, ..MigrateOptions::default() };
        let hold = request.hold.as_ref().map_or(Ok(()), HoldOptions::check);
        if let Err(wrong) = options.check().and(hold) {
            return Some(Answer::refused(RefusedKind::Invalid, wrong.message, wrong.cure));
        }
        let kind = OperationKind::Migrate {
            vm: vm.to_owned(),
            to: request.to.clone(),
            rate_bits_per_s: request.rate_bits_per_s,
            hold: request.hold.clone(),
        };
        let Some(to) = &request.to else {
            if is_off {
                return Some(self.migrate_off(now, kind, vm, None, request.dry_run, by));
            }
            if request.dry_run {
                self.preview(now, asked, kind, Want::Elsewhere { vm: vm.to_owned() }, by);
                return None;
            }
            return Some(Answer::Operation(Box::new(self.begin_operation(now, kind, OperationState::Planning, by))));
        };
        if *to == from {
            return Some(Answer::conflict(format!("'{vm}' is on '{to}' already"), "choose another host"));
        }
        if let Some(refusal) = self.takes_no_guest(vm, &found, to) {
            return Some(refusal);
        }
        if is_off {
            return Some(self.migrate_off(now, kind, vm, Some(to), request.dry_run, by));
        }
        let mut operation = self.unsaved_operation(now, kind, OperationState::Running, by);
        operation.moves.push(Move::new(vm, &from, Some(to), &asked_for_words(breaks)));
        Some(self.begin_or_show(now, operation, request.dry_run))
    }

    /// Moves a VM that is off.
    fn migrate_off(
        &mut self,
        now: Now,
        kind: OperationKind,
        vm: &str,
        to: Option<&str>,
        dry_run: bool,
        by: &str,
    ) -> Answer {
        let mut operation = self.unsaved_operation(now, kind, OperationState::Running, by);
        operation.moves.extend(self.off_move(&operation, vm, to));
        self.begin_or_show(now, operation, dry_run)
    }

    /// Keeps an operation that is complete, or only shows it.
    pub(crate) fn begin_or_show(&mut self, now: Now, operation: Operation, dry_run: bool) -> Answer {
        if dry_run {
            let progress = self.progress(now, &operation);
            return Answer::preview(Operation { progress, ..operation });
        }
        Answer::Operation(Box::new(self.keep_operation(now, operation)))
    }

    pub(crate) fn cancel(&mut self, now: Now, id: &str) -> Answer {
        let Some(mut operation) = self.operation(id) else {
            let message = format!("there is no operation '{id}'");
            return Answer::refused(RefusedKind::NotFound, message, "see skein operation list");
        };
        if operation.state.is_over() {
            return Answer::conflict(format!("operation {id} is over"), format!("skein operation show {id}"));
        }
        (operation.cancelled, operation.state) = (true, OperationState::Cancelling);
        if matches!(operation.kind, OperationKind::Drain { .. }) {
            // It does not wait for others any more.
            operation.message.clear();
        }
        self.save_operation(now, operation.clone());
        Answer::Operation(Box::new(operation))
    }

    fn optimize(&mut self, now: Now, request: &OptimizeRequest, asked: u64, by: &str) -> Option<Answer> {
        let aggressiveness = request.aggressiveness.unwrap_or(self.tables.settings.value.optimize.aggressiveness);
        if !AGGRESSIVENESS.contains(&aggressiveness) {
            return Some(Answer::refused(RefusedKind::Invalid, "aggressiveness is 1 to 5", "choose one of these"));
        }
        let kind = OperationKind::Optimize { automatic: false, aggressiveness };
        if !request.apply {
            let want = self.better(now, aggressiveness);
            self.preview(now, asked, kind, want, by);
            return None;
        }
        Some(Answer::Operation(Box::new(self.begin_operation(now, kind, OperationState::Planning, by))))
    }

    fn set_settings(&mut self, mut settings: ClusterSettings, version: Option<u64>) -> Answer {
        settings.migration_rate = settings.migration_rate.filter(|rate| !rate.is_empty());
        if let Some(Err(error)) = settings.migration_rate.as_deref().map(str::parse::<RatePlan>) {
            let cure = "as '10 Gbit/s; mon-fri 08:00-18:00 2 Gbit/s'";
            return Answer::refused(RefusedKind::Invalid, format!("migration_rate: {error}"), cure);
        }
        settings.power.hours = settings.power.hours.filter(|hours| !hours.is_empty());
        if let Some(why) = settings.power.hours.as_deref().and_then(wrong_hours) {
            return Answer::refused(
                RefusedKind::Invalid,
                format!("power.hours: {why}"),
                "as 'mon-fri 20:00-06:00; sat 00:00-24:00'",
            );
        }
        let wrong = [
            (AGGRESSIVENESS.contains(&settings.optimize.aggressiveness), "optimize.aggressiveness is 1 to 5"),
            ((60..=86_400).contains(&settings.optimize.interval_s), "optimize.interval_s is 60 to 86400"),
            ((1..=10_000).contains(&settings.migrations_max), "migrations_max is 1 to 10000"),
            ((3..=3600).contains(&settings.host_lease_s), "host_lease_s is 3 to 3600"),
            (settings.failover.grace_s <= 86_400, "failover.grace_s is 0 to 86400"),
            ((1..=10_000).contains(&settings.failover.power_offs_max), "failover.power_offs_max is 1 to 10000"),
            ((1..=10_000).contains(&settings.power.hosts_min), "power.hosts_min is 1 to 10000"),
            (settings.power.spare_hosts <= 2, "power.spare_hosts is 0 to 2"),
            (settings.power.settle_s <= 86_400, "power.settle_s is 0 to 86400"),
            (settings.power.awake_min_s <= 604_800, "power.awake_min_s is 0 to 604800"),
            ((30..=3600).contains(&settings.power.wake_within_s), "power.wake_within_s is 30 to 3600"),
        ];
        if let Some((_, what)) = wrong.into_iter().find(|(is_right, _)| !is_right) {
            return Answer::refused(RefusedKind::Invalid, what, "choose a value within that");
        }
        if version.is_some_and(|version| version != self.tables.settings.revision) {
            return changed("the cluster's settings have");
        }
        self.tables.put_settings(settings);
        Answer::Done
    }

    fn set_rule(&mut self, name: &str, rule: serde_json::Value, version: Option<u64>) -> Answer {
        let known = self.tables.rules.get(name).map_or(0, |found| found.revision);
        if version.is_some_and(|version| version != known) {
            return changed(&format!("rule '{name}' has"));
        }
        let wrong = match rules::read(name, &rule) {
            Ok(read) => match rules::nameless(&rule) {
                Some(field) => Some(format!("rule '{name}': {field} has an empty name, which nothing has")),
                None => self.unsound_rule(&read),
            },
            Err(error) => Some(error_chain(&error)),
        };
        if let Some(wrong) = wrong {
            return Answer::refused(RefusedKind::Invalid, wrong, "see docs/cluster-file.md");
        }
        self.tables.put(name, RuleRecord { rule });
        Answer::Done
    }

    fn remove_rule(&mut self, name: &str) -> Answer {
        if !self.tables.rules.contains_key(name) {
            return Answer::refused(RefusedKind::NotFound, format!("there is no rule '{name}'"), "see skein rule list");
        }
        self.tables.delete::<RuleRecord>(name);
        Answer::Done
    }

    fn set_host(&mut self, host: &str, settings: HostSettings, version: Option<u64>) -> Answer {
        let Some(found) = self.tables.hosts.get(host) else { return no_host(host) };
        if version.is_some_and(|version| version != found.revision) {
            return changed(&format!("'{host}' has"));
        }
        if let Some((what, cure)) = settings.fencing.as_ref().and_then(fencing_device::wrong) {
            return Answer::refused(RefusedKind::Invalid, what, cure);
        }
        let pairs = settings.areas.iter().chain(&settings.properties);
        if let Some(answer) = unprintable(pairs.flat_map(|(key, value)| [key, value]).chain(&settings.group)) {
            return answer;
        }
        if let Some(wrong) = self.unsound_host(host, &settings) {
            return Answer::refused(RefusedKind::Invalid, wrong, "see docs/cluster-file.md");
        }
        let host_record = HostRecord { settings, ..found.value.clone() };
        self.tables.put(host, host_record);
        Answer::Done
    }

    fn remove_host(&mut self, now: Now, host: &str, force: bool, by: &str) -> Answer {
        let Some(found) = self.tables.hosts.get(host).map(|found| found.value.clone()) else { return no_host(host) };
        let (guests, off): (Vec<String>, Vec<String>) =
            self.vms_on(host).into_iter().partition(|vm| self.has_guest(vm) && !found.contact.is_off());
        let doubles = self.doubles(host).into_iter().map(|(vm, _)| vm);
        let untold = self.untold_on(host).into_iter().map(str::to_owned);
        let guests: BTreeSet<String> = guests.into_iter().chain(doubles).chain(untold).collect();
        if !guests.is_empty() {
            let names: Vec<&str> = guests.iter().map(String::as_str).collect();
            let run = if found.contact == Contact::Online { "run" } else { "may run" };
            let message = format!("'{host}' has VMs that {run}: {}", names.join(", "));
            let cure = match found.contact {
                Contact::Online => format!("move them away first: skein host drain {host}"),
                _ => self.unless_answering(
                    host,
                    format!("see that it is on, or say that it is off: skein host fence {host} --is-off"),
                ),
            };
            return Answer::conflict(message, cure);
        }
        let refusal =
            self.coming_to_removed(host, found.contact).or_else(|| self.awaited_of_removed(host, found.contact));
        if let Some(answer) = refusal {
            return answer;
        }
        if let Some(vm) = off.first().filter(|_| !found.contact.is_off() && self.reporting(host).is_none()) {
            let message = format!("'{vm}' was off on '{host}' when that last reported, and may run since");
            return Answer::conflict(message, self.silent_cure(host));
        }
        let ended = if found.contact.is_off() { self.lost_guests(host) } else { Vec::new() };
        if !ended.is_empty() && (!force || self.fails_over(host)) {
            let message = format!("'{host}' has VMs that ended with it and run nowhere: {}", ended.join(", "));
            let cure = match self.fails_over(host) {
                true => format!("they are being started elsewhere: wait (skein host show {host}), or cancel that"),
                false => format!(
                    "start them elsewhere (skein vm start {} --cluster), or have the cluster forget them, with their \
                     definitions: skein host remove {host} --force",
                    ended[0]
                ),
            };
            return Answer::conflict(message, cure);
        }
        if !off.is_empty() && !force {
            let message = format!("'{host}' has VMs that are off: {}", off.join(", "));
            let cure = format!(
                "have the host forget them (on {host}: skein vm forget {}), or have the cluster forget them: skein \
                 host remove {host} --force",
                off[0]
            );
            return Answer::conflict(message, cure);
        }
        if let Some(drain) = found.drain.clone().filter(|id| self.is_open(id)) {
            self.cancel(now, &drain);
        }
        for vm in off {
            self.tables.delete::<VmRecord>(&vm);
        }
        // It is off: what was to come has not.
        for (name, vm) in self.moved_by_hand_to(host) {
            self.tables.put(&name, VmRecord { move_by_hand: None, ..vm });
        }
        let before = self.tables.removed.get(host).map(|found| found.value.certificates.clone()).unwrap_or_default();
        let own = found.replaced.into_iter().chain(found.certificates);
        let mut certificates: Vec<String> = before.into_iter().chain(own).collect();
        certificates.drain(..certificates.len().saturating_sub(RemovedRecord::CERTIFICATES_MAX));
        self.tables.put(host, RemovedRecord { at: now.wall, by: by.to_owned(), certificates });
        self.tables.delete::<HostRecord>(host);
        self.epoch += 1;
        match (self.session_of(host), self.refusal_of_agent(host)) {
            (Some(session), Some(refusal)) => self.refuse_agent(now, session, refusal),
            _ => drop(self.observed.remove(host)),
        }
        Answer::Done
    }

    /// Refuses to remove a host to which VMs are on their way: nobody would hear of them there.
    fn coming_to_removed(&self, host: &str, contact: Contact) -> Option<Answer> {
        let by_operation = self.open_moves().find(|of| of.to.as_deref() == Some(host) && of.state == MoveState::Begun);
        if let Some(of) = by_operation {
            let message = format!("'{}' is on its way to '{host}'", of.vm);
            let operation = self.operation_of(&of.vm).unwrap_or_default();
            let cure = match contact {
                Contact::Lost => {
                    let off = format!("say that '{host}' is off, if it is: skein host fence {host} --is-off");
                    self.unless_answering(host, off) + "; or "
                }
                _ => String::new(),
            };
            return Some(Answer::conflict(
                message,
                format!("{cure}wait, or cancel: skein operation cancel {operation}"),
            ));
        }
        if contact.is_off() {
            return self.gone_to_removed(host);
        }
        let observed = self.observed.get(host);
        let arriving = observed.into_iter().flat_map(|observed| observed.vms.values());
        let mut arriving = arriving.filter(|vm| is_on_its_way(vm.state) && vm.state != VmState::Moved);
        if let Some(vm) = arriving.next() {
            let message = format!("'{}' is on its way to '{host}'", vm.name);
            let cure = match contact {
                Contact::Online => format!("wait, or call that off on its source: skein migration cancel {}", vm.name),
                _ => self.silent_cure(host),
            };
            return Some(Answer::conflict(message, cure));
        }
        let (vm, record) = self.moved_by_hand_to(host).into_iter().next()?;
        let source = record.host.unwrap_or_default();
        let message = format!("somebody moves '{vm}' from '{source}' to '{host}'");
        let cure = match contact {
            Contact::Online => format!("wait, or call that off on {source}: skein migration cancel {vm}"),
            _ => self.silent_cure(host),
        };
        Some(Answer::conflict(message, cure))
    }

    /// Refuses to remove a host that is off while a VM may have gone there and ended with it: its source is yet to say
    /// so.
    fn gone_to_removed(&self, host: &str) -> Option<Answer> {
        let source = |vm: &VmRecord| vm.host.clone().filter(|source| self.is_not_off(source));
        let mut gone = self.moved_by_hand_to(host).into_iter().filter_map(|(vm, record)| Some((vm, source(&record)?)));
        let (vm, source) = gone.next()?;
        let message = format!("'{vm}' may have gone from '{source}' to '{host}', and ended with it");
        let cure = match self.reporting(&source) {
            Some(_) => format!("wait, or call that off on {source}: skein migration cancel {vm}"),
            None => self.silent_cure(&source),
        };
        Some(Answer::conflict(message, cure))
    }

    /// Refuses to remove a host whose word is waited for, or whose guests may be on one whose word is. With the host
    /// what is known would go, and a guest may be started a second time.
    fn awaited_of_removed(&self, host: &str, contact: Contact) -> Option<Answer> {
        if contact.is_off() {
            for vm in self.vms_on(host) {
                let Some(silent) = self.awaited(host, &vm).pop_first() else { continue };
                let message =
                    format!("'{vm}' of '{host}' may be on '{silent}', which has not said since that it is not");
                let cure = match self.tables.hosts.contains_key(&silent) {
                    true => self.silent_cure(&silent),
                    false => format!("have the cluster forget it first: skein vm delete {vm}"),
                };
                return Some(Answer::conflict(message, cure));
            }
            return None;
        }
        let off = self.tables.hosts.keys().filter(|dead| self.is_off(dead));
        let of_dead = off.flat_map(|dead| self.guests_on(dead).into_iter().map(move |vm| (dead, vm)));
        let awaited = of_dead.filter(|(dead, vm)| self.awaited(dead, vm).contains(host)).map(|(_, vm)| vm).next();
        let is_silent = self.reporting(host).is_none();
        let is_unheard = self.unheard_since_restore().contains(&host);
        let missing = self.missing.keys().next().filter(|_| is_silent && contact != Contact::Joined);
        let what = match awaited.or_else(|| missing.cloned()) {
            Some(vm) if !is_silent => {
                let message = format!("'{vm}' may be on '{host}', which is being asked");
                return Some(Answer::conflict(message, "ask again in a moment"));
            }
            Some(vm) => format!("'{vm}' may be on '{host}', which does not report"),
            None if is_unheard => format!("'{host}' was not heard of since the cluster was restored from a backup"),
            None => return None,
        };
        Some(Answer::conflict(what, self.silent_cure(host)))
    }

    /// Returns the VMs that a person moves to a host, or has moved there without its word yet.
    fn moved_by_hand_to(&self, host: &str) -> Vec<(String, VmRecord)> {
        let vms = self.tables.vms.iter().map(|(name, found)| (name, &found.value));
        let coming = vms.filter(|(_, vm)| vm.move_by_hand.as_ref().is_some_and(|of| of.to == host));
        coming.map(|(name, vm)| (name.clone(), vm.clone())).collect()
    }

    fn set_vm(&mut self, vm: &str, settings: VmSettings, version: Option<u64>) -> Answer {
        let Some(found) = self.tables.vms.get(vm) else { return no_vm(vm) };
        if version.is_some_and(|version| version != found.revision) {
            return changed(&format!("'{vm}' has"));
        }
        let unknown = settings.owners.iter().flatten().chain(&settings.preferred);
        if let Some(host) = unknown.into_iter().find(|host| !self.tables.hosts.contains_key(*host)) {
            let message = format!("there is no host '{host}'");
            return Answer::refused(RefusedKind::Invalid, message, "see skein host list");
        }
        let labels = settings.tags.iter().chain(&settings.tenant).chain(&settings.availability_set);
        let pairs = settings.properties.iter().flat_map(|(key, value)| [key, value]);
        if let Some(answer) = unprintable(pairs.chain(labels)) {
            return answer;
        }
        if let Some(wrong) = self.unsound_vm(vm, &found.value, &settings) {
            return Answer::refused(RefusedKind::Invalid, wrong, "see docs/cluster-file.md");
        }
        let mut vm_record = found.value.clone();
        vm_record.settings = settings;
        self.tables.put(vm, vm_record);
        Answer::Done
    }

    /// Asks for a plan that is only to be shown.
    pub(crate) fn preview(&mut self, now: Now, asked: u64, kind: OperationKind, want: Want, by: &str) {
        let operation = self.unsaved_operation(now, kind, OperationState::Planning, by);
        self.ask_plan(PlanPurpose::Preview { asked, operation: Box::new(operation) }, want, Default::default());
    }
}

/// Says why a VM goes to a host that a person chose, and what that breaks.
fn asked_for_words(breaks: &[String]) -> String {
    if breaks.is_empty() { "asked for".to_owned() } else { format!("asked for; BREAKS: {}", breaks.join("; ")) }
}

/// Returns whether plans have to be made again after this was done.
fn changes_plans(ask: &Ask) -> bool {
    match ask {
        Ask::SetRule { .. } | Ask::RemoveRule { .. } | Ask::SetVm { .. } | Ask::SetHost { .. } => true,
        // Somebody who chooses the host goes by no rule.
        Ask::Migrate { request, .. } => request.to.is_some() && !request.dry_run,
        _ => false,
    }
}

/// Refuses names that cannot be printed: with one of them, no plan could be made.
fn unprintable<'a>(names: impl Iterator<Item = &'a String>) -> Option<Answer> {
    Some(Answer::refused(RefusedKind::Invalid, printable::why_not(names)?, "remove it"))
}
