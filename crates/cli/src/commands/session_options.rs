//! What `skein agent` and `skein tunnel` share: options, and output for programs.

use std::error::Error;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::Context;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use skein_agent::{HostRails, Network, Rails, TrafficClass};
use skein_api::Transport;
use skein_identity::{CipherPolicy, CipherSpeeds, Identity};
use tracing::{info, warn};

use super::networks;

/// How often a status is printed with `--json`.
pub const STATUS_PERIOD: Duration = Duration::from_millis(200);

/// The argument with which this program becomes a [`skein_agent::serve_rail`].
pub const SERVE_RAIL: &str = "serve-rail";
/// How guests' memory is marked unless something else is asked for.
const BULK: TrafficClass = TrafficClass::BULK;

/// Options of both ends.
#[derive(clap::Args)]
pub struct SessionOptions {
    /// This host's identity: a directory with ca.pem, host.pem and host.key, made by `skein ca issue`
    #[arg(long, value_name = "DIR", default_value = skein_identity::DEFAULT_IDENTITY_DIR)]
    pub identity: PathBuf,
    /// Which ciphers connections to hosts and controllers may have: auto (what this CPU computes fastest; AEGIS-128X2
    /// only where it is faster than the others), aes-gcm (nothing but AES-GCM, for hosts under FIPS 140-3), aegis
    /// (AEGIS-128X2 however fast it is; as auto with controllers, and with a host that does not have it)
    #[arg(long, value_name = "CIPHER", default_value_t = CipherPolicy::Auto, value_parser = cipher_policy())]
    pub cipher: CipherPolicy,
    /// Use only this NIC; may be given several times [default: all that are up]
    #[arg(long = "nic", value_name = "NAME")]
    pub nics: Vec<String>,
    /// Carry no guests over NICs of this network, only what hosts tell each other; may be given several times
    #[arg(long = "exclude-network", value_name = "NETWORK")]
    pub excluded: Vec<Network>,
    /// Carry guests over this network as long as a path over it is there; may be given several times, the best first
    #[arg(long = "prefer-network", value_name = "NETWORK")]
    pub preferred: Vec<Network>,
    /// The priority of migrations in this host's queues (SO_PRIORITY)
    #[arg(long, value_name = "N", default_value_t = BULK.priority, value_parser = clap::value_parser!(u8).range(0..=6))]
    pub priority: u8,
    /// The code point of migrations' packets (DSCP); 0: none
    #[arg(long, value_name = "N", default_value_t = BULK.dscp, value_parser = clap::value_parser!(u8).range(0..=63))]
    pub dscp: u8,
    /// Whether guests go over RDMA: off, auto (where both ends have an RDMA device, and libfabric), or a provider of
    /// libfabric, such as 'verbs;ofi_rxm', with or without a device; may be given several times, the best first
    #[arg(long, value_name = "RDMA", default_value = "off", value_parser = rdma)]
    pub rdma: Vec<String>,
    /// Whether guests' memory may go over RDMA without encryption, on a fabric that is trusted: NICs then write it
    /// straight into the guest's RAM. Both hosts have to allow it; what is not memory stays encrypted
    #[arg(long, value_enum, default_value_t = Plaintext::Deny)]
    pub rdma_plaintext: Plaintext,
    /// Carry no guests over RDMA by this NIC; may be given several times
    #[arg(long = "no-rdma", value_name = "NAME")]
    pub no_rdma: Vec<String>,
    /// How long streams outlive the loss of all paths, in seconds
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub outage: u64,
    /// Print a line of JSON every 200 ms: peer, streams, and each path with its bytes and rate
    #[arg(long)]
    pub json: bool,
}

/// Whether guests' memory may go without encryption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Plaintext {
    /// What goes over RDMA is encrypted.
    Deny,
    /// NICs may write straight into guests' RAM.
    Allow,
}

impl SessionOptions {
    /// Loads the identity, with the ciphers of `--cipher`, and logs which these are and how fast this CPU is.
    ///
    /// # Errors
    ///
    /// An error that says how to get an identity.
    pub fn load_identity(&self) -> anyhow::Result<Identity> {
        let dir = self.identity.display();
        let identity = Identity::load(&self.identity).with_context(|| format!("no usable identity in {dir}"))?;
        let speeds = CipherSpeeds::of_this_cpu();
        let ciphers = self.cipher.allowed(speeds);
        info!("ciphers for connections: {ciphers} (--cipher {}); a core of this CPU: {speeds}", self.cipher);
        Ok(identity.with_allowed(&ciphers)?)
    }

    /// Returns the NICs to use.
    ///
    /// # Errors
    ///
    /// An error if a NIC does not exist, or if networks make no sense.
    pub fn addresses(&self) -> anyhow::Result<skein_agent::Addresses> {
        let present = skein_host::nics().context("cannot list this host's NICs")?;
        for name in &self.nics {
            if !present.iter().any(|nic| nic.name == *name) {
                let known: Vec<&str> = present.iter().map(|nic| nic.name.as_str()).collect();
                anyhow::bail!("this host has no NIC '{name}'; it has {}", known.join(", "));
            }
        }
        for warning in networks::check(&self.excluded, &self.preferred, &present)? {
            warn!("{warning}");
        }
        let (nics, excluded, preferred) = (self.nics.clone(), self.excluded.clone(), self.preferred.clone());
        let class = TrafficClass { priority: self.priority, dscp: self.dscp };
        Ok(skein_agent::Addresses { nics, excluded, preferred, class, rails: self.rails()? })
    }

    fn rails(&self) -> anyhow::Result<Option<Arc<dyn Rails>>> {
        let words = super::own_command(SERVE_RAIL);
        let rails = match &self.rdma[..] {
            [only] if only == "off" => return Ok(None),
            [only] if only == "auto" => HostRails::of_devices(words),
            several if several.iter().any(|one| one == "off" || one == "auto") => {
                anyhow::bail!("--rdma off and --rdma auto stand alone; several are providers of libfabric")
            }
            providers => HostRails::of_providers(words, providers.to_vec()),
        };
        let rails = rails.without(self.no_rdma.clone());
        let allows = self.rdma_plaintext == Plaintext::Allow;
        Ok(Some(Arc::new(if allows { rails.with_plaintext() } else { rails })))
    }

    /// Returns the time of `--outage`.
    pub fn outage(&self) -> Duration {
        Duration::from_secs(self.outage)
    }
}

/// Parses a value of `--rdma`.
fn rdma(text: &str) -> Result<String, String> {
    // No provider is called so, and who writes that means one of the words.
    let is_switch = ["on", "yes", "true", "no", "false", "none"].contains(&text);
    match is_switch || text.contains(char::is_whitespace) || text.is_empty() {
        true => Err("it may be off, auto or a provider of libfabric, such as 'verbs;ofi_rxm'".into()),
        false => Ok(text.to_owned()),
    }
}

/// Returns the parser of `--transport`.
pub fn transport<T>() -> impl TypedValueParser<Value = T>
where
    T: FromStr + Clone + Send + Sync + 'static,
    T::Err: Into<Box<dyn Error + Send + Sync>>,
{
    PossibleValuesParser::new(Transport::ALL.map(Transport::name)).try_map(|name| name.parse::<T>())
}

/// Returns the parser of `--cipher`.
fn cipher_policy() -> impl TypedValueParser<Value = CipherPolicy> {
    PossibleValuesParser::new(CipherPolicy::ALL.map(CipherPolicy::name)).try_map(|name| name.parse::<CipherPolicy>())
}

/// Catches the signals that end this program, for [`run_until_signal`]. Call this before anybody hears that this
/// program is ready: a signal may come at once then.
///
/// # Errors
///
/// The system refuses to handle signals.
pub fn catch_signals() -> anyhow::Result<Signals> {
    Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]).context("cannot handle signals")
}

/// Waits for one of the `signals`, and calls `status` in every period.
pub fn run_until_signal(mut signals: Signals, mut status: impl FnMut()) -> anyhow::Result<()> {
    let (sender, signal) = sync_channel(1);
    // The thread waits until the program ends. When a signal comes, the caller does not wait for the rest of a period.
    let wait = move || signals.forever().next().map(|_| sender.send(()));
    std::thread::Builder::new().name("signals".into()).spawn(wait).context("cannot wait for signals")?;
    loop {
        status();
        if signal.recv_timeout(STATUS_PERIOD) != Err(RecvTimeoutError::Timeout) {
            return Ok(());
        }
    }
}

/// Prints a value as a line of JSON.
///
/// # Panics
///
/// If the value cannot be written as JSON, which is a defect.
pub fn print_json(value: &impl serde::Serialize) {
    let mut line = serde_json::to_vec(value).expect("plain data always serialises");
    line.push(b'\n');
    print_bytes(&line);
}

/// Writes to standard output. A closed pipe is no error.
pub fn print_bytes(bytes: &[u8]) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}
