//! A host takes guests again, as somebody asks for.
//!
//! An agent that says why its host takes no guest is asked first: an update may have told the host to boot. The host
//! takes guests again once the agent has said that it does, and not before.

use skein_api::cluster::{Contact, HostMode, OperationKind, OperationState, ResumeRequest};
use skein_api::{Request, UpdateHow};

use crate::answer::{Answer, Ask, Asked};
use crate::ask::{no_host, see_host};
use crate::records::HostRecord;
use crate::state::{CommandPurpose, Controller};
use crate::time::Now;

/// What a person's word that a host takes guests again asks of its agent.
const OPEN: Request = Request::HostClose { for_s: 0, power_off: false, stays_on: true };

/// Returns whether hosts are updated by persons.
fn is_by_hand(kind: &OperationKind) -> bool {
    matches!(kind, OperationKind::Update { how: UpdateHow::Manual, .. })
}

impl Controller {
    /// Has a host take guests again. `None`: the answer comes with its agent's.
    pub(crate) fn ask_to_resume(&mut self, now: Now, asked: Asked) -> Option<Answer> {
        let Ask::Resume { host, request } = asked.ask.clone() else { return None };
        let Some(found) = self.tables.hosts.get(&host).map(|found| &found.value) else { return Some(no_host(&host)) };
        if let Some(bar) = self.resume_bar(&host, found, &request) {
            return Some(bar);
        }
        let session = self.session_of(&host).filter(|_| self.closed(&host).is_some());
        if let Some(session) = session {
            self.relay(now, asked, host, session, OPEN);
            return None;
        }
        // The guests of a drain that was called off, or of one before the host took guests again, may still be away.
        if found.mode == HostMode::Active && !(request.bring_home && found.drain.is_some()) {
            let cure = match self.home_option(&host) {
                "" => see_host(&host),
                option => {
                    format!("to have the guests come home that its drain moved: skein host resume {host}{option}")
                }
            };
            return Some(Answer::conflict(format!("'{host}' takes guests already"), cure));
        }
        if (self.updating(&host).is_some() || self.was_left_by_update(&host))
            && let Some(session) = self.session_of(&host)
        {
            // Its agent was told to take no guests.
            self.send(session, CommandPurpose::Reopen, None, OPEN);
        }
        Some(self.resume(now, &host, &request, &asked.by))
    }

    /// Has a host take guests again whose agent takes them.
    pub(crate) fn resume(&mut self, now: Now, host: &str, request: &ResumeRequest, by: &str) -> Answer {
        let Some(found) = self.tables.hosts.get(host).map(|found| found.value.clone()) else { return no_host(host) };
        if let Some(bar) = self.resume_bar(host, &found, request) {
            return bar;
        }
        if let Some(drain) = found.drain.clone().filter(|id| self.is_open(id)) {
            self.cancel(now, &drain);
        }
        let home = found.drain.clone().filter(|_| request.bring_home);
        // Somebody may ask later that its guests come home.
        let is_kept = |drain: &String| home.is_none() && !self.away(host, drain).is_empty();
        let drain = found.drain.clone().filter(is_kept);
        let guests_stay_away = drain.is_some();
        self.set_mode(host, HostRecord { mode: HostMode::Active, drain, guests_stay_away, ..found });
        match home {
            Some(drain) => {
                let kind = OperationKind::Resume { host: host.to_owned(), drain };
                Answer::Operation(Box::new(self.begin_operation(now, kind, OperationState::Planning, by)))
            }
            None => Answer::Done,
        }
    }

    /// Returns why a host cannot take guests again now.
    fn resume_bar(&self, host: &str, found: &HostRecord, request: &ResumeRequest) -> Option<Answer> {
        if self.is_stopping(host) {
            let cure = format!("wait until it sleeps, and wake it: skein host wake {host}");
            return Some(Answer::conflict(format!("'{host}' is being shut down, to sleep"), cure));
        }
        if let Some(open) = self.updating(host).filter(|of| !is_by_hand(&of.kind)) {
            let cure = format!("wait for it: skein operation watch {}", open.id);
            return Some(Answer::conflict(format!("'{host}' is being updated, and may be booted at any time"), cure));
        }
        if request.bring_home && found.contact == Contact::Asleep {
            let cure = format!("wake it first: skein host wake {host}");
            return Some(Answer::conflict(format!("'{host}' sleeps"), cure));
        }
        None
    }
}
