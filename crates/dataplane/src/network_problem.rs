//! Tells what a session finds out about the network between its ends, for people.

use std::collections::BTreeSet;

use serde::Serialize;
use skein_session::pairs::Pair;

/// A NIC without a path, and the NIC of the peer that it would reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnusedNic {
    /// This end's NIC.
    pub nic: String,
    /// The other end's NIC.
    pub remote_nic: String,
    /// The speed of the slower NIC in Mb/s, if it is known.
    pub speed_mbit: Option<u32>,
}

/// A problem of the network that a person should know, and can mend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum NetworkProblem {
    /// The hosts have more NICs than a session uses.
    NicsLeftOut {
        /// How many NICs of this end are used.
        used: usize,
        /// The unused NICs, the fastest first.
        unused: Vec<UnusedNic>,
    },
    /// Packets that both ends' NICs would send are lost between them.
    LargePacketsLost {
        /// This end's NIC.
        nic: String,
        /// The MTU of this end's NIC; 0: not known.
        mtu: u32,
        /// The other end's NIC, or its address if no name is known.
        remote_nic: String,
        /// The MTU of the other end's NIC; 0: not known.
        remote_mtu: u32,
        /// The size of packets that pass, in bytes.
        passes: u32,
    },
}

/// Bounds the names in a list within a sentence.
const NAMES_MAX: usize = 8;

impl NetworkProblem {
    /// Returns what is the matter on the way to `peer`.
    pub fn what(&self, peer: &str) -> String {
        match self {
            NetworkProblem::NicsLeftOut { used, unused } => {
                let shown = |nic: &UnusedNic| match nic.speed_mbit {
                    Some(mbit) => format!("{} ({mbit} Mb/s)", nic.nic),
                    None => format!("{} (speed not known)", nic.nic),
                };
                let mut names: Vec<String> = unused.iter().take(NAMES_MAX).map(shown).collect();
                if unused.len() > NAMES_MAX {
                    names.push(format!("{} more", unused.len() - NAMES_MAX));
                }
                let all = used + unused.len();
                format!(
                    "of {all} NICs that reach {peer} {used} are used, the most there can be; not used: {}",
                    names.join(", ")
                )
            }
            NetworkProblem::LargePacketsLost { nic, mtu, remote_nic, remote_mtu, passes } => {
                let mtus = match (mtu, remote_mtu) {
                    (0, 0) => "their NICs would send larger ones".to_owned(),
                    (mtu, 0) => format!("MTU {mtu} here"),
                    (mtu, remote_mtu) if mtu == remote_mtu => format!("MTU {mtu} on both ends"),
                    (mtu, remote_mtu) => format!("MTU {mtu} here, {remote_mtu} there"),
                };
                format!(
                    "frames larger than {passes} bytes do not pass between {nic} and {remote_nic} of {peer}: {mtus}, \
                     what \
                     is between drops them; its packets are kept small"
                )
            }
        }
    }

    /// Returns what to do about the problem.
    pub fn cure(&self) -> String {
        match self {
            NetworkProblem::NicsLeftOut { .. } => {
                "name those that are to carry migrations, if others should: --nic of skein agent, on either host".into()
            }
            NetworkProblem::LargePacketsLost { nic, mtu, passes, .. } => {
                let most = if *mtu == 0 { "the NICs'".to_owned() } else { mtu.to_string() };
                format!(
                    "set the MTU of both NICs to {passes} (ip link set dev {nic} mtu {passes}), or that of the switch \
                     or \
                     tunnel between them to {most}"
                )
            }
        }
    }
}

/// Returns the problem of the NICs that have no path, if there are some.
pub(crate) fn of_unused(wanted: &[Pair], left_out: &[Pair]) -> Option<NetworkProblem> {
    let nic = |pair: &Pair| UnusedNic {
        nic: pair.local.nic.clone(),
        remote_nic: pair.remote.nic.clone(),
        speed_mbit: pair.speed_mbit(),
    };
    let used = wanted.iter().map(|pair| &pair.local.nic).collect::<BTreeSet<_>>().len();
    let problem = NetworkProblem::NicsLeftOut { used, unused: left_out.iter().map(nic).collect() };
    (!left_out.is_empty()).then_some(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_told_with_what_mends_them() {
        let lost = |remote_mtu| NetworkProblem::LargePacketsLost {
            nic: "eth0".into(),
            mtu: 9000,
            remote_nic: "eth1".into(),
            remote_mtu,
            passes: 1500,
        };
        let what = "frames larger than 1500 bytes do not pass between eth0 and eth1 of hostb: MTU 9000 on both ends, \
                    what is between drops them; its packets are kept small";
        assert_eq!(lost(9000).what("hostb"), what);
        assert!(lost(4000).what("hostb").contains("MTU 9000 here, 4000 there"));
        assert!(lost(0).cure().contains("ip link set dev eth0 mtu 1500"));
        let unused = |nic: &str, speed_mbit| UnusedNic { nic: nic.into(), remote_nic: "x".into(), speed_mbit };
        let fault = NetworkProblem::NicsLeftOut { used: 16, unused: vec![unused("a", Some(100)), unused("b", None)] };
        let what = "of 18 NICs that reach hostb 16 are used, the most there can be; not used: a (100 Mb/s), b (speed \
                    not known)";
        assert_eq!(fault.what("hostb"), what);
        assert!(fault.cure().contains("--nic"));
    }
}
