//! Where an end can be reached: an address of each of its NICs.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

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
    /// Speed of the NIC's link in Mb/s. `None`: its driver does not know. 0: the host's configuration excludes the
    /// address from bulk data; an end of an older release takes it for the slowest NIC.
    pub speed_mbit: Option<u32>,
    /// The NIC's largest packet in bytes. 0: not known.
    pub mtu: u32,
}

impl NicAddress {
    /// Returns an address whose NIC has no known uplink, speed or MTU.
    pub fn new(ip: IpAddr, prefix: u8, nic: &str) -> NicAddress {
        NicAddress { ip, prefix, nic: nic.to_owned(), uplink: None, speed_mbit: None, mtu: 0 }
    }

    /// Returns the address as one that carries no bulk data.
    pub fn without_data(self) -> NicAddress {
        NicAddress { speed_mbit: Some(0), ..self }
    }

    /// Returns whether the address may carry bulk data.
    pub fn carries_data(&self) -> bool {
        self.speed_mbit != Some(0)
    }
}

/// An IP network, as `10.1.0.0/16` and `fd00:1::/64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    ip: IpAddr,
    prefix: u8,
}

/// The reason why words are no [`Network`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkError(String);

impl std::error::Error for NetworkError {}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is no network such as 10.1.0.0/16 or fd00:1::/64", self.0)
    }
}

impl Network {
    /// Returns whether an address is in the network.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.ip.is_ipv4() == ip.is_ipv4() && network_bits(self.ip, self.prefix) == network_bits(ip, self.prefix)
    }

    /// Returns whether all addresses of another network are in this one.
    pub fn covers(&self, other: &Network) -> bool {
        self.prefix <= other.prefix && self.contains(other.ip)
    }

    /// Returns whether every address of its version of IP is in the network.
    pub fn is_everything(&self) -> bool {
        self.prefix == 0
    }

    /// Returns whether the network is one address.
    pub fn is_address(&self) -> bool {
        self.prefix == if self.ip.is_ipv4() { 32 } else { 128 }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    /// Reads `10.1.0.0/16`, or an address alone. Bits behind the prefix have no meaning.
    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let error = || NetworkError(text.to_owned());
        let (ip, prefix) = text.split_once('/').map_or((text, None), |(ip, prefix)| (ip, Some(prefix)));
        let ip: IpAddr = ip.parse().map_err(|_| error())?;
        let width = if ip.is_ipv4() { 32 } else { 128 };
        let is_number = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
        let prefix = match prefix {
            None => width,
            Some(text) => Some(text).filter(is_number).and_then(|text| text.parse().ok()).ok_or_else(error)?,
        };
        if prefix > width { Err(error()) } else { Ok(Network { ip, prefix }) }
    }
}

/// Returns the bits of an address that name its network.
pub(crate) fn network_bits(ip: IpAddr, prefix: u8) -> u128 {
    let (bits, width) = match ip {
        IpAddr::V4(ip) => (u128::from(u32::from(ip)), 32),
        IpAddr::V6(ip) => (u128::from(ip), 128),
    };
    bits.checked_shr(width - u32::from(prefix).min(width)).unwrap_or(0)
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
    fn networks_have_addresses() {
        let network = |text: &str| text.parse::<Network>();
        let has = |text: &str, ip: &str| network(text).unwrap().contains(ip.parse().unwrap());
        assert!(has("10.1.0.0/16", "10.1.255.1") && !has("10.1.0.0/16", "10.2.0.1"));
        assert!(has("10.1.7.7/16", "10.1.0.1"), "bits behind the prefix have no meaning");
        assert!(has("0.0.0.0/0", "192.0.2.1") && !has("0.0.0.0/0", "::1"));
        assert!(has("fd00:1::/64", "fd00:1::7") && !has("fd00:1::/64", "fd00:2::7"));
        assert!(has("10.1.0.1", "10.1.0.1") && !has("10.1.0.1", "10.1.0.2"));
        for bad in ["", "10.1.0.0/33", "10.1.0/16", "fd00::/129", "10.1.0.0/", "10.1.0.0/+8", "10.1.0.0/256", "eth0"] {
            assert_eq!(network(bad), Err(NetworkError(bad.to_owned())));
        }
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
