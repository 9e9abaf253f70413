//! What agents say, and what of it is kept.

use std::collections::BTreeMap;

use skein_api::cluster::{Contact, Move, VmRunState};
use skein_api::{Hello, HostReport, Migration, MigrationId, Outcome, Refusal, Reply, Role, Term, VmState, VmView};

use crate::observed::{Observed, SessionId, ShownCertificate};
use crate::records::{HostRecord, MoveByHandRecord, VmRecord};
use crate::state::{CommandPurpose, Controller, Output, Planted};
use crate::time::Now;
use crate::view::{is_guest, is_live, is_on_its_way, run_state};

impl Controller {
    pub(crate) fn agent_up(&mut self, now: Now, session: SessionId, hello: Hello, certificate: ShownCertificate) {
        let host = hello.host.clone();
        if let Some(refusal) = self.host_refusal(&host, &certificate) {
            self.note_refused(now, &host, &refusal);
            return self.effect(Output::Refuse { session, refusal });
        }
        self.forget_handshakes(&host);
        if let Some(before) = self.session_of(&host) {
            self.drop_session(before);
            let why = "the host's agent has connected anew".to_owned();
            self.effect(Output::HangUp { session: before, why });
        }
        self.sessions.insert(session, host.clone());
        let highest = hello.highest_term;
        self.later.note(&host, highest, now.wall);
        self.observed.entry(host.clone()).or_default().begin(session, hello, certificate, now.mono_ms);
        if let Some(term) = self.term() {
            if highest > term {
                return self.step_down("an agent knows of a later leader");
            }
            self.note_host(now, &host);
            self.effect(Output::Lead { session, term });
        }
    }

    /// Returns why the host of an agent that is connected is not taken.
    pub(crate) fn refusal_of_agent(&self, host: &str) -> Option<Refusal> {
        let shown = self.observed.get(host).map(|observed| observed.certificate.clone()).unwrap_or_default();
        self.host_refusal(host, &shown)
    }

    /// Ends the connection of an agent whose host is not taken, and forgets what the agent said.
    pub(crate) fn refuse_agent(&mut self, now: Now, session: SessionId, refusal: Refusal) {
        if let Some(host) = self.sessions.get(&session).cloned() {
            self.drop_session(session);
            self.observed.remove(&host);
            self.note_refused(now, &host, &refusal);
        }
        self.effect(Output::Refuse { session, refusal });
    }

    pub(crate) fn agent_down(&mut self, session: SessionId) {
        self.drop_session(session);
    }

    /// Forgets what a host said that is off since, and takes no more of it: its agent, once it is there again, says
    /// everything anew.
    pub(crate) fn forget_said(&mut self, host: &str, why: &str) {
        if let Some(observed) = self.observed.get_mut(host) {
            observed.is_whole = false;
            observed.vms.clear();
            observed.migrations.clear();
        }
        if let Some(session) = self.session_of(host) {
            self.drop_session(session);
            self.effect(Output::HangUp { session, why: why.to_owned() });
        }
    }

    fn drop_session(&mut self, session: SessionId) {
        self.commands.retain(|_, command| command.session != session);
        let Some(host) = self.sessions.remove(&session) else { return };
        if let Some(observed) = self.observed.get_mut(&host)
            && observed.session == Some(session)
        {
            observed.session = None;
        }
    }

    /// Takes a report over. Returns whether it tells more than loads.
    pub(crate) fn agent_report(&mut self, now: Now, session: SessionId, report: HostReport) -> bool {
        let Some(host) = self.sessions.get(&session).cloned() else { return false };
        let Some(observed) = self.observed.get_mut(&host) else { return false };
        // A connection's first report has all that there is: what the records have beside that is not there.
        let is_first = !observed.is_whole;
        let has_changed = |of: &Migration| observed.migrations.get(&of.id).is_none_or(|before| !goes_on(before, of));
        let is_news = is_first || report.facts.is_some() || report.migrations.iter().any(has_changed);
        let is_news = is_news || report.watchdog.is_some();
        let heard = report.heard;
        let forgotten = report.vms_forgotten.clone();
        let (led, moves_asked) = (report.led, report.moves_asked.clone());
        let stood_still: BTreeMap<MigrationId, u64> =
            report.migrations.iter().filter_map(|of| Some((of.id, of.downtime_ms?))).collect();
        let was_closed = observed.closed().is_some();
        let changed = observed.report(report, now.mono_ms);
        // What was planned does not know whether the host takes guests now.
        self.epoch += u64::from(observed.closed().is_some() != was_closed);
        let is_news = is_news || !changed.is_empty();
        if self.term().is_some() {
            self.note_host(now, &host);
            self.heard_since_restore(&host);
            if let Some(heard) = heard {
                self.note_heard(now, &host, heard);
            }
            self.note_watchdog(&host);
            self.note_vms(now, &host, (!is_first).then_some(changed));
            // An earlier leader may have allowed a migration after an older report was made.
            let is_of_term = led.is_some() && led == self.term();
            self.note_moves_by_hand(&host, is_of_term.then_some(&moves_asked[..]));
            self.note_forgotten(&host, &forgotten);
            self.forget_elsewhere(&host);
            self.settle_reservations(&host);
            self.note_downtimes(&stood_still);
        }
        is_news
    }

    pub(crate) fn agent_reply(&mut self, now: Now, session: SessionId, command: u64, reply: Reply) {
        let Some(outstanding) = self.commands.get(&command).filter(|of| of.session == session).cloned() else { return };
        self.commands.remove(&command);
        let host = self.sessions.get(&session).cloned().unwrap_or_default();
        match outstanding.purpose {
            CommandPurpose::Begin { operation, index } => self.begun(now, &operation, index, reply),
            CommandPurpose::Offer { operation, index } => self.offered(now, &operation, index, reply),
            CommandPurpose::Operate { operation } => self.commanded(now, &host, &operation, reply),
            CommandPurpose::CallOff { .. } | CommandPurpose::Settle { .. } | CommandPurpose::Forget { .. } => {}
            CommandPurpose::Withdraw { operation, index } => self.withdrawn(now, &operation, index, reply),
            CommandPurpose::Look { host, asked_ms, proofs } => self.looked(host, asked_ms, proofs, reply),
            CommandPurpose::Relay { asked } => self.relayed(now, asked, reply),
            // What came of it is reported.
            CommandPurpose::Hurry { .. } => {}
            // An agent that does not know limits sends as fast as before.
            CommandPurpose::Limit => {}
            CommandPurpose::Reopen => self.opened(&host, &reply),
        }
    }

    /// Notes that a host takes guests again, as its agent says: what the host is is reported later.
    pub(crate) fn opened(&mut self, host: &str, reply: &Reply) {
        if let Some(observed) = self.observed.get_mut(host).filter(|_| *reply == Reply::Done) {
            observed.note_open();
            self.epoch += 1;
        }
    }

    pub(crate) fn agent_deposed(&mut self, now: Now, session: SessionId, highest: Term) {
        let Some(host) = self.sessions.get(&session) else { return };
        self.later.note(host, highest, now.wall);
        if self.term().is_some_and(|term| highest > term) {
            self.step_down("an agent knows of a later leader");
        }
    }

    /// Takes over what a host that is heard of says of itself.
    pub(crate) fn note_host(&mut self, now: Now, name: &str) {
        let Some(observed) = self.observed.get(name).filter(|observed| observed.session.is_some()) else { return };
        let hello = observed.hello.as_ref();
        let stored = self.tables.hosts.get(name).map(|found| &found.value);
        if stored.is_some_and(|stored| stored.contact == Contact::Online && observed.is_as_in(stored)) {
            return;
        }
        let before = stored.cloned();
        // A host with a certificate of the cluster's CA is one of its hosts, also if it never joined by a ticket.
        let new = || HostRecord { joined: now.wall, contact_since: now.wall, ..HostRecord::default() };
        let mut host = before.clone().unwrap_or_else(new);
        if host.contact != Contact::Online {
            (host.contact, host.contact_since) = (Contact::Online, now.wall);
            host.power.wake(now.wall);
            self.epoch += 1;
        }
        host.note_certificate(&observed.certificate.sha256, observed.certificate.validity);
        if let Some(hello) = hello {
            // Whether a watchdog is armed after a boot is not known before a report says so.
            if host.boot_id != hello.boot_id {
                host.watchdog = None;
            }
            host.addresses.clone_from(&hello.addresses);
            host.boot_id.clone_from(&hello.boot_id);
        }
        if let Some(models) = &observed.cpu_models {
            host.cpu_models.clone_from(models);
        }
        let is_changed = before.as_ref() != Some(&host);
        let boot = host.boot_id.clone();
        if is_changed {
            self.tables.put(name, host);
        }
        if let Some(before) =
            before.filter(|before| before.boot_id.is_some() && boot.is_some() && before.boot_id != boot)
        {
            self.host_booted(now, name, &before);
        }
    }

    /// Takes over what a host says of its VMs: those that changed, or all.
    pub(crate) fn note_vms(&mut self, now: Now, host: &str, changed: Option<Vec<String>>) {
        let Some(observed) = self.observed.get(host).filter(|observed| observed.is_whole) else { return };
        let seen: Vec<(String, Option<VmView>)> = match changed {
            Some(names) => names.into_iter().map(|name| (name.clone(), observed.vms.get(&name).cloned())).collect(),
            None => {
                let gone = self.vms_on(host).into_iter().filter(|name| !observed.vms.contains_key(name));
                let there = observed.vms.iter().map(|(name, vm)| (name.clone(), Some(vm.clone())));
                gone.map(|name| (name, None)).chain(there).collect()
            }
        };
        for (name, vm) in seen {
            match vm {
                Some(vm) => self.note_vm(now, host, &vm),
                None => self.note_gone(now, host, &name),
            }
        }
    }

    /// Takes over what a host says of a VM that it has.
    pub(crate) fn note_vm(&mut self, now: Now, host: &str, vm: &VmView) {
        let Some(state) = run_state(vm.state) else { return };
        let before = self.tables.vms.get(&vm.name).map(|found| found.value.clone());
        let mut record = before.clone().unwrap_or_default();
        // It is on its way there, and another host's.
        if vm.reserved.is_some() && record.host.as_deref() != Some(host) {
            return;
        }
        // While a guest is handed over, both hosts have it. It is where it runs, or where it was until it does. What a
        // host has left of a guest that went elsewhere counts only if it is known not to be there any more.
        let other = record.host.as_deref().filter(|other| *other != host);
        let is_elsewhere = other.is_some_and(|other| match state {
            VmRunState::Running => self.said_of(other, &vm.name).is_some_and(is_live),
            // A host that is silent may have it. That a QEMU is there is no proof that the guest has come.
            VmRunState::Paused | VmRunState::Unresponsive if vm.migration.is_none() => {
                let is_free = self.has_not(other, &vm.name) || self.is_off(other) || self.has_arrived(host, other, vm);
                !is_free || self.said_of(other, &vm.name).is_some_and(is_live)
            }
            _ => !self.has_not(other, &vm.name),
        });
        if is_elsewhere {
            if is_live(state) || state == VmRunState::Unresponsive {
                self.untold.insert((host.to_owned(), vm.name.clone()));
            }
            return;
        }
        // Of a guest that ran twice the other is left.
        if !is_guest(state) && record.host.as_deref() == Some(host) && self.claimed_by(&vm.name).is_none() {
            let runs = |other: &&String| *other != host && self.said_of(other, &vm.name) == Some(VmRunState::Running);
            if let Some(other) = self.observed.keys().find(runs).cloned() {
                let there = self.observed[&other].vms[&vm.name].clone();
                return self.note_vm(now, &other, &there);
            }
        }
        let claimed = self.claimed_by(&vm.name);
        if claimed.is_some_and(|claimed| claimed != host) && !is_live(state) {
            return;
        }
        self.missing.remove(&vm.name);
        if record.host.as_deref() != Some(host) || record.state != state {
            record.since = now.wall;
        }
        record = VmRecord {
            host: Some(host.to_owned()),
            state,
            ram_bytes: vm.memory_bytes,
            cpus: vm.cpus,
            adopted: vm.adopted,
            definition: vm.definition.clone().or(record.definition),
            note: vm.note.clone(),
            // A host that dies while it starts a VM has not got it afterwards.
            is_claimed: record.is_claimed && state == VmRunState::Starting,
            is_ended: false,
            // Somebody has started it on its host.
            stop_asked: record.stop_asked && (!is_guest(state) || self.is_being_stopped(&vm.name)),
            ..record
        };
        let has_come = before.as_ref().is_none_or(|before| before.host != record.host);
        if has_come {
            record.move_by_hand = None;
        }
        if has_come || !is_on_its_way(vm.state) {
            // A connection tells of the last migrations only: those before stay.
            let past = self.observed.get(host).into_iter().flat_map(|of| past_migrations(of, vm));
            record.note_past(past.collect::<Vec<_>>());
        }
        // Plans that do not know of a guest put others where a rule keeps them apart.
        let is_new_guest = is_guest(state) && before.as_ref().is_none_or(|before| !is_guest(before.state));
        if before.as_ref() != Some(&record) {
            self.tables.put(&vm.name, record);
        }
        if (has_come || is_new_guest) && self.operation_of(&vm.name).is_none() {
            self.epoch += 1;
        }
    }

    /// Returns whether a guest has come to a host from another, as the host says.
    fn has_arrived(&self, host: &str, other: &str, vm: &VmView) -> bool {
        let has_come = |of: &Migration| {
            let is_over = of.role == Role::Target && of.outcome == Some(Outcome::Moved);
            is_over && of.vm == vm.name && of.source == other
        };
        self.observed.get(host).is_some_and(|observed| observed.migrations.values().any(has_come))
    }

    /// Looks again at guests that run on other hosts than theirs, by the word of those: their own host may have told
    /// since that they have left, or may tell nothing any more.
    pub(crate) fn look_at_untold(&mut self, now: Now) {
        for (host, vm) in std::mem::take(&mut self.untold) {
            let there = self.observed.get(&host).and_then(|observed| observed.vms.get(&vm)).cloned();
            if let Some(there) = there {
                self.note_vm(now, &host, &there);
            }
        }
    }

    /// Notes that a host has a VM no more. The VM may be on its way to another.
    fn note_gone(&mut self, now: Now, host: &str, name: &str) {
        if self.tables.vms.get(name).is_none_or(|found| found.value.host.as_deref() != Some(host)) {
            return;
        }
        if self.claimed_by(name).is_some() {
            return;
        }
        let others = self.observed.keys().filter(|other| *other != host);
        let said = others.filter_map(|other| Some((other, self.said_of(other, name)?)));
        let (guests, off): (Vec<_>, Vec<_>) = said.partition(|(_, state)| is_guest(*state));
        // A VM of that name that is off elsewhere may be an old copy of one that went to a silent host.
        let moved_to = self.moved_to(host, name);
        let other = guests.first().or_else(|| off.first().filter(|_| moved_to.is_none()));
        match other.map(|(other, _)| ((*other).clone(), self.observed[*other].vms[name].clone())) {
            Some((other, vm)) => self.note_vm(now, &other, &vm),
            None if let Some(found) = self.claimed(name) => {
                // It was to be started there, and never came to be: only the cluster knows it.
                let record = VmRecord { host: None, state: VmRunState::Stopped, since: now.wall, ..found };
                self.tables.put(name, VmRecord { is_claimed: false, ..record });
            }
            None if let Some((target, migration)) = moved_to => {
                let Some(found) = self.tables.vms.get(name).map(|found| found.value.clone()) else { return };
                let state = found.state;
                self.missing.remove(name);
                self.tables.put(name, found.put_on(&target, state, now.wall, migration));
                self.epoch += 1;
                self.fail_over_late(now, &target);
            }
            None if self.has(Planted::MissingForgotten) => self.tables.delete::<VmRecord>(name),
            None => drop(self.missing.entry(name.to_owned()).or_insert(now.mono_ms)),
        }
    }

    /// Returns the host to which a VM went by the word of the host that had it, and by which migration, if that other
    /// host does not report: it may have the VM.
    fn moved_to(&self, host: &str, vm: &str) -> Option<(String, MigrationId)> {
        let record = &self.tables.vms.get(vm)?.value;
        let observed = self.observed.get(host)?;
        let by_hand = record.move_by_hand.as_ref();
        let (target, migration) = match departure(observed, record, vm) {
            Some(last) => {
                // Another is known to have been under way last: nobody knows what became of that.
                let begun = self.begun_moves().filter(|of| of.vm == vm && of.from == host).find_map(|of| of.migration);
                if by_hand.map(|of| of.migration).into_iter().chain(begun).any(|known| known != last.id) {
                    return None;
                }
                (&last.target, last.id)
            }
            // It was over so long ago that the host tells no more of it.
            None => {
                let by_hand = by_hand.filter(|of| !observed.migrations.contains_key(&of.migration))?;
                (&by_hand.to, by_hand.migration)
            }
        };
        let is_silent = self.tables.hosts.contains_key(target) && self.reporting(target).is_none();
        (is_silent && target != host).then(|| (target.clone(), migration))
    }

    /// Forgets VMs that a person had their host forget. Those of which something is under way, or that another host
    /// speaks of, are seen to as others that are gone.
    fn note_forgotten(&mut self, host: &str, names: &[String]) {
        for name in names {
            let record = self.tables.vms.get(name).map(|found| &found.value);
            let is_its = record.is_some_and(|vm| vm.host.as_deref() == Some(host) && !vm.is_claimed);
            let mut others = self.observed.iter().filter(|(other, _)| *other != host);
            let is_elsewhere = others.any(|(_, of)| {
                of.vms.contains_key(name) || of.migrations.values().any(|of| of.vm == *name && of.outcome.is_none())
            });
            if is_its && self.has_not(host, name) && !is_elsewhere && self.operation_of(name).is_none() {
                self.missing.remove(name);
                self.tables.delete::<VmRecord>(name);
                self.epoch += 1;
            }
        }
    }

    /// Notes which guests leave a host by a migration that a person began, asked or not. Notes, too, which have not
    /// left by one that the person was allowed to begin: it is over, or was not begun. `asked`: those that may begin
    /// yet. `None`: not known.
    fn note_moves_by_hand(&mut self, host: &str, asked: Option<&[MigrationId]>) {
        let Some(observed) = self.observed.get(host).filter(|observed| observed.is_whole) else { return };
        let is_over = |id: &MigrationId| match observed.migrations.get(id) {
            Some(migration) => has_stayed(migration) || has_come_back(observed, migration),
            None => asked.is_some_and(|asked| !asked.contains(id)),
        };
        // Of a guest that is gone no migration is told that was over long ago.
        let is_told = |name: &str, id: &MigrationId| {
            let is_here = observed.vms.get(name).is_some_and(|vm| !is_on_its_way(vm.state));
            is_here || observed.migrations.contains_key(id)
        };
        let vms = self.tables.vms_of(host);
        let over = vms.filter(|(name, vm)| {
            vm.move_by_hand.as_ref().is_some_and(|of| is_over(&of.migration) && is_told(name, &of.migration))
        });
        let over = over.map(|(name, vm)| (name.to_owned(), VmRecord { move_by_hand: None, ..vm.clone() }));
        // One that began while no controller was asked, or after the backup that the store was restored from.
        let is_its = |begun: &Move, of: &Migration| match begun.migration {
            Some(id) => id == of.id,
            None => begun.to.as_ref() == Some(&of.target),
        };
        let is_begun = |of: &Migration| {
            self.begun_moves().any(|begun| begun.vm == of.vm && begun.from == host && is_its(begun, of))
        };
        // One that went to a host outside the cluster is known by its source alone. A person sees to that.
        let has_left = |of: &Migration| {
            let is_outside = !self.tables.hosts.contains_key(&of.target) && !observed.vms.contains_key(&of.vm);
            let record = self.tables.vms.get(&of.vm).map(|found| &found.value).filter(|_| is_outside);
            record.and_then(|record| last_departure(observed, record, &of.vm)).is_some_and(|last| last.id == of.id)
        };
        let leaving = observed.migrations.values();
        let leaving = leaving.filter(|of| of.role == Role::Source && (of.outcome.is_none() || has_left(of)));
        let unknown = leaving.filter_map(|of| {
            let vm = self.tables.vms.get(&of.vm).map(|found| &found.value)?;
            let is_known = vm.move_by_hand.as_ref().is_some_and(|known| known.migration == of.id);
            (vm.host.as_deref() == Some(host) && !is_known && !is_begun(of)).then(|| {
                let move_by_hand = Some(MoveByHandRecord { to: of.target.clone(), migration: of.id });
                (of.vm.clone(), VmRecord { move_by_hand, ..vm.clone() })
            })
        });
        let changed: Vec<(String, VmRecord)> = over.chain(unknown).collect();
        for (name, vm) in changed {
            self.tables.put(&name, vm);
        }
    }

    /// Returns whether a person moves a VM to a host that is none of the cluster.
    pub(crate) fn goes_outside(&self, vm: &VmRecord) -> bool {
        vm.move_by_hand.as_ref().is_some_and(|of| !self.tables.hosts.contains_key(&of.to))
    }

    /// Looks again at VMs that their hosts have no more: the host to which one went may have died before it said so.
    pub(crate) fn look_at_missing(&mut self, now: Now) {
        let homes = self.missing.keys().filter_map(|vm| {
            let home = self.tables.vms.get(vm)?.value.host.clone()?;
            (self.has_not(&home, vm) && self.moved_to(&home, vm).is_some()).then(|| (home, vm.clone()))
        });
        let homes: Vec<(String, String)> = homes.collect();
        homes.iter().for_each(|(home, vm)| self.note_gone(now, home, vm));
    }

    /// Returns a VM that is a host's which has not had it yet.
    pub(crate) fn claimed(&self, name: &str) -> Option<VmRecord> {
        self.tables.vms.get(name).map(|found| found.value.clone()).filter(|vm| vm.is_claimed)
    }

    /// Forgets VMs that no host has had for a while, if no host is silent that might have them. A VM that may have
    /// ended with a host that is off is remembered as one that only the cluster knows.
    pub(crate) fn forget_missing(&mut self, now: Now) {
        let most = self.settings.missing_ms;
        let is_off = |host: &str| self.tables.hosts.get(host).is_some_and(|of| of.value.contact == Contact::Off);
        let long: Vec<String> = self
            .missing
            .iter()
            .filter(|(_, since)| now.ms_since(**since) > most)
            .map(|(name, _)| name.clone())
            // The host to which it is moved while it is off keeps it.
            .filter(|name| !self.begun_off_moves().any(|of| of.vm == *name))
            // A person moved it to a host that is none of the cluster.
            .filter(|name| !self.tables.vms.get(name).is_some_and(|vm| self.goes_outside(&vm.value)))
            // It is seen to with the others of that host.
            .filter(|name| !self.tables.vms.get(name).and_then(|vm| vm.value.host.as_deref()).is_some_and(is_off))
            .collect();
        if long.is_empty() {
            return;
        }
        let is_silent = self.tables.hosts.iter().any(|(name, host)| {
            host.value.contact != Contact::Joined && !host.value.contact.is_off() && self.reporting(name).is_none()
        });
        if is_silent {
            return;
        }
        // A host is empty before it sleeps.
        let off: Vec<&str> = self.tables.hosts.keys().map(String::as_str).filter(|host| is_off(host)).collect();
        let off = off.join(", ");
        for name in long {
            self.missing.remove(&name);
            let Some(found) = self.tables.vms.get(&name).map(|found| found.value.clone()) else { continue };
            let had = found.host.clone().unwrap_or_default();
            let ended = match found.is_ended {
                true => format!("it ended with a boot of '{had}'"),
                false if !off.is_empty() => format!("it may have ended with {off}"),
                false => {
                    self.tables.delete::<VmRecord>(&name);
                    continue;
                }
            };
            let note = format!("'{had}' had it no more, and no host has it: {ended}");
            let (host, state, is_ended) = (None, VmRunState::Stopped, false);
            self.tables.put(&name, VmRecord { host, state, since: now.wall, note, is_ended, ..found });
            self.epoch += 1;
        }
    }

    /// Returns whether a host that reports does not have a VM.
    pub(crate) fn has_not(&self, host: &str, vm: &str) -> bool {
        let found = self.reporting(host);
        found.is_some_and(|observed| !observed.vms.contains_key(vm)) || !self.tables.hosts.contains_key(host)
    }

    /// Returns what a host that reports says of a VM that it has.
    fn said_of(&self, host: &str, vm: &str) -> Option<VmRunState> {
        let observed = self.observed.get(host).filter(|observed| observed.session.is_some())?;
        observed.vms.get(vm).filter(|vm| vm.reserved.is_none()).and_then(|vm| run_state(vm.state))
    }
}

/// Returns the migrations of a VM that were over only after the VM was last seen on its host, by that host's word.
fn new_migrations<'a>(
    observed: &'a Observed,
    record: &'a VmRecord,
    vm: &'a str,
) -> impl Iterator<Item = &'a Migration> {
    let is_past = |of: &Migration| of.outcome != Some(Outcome::Moved) || record.past_migrations.contains(&of.id);
    observed.migrations.values().filter(move |of| of.vm == vm && !is_past(of))
}

/// Returns the migration by which a VM left its host, by that host's word. `None`: it has not left by one, or nobody
/// knows by which of several: the host's clock may have been set between them.
fn departure<'a>(observed: &'a Observed, record: &'a VmRecord, vm: &'a str) -> Option<&'a Migration> {
    let mut new = new_migrations(observed, record, vm);
    let first = new.next().filter(|of| of.role == Role::Source)?;
    new.next().is_none().then_some(first)
}

/// Returns the last migration by which a VM left its host, by that host's word and clock.
fn last_departure<'a>(observed: &'a Observed, record: &'a VmRecord, vm: &'a str) -> Option<&'a Migration> {
    let last = new_migrations(observed, record, vm).max_by(|one, other| one.begun.cmp(&other.begun));
    last.filter(|of| of.role == Role::Source)
}

/// Returns the migrations of a VM that a host tells of by which the VM has not left the host, as the VM is there. Of
/// many the newest count.
fn past_migrations(observed: &Observed, vm: &VmView) -> Vec<MigrationId> {
    let of_vm = observed.migrations.values().filter(|of| of.vm == vm.name);
    let is_past = |of: &&Migration| match of.role {
        Role::Source => of.outcome == Some(Outcome::Moved) && vm.migration != Some(of.id),
        Role::Target => of.outcome == Some(Outcome::Moved) || vm.state == VmState::Running,
    };
    let mut past: Vec<&Migration> = of_vm.filter(is_past).collect();
    past.sort_by(|one, other| other.begun.cmp(&one.begun));
    past.truncate(VmRecord::PAST_MIGRATIONS_MAX);
    past.into_iter().rev().map(|of| of.id).collect()
}

/// Returns whether a VM that left a host by a migration is there again.
fn has_come_back(observed: &Observed, migration: &Migration) -> bool {
    let there = observed.vms.get(&migration.vm).filter(|vm| !is_on_its_way(vm.state));
    migration.role == Role::Source
        && migration.outcome == Some(Outcome::Moved)
        && there.is_some_and(|vm| vm.migration != Some(migration.id))
}

/// Returns whether the source of a migration says that the guest has not left it.
fn has_stayed(migration: &Migration) -> bool {
    migration.role == Role::Source && migration.outcome.is_some_and(|outcome| outcome != Outcome::Moved)
}

/// Returns whether a migration goes on as before: only how far it is has changed, which a tick sees soon enough.
fn goes_on(before: &Migration, now: &Migration) -> bool {
    let (copy, paths, events) = (before.copy.clone(), before.paths.clone(), before.events.clone());
    *before == Migration { elapsed_ms: before.elapsed_ms, copy, paths, events, ..now.clone() }
}
