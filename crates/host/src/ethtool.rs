//! Asks a NIC's driver.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use skein_network::DriverAsk;

/// Where `struct ethtool_drvinfo` has the number of a driver's counters (`n_stats`).
const COUNTERS_AT: usize = 180;
/// Bounds a driver's counters, and for how many more there is room than the driver had a moment ago.
const COUNTERS_MAX: usize = 1 << 16;
const COUNTERS_MORE: usize = 4096;
/// The commands `ETHTOOL_GSTRINGS`, for the set `ETH_SS_STATS`, and `ETHTOOL_GSTATS`.
const GET_STRINGS: u32 = 0x1b;
const OF_COUNTERS: u32 = 1;
const GET_COUNTERS: u32 = 0x1d;
/// `ETH_GSTRING_LEN`.
const NAME_BYTES: usize = 32;

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
        // SAFETY: each of these questions is answered into a structure of fixed size, which `bytes` says.
        unsafe { self.call(name, &mut structure) }?;
        Ok(structure)
    }

    /// Returns the driver's own counters of the NIC `name`: for each a line of its name, a colon and its value.
    pub fn counters(&self, name: &str) -> Result<String, Errno> {
        let info = self.ask(name, DriverAsk::Info)?;
        let number =
            |at: usize, of: &[u8]| of.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        let count = number(COUNTERS_AT, &info) as usize;
        if count == 0 || count > COUNTERS_MAX {
            return Err(Errno::EOPNOTSUPP);
        }
        let ask = |command: u32, rest: &[u32], bytes: usize| {
            let head: Vec<u8> = std::iter::once(&command).chain(rest).flat_map(|word| word.to_ne_bytes()).collect();
            let begin = head.len();
            let mut structure = head;
            structure.resize(begin + bytes * (2 * count + COUNTERS_MORE), 0);
            // SAFETY: the kernel writes as many as the driver has now. That is more than a moment ago if a queue was
            // added meanwhile, for which there is room.
            unsafe { self.call(name, &mut structure) }?;
            Ok::<_, Errno>((number(begin - 4, &structure) as usize, structure.split_off(begin)))
        };
        let (names, text) = ask(GET_STRINGS, &[OF_COUNTERS, count as u32], NAME_BYTES)?;
        let (values, bytes) = ask(GET_COUNTERS, &[count as u32], 8)?;
        if names != values {
            return Err(Errno::EAGAIN);
        }
        let lines = text.chunks_exact(NAME_BYTES).zip(bytes.as_chunks::<8>().0).take(names).map(|(name, value)| {
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            format!("{}: {}\n", String::from_utf8_lossy(name).trim(), u64::from_ne_bytes(*value))
        });
        Ok(lines.collect())
    }

    /// Asks a driver. The answer takes the place of the question.
    ///
    /// # Safety
    /// The answer to the command in the structure's first word is no longer than the structure.
    unsafe fn call(&self, name: &str, structure: &mut [u8]) -> Result<(), Errno> {
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
        // stands for, and whose room the caller answers for. Both outlive the call.
        Errno::result(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) }).map(drop)
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
        assert!(ethtool.counters("no-such-nic").is_err());
        // Loopback has no counters of a driver's; where another NIC has some, each has a name and a value.
        assert_eq!(ethtool.counters("lo"), Err(Errno::EOPNOTSUPP));
        for nic in std::fs::read_dir("/sys/class/net").unwrap() {
            let counters = ethtool.counters(nic.unwrap().file_name().to_str().unwrap()).unwrap_or_default();
            let is_one = |line: &str| line.rsplit_once(": ").is_some_and(|(_, value)| value.parse::<u64>().is_ok());
            assert!(counters.lines().all(is_one), "{counters}");
        }
        // Loopback has segmentation offload, and nobody turns that off.
        assert_eq!(ethtool.ask("lo", DriverAsk::Gso).unwrap()[4], 1);
    }
}
