//! A migration that is under way is switched, limited, begun again or called off through the controller: its source's
//! agent is asked, and what the agent answers is answered. Nothing of this is in the store. A host that takes no guest
//! by its agent's word takes guests again the same way.

use skein_api::{Migration, Reply, Request};

use crate::answer::{Answer, Ask, Asked, MigrationAsk, RefusedKind};
use crate::ask::{no_vm, repeat_key};
use crate::observed::SessionId;
use crate::state::{CommandPurpose, Controller, Relay};
use crate::time::Now;
use crate::words::refusal_words;

/// How long an agent may take to answer, in milliseconds.
const ANSWER_MS: u64 = 15_000;

impl Controller {
    /// Asks the source's agent. `None`: the answer comes with the agent's.
    pub(crate) fn ask_source(&mut self, now: Now, asked: Asked) -> Option<Answer> {
        let Ask::OfMigration { vm, id: meant, ask } = &asked.ask else { return None };
        if !self.tables.vms.contains_key(vm) {
            return Some(no_vm(vm));
        }
        // What waits for its next attempt is called off as what runs is: no attempt follows.
        let waits = || self.between_attempts(vm).filter(|_| matches!(ask, MigrationAsk::Cancel));
        let Some(Migration { id, source, .. }) = self.migration_of(vm).or_else(waits) else {
            return Some(Answer::conflict(format!("'{vm}' is in no migration"), format!("see skein vm show {vm}")));
        };
        if meant.is_some_and(|meant| meant != *id) {
            let cure = format!("look at what it is in now: skein vm show {vm}");
            return Some(Answer::conflict(format!("'{vm}' is in another migration by now"), cure));
        }
        let (id, source) = (id.to_string(), source.clone());
        let restart = |hold, allow_throttle| Request::MigrationRestart { id: id.clone(), hold, allow_throttle };
        let request = match ask {
            MigrationAsk::Switch { deadline_s } => Request::MigrationSwitch { id, deadline_s: *deadline_s },
            MigrationAsk::Limit { rate_bits_per_s } => {
                Request::MigrationLimit { id, rate_bits_per_s: *rate_bits_per_s }
            }
            MigrationAsk::Hold { hold } => restart(Some(hold.clone()), None),
            MigrationAsk::Throttle { percent } => restart(None, Some(*percent)),
            MigrationAsk::Cancel => Request::MigrationCancel { id },
        };
        if let Err(wrong) = request.check() {
            return Some(Answer::refused(RefusedKind::Invalid, wrong.message, wrong.cure));
        }
        let Some(session) = self.session_of(&source) else {
            let message = format!("'{source}' does not report, which has the migration of '{vm}'");
            return Some(Answer::conflict(message, format!("ask on that host: skein migration show {vm}")));
        };
        self.relay(now, asked, source, session, request);
        None
    }

    /// Asks a host's agent what somebody asked: the answer comes with the agent's.
    pub(crate) fn relay(&mut self, now: Now, asked: Asked, host: String, session: SessionId, request: Request) {
        let purpose = CommandPurpose::Relay { asked: asked.id };
        let until_ms = now.mono_ms + ANSWER_MS;
        self.relays.insert(asked.id, Relay { asked: Box::new(asked), source: host, until_ms });
        self.send(session, purpose, None, request);
    }

    /// Takes the agent's answer.
    pub(crate) fn relayed(&mut self, now: Now, asked: u64, reply: Reply) {
        let Some(Relay { asked, source, .. }) = self.relays.remove(&asked) else { return };
        let answer = match (reply, &asked.ask) {
            (Reply::Done, Ask::Resume { host, request }) => {
                self.opened(host, &Reply::Done);
                self.resume(now, host, request, &asked.by)
            }
            (Reply::Migration(migration), _) => {
                let shown = self.shown_migration(&migration);
                if let Some(observed) = self.observed.get_mut(&source) {
                    observed.migrations.insert(migration.id, *migration);
                }
                Answer::Migration(Box::new(shown))
            }
            (Reply::Error(refusal), _) => {
                Answer::conflict(refusal_words(refusal), format!("see skein host show {source}"))
            }
            _ => Answer::conflict(
                format!("the agent of '{source}' answered something else than was asked"),
                "see whether its release is the controllers': skein host list",
            ),
        };
        self.remember_repeat(now, repeat_key(&asked), asked.what.clone(), &answer);
        self.answer_audited(now, asked.id, (asked.by, asked.from, asked.what), answer);
    }

    /// Answers for agents that have not, or whose connection is over.
    pub(crate) fn tick_relays(&mut self, now: Now) {
        let is_over = |(id, relay): &(&u64, &Relay)| {
            now.mono_ms >= relay.until_ms || !self.is_asked(&CommandPurpose::Relay { asked: **id })
        };
        let over: Vec<u64> = self.relays.iter().filter(is_over).map(|(id, _)| *id).collect();
        for id in over {
            let Some(Relay { asked, source, .. }) = self.relays.remove(&id) else { continue };
            let message = format!("the agent of '{source}' did not answer: whether it has done that is not known");
            let answer = Answer::refused(RefusedKind::Unavailable, message, "look, and ask again");
            self.answer_audited(now, asked.id, (asked.by, asked.from, asked.what), answer);
        }
    }
}
