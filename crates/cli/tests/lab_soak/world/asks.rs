//! The migrations of a round, as they are asked for and as the agents' logs have them.

use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use skein_api::{LogEntry, MigrateOptions, MigrationEvent, MigrationId, MigrationPhase, Reply, Request};
use skein_client::Client;
use skein_journal::EventLog;

use super::outcome::Failure;
use super::state::{Guest, World};
use crate::plan::{Move, Round};

/// How long a request to migrate is repeated that is refused before anything was done: an agent of the round before may
/// not have found all the others yet.
const AGAIN: Duration = Duration::from_secs(20);
/// The time within which a request to migrate is answered: two agents and their QEMUs are asked.
const PATIENCE: Duration = Duration::from_secs(60);

/// A migration that was asked for.
pub(super) struct Ask {
    pub(super) vm: String,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) request: Request,
    pub(super) answer: Option<Receiver<Result<MigrationId, String>>>,
    pub(super) id: Option<MigrationId>,
    pub(super) refused: Option<String>,
}

impl World {
    pub(super) fn asks(&self, plan: &Round) -> Vec<Ask> {
        let mut free: Vec<usize> = (0..self.guests.len()).collect();
        let ask = |one: &Move| {
            let guest = free.remove(one.guest % free.len());
            let Guest { name: vm, at: from, .. } = &self.guests[guest];
            let others: Vec<String> = self.cluster.hosts().into_iter().filter(|host| host != from).collect();
            let to = others[one.to % others.len()].clone();
            let options = MigrateOptions { channels: one.channels, ..MigrateOptions::default() };
            let request = Request::Migrate { vm: vm.clone(), to: to.clone(), options, detach: true };
            let (vm, from) = (vm.clone(), from.clone());
            Ask { vm, from, to, request, answer: None, id: None, refused: None }
        };
        plan.moves.iter().map(ask).collect()
    }

    pub(super) fn ask(&mut self, ask: &mut Ask) {
        self.note(format!("asked: {} from {} to {}", ask.vm, ask.from, ask.to));
        let (reply, answer) = sync_channel(1);
        let (client, request) = (self.cluster.client(&ask.from), ask.request.clone());
        thread::spawn(move || {
            let _ = reply.send(begin(&client, &request));
        });
        ask.answer = Some(answer);
    }

    /// Takes the answers that have come. Returns whether some are still to come.
    pub(super) fn take_answers(&mut self, asks: &mut [Ask], has_faults: bool, begin: Instant) -> Result<bool, Failure> {
        let mut busy = false;
        for ask in asks {
            let Some(answer) = &ask.answer else { continue };
            match answer.try_recv() {
                Err(TryRecvError::Empty) => busy = true,
                Err(TryRecvError::Disconnected) => unreachable!("who asks always answers"),
                Ok(Ok(id)) => {
                    ask.answer = None;
                    ask.id = Some(id);
                    self.note(format!("begun: {} is {id}", ask.vm));
                }
                Ok(Err(why)) => {
                    ask.answer = None;
                    self.note(format!("refused: {}: {why}", ask.vm));
                    if has_faults {
                        ask.refused = Some(why);
                    } else if begin.elapsed() < AGAIN {
                        thread::sleep(Duration::from_millis(200));
                        self.ask(ask);
                        busy = true;
                    } else {
                        return Err(format!("{} cannot be moved, and nothing was done to it: {why}", ask.vm).into());
                    }
                }
            }
        }
        Ok(busy)
    }

    /// Returns what the log of one end has so far. The log is read from the disk, as an agent may be unable to answer.
    fn log(&self, host: &str, id: MigrationId) -> Vec<LogEntry> {
        let dir = self.cluster.state_dir(host).join("migrations");
        let read = EventLog::read::<LogEntry>(&dir, &id.to_string());
        read.map(|events| events.entries.into_iter().map(|entry| entry.event).collect()).unwrap_or_default()
    }

    pub(super) fn has_come(&self, ask: &Ask, stage: MigrationPhase) -> bool {
        let Some(id) = ask.id else { return false };
        let host = if matches!(stage, MigrationPhase::Target(_)) { &ask.to } else { &ask.from };
        self.log(host, id).contains(&LogEntry::Handover { event: MigrationEvent::Phase { stage } })
    }

    pub(super) fn is_over(&self, ask: &Ask) -> bool {
        let over = |event: &LogEntry| matches!(event, LogEntry::Handover { event: MigrationEvent::Over { .. } });
        ask.id.is_some_and(|id| self.log(&ask.from, id).iter().any(over))
    }
}

/// Asks for a migration. Warnings on the way are ignored.
fn begin(client: &Client, request: &Request) -> Result<MigrationId, String> {
    let mut conversation = client.ask(request).map_err(|error| error.to_string())?;
    loop {
        match conversation.next(PATIENCE) {
            Ok(Some(Reply::Progress(_))) => {}
            Ok(Some(Reply::Check(check))) if !check.blocks() => {}
            Ok(Some(Reply::Migration(migration))) => return Ok(migration.id),
            Ok(other) => return Err(format!("{other:?}")),
            Err(error) => return Err(error.to_string()),
        }
    }
}
