//! Lists the network interfaces of this host, as seen from the calling thread's network namespace.

use skein_network::{Nic, NicError};

use crate::kernel::Kernel;

/// Returns the network interfaces in the calling thread's network namespace, by index.
///
/// # Errors
/// The kernel refuses or does not answer within 2 s.
pub fn nics() -> Result<Vec<Nic>, NicError> {
    skein_network::nics(&Kernel::new())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn loopback_is_there_and_up() {
        let nics = nics().unwrap();
        let lo = nics.iter().find(|n| n.loopback).expect("a loopback interface");
        assert_eq!(lo.name, "lo");
        assert_eq!((lo.mac, lo.speed_mbit, lo.mtu), (None, None, 65536));
        assert!(lo.up());
        let address = lo.addresses[0];
        assert_eq!((address.ip, address.prefix_len, address.usable), (Ipv4Addr::LOCALHOST.into(), 8, true));
    }

    #[test]
    fn counters_grow_with_traffic() {
        let rx = || nics().unwrap().iter().find(|n| n.loopback).unwrap().counters;
        let before = rx();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(&[0; 1000], socket.local_addr().unwrap()).unwrap();
        let after = rx();
        assert!(after.rx_bytes >= before.rx_bytes + 1000 && after.rx_packets > before.rx_packets);
    }
}
