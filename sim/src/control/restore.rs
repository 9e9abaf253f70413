//! A backup is made, and all controllers begin anew with it later: whatever was decided since is forgotten.

use std::collections::BTreeSet;

use skein_cluster::RestoredRecord;
use skein_store::election::leader_key;
use skein_store::{Key, Operation, Transaction, Value};

use super::event::Event;
use super::faults::CALM_MS;
use super::host::Ms;
use super::node;
use super::world::World;

/// How long after the first moments the backup is made, at most, and how long after that it is restored.
const BACKUP_MS: Ms = 15_000;
const RESTORE_MS: Ms = 14_000;

/// Chooses when it happens.
pub fn schedule(world: &mut World) {
    let Some(rng) = &mut world.restore_rng else { return };
    let backup_ms = rng.between(1500, BACKUP_MS);
    let restore_ms = backup_ms + rng.between(1000, RESTORE_MS);
    world.after(backup_ms, Event::Backup);
    world.after(restore_ms, Event::Restore);
}

/// Makes the backup.
pub fn backup(world: &mut World) {
    world.say(|| "a backup is made".into());
    let (_, entries) = world.all();
    world.backup = entries.into_iter().filter(|entry| entry.key != leader_key()).collect();
}

/// Ends all controllers, and has them begin with the backup.
pub fn restore(world: &mut World) {
    world.say(|| "the backup is restored".into());
    for of in 0..world.nodes.len() {
        if world.nodes[of].is_alive {
            node::kill(world, of);
            world.after(1000, Event::Restart { node: Some(of), host: None });
        }
    }
    // Nobody knows any more which hosts sleep: somebody looks after them.
    for host in 0..world.agents.len() {
        world.after(CALM_MS, Event::Restart { node: None, host: Some(host) });
    }
    let wanted: BTreeSet<Key> = world.backup.iter().map(|entry| entry.key.clone()).collect();
    let (_, now) = world.all();
    let gone = now.into_iter().map(|entry| entry.key).filter(|key| !wanted.contains(key)).map(Operation::Delete);
    let back = world.backup.iter().map(|entry| Operation::put(entry.key.clone(), entry.value.clone()));
    let (key, value) = RestoredRecord::entry(world.clock().wall);
    let mark = Operation::put(Key::new(&key).expect("a key"), Value::new(value).expect("it is short"));
    let operations: Vec<Operation> = gone.chain(back).chain([mark]).collect();
    // The revisions go on, so that later terms are greater.
    for some in operations.chunks(50) {
        world.put_back(&Transaction { compares: Vec::new(), operations: some.to_vec() });
    }
    let kept: BTreeSet<String> = world
        .backup
        .iter()
        .filter_map(|entry| Some(entry.key.as_str().strip_prefix("operation/")?.to_owned()))
        .collect();
    world.check.restored(&kept, &world.migrations);
}
