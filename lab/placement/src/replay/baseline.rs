//! Policies of other programs, for comparison.

use super::policy::{CPU, MEMORY, Policy, SAFE, Seen};
use skein_placement::policy::dynamic::BadRound;
use skein_placement::problem::{GuestId, HostId};

/// A policy that moves nothing.
pub(super) struct Still;

impl Policy for Still {
    fn decide(&mut self, _: &Seen) -> Result<Vec<(GuestId, HostId)>, BadRound> {
        Ok(Vec::new())
    }
}

/// A policy that moves one guest from the most to the least loaded host in each round, while that improves the balance
/// by a margin.
///
/// Proxmox VE's load balancer does so (pve-ha-manager 5.2, method `bruteforce`): imbalance is the coefficient of
/// variation of the hosts' loads, and a move has to lower it by `ha-auto-rebalance-margin`, 10 % by default. ProxLB
/// moves from the most to the least loaded host while they differ by more than `balanciness`, 10 points by default.
/// This policy does both, without two of Proxmox's defaults that would keep it still with so many hosts: Proxmox
/// divides the imbalance by the root of the number of hosts less 1, and then wants it above 0.3; and one move out of so
/// many hardly lowers the imbalance by 10 % of all of it.
pub(super) struct MostToLeast {
    /// How many moves are made in each step, as rounds are shorter than samples.
    pub(super) rounds: usize,
}

/// The policy moves only while the loads of the two hosts differ by more than this part of a host.
const BALANCINESS: f64 = 0.1;
/// The part by which a move has to lower the difference.
const MARGIN: f64 = 0.1;

impl Policy for MostToLeast {
    fn decide(&mut self, seen: &Seen) -> Result<Vec<(GuestId, HostId)>, BadRound> {
        let mut books = Books::new(seen);
        let mut moves: Vec<(GuestId, HostId)> = Vec::new();
        for _ in 0..self.rounds {
            let loads: Vec<f64> = (0..books.cpu.len()).map(|host| books.load(host)).collect();
            let by_load = |a: &usize, b: &usize| loads[*a].total_cmp(&loads[*b]);
            let Some(most) = (0..loads.len()).max_by(by_load) else { break };
            let Some(least) = (0..loads.len()).min_by(by_load) else { break };
            let apart = loads[most] - loads[least];
            if apart <= BALANCINESS {
                break;
            }
            let capacity = seen.problem.hosts[most].capacity[CPU] as f64;
            // The rest of the imbalance is the same whichever guest moves. The best guest is the one that leaves the
            // two hosts closest.
            let left = |guest: usize| (apart - 2.0 * seen.used[guest] as f64 / capacity).abs();
            let moved = |guest: usize| moves.iter().any(|(other, _)| *other as usize == guest);
            let best = (0..books.at.len())
                .filter(|guest| books.at[*guest] as usize == most && !moved(*guest) && books.has_memory(*guest, least))
                .min_by(|a, b| left(*a).total_cmp(&left(*b)));
            let Some(best) = best.filter(|guest| left(*guest) <= apart * (1.0 - MARGIN)) else { break };
            books.shift(best, least);
            moves.push((best as GuestId, least as HostId));
        }
        Ok(moves)
    }
}

/// A policy that takes guests from each host above a fixed part of its CPU, those that move fastest first, until the
/// host is below it. Each guest goes where it fits best below that part. This is CloudSim's ThrMmt with its parameter
/// 0.8 (THR-MMT of Beloglazov, Buyya 2012, with their best-fit-decreasing placement, but without the other half of
/// their policy, which empties hosts).
pub(super) struct Threshold;

impl Policy for Threshold {
    fn decide(&mut self, seen: &Seen) -> Result<Vec<(GuestId, HostId)>, BadRound> {
        let mut books = Books::new(seen);
        let mut leaving = Vec::new();
        for host in 0..books.cpu.len() {
            while books.load(host) > SAFE {
                let memory = |guest: &usize| seen.problem.guests[*guest].demand[MEMORY];
                let on =
                    (0..books.at.len()).filter(|guest| books.at[*guest] as usize == host && !leaving.contains(guest));
                let Some(fastest) = on.min_by_key(memory) else { break };
                books.cpu[host] -= seen.used[fastest];
                leaving.push(fastest);
            }
        }
        leaving.sort_by_key(|guest| std::cmp::Reverse(seen.used[*guest]));
        let mut moves = Vec::new();
        for guest in leaving {
            let from = books.at[guest] as usize;
            let after = |host: usize| books.load_of(host, books.cpu[host] + seen.used[guest]);
            let fits = |host: &usize| *host != from && after(*host) <= SAFE && books.has_memory(guest, *host);
            let fullest = (0..books.cpu.len()).filter(fits).max_by(|a, b| after(*a).total_cmp(&after(*b)));
            match fullest {
                Some(to) => {
                    books.cpu[from] += seen.used[guest];
                    books.shift(guest, to);
                    moves.push((guest as GuestId, to as HostId));
                }
                None => books.cpu[from] += seen.used[guest],
            }
        }
        Ok(moves)
    }
}

/// What is used of each host, as it was last seen.
struct Books<'a> {
    seen: &'a Seen<'a>,
    at: Vec<HostId>,
    cpu: Vec<i64>,
    memory: Vec<i64>,
}

impl<'a> Books<'a> {
    fn new(seen: &'a Seen<'a>) -> Books<'a> {
        let hosts = seen.problem.hosts.len();
        let mut books = Books { seen, at: seen.problem.initial.clone(), cpu: vec![0; hosts], memory: vec![0; hosts] };
        for (guest, host) in books.at.clone().iter().enumerate() {
            books.cpu[*host as usize] += seen.used[guest];
            books.memory[*host as usize] += seen.problem.guests[guest].demand[MEMORY];
        }
        books
    }

    fn load(&self, host: usize) -> f64 {
        self.load_of(host, self.cpu[host])
    }

    fn load_of(&self, host: usize, cpu: i64) -> f64 {
        cpu as f64 / self.seen.problem.hosts[host].capacity[CPU] as f64
    }

    fn has_memory(&self, guest: usize, host: usize) -> bool {
        self.memory[host] + self.seen.problem.guests[guest].demand[MEMORY]
            <= self.seen.problem.hosts[host].capacity[MEMORY]
    }

    /// Moves a guest. Its memory is held on both hosts until the next step.
    fn shift(&mut self, guest: usize, to: usize) {
        let from = std::mem::replace(&mut self.at[guest], to as HostId) as usize;
        self.cpu[from] -= self.seen.used[guest];
        self.cpu[to] += self.seen.used[guest];
        self.memory[to] += self.seen.problem.guests[guest].demand[MEMORY];
    }
}
