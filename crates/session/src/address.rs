//! Where an end can be reached: an address of each of its NICs.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::limits::{ADDRESSES_MAX, NIC_BYTES_MAX};

/// An address at which an end can be reached, and the NIC that has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NicAddress {
    /// The address.
    pub ip: IpAddr,
    /// How many bits of the address name its network.
    pub prefix: u8,
    /// The NIC's name on its own host.
    pub nic: String,
    /// The NIC or bond below this NIC, if this NIC is a VLAN, a bridge or the like.
    pub uplink: Option<String>,
    /// Speed of the NIC's link in Mb/s. `None`: its driver does not know.
    pub speed_mbit: Option<u32>,
    /// The NIC's largest packet in bytes. 0: not known.
    pub mtu: u32,
}

impl NicAddress {
    /// Returns an address whose NIC has no known uplink, speed or MTU.
    pub fn new(ip: IpAddr, prefix: u8, nic: &str) -> NicAddress {
        NicAddress { ip, prefix, nic: nic.to_owned(), uplink: None, speed_mbit: None, mtu: 0 }
    }
}

/// Returns whether the addresses that a peer announces keep to the bounds.
pub(crate) fn are_sound(addresses: &[NicAddress]) -> bool {
    addresses.len() <= ADDRESSES_MAX
        && addresses.iter().all(|a| {
            let names = [Some(&a.nic), a.uplink.as_ref()];
            let fit = names.into_iter().flatten().all(|name| name.len() <= NIC_BYTES_MAX);
            fit && a.prefix <= if a.ip.is_ipv4() { 32 } else { 128 }
        })
}

/// Returns the payload of an [`Addresses`](crate::frame::FrameKind::Addresses) frame.
pub fn encode_addresses(addresses: &[NicAddress]) -> Vec<u8> {
    postcard::to_stdvec(addresses).expect("plain data always encodes")
}

/// Reads the payload of an [`Addresses`](crate::frame::FrameKind::Addresses) frame. Returns `None` if the payload does
/// not decode, or if the addresses break a bound.
pub fn decode_addresses(payload: &[u8]) -> Option<Vec<NicAddress>> {
    match postcard::take_from_bytes::<Vec<NicAddress>>(payload) {
        Ok((addresses, [])) if are_sound(&addresses) => Some(addresses),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::HELLO_BYTES_MAX;

    #[test]
    fn the_longest_list_fits() {
        let name = || "n".repeat(NIC_BYTES_MAX);
        let ip = "fd00:1111:2222:3333:4444:5555:6666:7777".parse().unwrap();
        let longest = NicAddress {
            uplink: Some(name()),
            speed_mbit: Some(u32::MAX),
            mtu: u32::MAX,
            ..NicAddress::new(ip, 128, &name())
        };
        let addresses = vec![longest; ADDRESSES_MAX];
        assert!(encode_addresses(&addresses).len() + 256 <= HELLO_BYTES_MAX);
        assert_eq!(decode_addresses(&encode_addresses(&addresses)), Some(addresses));
    }

    #[test]
    fn prefixes_beyond_the_address_are_refused() {
        let beyond = [NicAddress::new("10.77.0.1".parse().unwrap(), 33, "eth0")];
        assert_eq!(decode_addresses(&encode_addresses(&beyond)), None);
    }

    proptest! {
        #[test]
        fn garbage_does_not_panic(payload: Vec<u8>) {
            let _ = decode_addresses(&payload);
        }
    }
}
