//! A pinger outside of the hosts, which asks a guest all the time and notes when answers come.

use std::{
    io,
    mem::MaybeUninit,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use socket2::{Domain, Protocol, Socket, Type};

/// The time between questions, which is the precision of a gap.
const EVERY: Duration = Duration::from_millis(5);

/// Pings a guest until it is stopped.
#[derive(Debug)]
pub struct Pinger {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Instant>>>,
}

/// Makes a raw ICMP socket in the calling thread's network namespace. Needs root.
///
/// # Errors
///
/// The error of the system.
pub fn socket() -> io::Result<Socket> {
    Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))
}

impl Pinger {
    /// Starts to ping `ip` through `socket`, which may belong to another namespace than the caller.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub fn start(socket: Socket, ip: Ipv4Addr) -> io::Result<Self> {
        // The low bits of an address differ between the guests of a lab.
        let id = (std::process::id() as u16) ^ u16::from_be_bytes([ip.octets()[2], ip.octets()[3]]).rotate_left(8);
        socket.connect(&SocketAddr::from((ip, 0)).into())?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("pinger".into()).spawn(move || {
            let mut answers = Vec::new();
            let mut sequence = 0u16;
            let mut next = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                if Instant::now() >= next {
                    next += EVERY;
                    sequence = sequence.wrapping_add(1);
                    // An error is ignored: a guest that is unreachable for a moment is what the pinger is to notice.
                    let _ = socket.send(&request(id, sequence));
                }
                let wait = next.saturating_duration_since(Instant::now()).max(Duration::from_micros(100));
                let _ = socket.set_read_timeout(Some(wait));
                let mut buffer = [MaybeUninit::<u8>::uninit(); 256];
                if let Ok(count) = socket.recv(&mut buffer) {
                    let bytes: Vec<u8> =
                        // SAFETY: recv has written the first `count` bytes.
                        buffer[..count].iter().map(|byte| unsafe { byte.assume_init() }).collect();
                    if is_answer(&bytes, id) {
                        answers.push(Instant::now());
                    }
                }
            }
            answers
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Stops, and returns the longest time without an answer between `from` and now. Returns `None` if no answer ever
    /// came.
    pub fn longest_gap(mut self, from: Instant) -> Option<Duration> {
        longest_gap(&self.end(), from, Instant::now())
    }

    fn end(&mut self) -> Vec<Instant> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Pinger {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the longest time without an answer between `from` and `now`. Returns `None` if there is no answer.
fn longest_gap(answers: &[Instant], from: Instant, now: Instant) -> Option<Duration> {
    // The last answer before `from` counts: a gap may have begun then.
    let first = answers.partition_point(|t| *t < from).saturating_sub(1);
    let within = answers.get(first..).filter(|within| !within.is_empty())?;
    let moments = || within.iter().copied().chain(std::iter::once(now));
    moments().zip(moments().skip(1)).map(|(earlier, later)| later - earlier).max()
}

/// Returns an echo request (RFC 792) without data.
fn request(id: u16, sequence: u16) -> [u8; 8] {
    let mut packet = [8, 0, 0, 0, 0, 0, 0, 0];
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    packet[6..8].copy_from_slice(&sequence.to_be_bytes());
    let checksum = checksum(&packet);
    packet[2..4].copy_from_slice(&checksum.to_be_bytes());
    packet
}

/// Returns whether an IPv4 packet is a reply to one of this pinger's requests.
fn is_answer(packet: &[u8], id: u16) -> bool {
    let header = packet.first().map_or(0, |first| usize::from(first & 15) * 4);
    let Some(&[0, 0, _, _, high, low]) = packet.get(header..header + 6) else { return false };
    header >= 20 && u16::from_be_bytes([high, low]) == id
}

/// Returns the checksum of RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks(2).map(|two| u32::from(two[0]) << 8 | two.get(1).map_or(0, |b| u32::from(*b))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets() {
        let packet = request(0x1234, 7);
        assert_eq!(checksum(&packet), 0, "a packet with its checksum sums up to nothing");
        let mut answer = vec![0x45; 20];
        answer.extend([0, 0, 9, 9, 0x12, 0x34, 0, 7]);
        assert!(is_answer(&answer, 0x1234));
        assert!(!is_answer(&answer, 0x1235));
        for length in 0..26 {
            assert!(!is_answer(&answer[..length], 0x1234));
        }
        answer[20] = 8;
        assert!(!is_answer(&answer, 0x1234), "a request is no answer");
        assert!(!is_answer(&[0x40; 40], 0x4040), "a header too short to be one");
    }

    #[test]
    fn gaps_reach_beyond_both_ends() {
        let now = Instant::now();
        let ms = Duration::from_millis;
        let at = |time: u64| now - ms(1000 - time);
        assert_eq!(longest_gap(&[at(10), at(300), at(900)], at(100), now), Some(ms(600)));
        assert_eq!(longest_gap(&[at(10), at(400), at(900)], at(500), now), Some(ms(500)));
        assert_eq!(longest_gap(&[at(10), at(100)], at(500), now), Some(ms(900)));
        assert_eq!(longest_gap(&[], at(100), now), None);
    }
}
