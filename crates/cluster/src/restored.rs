//! A store that was restored from a backup: what it says of hosts is of the time before, and holds no longer.
//!
//! Until a host has reported, or is proven to be off anew, it may run whatever it was given since the backup. What was
//! under way ended long ago, one way or another, and is not begun again. Tickets may have been used.

use skein_api::cluster::{Contact, HostMode, MoveState, Operation, OperationKind, OperationState};

use crate::records::{HostRecord, RestoredRecord, TicketRecord};
use crate::state::{Controller, Planted};
use crate::time::Now;

/// Says what became of that which was under way when the backup was made.
const ENDED: &str = "the cluster was restored from a backup of that time: what came of it is not known";

impl Controller {
    /// Takes note that the store was restored: no host is known to be off, or to report, and nothing is under way.
    pub(crate) fn note_restore(&mut self, now: Now) {
        if !self.tables.restored.contains_key(RestoredRecord::NAME) || self.has(Planted::RestoreForgotten) {
            return;
        }
        for (name, host) in self.tables.hosts.clone() {
            let host = HostRecord {
                contact: Contact::Lost,
                contact_since: now.wall,
                is_unheard_since_restore: true,
                // Whether its drain went on, or the host was resumed, is not known.
                mode: if host.value.mode == HostMode::Draining { HostMode::Maintenance } else { host.value.mode },
                ..host.value
            };
            self.tables.put(&name, host);
        }
        let open: Vec<Operation> = self
            .tables
            .operations
            .values()
            .map(|found| &found.value)
            .filter(|of| !of.state.is_over())
            .cloned()
            .collect();
        for mut operation in open {
            for of in operation.moves.iter_mut().filter(|of| !of.state.is_over()) {
                (of.state, of.detail, of.ended) = (MoveState::Left, ENDED.to_owned(), Some(now.wall));
            }
            if let OperationKind::Stop { vm, .. } = &operation.kind {
                self.stops_no_more(vm);
            }
            (operation.state, operation.message) = (OperationState::Failed, ENDED.to_owned());
            self.remember_drain(&operation);
            self.save_operation(now, operation);
        }
        let tickets: Vec<String> = self.tables.tickets.keys().cloned().collect();
        tickets.iter().for_each(|ticket| self.tables.delete::<TicketRecord>(ticket));
        self.tables.delete::<RestoredRecord>(RestoredRecord::NAME);
        self.epoch += 1;
    }

    /// Takes note that a host has reported, or is proven to be off.
    pub(crate) fn heard_since_restore(&mut self, host: &str) {
        let unheard = self.tables.hosts.get(host).filter(|found| found.value.is_unheard_since_restore);
        let Some(found) = unheard.map(|found| found.value.clone()) else { return };
        self.tables.put(host, HostRecord { is_unheard_since_restore: false, ..found });
        self.epoch += 1;
    }

    /// Returns the hosts of which nobody knows what they run since the store was restored.
    pub(crate) fn unheard_since_restore(&self) -> Vec<&str> {
        let hosts = self.tables.hosts.iter().filter(|(_, host)| host.value.is_unheard_since_restore);
        hosts.map(|(name, _)| name.as_str()).collect()
    }

    /// Returns the same without one host.
    pub(crate) fn unheard_beside(&self, host: &str) -> Vec<&str> {
        self.unheard_since_restore().into_iter().filter(|name| *name != host).collect()
    }

    /// Says for what starts wait. `None`: for nothing.
    pub(crate) fn restore_words(&self) -> Option<String> {
        let unheard = self.unheard_since_restore();
        let first = unheard.first()?;
        let off = format!("see that it reports, or say that it is off (skein host fence {first} --is-off)");
        Some(format!(
            "the cluster was restored from a backup, and VMs may have been given to {} since, of which nothing was \
             heard: {}",
            unheard.join(", "),
            self.unless_answering(first, off)
        ))
    }
}
