//! What happens to the paths below sessions.

use skein_session::ConnectionEnd;

use super::index::HostIx;
use super::session::Relay;
use super::state::Cluster;
use crate::world::{Do, ENDS, End, Time, World};

impl Cluster {
    /// Lets nothing arrive any more that one host sends to another over a NIC.
    pub(super) fn open_hole(&mut self, from: HostIx, to: HostIx, nic: usize) {
        *self.wire.holes.entry((from, to, nic)).or_default() += 1;
        self.for_each_direction((from, to), nic, |world, end| world.open_hole(nic, end));
    }

    /// Takes back one [`Self::open_hole`].
    pub(super) fn close_hole(&mut self, from: HostIx, to: HostIx, nic: usize) {
        *self.wire.holes.entry((from, to, nic)).or_default() -= 1;
        self.for_each_direction((from, to), nic, |world, end| world.close_hole(nic, end));
    }

    /// Calls `change` for every session that has a path from one host to another on a NIC, with the sending end.
    fn for_each_direction(
        &mut self,
        (from, to): (HostIx, HostIx),
        nic: usize,
        change: impl Fn(&mut World<Relay>, End),
    ) {
        for ix in self.links.keys().copied().collect::<Vec<_>>() {
            let link = self.link(ix);
            for end in ENDS {
                if link.agents[end] == from && link.agents[1 - end] == to && nic < link.world.paths.len() {
                    change(&mut link.world, end);
                }
            }
        }
    }

    /// Leaves two hosts only a share of the rate between them on a NIC.
    pub(super) fn slow_down(&mut self, a: HostIx, b: HostIx, nic: usize, share: f64) {
        self.wire.slow.push((a, b, nic, share));
        self.worlds_between(a, b, nic).for_each(|world| world.slow_down(nic, share));
    }

    /// Takes back one [`Self::slow_down`].
    pub(super) fn speed_up(&mut self, a: HostIx, b: HostIx, nic: usize, share: f64) {
        if let Some(at) = self.wire.slow.iter().position(|other| *other == (a, b, nic, share)) {
            self.wire.slow.remove(at);
        }
        self.worlds_between(a, b, nic).for_each(|world| world.speed_up(nic, share));
    }

    fn worlds_between(&mut self, a: HostIx, b: HostIx, nic: usize) -> impl Iterator<Item = &mut World<Relay>> {
        let links = self.links.values_mut().filter(move |link| link.agents == [a, b] || link.agents == [b, a]);
        links.map(|link| &mut link.world).filter(move |world| nic < world.paths.len())
    }

    /// Takes the carrier of a host's NIC away, and lets the host's sessions know.
    pub(super) fn carrier_lost(&mut self, host: HostIx, nic: usize) {
        for (ix, end) in self.links_of(host) {
            let link = self.link(ix);
            if nic < link.world.paths.len() {
                link.world.carrier_lost(nic, end);
            }
        }
    }

    /// Breaks a host's connections on a NIC: each end's kernel gives them up after its time.
    pub(super) fn break_connections(&mut self, host: HostIx, nic: usize, after: [Time; 2]) {
        for ix in self.links.keys().copied().collect::<Vec<_>>() {
            let link = self.link(ix);
            if !link.agents.contains(&host) {
                continue;
            }
            for conn in 0..link.world.conns.len() {
                if link.world.conns[conn].path == nic {
                    ENDS.into_iter()
                        .for_each(|end| link.world.after(after[end], Do::Broken(conn, end, ConnectionEnd::Failed)));
                }
            }
        }
    }
}
