//! The link speed that a NIC's driver reports.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

const ETHTOOL_GSET: u32 = 1;

/// `struct ethtool_cmd` of `linux/ethtool.h`.
#[repr(C)]
#[derive(Default)]
struct EthtoolCommand {
    command: u32,
    supported: u32,
    advertising: u32,
    speed_low: u16,
    duplex: u8,
    port: u8,
    phy_address: u8,
    transceiver: u8,
    autonegotiation: u8,
    mdio_support: u8,
    max_tx_packets: u32,
    max_rx_packets: u32,
    speed_high: u16,
    tp_mdix: u8,
    tp_mdix_control: u8,
    peer_advertising: u32,
    reserved: [u32; 2],
}

/// A socket to ask through, in the calling thread's network namespace.
pub struct Ethtool(OwnedFd);

impl Ethtool {
    pub fn open() -> nix::Result<Self> {
        socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).map(Self)
    }

    /// The speed of the NIC `name` in Mb/s, `None` where the driver does not say.
    pub fn speed_mbit(&self, name: &str) -> Option<u32> {
        let mut command = EthtoolCommand { command: ETHTOOL_GSET, ..Default::default() };
        // SAFETY: all-zero bytes are a valid ifreq (integers, arrays, a null pointer).
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // One byte stays zero: the kernel wants the name terminated.
        if name.len() >= request.ifr_name.len() {
            return None;
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = (&raw mut command).cast();
        // SAFETY: SIOCETHTOOL takes an ifreq whose data points to the structure that its first word names; for GSET the
        // kernel reads and writes exactly one ethtool_cmd, and both outlive the call.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
        let speed = u32::from(command.speed_high) << 16 | u32::from(command.speed_low);
        // SPEED_UNKNOWN is -1; drivers without a link say 0, and some 65535 (-1 cut to 16 bits).
        (done == 0 && !matches!(speed, 0 | 0xffff | u32::MAX)).then_some(speed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_is_the_kernels() {
        assert_eq!(size_of::<EthtoolCommand>(), 44);
        assert_eq!(std::mem::offset_of!(EthtoolCommand, speed_high), 28);
    }

    #[test]
    fn unknown_names_have_no_speed() {
        let ethtool = Ethtool::open().unwrap();
        assert_eq!(ethtool.speed_mbit("no-such-nic"), None);
        assert_eq!(ethtool.speed_mbit("a-name-far-too-long-for-an-interface"), None);
        assert_eq!(ethtool.speed_mbit("lo"), None);
    }
}
