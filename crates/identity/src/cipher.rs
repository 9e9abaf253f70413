//! Says which ciphers may protect records: what the policy allows, how fast this CPU computes each, and what the two
//! ends of a connection agreed on.

use std::fmt;
use std::hint::black_box;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use aegis::aegis128x2::Aegis128X2;
use aws_lc_rs::aead::{AES_128_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rustls::crypto::aws_lc_rs::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::{CipherSuite, CommonState, SupportedCipherSuite};

use crate::{ALPN, ALPN_AEGIS};

/// Says which ciphers this host allows for its connections. The peer has to allow the cipher, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CipherPolicy {
    /// All ciphers are allowed, and those that this CPU computes fastest are preferred.
    #[default]
    Auto,
    /// AES-GCM only, for hosts that may use nothing but what FIPS 140-3 approves.
    AesGcm,
    /// AEGIS-128X2 is preferred, however fast it is. Peers that do not have it get what `Auto` gives them.
    Aegis,
}

/// The text names no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it may be {}", CipherPolicy::ALL.map(CipherPolicy::name).join(", "))]
pub struct UnknownPolicy;

impl CipherPolicy {
    /// All policies, the default first.
    pub const ALL: [CipherPolicy; 3] = [CipherPolicy::Auto, CipherPolicy::AesGcm, CipherPolicy::Aegis];

    /// Returns the name that people write.
    pub fn name(self) -> &'static str {
        match self {
            CipherPolicy::Auto => "auto",
            CipherPolicy::AesGcm => "aes-gcm",
            CipherPolicy::Aegis => "aegis",
        }
    }

    /// Returns the ciphers that this policy allows on a CPU with these speeds.
    pub fn allowed(self, speeds: &CipherSpeeds) -> AllowedCiphers {
        let (aes_128, aes_256, chacha) =
            (TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256);
        let suites = match self {
            CipherPolicy::AesGcm => vec![aes_128, aes_256],
            _ if clearly_faster(speeds.chacha20_poly1305, speeds.aes_128_gcm) => vec![chacha, aes_128, aes_256],
            _ => vec![aes_128, aes_256, chacha],
        };
        let aegis = match self {
            CipherPolicy::Auto => clearly_faster(speeds.aegis_128x2, speeds.aes_128_gcm.max(speeds.chacha20_poly1305)),
            CipherPolicy::AesGcm => false,
            CipherPolicy::Aegis => true,
        };
        AllowedCiphers { suites, aegis }
    }
}

impl fmt::Display for CipherPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CipherPolicy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<CipherPolicy, UnknownPolicy> {
        CipherPolicy::ALL.into_iter().find(|policy| policy.name() == text).ok_or(UnknownPolicy)
    }
}

/// Returns whether one speed is so far above the other that no chance of the measurement explains it: 1.1 times.
fn clearly_faster(one: u64, other: u64) -> bool {
    u128::from(one) * 10 >= u128::from(other) * 11
}

/// The ciphers that a host allows, in the order in which it prefers them.
///
/// Which of the suites protects a connection is the dialling end's preference, as in TLS. AEGIS-128X2 protects it where
/// both ends allow it.
#[derive(Clone, Debug)]
pub struct AllowedCiphers {
    suites: Vec<SupportedCipherSuite>,
    aegis: bool,
}

impl AllowedCiphers {
    /// Returns the suites of TLS.
    pub(crate) fn suites(&self) -> &[SupportedCipherSuite] {
        &self.suites
    }

    /// Returns the protocols for ALPN. The accepting end takes the first of its own that both have.
    pub(crate) fn protocols(&self) -> Vec<Vec<u8>> {
        let all: &[&[u8]] = if self.aegis { &[ALPN_AEGIS, ALPN] } else { &[ALPN] };
        all.iter().map(|name| name.to_vec()).collect()
    }

    /// Returns the name of the cipher between two hosts that are like this one.
    pub fn first(&self) -> &'static str {
        if self.aegis { RecordCipher::Aegis128X2.name() } else { suite_name(self.suites[0].suite()) }
    }
}

impl fmt::Display for AllowedCiphers {
    /// Writes the names of all, the preferred cipher first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let aegis = self.aegis.then(|| RecordCipher::Aegis128X2.name());
        let suites = self.suites.iter().map(|suite| suite_name(suite.suite()));
        f.write_str(&aegis.into_iter().chain(suites).collect::<Vec<_>>().join(", "))
    }
}

/// The cipher that protects the records of a connection once its handshake is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordCipher {
    /// The cipher of the suite that TLS agreed on.
    OfSuite(CipherSuite),
    /// AEGIS-128X2 (RFC 10032), under keys that TLS exports.
    Aegis128X2,
}

impl RecordCipher {
    /// Returns the cipher's name.
    pub fn name(self) -> &'static str {
        match self {
            RecordCipher::OfSuite(suite) => suite_name(suite),
            RecordCipher::Aegis128X2 => "AEGIS-128X2",
        }
    }
}

fn suite_name(suite: CipherSuite) -> &'static str {
    match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => "AES-128-GCM",
        CipherSuite::TLS13_AES_256_GCM_SHA384 => "AES-256-GCM",
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "ChaCha20-Poly1305",
        other => other.as_str().unwrap_or("another cipher"),
    }
}

/// Returns the cipher that both ends agreed on, for the records after the handshake. `None`: the handshake is not over.
pub fn record_cipher(connection: &CommonState) -> Option<RecordCipher> {
    let suite = connection.negotiated_cipher_suite().filter(|_| !connection.is_handshaking())?;
    Some(match connection.alpn_protocol() {
        Some(ALPN_AEGIS) => RecordCipher::Aegis128X2,
        _ => RecordCipher::OfSuite(suite.suite()),
    })
}

/// How many bytes a second one core of this CPU seals with each cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CipherSpeeds {
    /// AES-GCM with keys of 128 bits.
    pub aes_128_gcm: u64,
    /// ChaCha20-Poly1305.
    pub chacha20_poly1305: u64,
    /// AEGIS-128X2.
    pub aegis_128x2: u64,
}

/// The speed below which a cipher cannot fill a NIC of 10 Gb/s: the CPU has no instructions for it.
const SLOW: u64 = 1_250_000_000;

impl CipherSpeeds {
    /// Returns the speeds of this CPU. The first call measures them, in some milliseconds.
    pub fn of_this_cpu() -> &'static CipherSpeeds {
        static SPEEDS: OnceLock<CipherSpeeds> = OnceLock::new();
        SPEEDS.get_or_init(measure)
    }

    /// Returns whether AES-GCM, which every pair of hosts has, is too slow for a NIC of 10 Gb/s.
    pub fn aes_is_slow(&self) -> bool {
        self.aes_128_gcm < SLOW
    }
}

impl fmt::Display for CipherSpeeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let giga = |speed: u64| speed as f64 / 1e9;
        let [aes, chacha, aegis] = [self.aes_128_gcm, self.chacha20_poly1305, self.aegis_128x2].map(giga);
        write!(f, "AES-128-GCM {aes:.1} GB/s, ChaCha20-Poly1305 {chacha:.1} GB/s, AEGIS-128X2 {aegis:.1} GB/s")
    }
}

/// The content of a record, as long as TLS allows.
const RECORD_BYTES: usize = 1 << 14;
/// The records that are sealed between two looks at the clock.
const ROUND_RECORDS: u32 = 4;
/// The rounds of each cipher. The best one counts: whatever else the CPU does makes a round slower, and none faster.
const ROUNDS_MIN: u32 = 3;
const ROUNDS_MAX: u32 = 24;
/// The time after which no more than the least rounds are made. Ciphers in software take it.
const TIME: Duration = Duration::from_millis(8);

/// Seals a record, from one buffer into another.
type SealOne = dyn Fn(&[u8], &mut [u8]);

/// Seals records with each cipher in turn, so that all of them meet the same disturbances.
fn measure() -> CipherSpeeds {
    let plain = vec![0x5a; RECORD_BYTES];
    let mut sealed = vec![0; RECORD_BYTES];
    let ciphers: [&SealOne; 3] = [&aead(&AES_128_GCM), &aead(&CHACHA20_POLY1305), &aegis];
    let mut best = [Duration::MAX; 3];
    let begun = Instant::now();
    for round in 0..ROUNDS_MAX {
        if round >= ROUNDS_MIN && begun.elapsed() > TIME {
            break;
        }
        for (seal, best) in ciphers.iter().zip(&mut best) {
            let begun = Instant::now();
            for _ in 0..ROUND_RECORDS {
                seal(black_box(&plain), &mut sealed);
                black_box(&mut sealed);
            }
            *best = begun.elapsed().min(*best);
        }
    }
    let speed = |time: Duration| {
        let bytes = u128::from(ROUND_RECORDS) * RECORD_BYTES as u128;
        u64::try_from(bytes * 1_000_000_000 / time.as_nanos().max(1)).unwrap_or(u64::MAX)
    };
    let [aes_128_gcm, chacha20_poly1305, aegis_128x2] = best.map(speed);
    CipherSpeeds { aes_128_gcm, chacha20_poly1305, aegis_128x2 }
}

/// Returns what seals a record with a cipher of TLS. The keys and nonces of all that is sealed here are the same, as it
/// is thrown away.
fn aead(algorithm: &'static Algorithm) -> impl Fn(&[u8], &mut [u8]) {
    let key = UnboundKey::new(algorithm, &[7; 32][..algorithm.key_len()]).map(LessSafeKey::new);
    move |plain, sealed| {
        if let Ok(key) = &key {
            let (nonce, mut tag) = (Nonce::assume_unique_for_key([9; 12]), [0; 16]);
            let done = key.seal_out_of_place_scatter(nonce, Aad::from([0; 5]), plain, sealed, &[], &mut tag);
            let _ = black_box(done);
        }
    }
}

fn aegis(plain: &[u8], sealed: &mut [u8]) {
    let mut cipher = Aegis128X2::<16>::new(&[7; 16], &[9; 16]).encryptor(&[0; 5]);
    cipher.update(plain, sealed);
    black_box(cipher.finalize());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server of today, a CPU without AES, and a CPU that has AES and a slow AEGIS.
    const WITH_AES: CipherSpeeds = speeds(5_000, 1_800, 14_000);
    const WITHOUT_AES: CipherSpeeds = speeds(90, 400, 60);
    const AEGIS_IS_NO_FASTER: CipherSpeeds = speeds(9_000, 3_000, 9_800);

    const fn speeds(aes: u64, chacha: u64, aegis: u64) -> CipherSpeeds {
        let mega = 1_000_000;
        CipherSpeeds { aes_128_gcm: aes * mega, chacha20_poly1305: chacha * mega, aegis_128x2: aegis * mega }
    }

    #[test]
    fn what_is_allowed_follows_the_policy_and_the_cpu() {
        use CipherPolicy::*;
        const AES_FIRST: &str = "AES-128-GCM, AES-256-GCM, ChaCha20-Poly1305";
        const CHACHA_FIRST: &str = "ChaCha20-Poly1305, AES-128-GCM, AES-256-GCM";
        const AES_ONLY: &str = "AES-128-GCM, AES-256-GCM";
        for (policy, speeds, aegis, suites) in [
            (Auto, WITH_AES, true, AES_FIRST),
            (Auto, WITHOUT_AES, false, CHACHA_FIRST),
            (Auto, AEGIS_IS_NO_FASTER, false, AES_FIRST),
            (AesGcm, WITH_AES, false, AES_ONLY),
            (AesGcm, WITHOUT_AES, false, AES_ONLY),
            (Aegis, WITH_AES, true, AES_FIRST),
            (Aegis, WITHOUT_AES, true, CHACHA_FIRST),
            (Aegis, AEGIS_IS_NO_FASTER, true, AES_FIRST),
        ] {
            let allowed = policy.allowed(&speeds);
            let (shown, protocols): (_, &[&[u8]]) = match aegis {
                true => (format!("AEGIS-128X2, {suites}"), &[b"skein/1+aegis-128x2", b"skein/1"]),
                false => (suites.to_owned(), &[b"skein/1"]),
            };
            assert_eq!(allowed.to_string(), shown, "{policy:?} {speeds}");
            assert_eq!(allowed.protocols(), protocols, "{policy:?} {speeds}");
            assert_eq!(allowed.first(), shown.split(',').next().unwrap(), "{policy:?} {speeds}");
        }
    }

    #[test]
    fn a_tenth_faster_is_clearly_faster() {
        assert!(clearly_faster(1_100, 1_000) && !clearly_faster(1_099, 1_000));
        // Nothing that was measured makes the comparison overflow.
        assert!(!clearly_faster(u64::MAX, u64::MAX) && clearly_faster(u64::MAX, 1));
        // AEGIS has to be faster than the faster of the two others.
        let by_chacha = CipherSpeeds { chacha20_poly1305: 14_000_000_000, ..WITH_AES };
        assert_eq!(CipherPolicy::Auto.allowed(&by_chacha).first(), "ChaCha20-Poly1305");
    }

    #[test]
    fn policies_have_names() {
        for policy in CipherPolicy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        let error = "AES".parse::<CipherPolicy>().unwrap_err();
        assert_eq!(error.to_string(), "it may be auto, aes-gcm, aegis");
        assert_eq!(CipherPolicy::default(), CipherPolicy::Auto);
    }

    #[test]
    fn this_cpu_is_measured_once_and_soon() {
        let begun = Instant::now();
        let measured = CipherSpeeds::of_this_cpu();
        // A CPU without AES, and a build without optimization, on a machine that is busy.
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        for speed in [measured.aes_128_gcm, measured.chacha20_poly1305, measured.aegis_128x2] {
            assert!((1_000_000..1_000_000_000_000).contains(&speed), "{measured:?}");
        }
        assert!(std::ptr::eq(measured, CipherSpeeds::of_this_cpu()));
        assert!(WITHOUT_AES.aes_is_slow() && !WITH_AES.aes_is_slow());
        let shown = "AES-128-GCM 5.0 GB/s, ChaCha20-Poly1305 1.8 GB/s, AEGIS-128X2 14.0 GB/s";
        assert_eq!(WITH_AES.to_string(), shown);
    }
}
