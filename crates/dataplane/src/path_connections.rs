//! Decides how many data connections each path of a session has, by what carries its ends.

use std::collections::BTreeMap;

use skein_host::{ConnectionsPath, PathConnections, WantedConnections, connections};
use skein_session::address::NicAddress;
use skein_session::pairs::Pair;

use crate::host_nics::Carriers;

/// What the other end says of its NICs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RemoteQueues {
    /// It is going to say something, or it is going to be known that it does not.
    Awaited,
    /// The queues of each NIC, by name, as far as they are known.
    Told(BTreeMap<String, u32>),
}

/// Decides for the paths that carry data, in their order. Until the other end has said how many queues its NICs have,
/// they count as not known, as connections that are too many would have to go again.
pub(crate) fn decide<'a>(
    wanted: WantedConnections,
    remote: &RemoteQueues,
    paths: impl Iterator<Item = (&'a Pair, &'a Carriers)>,
) -> Vec<PathConnections> {
    let ends = |(pair, carriers): (&Pair, &Carriers)| {
        let (queues, remote_queues) = match remote {
            RemoteQueues::Awaited => (carriers.queues.filter(|queues| *queues < 2), None),
            RemoteQueues::Told(told) => (carriers.queues, queues_of(told, &pair.remote)),
        };
        ConnectionsPath { queues, remote_queues, bond: carriers.bond.clone() }
    };
    connections(wanted, &paths.map(ends).collect::<Vec<_>>())
}

fn queues_of(told: &BTreeMap<String, u32>, of: &NicAddress) -> Option<u32> {
    told.get(&of.nic).copied().filter(|_| !of.nic.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_opens_connections_before_the_other_end_has_said_whether_they_help() {
        let address = |ip: &str, nic: &str| NicAddress::new(ip.parse().unwrap(), 24, nic);
        let pair = Pair { local: address("10.0.0.1", "eth0"), remote: address("10.0.0.2", "eth5") };
        let decided = |remote: &RemoteQueues, queues| {
            let carriers = Carriers { queues, bond: None };
            decide(WantedConnections::Auto, remote, [(&pair, &carriers)].into_iter())[0].to_string()
        };
        let told = |queues| RemoteQueues::Told(BTreeMap::from([("eth5".to_owned(), queues), ("eth0".to_owned(), 1)]));
        assert_eq!(decided(&RemoteQueues::Awaited, Some(8)), "2: the queues of the NICs are not known");
        assert_eq!(decided(&RemoteQueues::Awaited, Some(1)), "2: a NIC has one queue");
        assert_eq!(decided(&told(4), Some(8)), "4: the NICs have 4 queues or more at both ends");
        assert_eq!(decided(&told(1), Some(8)), "2: a NIC has one queue");
        assert!(decided(&RemoteQueues::Told(BTreeMap::new()), Some(8)).ends_with("the other does not say"));
    }
}
