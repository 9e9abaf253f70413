//! Empties a host of real guests by `skein host drain`, and has them come home by `skein host resume`.

use std::{
    path::Path,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use skein_api::cluster::{Move, MoveState, Operation};
use skein_lab_cluster::{Controlled, Settings};
use skein_lab_guest::Params;
use skein_units::measured;

use super::{
    drain_figure::Drained,
    options::{ClusterOptions, in_thread},
};
use crate::error::BenchError;

/// The host that is emptied, and the one with the controller.
const HOST: &str = "b";
const CONTROLLER_HOST: &str = "a";
/// The rate of each host's link, in Mb/s.
const LINK_MBIT: u32 = 200;
/// The most migrations to and from a host.
const AT_ONCE: u16 = 4;
/// The MiB that do not compress in each guest; its kernel needs as much again.
const FILL_MB: u32 = 64;
/// The milliseconds between two beats of a guest's heart: it is idle otherwise.
const BEAT_MS: u32 = 100;
/// How often the drain is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs the rounds: each is a drain, after which the guests come home.
pub fn run(options: &ClusterOptions, tell: &mut dyn FnMut(String)) -> Result<Vec<Drained>, BenchError> {
    let controller = options.controller_program()?;
    in_thread(tell, |tell| rounds(options, &controller, tell))
}

fn rounds(options: &ClusterOptions, controller: &Path, tell: &dyn Fn(String)) -> Result<Vec<Drained>, BenchError> {
    let (guests, rounds) = if options.quick { (4, 1) } else { (12, 3) };
    let settings =
        Settings { hosts: 4, rates: vec![Some(LINK_MBIT)], incoming: AT_ONCE, outgoing: AT_ONCE, ..options.settings() };
    let mut world = Controlled::up(settings, controller, CONTROLLER_HOST);
    let vms: Vec<String> = (1..=guests).map(|n| format!("v{n:02}")).collect();
    for vm in &vms {
        options.check_interrupt()?;
        let params = Params { fill_mb: FILL_MB, compressible: 0, beat_ms: BEAT_MS, ..Params::default() };
        let definition = world.cluster.working(vm, &params);
        world.cluster.start_vm(HOST, &definition);
    }
    vms.iter().for_each(|vm| world.cluster.wait_working(vm));
    world.sees(&vms, HOST);
    let rules = [
        ("licence", format!("owners: {{of: {{guests: [{}]}}, within: {{hosts: [b, c]}}}}", vms[..2].join(", "))),
        ("pair", format!("together: {{of: {{guests: [{}]}}, force: hard}}", vms[2..4].join(", "))),
    ];
    rules.iter().for_each(|(name, rule)| drop(world.does(&["rule", "add", name, rule])));
    let mut seen = Vec::new();
    for round in 1..=options.runs.unwrap_or(rounds) {
        options.check_interrupt()?;
        if round > 1 {
            world.does(&["host", "resume", HOST, "--bring-home"]);
            world.sees(&vms, HOST);
        }
        seen.push(drain(&mut world, &vms, round, tell));
    }
    Ok(seen)
}

/// Empties the host, and sees that its guests are intact where they are then.
fn drain(world: &mut Controlled, vms: &[String], round: u32, tell: &dyn Fn(String)) -> Drained {
    let broken_before = broken(world);
    let before = wire(world);
    let begun = Instant::now();
    let mut command = world.command(&["host", "drain", HOST]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("skein can be run");
    let (forecast, last) = follow(world, begun, &mut || child.try_wait().expect("it can be waited for").is_some());
    let took_s = begun.elapsed().as_secs_f64();
    let said = child.wait_with_output().expect("it can be waited for");
    assert!(said.status.success(), "skein host drain: {said:?}");
    let after = wire(world);
    let bound_s = bound_s(&before, &after);
    let intact = vms.iter().filter(|vm| {
        let places = world.cluster.where_runs(vm);
        places.len() == 1 && places[0] != HOST && world.cluster.verify(vm).is_good()
    });
    let intact = intact.count();
    let drained = Drained {
        took_s,
        bound_s,
        forecast,
        guests: vms.len(),
        intact,
        at_once_max: at_once_max(&last.moves),
        broken: broken_before + broken(world),
    };
    tell(words(&drained, &last, round));
    drained
}

/// Follows the newest operation until the command is over. Returns when it first told how long it takes, with that, and
/// what became of it.
fn follow(world: &Controlled, begun: Instant, is_over: &mut dyn FnMut() -> bool) -> (Option<(f64, f64)>, Operation) {
    let mut forecast = None;
    let newest = || world.ask(|client| client.operations(1).next()).and_then(Result::ok);
    while !is_over() {
        if forecast.is_none()
            && let Some(left_ms) = newest().filter(|of| !of.state.is_over()).and_then(|of| of.progress.left_ms)
        {
            forecast = Some((begun.elapsed().as_secs_f64(), left_ms as f64 / 1e3));
        }
        thread::sleep(LOOK_EVERY);
    }
    (forecast, newest().expect("there is an operation"))
}

/// Returns how many rules are broken that must hold.
fn broken(world: &Controlled) -> usize {
    let found = world.json(&["rule", "check", "--json"]);
    found.as_array().into_iter().flatten().filter(|complaint| complaint["hard"] == true).count()
}

/// Returns what each host's NIC has sent and received, in bytes.
fn wire(world: &Controlled) -> Vec<[u64; 2]> {
    let hosts = world.cluster.hosts();
    let counted = hosts.iter().map(|host| {
        let counters = world.cluster.lab().counters(host).expect("the host is there");
        let of = counters.get("nic0").expect("each host has a NIC");
        [of.tx_bytes, of.rx_bytes]
    });
    counted.collect()
}

/// Returns the least time in which the links carry what went over them.
fn bound_s(before: &[[u64; 2]], after: &[[u64; 2]]) -> f64 {
    let ways = before.iter().flatten().zip(after.iter().flatten());
    let most = ways.map(|(before, after)| after.saturating_sub(*before)).max().unwrap_or(0);
    most as f64 * 8.0 / (f64::from(LINK_MBIT) * 1e6)
}

/// Returns the most moves that were under way at a moment.
fn at_once_max(moves: &[Move]) -> u32 {
    let spans: Vec<(u64, u64)> =
        moves.iter().filter_map(|of| Some((of.begun?.0, of.ended.map_or(u64::MAX, |ended| ended.0)))).collect();
    let at = |time: u64| spans.iter().filter(|(begun, ended)| *begun <= time && time < *ended).count() as u32;
    spans.iter().map(|(begun, _)| at(*begun)).max().unwrap_or(0)
}

fn words(drained: &Drained, operation: &Operation, round: u32) -> String {
    let Drained { took_s, bound_s, intact, guests, at_once_max, .. } = drained;
    let forecast = drained.forecast.map_or_else(
        || "no forecast".to_owned(),
        |(at_s, left_s)| format!("after {} it said {}", measured::seconds(at_s), measured::seconds(left_s)),
    );
    let created = operation.created.0;
    let done = operation.moves.iter().filter(|of| of.state == MoveState::Done);
    let moves: Vec<String> = done
        .filter_map(|of| Some((of.vm.as_str(), of.to.as_deref()?, of.begun?.0, of.ended?.0)))
        .map(|(vm, to, begun, ended)| {
            let s = |at: u64| at.saturating_sub(created) as f64 / 1e3;
            format!("{vm} to {to} {:.1} to {:.1} s", s(begun), s(ended))
        })
        .collect();
    format!(
        "drain {round}: {} against the links' {}; {forecast}; {at_once_max} at once; {intact} of {guests} intact; {}",
        measured::seconds(*took_s),
        measured::seconds(*bound_s),
        moves.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use skein_api::cluster::UnixMs;

    use super::*;

    #[test]
    fn the_busiest_way_bounds() {
        let (before, after) = ([[0, 0], [10, 5]], [[1000, 250], [25_000_010, 5]]);
        assert_eq!(bound_s(&before, &after), 1.0);
    }

    #[test]
    fn moves_at_a_time_are_counted() {
        let moved = |begun, ended| {
            let times = (Some(UnixMs(begun)), Some(UnixMs(ended)));
            Move { begun: times.0, ended: times.1, ..Move::new("v", "a", Some("b"), "") }
        };
        assert_eq!(at_once_max(&[]), 0);
        assert_eq!(at_once_max(&[moved(0, 10), moved(10, 20), moved(12, 15), moved(14, 30)]), 3);
    }
}
