//! The workload's parameters, as they travel on the kernel's command line: `skein.NAME=VALUE`.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use crate::pattern::PAGE_WORDS;

/// How much of a page one rewrite changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rewrite {
    /// One 64-bit word: the page is dirty, and a delta of it is tiny.
    Word,
    /// A quarter: 1 KiB in one run.
    Quarter,
    /// All of it.
    #[default]
    Page,
}

impl Rewrite {
    /// Returns into how many parts a page is divided; see [`crate::Pattern::new`].
    pub fn parts(self) -> usize {
        match self {
            Self::Word => PAGE_WORDS,
            Self::Quarter => 4,
            Self::Page => 1,
        }
    }
}

impl fmt::Display for Rewrite {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Word => "word",
            Self::Quarter => "quarter",
            Self::Page => "page",
        })
    }
}

impl FromStr for Rewrite {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "word" => Ok(Self::Word),
            "quarter" => Ok(Self::Quarter),
            "page" => Ok(Self::Page),
            _ => Err(()),
        }
    }
}

/// An IPv4 address with its prefix length, written `10.78.0.5/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortAddress {
    /// The address.
    pub ip: Ipv4Addr,
    /// The length of the network prefix, 0 to 32.
    pub prefix: u8,
}

impl PortAddress {
    /// Returns the netmask.
    pub fn mask(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0))
    }
}

impl fmt::Display for PortAddress {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

impl FromStr for PortAddress {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (ip, prefix) = text.split_once('/').ok_or(())?;
        let prefix = prefix.parse().map_err(drop)?;
        if prefix > 32 {
            return Err(());
        }
        Ok(Self { ip: ip.parse().map_err(drop)?, prefix })
    }
}

/// The parameters: what the guest does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Params {
    /// The MiB of RAM to fill. 0: none. This must leave the guest some 60 MiB for its kernel.
    pub fill_mb: u32,
    /// The MiB of RAM to use and give back to the kernel, before anything else.
    pub freed_mb: u32,
    /// The per cent of filled pages that compress well (about 12:1). The others do not compress at all.
    pub compressible: u8,
    /// The MiB of the filled RAM, from its start, to rewrite over and over.
    pub rewrite_mb: u32,
    /// How much of a page one rewrite changes.
    pub rewrite: Rewrite,
    /// The pages per second to rewrite, over all threads. 0: none.
    pub rate: u32,
    /// How many threads rewrite, each a slice of its own.
    pub threads: u32,
    /// The seed of all contents.
    pub seed: u64,
    /// The pages per second to verify in the background. 0: only on command.
    pub verify_rate: u32,
    /// The period of the heartbeat in milliseconds. 0: none.
    pub beat_ms: u32,
    /// The MiB of the first virtio disk to use, from its start. 0: none. What is there is overwritten.
    pub disk_mb: u32,
    /// The blocks of 4 KiB per second to write to that disk. As many are read back and compared.
    pub disk_rate: u32,
    /// Whether to unpack and build the software that the initramfs brings, before anything else.
    pub build: bool,
    /// The address of the first NIC.
    pub ip: Option<PortAddress>,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            fill_mb: 0,
            freed_mb: 0,
            compressible: 50,
            rewrite_mb: 0,
            rewrite: Rewrite::Page,
            rate: 0,
            threads: 1,
            seed: 1,
            verify_rate: 500,
            beat_ms: 2,
            disk_mb: 0,
            disk_rate: 20,
            build: false,
            ip: None,
        }
    }
}

/// Why a parameter cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParamError {
    /// No parameter has this name.
    Unknown(String),
    /// The value is not valid: the name, the value, and what it should be.
    Invalid(String, String, &'static str),
}

impl fmt::Display for ParamError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Unknown(name) => write!(f, "skein.{name}: no such parameter"),
            Self::Invalid(name, value, wanted) => write!(f, "skein.{name}={value}: must be {wanted}"),
        }
    }
}

impl std::error::Error for ParamError {}

const MB_MAX: u32 = 1 << 22;
const RATE_MAX: u32 = 100_000_000;

impl Params {
    /// Reads every `skein.NAME=VALUE` of a kernel command line and ignores the rest. The last value of a name counts.
    ///
    /// # Errors
    ///
    /// The first [`ParamError`] that is found.
    pub fn parse(command_line: &str) -> Result<Self, ParamError> {
        let mut params = Self::default();
        for word in command_line.split_ascii_whitespace() {
            let Some(setting) = word.strip_prefix("skein.") else { continue };
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            params.set(name, value)?;
        }
        if params.rewrite_mb > params.fill_mb {
            let value = params.rewrite_mb.to_string();
            return Err(ParamError::Invalid("rewrite_mb".into(), value, "at most fill_mb"));
        }
        Ok(params)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ParamError> {
        let invalid = |wanted| ParamError::Invalid(name.into(), value.into(), wanted);
        let number = |range: std::ops::RangeInclusive<u32>, wanted| {
            value.parse().ok().filter(|n| range.contains(n)).ok_or_else(|| invalid(wanted))
        };
        let mb = || number(0..=MB_MAX, "a number of MiB, at most 4194304");
        let rate = || number(0..=RATE_MAX, "a number a second, at most 100000000");
        match name {
            "fill_mb" => self.fill_mb = mb()?,
            "freed_mb" => self.freed_mb = mb()?,
            "compressible" => self.compressible = number(0..=100, "per cent, 0 to 100")? as u8,
            "rewrite_mb" => self.rewrite_mb = mb()?,
            "rewrite" => self.rewrite = value.parse().map_err(|()| invalid("word, quarter or page"))?,
            "rate" => self.rate = rate()?,
            "threads" => self.threads = number(1..=64, "1 to 64")?,
            "seed" => self.seed = value.parse().map_err(|_| invalid("a 64-bit number"))?,
            "verify_rate" => self.verify_rate = rate()?,
            "beat_ms" => self.beat_ms = number(0..=1000, "milliseconds, at most 1000")?,
            "disk_mb" => self.disk_mb = mb()?,
            "disk_rate" => self.disk_rate = rate()?,
            "build" => self.build = number(0..=1, "0 or 1")? == 1,
            "ip" => self.ip = Some(value.parse().map_err(|()| invalid("like 10.78.0.5/24"))?),
            _ => return Err(ParamError::Unknown(name.into())),
        }
        Ok(())
    }

    /// Returns the parameters as a command line that [`Params::parse`] reads back.
    pub fn command_line(&self) -> String {
        let Self {
            fill_mb,
            freed_mb,
            compressible,
            rewrite_mb,
            rewrite,
            rate,
            threads,
            seed,
            verify_rate,
            beat_ms,
            disk_mb,
            disk_rate,
            build,
            ip,
        } = self;
        let build = u8::from(*build);
        let mut line = format!(
            "skein.fill_mb={fill_mb} skein.freed_mb={freed_mb} \
             skein.compressible={compressible} skein.rewrite_mb={rewrite_mb} \
             skein.rewrite={rewrite} \
             skein.rate={rate} skein.threads={threads} skein.seed={seed} skein.verify_rate={verify_rate} \
             skein.beat_ms={beat_ms} skein.disk_mb={disk_mb} skein.disk_rate={disk_rate} \
             skein.build={build}"
        );
        if let Some(ip) = ip {
            line.push_str(&format!(" skein.ip={ip}"));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_among_other_words() {
        let line = "console=ttyS0 quiet skein.fill_mb=600 skein.rewrite_mb=400 skein.rewrite=word skein.rate=30000 \
                    skein.ip=10.78.0.5/24\n";
        let wanted = Params {
            fill_mb: 600,
            rewrite_mb: 400,
            rewrite: Rewrite::Word,
            rate: 30_000,
            ip: Some(PortAddress { ip: Ipv4Addr::new(10, 78, 0, 5), prefix: 24 }),
            ..Params::default()
        };
        assert_eq!(Params::parse(line), Ok(wanted));
    }

    #[test]
    fn says_what_is_wrong() {
        for (line, said) in [
            ("skein.fill=3", "skein.fill: no such parameter"),
            ("skein.fill_mb=lots", "skein.fill_mb=lots: must be a number of MiB, at most 4194304"),
            ("skein.fill_mb", "skein.fill_mb=: must be a number of MiB, at most 4194304"),
            ("skein.compressible=101", "skein.compressible=101: must be per cent, 0 to 100"),
            ("skein.rewrite=half", "skein.rewrite=half: must be word, quarter or page"),
            ("skein.threads=0", "skein.threads=0: must be 1 to 64"),
            ("skein.ip=10.0.0.1/33", "skein.ip=10.0.0.1/33: must be like 10.78.0.5/24"),
            ("skein.build=yes", "skein.build=yes: must be 0 or 1"),
            ("skein.fill_mb=5 skein.rewrite_mb=6", "skein.rewrite_mb=6: must be at most fill_mb"),
        ] {
            assert_eq!(Params::parse(line).unwrap_err().to_string(), said);
        }
    }

    #[test]
    fn masks() {
        for (prefix, mask) in [(0, "0.0.0.0"), (8, "255.0.0.0"), (24, "255.255.255.0"), (32, "255.255.255.255")] {
            assert_eq!(PortAddress { ip: Ipv4Addr::LOCALHOST, prefix }.mask().to_string(), mask);
        }
    }

    fn any_params() -> impl Strategy<Value = Params> {
        let rewrite = prop::sample::select(vec![Rewrite::Word, Rewrite::Quarter, Rewrite::Page]);
        let ip =
            prop::option::of((any::<u32>(), 0u8..=32).prop_map(|(ip, prefix)| PortAddress { ip: ip.into(), prefix }));
        (
            (0..=MB_MAX, 0..=MB_MAX, 0u8..=100, 0..=MB_MAX, rewrite, 0..=RATE_MAX, 1u32..=64),
            (any::<u64>(), 0..=RATE_MAX, 0u32..=1000, 0..=MB_MAX, 0..=RATE_MAX, any::<bool>(), ip),
        )
            .prop_map(
                |(
                    (a, freed_mb, compressible, b, rewrite, rate, threads),
                    (seed, verify_rate, beat_ms, disk_mb, disk_rate, build, ip),
                )| Params {
                    fill_mb: a.max(b),
                    freed_mb,
                    compressible,
                    rewrite_mb: a.min(b),
                    rewrite,
                    rate,
                    threads,
                    seed,
                    verify_rate,
                    beat_ms,
                    disk_mb,
                    disk_rate,
                    build,
                    ip,
                },
            )
    }

    proptest! {
        #[test]
        fn round_trip(params in any_params()) {
            prop_assert_eq!(Params::parse(&params.command_line()), Ok(params));
        }

        #[test]
        fn never_panics(line in ".*", setting in "skein\\.[a-z_]*=[0-9a-z./-]*") {
            let _ = Params::parse(&line);
            let _ = Params::parse(&setting);
        }
    }
}
