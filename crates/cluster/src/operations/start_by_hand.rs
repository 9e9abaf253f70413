//! Starts by hand: the agent of a host asks before a person starts a VM there, as the cluster may have started the VM
//! elsewhere meanwhile.
//!
//! The answer goes out once a record of it is in the store, in a transaction that only the leader can make: a leader of
//! before, which does not know where guests were started since, never says yes. A yes holds until the agent has started
//! the VM or given that up. Meanwhile nobody else starts the VM: another host may have it only after this host forgot
//! the VM, which its agent refuses, or is proven to be off, and then the agent that asked is gone.

use skein_api::cluster::Contact;
use skein_api::{Migration, VmState};

use crate::answer::{Answer, RefusedKind};
use crate::state::{Controller, Planted};
use crate::view::is_guest;

/// Why a VM may not be started on a host: whether that may pass within seconds, the reason, what to do.
pub(super) type Against = (bool, String, String);

impl Controller {
    /// Answers whether a VM may be started on a host whose agent asks. `is_here`: the host has the VM.
    pub(crate) fn start_by_hand(&self, host: &str, vm: &str, is_here: bool) -> Answer {
        if self.has(Planted::AnyStartByHand) {
            return Answer::Done;
        }
        self.against_start_by_hand(host, vm, is_here).map_or(Answer::Done, refused_by_hand)
    }

    fn against_start_by_hand(&self, host: &str, vm: &str, is_here: bool) -> Option<Against> {
        let by_cluster = format!("have the cluster start it: skein vm start {vm} --cluster --on {host}");
        if let Some(against) = self.unheard_or_claimed(host, vm) {
            return Some(against);
        }
        if let Some(against) = self.at_another(host, vm) {
            return Some(against);
        }
        let Some(record) = self.tables.vms.get(vm).map(|found| &found.value) else {
            // A backup may be of a time before the VM.
            return self.unheard_after_restore(host, vm);
        };
        match record.host.as_deref() {
            Some(home) if home == host && is_here => self.unheard_after_restore(host, vm),
            Some(home) if home == host => {
                let message = format!("'{host}' does not have '{vm}' any more, and the cluster has not taken note yet");
                Some((true, message, format!("ask again in a minute; {by_cluster}")))
            }
            Some(home) => Some(self.of_another(home, vm, host)),
            None => {
                let message = format!("no host has '{vm}': the cluster alone knows it");
                let cure = format!("{by_cluster}; or have it forgotten first: skein vm delete {vm}");
                Some((false, message, cure))
            }
        }
    }

    /// Returns what stands against what a person wants on a host that has not reported, or with a VM that the cluster
    /// is starting elsewhere.
    pub(super) fn unheard_or_claimed(&self, host: &str, vm: &str) -> Option<Against> {
        if self.reporting(host).is_none() {
            return Some((true, format!("'{host}' has not reported yet"), "ask again in a moment".into()));
        }
        let other = self.claimed_by(vm).filter(|other| *other != host)?;
        let message = format!("'{vm}' is being started on '{other}' by the cluster");
        Some((false, message, format!("see where it runs then: skein vm list; {}", move_cure(vm, host))))
    }

    /// Returns what stands against a start if another host says that it has a guest of the VM, or may have one.
    fn at_another(&self, host: &str, vm: &str) -> Option<Against> {
        let others = || self.observed.iter().filter(|(name, _)| name.as_str() != host);
        let has_guest = |of: &&VmState| !matches!(of, VmState::Stopped | VmState::Moved);
        for (other, observed) in others() {
            if let Some(state) = observed.vms.get(vm).map(|view| &view.state).filter(has_guest) {
                let what = match state {
                    VmState::Running => "runs".to_owned(),
                    state => format!("is {}", state_words(*state)),
                };
                return Some((false, format!("'{vm}' {what} on '{other}'"), move_cure(vm, host)));
            }
        }
        let is_open = |of: &&Migration| of.vm == vm && of.outcome.is_none();
        if others().flat_map(|(_, observed)| observed.migrations.values()).any(|of| is_open(&of)) {
            let message = format!("'{vm}' is in a migration");
            return Some((false, message, format!("see skein vm list; {}", move_cure(vm, host))));
        }
        // A migration was begun to a host that has not said since what came of it.
        self.is_elsewhere(host, vm).then(|| {
            let message = format!("'{vm}' may have been moved to a host that does not report");
            (true, message, format!("see that all hosts report; {}", move_cure(vm, host)))
        })
    }

    /// Returns what stands against a start of a VM that is another host's.
    pub(super) fn of_another(&self, home: &str, vm: &str, host: &str) -> Against {
        let on = format!("skein vm start {vm} --cluster --on {host}");
        let contact = self.tables.hosts.get(home).map(|found| found.value.contact);
        match contact {
            Some(Contact::Lost | Contact::Joined) => {
                let message = format!("'{vm}' is of '{home}', which does not report: it may run there");
                let cure = format!(
                    "see that '{home}' reports; if it is off, say so, and the guest starts elsewhere: skein host fence \
                     {home} --is-off"
                );
                (false, message, self.unless_answering(home, cure))
            }
            Some(contact) if contact.is_off() => {
                let fails_over = self.fails_over(home);
                let how = if fails_over { "is being started elsewhere" } else { "is the cluster's to start" };
                (false, format!("'{vm}' is of '{home}', which is off, and {how}"), format!("see skein vm list; {on}"))
            }
            _ if self.has_not(home, vm) => {
                let message = format!("'{home}' had '{vm}', and where it is now is not known");
                (true, message, format!("ask again in a minute; see skein vm list; {on}"))
            }
            _ => {
                let is_on = self.tables.vms.get(vm).is_some_and(|found| is_guest(found.value.state));
                let what = if is_on { "runs" } else { "is off" };
                let cure = match is_on {
                    true => move_cure(vm, host),
                    false => format!("{on}; if it is another VM of that name, give this one another"),
                };
                // What it last said may be older than what a person did there.
                (!is_on, format!("'{vm}' {what} on '{home}', which has it"), cure)
            }
        }
    }

    /// Returns what stands against a start if the store was restored from a backup, and hosts may have been given the
    /// VM since.
    fn unheard_after_restore(&self, host: &str, vm: &str) -> Option<Against> {
        let unheard = self.unheard_beside(host);
        let first = unheard.first()?;
        let message = format!(
            "the cluster was restored from a backup, and '{vm}' may run on {}, of which nothing was heard since",
            unheard.join(", ")
        );
        let cure = format!("see that it reports, or say that it is off: skein host fence {first} --is-off");
        Some((false, message, self.unless_answering(first, cure)))
    }
}

/// Returns the answer that refuses what a person wants.
pub(super) fn refused_by_hand((passes, message, cure): Against) -> Answer {
    match passes {
        true => Answer::refused(RefusedKind::Changed, message, cure),
        false => Answer::conflict(message, cure),
    }
}

fn move_cure(vm: &str, host: &str) -> String {
    format!("to have it here, move it: skein migrate {vm} --to {host}")
}

/// Says in which state a VM is that has a guest, or may have one, and does not run.
fn state_words(state: VmState) -> &'static str {
    match state {
        VmState::Starting => "being started",
        VmState::Paused => "paused",
        VmState::Incoming | VmState::Handover => "on its way",
        VmState::InDoubt => "in doubt",
        VmState::Unresponsive => "there, and does not answer,",
        VmState::Running | VmState::Stopped | VmState::Moved => "there",
    }
}
