//! Asks a NIC's driver for the link's speed, and for the work that the NIC takes from the CPU.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use serde::{Deserialize, Serialize};

const ETHTOOL_GSET: u32 = 0x1;
const ETHTOOL_GTSO: u32 = 0x1e;
const ETHTOOL_GGSO: u32 = 0x23;
const ETHTOOL_GGRO: u32 = 0x2b;

/// The offloads, by which packets travel through the kernel many at a time. `None`: the driver does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offloads {
    /// The NIC cuts what is sent into packets (TCP segmentation offload).
    pub tso: Option<bool>,
    /// The kernel cuts what is sent into packets, as late as possible (generic segmentation offload).
    pub gso: Option<bool>,
    /// The kernel joins received packets (generic receive offload).
    pub gro: Option<bool>,
}

/// Returns the offloads of the NIC `name` in the calling thread's network namespace.
pub fn offloads(name: &str) -> Offloads {
    let ethtool = Ethtool::open().ok();
    let flag = |command| Some(ethtool.as_ref()?.flag(name, command)? != 0);
    Offloads { tso: flag(ETHTOOL_GTSO), gso: flag(ETHTOOL_GGSO), gro: flag(ETHTOOL_GGRO) }
}

/// `struct ethtool_value` of `linux/ethtool.h`.
#[repr(C)]
#[derive(Default)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

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

/// A socket for the kernel's ioctls, in the calling thread's network namespace.
pub struct Ethtool(OwnedFd);

impl Ethtool {
    pub fn open() -> nix::Result<Self> {
        socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).map(Self)
    }

    /// Returns the speed of the NIC `name` in Mb/s; `None` if the driver does not say.
    pub fn speed_mbit(&self, name: &str) -> Option<u32> {
        let mut command = EthtoolCommand { command: ETHTOOL_GSET, ..Default::default() };
        // SAFETY: for GSET the kernel reads and writes exactly one ethtool_cmd.
        let done = unsafe { self.ask(name, (&raw mut command).cast()) };
        let speed = u32::from(command.speed_high) << 16 | u32::from(command.speed_low);
        // SPEED_UNKNOWN is -1. Drivers without a link say 0, and some say 65535 (-1 cut to 16 bits).
        (done && !matches!(speed, 0 | 0xffff | u32::MAX)).then_some(speed)
    }

    /// Returns a setting that is one number.
    fn flag(&self, name: &str, command: u32) -> Option<u32> {
        let mut value = EthtoolValue { command, data: 0 };
        // SAFETY: for GTSO, GGSO and GGRO the kernel reads and writes exactly one ethtool_value.
        let done = unsafe { self.ask(name, (&raw mut value).cast()) };
        done.then_some(value.data)
    }

    /// Lets the kernel answer into `command`.
    ///
    /// # Safety
    /// `command` has to point to the structure that its first word, the command, stands for (`linux/ethtool.h`).
    unsafe fn ask(&self, name: &str, command: *mut libc::c_char) -> bool {
        // SAFETY: all-zero bytes are a valid ifreq (integers, arrays, a null pointer).
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // One byte stays zero, because the kernel wants the name terminated.
        if name.len() >= request.ifr_name.len() {
            return false;
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = command;
        // SAFETY: SIOCETHTOOL takes an ifreq whose data points to what its first word names, as the caller promises;
        // both outlive the call.
        unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) == 0 }
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
    fn offloads_are_told() {
        let unknown = Offloads { tso: None, gso: None, gro: None };
        assert_eq!(offloads("no-such-nic"), unknown);
        assert_eq!(offloads("a-name-far-too-long-for-an-interface"), unknown);
        // Loopback has all offloads, and nobody turns them off.
        assert_eq!(offloads("lo").gso, Some(true));
    }

    #[test]
    fn unknown_names_have_no_speed() {
        let ethtool = Ethtool::open().unwrap();
        assert_eq!(ethtool.speed_mbit("no-such-nic"), None);
        assert_eq!(ethtool.speed_mbit("a-name-far-too-long-for-an-interface"), None);
        assert_eq!(ethtool.speed_mbit("lo"), None);
    }
}
