//! Reads of the API, at a given rate, as programs and people make them.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use skein_client::{ControllerClient, ControllerError};
use skein_placement::dice::Dice;

use crate::controller::ControllerProcess;
use crate::error::FleetError;
use crate::latencies::Gathered;
use crate::words::{host_name, vm_name};

/// How many callers there are, and how often each reads.
const CALLERS: u64 = 4;
const PERIOD: Duration = Duration::from_millis(100);
/// The items of a page of operations.
const OPERATIONS: u32 = 50;

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Read {
    Cluster,
    HostsPage,
    VmsPage,
    Host,
    Vm,
    Operations,
}

impl Read {
    const ALL: [Read; 6] = [Read::Cluster, Read::HostsPage, Read::VmsPage, Read::Host, Read::Vm, Read::Operations];

    pub(crate) fn words(self) -> &'static str {
        match self {
            Read::Cluster => "the cluster's status",
            Read::HostsPage => "a page of 500 hosts",
            Read::VmsPage => "a page of 500 VMs",
            Read::Host => "a host",
            Read::Vm => "a VM",
            Read::Operations => "50 operations",
        }
    }

    fn read(self, client: &ControllerClient, dice: &mut Dice, (hosts, vms): (u32, u32)) -> Result<(), ControllerError> {
        let any = |dice: &mut Dice, of: u32| dice.below(of as usize) as u32 + 1;
        match self {
            Read::Cluster => client.cluster().map(drop),
            Read::HostsPage => client.hosts().next().transpose().map(drop),
            Read::VmsPage => client.vms(None).next().transpose().map(drop),
            Read::Host => client.host(&host_name(any(dice, hosts))).map(drop),
            Read::Vm => client.vm(&vm_name(any(dice, vms))).map(drop),
            Read::Operations => client.operations(OPERATIONS).next().transpose().map(drop),
        }
    }
}

/// What reads took, by what was read.
pub(crate) type Took = BTreeMap<Read, Gathered>;

/// Reads for a while. A read that begins late since the one before was slow counts from when it was due.
pub(crate) fn read_for(
    lasts: Duration,
    controller: &ControllerProcess,
    seed: u64,
    sizes: (u32, u32),
) -> Result<Took, FleetError> {
    let clients = (0..CALLERS).map(|_| controller.client()).collect::<Result<Vec<_>, _>>()?;
    thread::scope(|scope| {
        let callers: Vec<_> = clients
            .iter()
            .zip(0..)
            .map(|(client, number)| scope.spawn(move || call(lasts, client, Dice::new(seed ^ number), sizes)))
            .collect();
        let mut all = Took::new();
        for caller in callers {
            let took = caller.join().unwrap_or_else(|_| Err(FleetError::Late("a caller failed".into())))?;
            took.iter().for_each(|(kind, took)| all.entry(*kind).or_default().add_all(took));
        }
        Ok(all)
    })
}

fn call(lasts: Duration, client: &ControllerClient, mut dice: Dice, sizes: (u32, u32)) -> Result<Took, FleetError> {
    // The first read makes the connection, which is not what is measured.
    client.cluster()?;
    let begun = Instant::now() + PERIOD.mul_f64(dice.unit());
    let (mut took, mut due) = (Took::new(), begun);
    while due < begun + lasts {
        let wait = due.saturating_duration_since(Instant::now());
        thread::sleep(wait);
        let from = if wait.is_zero() { due } else { Instant::now() };
        let kind = *dice.pick(&Read::ALL);
        kind.read(client, &mut dice, sizes)?;
        took.entry(kind).or_default().add(from.elapsed());
        due += PERIOD;
    }
    Ok(took)
}
