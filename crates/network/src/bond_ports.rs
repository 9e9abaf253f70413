//! Ports by which connections between two addresses are spread over a bond's members.

use std::net::{IpAddr, SocketAddr};

/// The ports that Linux picks from by default (`ip_local_port_range` of ip(7)).
const FIRST_PORT: u16 = 32_768;
const LAST_PORT: u16 = 60_999;

/// Returns the member that sends a packet from `from` to `to`, of a bond that goes by `layer3+4` and has so many
/// members that send: the kernel's hash (`bond_xmit_hash` and `bond_ip_hash` of drivers/net/bonding/bond_main.c, from
/// Linux 4.15 on).
pub fn member_of(from: SocketAddr, to: SocketAddr, members: u32) -> u32 {
    let ports = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    let ports = u32::from_ne_bytes([ports[0], ports[1], ports[2], ports[3]]);
    let mut hash = ports ^ folded(to.ip()) ^ folded(from.ip());
    hash ^= hash >> 16;
    hash ^= hash >> 8;
    // The lowest bit is left out, as many ports are even.
    (hash >> 1) % members.max(1)
}

/// Returns an address in the kernel's 32 bits, as it lies in memory.
fn folded(ip: IpAddr) -> u32 {
    match ip {
        IpAddr::V4(ip) => u32::from_ne_bytes(ip.octets()),
        IpAddr::V6(ip) => {
            let words = ip.octets();
            let words = words.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
            words.fold(0, |folded, word| folded ^ word)
        }
    }
}

/// Returns ports of `from` with which a connection to `to` takes this member, in both directions if the other end's
/// bond is as this one: `many` at most, from a place on that `seed` chooses.
pub fn ports_of_member(from: IpAddr, to: SocketAddr, member: u32, members: u32, seed: u16, many: usize) -> Vec<u16> {
    let count = LAST_PORT - FIRST_PORT + 1;
    let ports = (0..count).map(|nth| FIRST_PORT + ((u32::from(seed) + u32::from(nth)) % u32::from(count)) as u16);
    let takes = |port: &u16| {
        let from = SocketAddr::new(from, *port);
        [member_of(from, to, members), member_of(to, from, members)] == [member % members.max(1); 2]
    };
    ports.filter(takes).take(many).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That the hash is the kernel's is seen by `scripts/bond.sh`, which counts what each member sends.
    #[test]
    fn a_port_decides_which_member_sends() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let lower = member_of(at("10.0.0.1:40000"), at("10.0.0.2:7070"), 2);
        // The second bit of the port's upper byte is changed, and with it the hash's second.
        assert_ne!(member_of(at("10.0.0.1:40512"), at("10.0.0.2:7070"), 2), lower);
    }

    #[test]
    fn ports_are_found_for_each_member_in_both_directions() {
        for (from, to) in [("10.0.0.1", "10.0.0.2:7070"), ("fd00::1", "[fd00::2]:7070")] {
            let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
            for members in 1..=8 {
                for member in 0..members {
                    let ports = ports_of_member(from, to, member, members, 50_000, 4);
                    assert_eq!(ports.len(), 4, "{members} members");
                    for port in ports {
                        assert!((FIRST_PORT..=LAST_PORT).contains(&port));
                        let from = SocketAddr::new(from, port);
                        assert_eq!(member_of(from, to, members), member);
                        assert_eq!(member_of(to, from, members), member);
                    }
                }
            }
        }
    }
}
