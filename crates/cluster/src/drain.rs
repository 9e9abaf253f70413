//! A host is emptied, as somebody asks for; a drain that is under way may become an evacuation.

use skein_api::cluster::{Contact, DrainRequest, Operation, OperationKind, OperationState};

use crate::answer::Answer;
use crate::ask::no_host;
use crate::planner::Want;
use crate::records::HostRecord;
use crate::state::Controller;
use crate::time::Now;

impl Controller {
    /// Empties a host. `None`: the answer takes a plan.
    pub(crate) fn drain(
        &mut self,
        now: Now,
        host: &str,
        request: &DrainRequest,
        asked: u64,
        by: &str,
    ) -> Option<Answer> {
        let Some(found) = self.tables.hosts.get(host).map(|found| found.value.clone()) else {
            return Some(no_host(host));
        };
        let open = found.drain.as_deref().and_then(|id| self.operation(id)).filter(|drain| !drain.state.is_over());
        if let Some(open) = open.filter(|_| !request.dry_run) {
            return Some(self.drained_already(now, host, open, request));
        }
        if let Some(answer) = self.nothing_leaves(host, &found) {
            return Some(answer);
        }
        let deadline = request.deadline_s.map(|seconds| now.in_ms(seconds.saturating_mul(1000)));
        let follows = found.drain_before();
        let kind = OperationKind::Drain { host: host.to_owned(), deadline, evacuate: request.evacuate, follows };
        if request.dry_run {
            let want = Want::Empty { host: host.to_owned() };
            self.preview(now, asked, kind, want, by);
            return None;
        }
        let operation = self.begin_operation(now, kind, OperationState::Planning, by);
        self.set_mode(host, found.drained_by(operation.id.clone()));
        Some(Answer::Operation(Box::new(operation)))
    }

    /// Refuses to drain a host that is being drained; or has the drain become an evacuation, if that is asked for.
    fn drained_already(&mut self, now: Now, host: &str, open: Operation, request: &DrainRequest) -> Answer {
        let is_plain = matches!(open.kind, OperationKind::Drain { evacuate: false, .. });
        let goes_on = matches!(open.state, OperationState::Planning | OperationState::Running);
        if request.evacuate && is_plain && goes_on {
            return self.evacuate_by(now, open, request.deadline_s);
        }
        let message = format!("'{host}' is being drained already, by operation {}", open.id);
        let cure = format!("follow it: skein operation watch {0}; or call it off: skein operation cancel {0}", open.id);
        Answer::conflict(message, cure)
    }

    /// Has a drain that is under way become an evacuation: what it waited for is told to switch, or called off.
    fn evacuate_by(&mut self, now: Now, mut drain: Operation, deadline_s: Option<u64>) -> Answer {
        let OperationKind::Drain { deadline, evacuate, .. } = &mut drain.kind else {
            unreachable!("it is a drain");
        };
        *evacuate = true;
        *deadline = deadline_s.map(|seconds| now.in_ms(seconds.saturating_mul(1000))).or(*deadline);
        self.save_operation(now, drain.clone());
        Answer::Operation(Box::new(drain))
    }

    /// Refuses to move guests off a host that does not report: nobody would move them.
    fn nothing_leaves(&self, host: &str, found: &HostRecord) -> Option<Answer> {
        let fence = format!("skein host fence {host} --is-off");
        let (what, cure) = match found.contact {
            Contact::Online => return None,
            Contact::Joined => ("has joined, and its agent was never seen", format!("start the agent of '{host}'")),
            Contact::Lost => (
                "does not report: no guest can be moved off it",
                self.unless_answering(
                    host,
                    format!(
                        "see that it is on and reaches the controllers; if it is off, say so, and its guests start \
                         elsewhere: {fence}"
                    ),
                ),
            ),
            Contact::Asleep => ("sleeps: nothing runs on it", format!("wake it: skein host wake {host}")),
            Contact::Off if self.fails_over(host) => ("is off: its guests are being started elsewhere", String::new()),
            Contact::Off if self.lost_guests(host).is_empty() => ("is off: nothing runs on it", String::new()),
            Contact::Off => {
                let again = self.unless_answering(host, format!("start them elsewhere: {fence}"));
                ("is off, and its guests with it", again)
            }
        };
        Some(Answer::conflict(format!("'{host}' {what}"), cure))
    }
}
