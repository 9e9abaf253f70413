//! What migrations cross: a tree of switches with the hosts as its leaves.

use crate::problem::HostId;

/// How a host is linked. Several network cards count as one, with the sum of their rates.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// The most that the host sends, in bytes per second.
    pub outward: f64,
    /// The most that the host receives, in bytes per second.
    pub inward: f64,
    /// The index in [`Network::switches`] of the host's switch. `None`: the host is linked to the core, which never
    /// blocks.
    pub switch: Option<usize>,
}

/// A switch, to which hosts and further switches are linked. Rates are in bytes per second; `None`: it never blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Switch {
    /// The switch that it is linked to, which has a lower index. `None`: it is linked to the core, which never blocks.
    pub parent: Option<usize>,
    /// The most that goes to the parent.
    pub upward: Option<f64>,
    /// The most that comes from the parent.
    pub downward: Option<f64>,
    /// The most that passes through the switch in all.
    pub through: Option<f64>,
}

/// A tree of switches. What two migrations share are channels: a link in one direction, or a switch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Network {
    /// The port of each host.
    pub ports: Vec<Port>,
    /// The switches, parents before children.
    pub switches: Vec<Switch>,
}

/// The index of one direction of a link, or of a switch: below [`Network::channels`].
pub type NetworkDirection = usize;

impl Network {
    /// Returns how many channels there are: two for each host and three for each switch.
    pub fn channels(&self) -> usize {
        2 * self.ports.len() + 3 * self.switches.len()
    }

    /// Returns how much a channel carries, in bytes per second, or `None` if it never blocks.
    pub fn capacity(&self, channel: NetworkDirection) -> Option<f64> {
        let hosts = 2 * self.ports.len();
        match channel.checked_sub(hosts) {
            None if channel.is_multiple_of(2) => Some(self.ports[channel / 2].outward),
            None => Some(self.ports[channel / 2].inward),
            Some(of) => {
                let switch = &self.switches[of / 3];
                [switch.upward, switch.downward, switch.through][of % 3]
            }
        }
    }

    /// Returns the channels between two hosts that can block.
    pub fn path(&self, from: HostId, to: HostId) -> Vec<NetworkDirection> {
        let (from, to) = (from as usize, to as usize);
        let (mut up, mut down) = (self.above(from), self.above(to));
        let mut top = None;
        while !up.is_empty() && up.last() == down.last() {
            top = up.pop();
            down.pop();
        }
        let base = 2 * self.ports.len();
        let mut path = vec![2 * from];
        path.extend(up.iter().flat_map(|switch| [base + 3 * switch + 2, base + 3 * switch]));
        path.extend(top.map(|switch| base + 3 * switch + 2));
        path.extend(down.iter().rev().flat_map(|switch| [base + 3 * switch + 1, base + 3 * switch + 2]));
        path.push(2 * to + 1);
        path.retain(|channel| self.capacity(*channel).is_some());
        path
    }

    /// Returns the least that a channel of a path carries, in bytes per second.
    pub fn bottleneck(&self, path: &[NetworkDirection]) -> f64 {
        path.iter().filter_map(|channel| self.capacity(*channel)).fold(f64::INFINITY, f64::min)
    }

    /// Returns the switches from a host's own to the core.
    fn above(&self, host: usize) -> Vec<usize> {
        std::iter::successors(self.ports[host].switch, |switch| self.switches[*switch].parent).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a network: hosts 0 and 1 are on one switch and host 2 on another, both below a third; host 3 is on none.
    fn network() -> Network {
        let port = |switch| Port { outward: 10.0, inward: 20.0, switch };
        let edge = Switch { parent: Some(0), upward: Some(5.0), downward: Some(6.0), through: None };
        Network {
            ports: vec![port(Some(1)), port(Some(1)), port(Some(2)), port(None)],
            switches: vec![Switch { through: Some(7.0), ..Switch::default() }, edge.clone(), edge],
        }
    }

    #[test]
    fn a_path_goes_no_higher_than_it_must() {
        let network = network();
        let capacities =
            |from, to| -> Vec<_> { network.path(from, to).iter().filter_map(|c| network.capacity(*c)).collect() };
        assert_eq!(capacities(0, 1), [10.0, 20.0]);
        assert_eq!(capacities(0, 2), [10.0, 5.0, 7.0, 6.0, 20.0]);
        assert_eq!(capacities(3, 2), [10.0, 7.0, 6.0, 20.0]);
        assert_eq!(network.bottleneck(&network.path(0, 2)), 5.0);
    }

    #[test]
    fn directions_are_apart() {
        let network = network();
        let (there, back) = (network.path(0, 2), network.path(2, 0));
        let shared: Vec<_> = there.iter().filter(|channel| back.contains(channel)).collect();
        assert_eq!(shared.len(), 1, "but for the switch on top");
    }
}
