//! Asks a NIC's driver.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use skein_network::DriverAsk;

/// A socket for the kernel's ioctls, in the network namespace of the thread that made it.
pub struct Ethtool(OwnedFd);

impl Ethtool {
    pub fn open() -> nix::Result<Self> {
        socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).map(Self)
    }

    /// Returns what the driver of the NIC `name` says, as the structure of `linux/ethtool.h` that the question has.
    pub fn ask(&self, name: &str, what: DriverAsk) -> Result<Vec<u8>, Errno> {
        let mut structure = vec![0; what.bytes()];
        structure[..4].copy_from_slice(&(what as u32).to_ne_bytes());
        // SAFETY: all-zero bytes are a valid ifreq (integers, arrays, a null pointer).
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // One byte stays zero, because the kernel wants the name terminated.
        if name.len() >= request.ifr_name.len() {
            return Err(Errno::ENAMETOOLONG);
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = structure.as_mut_ptr().cast();
        // SAFETY: SIOCETHTOOL takes an ifreq whose data points to the structure that its first word, the command,
        // stands for: each of these questions is answered into a structure of fixed size, which `bytes` says. Both
        // outlive the call.
        Errno::result(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) })?;
        Ok(structure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_are_refused() {
        let ethtool = Ethtool::open().unwrap();
        for name in ["no-such-nic", "a-name-far-too-long-for-an-interface"] {
            assert!(ethtool.ask(name, DriverAsk::Settings).is_err(), "{name}");
        }
        // Loopback has segmentation offload, and nobody turns that off.
        assert_eq!(ethtool.ask("lo", DriverAsk::Gso).unwrap()[4], 1);
    }
}
