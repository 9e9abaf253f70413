//! `skein-controller init`.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use hyper::Method;
use skein_api::cluster::{NewToken, Page, Role, StoreKind, Token, TokenSecret};
use skein_controller::client::Client;
use skein_controller::config::{
    Config, ConfigError, DEFAULT_CONFIG, DEFAULT_STORE, EtcdConfig, default_certificate_days,
};
use skein_controller::driver::{Member, Members};
use skein_controller::fencing::FencingConfig;
use skein_controller::found::{FoundError, Founded, check_ca, cluster_in, found, running_in};
use skein_controller::http::token_secret;
use skein_controller::server::DEFAULT_PORT;
use skein_controller::signer::load_identity;
use skein_identity::{
    CaFingerprint, ClusterCa, ControllerIdentity, ControllerNames, DEFAULT_CA_DIR, DEFAULT_CONTROLLER_DIR, JoinToken,
    Validity,
};
use skein_store_sqlite::OpenError;

use super::local;

/// Make a cluster, or what of it is missing on this machine.
///
/// Takes the CA that is there, or makes one; makes this controller's identity, the store, the admin's token and the
/// configuration; and prints the line for the first host that joins. What is there already stays as it is, so it may be
/// run again.
///
/// Where the store is in etcd and has a cluster already, this controller is added to it, also while others run; it
/// needs the CA of the others before (/etc/skein/ca).
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein-controller init --name rack7 --address 10.0.0.1
  systemctl enable --now skein-controller
  skein-controller init --address 10.0.0.1 --print-only
      says what would be made
  skein-controller init --name rack7 --address 10.0.0.1 \\
      --store etcd:https://10.0.0.1:2379,https://10.0.0.2:2379,https://10.0.0.3:2379 \\
      --etcd-ca etcd-ca.pem --etcd-certificate etcd-client.pem --etcd-key etcd-client.key
      one of several controllers; the others by the same command on other hosts")]
pub struct Args {
    /// The cluster's name
    #[arg(long, value_name = "NAME", default_value = "skein")]
    name: String,
    /// This controller's name [default: the host's]
    #[arg(long, value_name = "NAME")]
    controller: Option<String>,
    /// Where to listen, for agents and for HTTPS
    #[arg(long, value_name = "ADDR:PORT", default_value_t = SocketAddr::from(([0u16; 8], DEFAULT_PORT)))]
    listen: SocketAddr,
    /// A name or IP address at which hosts reach this controller, the usual one first; may be given several times
    /// [default: the host's name]
    #[arg(long, value_name = "HOST|IP")]
    address: Vec<String>,
    /// The store: sqlite, sqlite:FILE, or etcd:https://HOST:2379,https://HOST:2379
    #[arg(long, value_name = "STORE", default_value = DEFAULT_STORE)]
    store: String,
    /// The certificate of the CA of etcd
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// The certificate that is shown to etcd, which has its own CA
    #[arg(long, value_name = "FILE", requires = "etcd_ca", requires = "etcd_key")]
    etcd_certificate: Option<PathBuf>,
    /// The key of that certificate
    #[arg(long, value_name = "FILE", requires = "etcd_certificate")]
    etcd_key: Option<PathBuf>,
    /// The CA
    #[arg(long, value_name = "DIR", default_value = DEFAULT_CA_DIR)]
    ca: PathBuf,
    /// This controller's identity, and the admin's token
    #[arg(long, value_name = "DIR", default_value = DEFAULT_CONTROLLER_DIR)]
    identity: PathBuf,
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
    /// Only say what would be made
    #[arg(long)]
    print_only: bool,
}

/// The file of the admin's token, in the identity's directory.
const TOKEN_FILE: &str = "admin.token";

/// Returns what is said where a controller runs already.
fn runs(args: &Args) -> String {
    let ticket = args.command("ticket");
    format!("kept    the store: a controller runs with it\nFor each further host:    {ticket}\n")
}

impl Args {
    /// Returns a command of this program that reads the same configuration.
    fn command(&self, name: &str) -> String {
        match self.config == Path::new(DEFAULT_CONFIG) {
            true => format!("skein-controller {name}"),
            false => format!("skein-controller {name} --config {}", self.config.display()),
        }
    }

    /// Returns the command that starts the controller: its unit reads the default configuration.
    fn start_command(&self) -> String {
        match self.config == Path::new(DEFAULT_CONFIG) {
            true => "systemctl enable --now skein-controller".to_owned(),
            false => self.command("run"),
        }
    }
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let is_new = !args.config.exists();
    let config = if is_new { configuration(&args)? } else { Config::load(&args.config)? };
    let mut said = String::new();
    if args.print_only {
        return skein_terminal::print(&preview(&args, &config, is_new));
    }
    let dir = config.ca.as_deref().unwrap_or(&args.ca);
    if let Some(("sqlite", file)) = config.store.split_once(':')
        && let Some(dir) = Path::new(file).parent()
    {
        make_dir(dir)?;
    }
    let store = match config.open_store() {
        Ok(store) => Some(store),
        Err(ConfigError::Sqlite(OpenError::Held { .. })) if !is_new => None,
        Err(error) => return Err(error.into()),
    };
    let there = match &store {
        Some(store) => cluster_in(&**store).with_context(|| format!("nothing is known of {}", config.store))?,
        None => None,
    };
    if let Some(cluster) = &there
        && !dir.join(ClusterCa::CERTIFICATE_FILE).exists()
    {
        bail!(
            "{} has the cluster '{}' already, whose CA is not here: copy /etc/skein/ca from a host with a controller \
             to {}, and try again",
            config.store,
            cluster.name,
            dir.display()
        );
    }
    let ca = certificate_authority(dir, &args.name, &mut said)?;
    check_ca(there.as_ref(), ca.fingerprint())?;
    let identity = identity(&config, &ca, &mut said)?;
    let Some(store) = store else { return skein_terminal::print(&format!("{said}{}", runs(&args))) };
    let running = running_in(&*store)?;
    if let Some(leader) = &running.leader {
        if !is_new {
            return skein_terminal::print(&format!("{said}{}", runs(&args)));
        }
        added(&config, &identity, &running, &leader.member, &mut said)?;
        write_config(&args.config, &config, &mut said)?;
        writeln!(
            said,
            "\nStart it:                 {}\n\
             The cluster's hosts hear of it from the other controllers. People log in once more: skein login {} ...",
            args.start_command(),
            config.url()
        )?;
        return skein_terminal::print(&said);
    }
    let secret = admin_token(&config.admin_token, &mut said)?;
    let admin = admin_name(&config);
    let founded = match found(&*store, &args.name, ca.fingerprint(), &admin, &secret) {
        Err(FoundError::InUse) => bail!("a controller has begun to lead just now: run init again"),
        founded => founded?,
    };
    write!(said, "{}", words(&founded, &config))?;
    if is_new {
        write_config(&args.config, &config, &mut said)?;
    } else {
        writeln!(said, "kept    {}: what is in it counts, and not options", args.config.display())?;
    }
    let token = JoinToken { ca: ca.fingerprint(), id: founded.ticket.id, secret: founded.ticket.secret };
    writeln!(
        said,
        "\nStart it:                 {start}\n\
         On the first host, within an hour:\n  skein join {url} --token {token}\n\
         For each further host:    {ticket}\n\
         See what there is:        skein login {url} --ca {ca} --token-file {admin}; skein cluster status",
        start = args.start_command(),
        ticket = args.command("ticket"),
        url = config.url(),
        ca = dir.join(ClusterCa::CERTIFICATE_FILE).display(),
        admin = config.admin_token.display(),
    )?;
    skein_terminal::print(&said)
}

fn write_config(path: &Path, config: &Config, said: &mut String) -> anyhow::Result<()> {
    let text = toml::to_string(config).context("the configuration cannot be written")?;
    let text = format!("# Written by 'skein-controller init'; read when skein-controller starts.\n{text}");
    write_new(path, text.as_bytes(), 0o644)?;
    writeln!(said, "wrote   {}", path.display())?;
    Ok(())
}

/// Returns the name of the admin's token that this controller has.
fn admin_name(config: &Config) -> String {
    format!("admin-{}", config.name)
}

/// Adds this controller to a cluster that another one leads: the leader makes the admin's token.
fn added(
    config: &Config,
    identity: &ControllerIdentity,
    running: &Members,
    leader: &Member,
    said: &mut String,
) -> anyhow::Result<()> {
    if let Some(other) = running.all.get(&config.name).filter(|other| other.url != config.url()) {
        bail!(
            "a controller '{}' of this cluster runs at {}: give this one another name with --controller",
            other.name,
            other.url
        );
    }
    if config.admin_token.exists() {
        let token = std::fs::read_to_string(&config.admin_token).context("the admin's token cannot be read")?;
        let ca = identity.roots().first().context("the controller's identity names no CA")?;
        let holder = Client::new(&leader.address, CaFingerprint::of(ca), Some(token.trim().to_owned()));
        let why = || format!("the token in {} is not valid: remove it, and try again", config.admin_token.display());
        local::send(&holder, Method::GET, "/api/v1/cluster", None).with_context(why)?;
        writeln!(said, "kept    the admin's token in {}", config.admin_token.display())?;
        return Ok(());
    }
    let client = Client::of_controller(&leader.address, identity)?;
    let name = admin_name(config);
    let why = || format!("the controller that leads, '{}', does not add this one", leader.name);
    // One of an init that did not come to its end has a secret that nobody knows.
    let path = format!("/api/v1/tokens/{name}");
    let tokens: Page<Token> =
        local::send(&client, Method::GET, "/api/v1/tokens?limit=500", None).with_context(why)?.json()?;
    if tokens.items.iter().any(|token| token.name == name) {
        local::send(&client, Method::DELETE, &path, None).with_context(why)?;
    }
    let body = serde_json::to_vec(&NewToken { name, role: Role::Admin, expires_s: None })?;
    let made = local::send(&client, Method::POST, "/api/v1/tokens", Some(&body)).with_context(why)?;
    let made: TokenSecret = made.json()?;
    write_new(&config.admin_token, format!("{}\n", made.secret).as_bytes(), 0o600)?;
    writeln!(said, "made    the admin's token in {}: it is secret", config.admin_token.display())?;
    writeln!(said, "added   to the cluster that '{}' leads, in {}", leader.name, config.store)?;
    Ok(())
}

fn configuration(args: &Args) -> anyhow::Result<Config> {
    let own = || -> anyhow::Result<String> {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").context("cannot find the host's name")?;
        Ok(name.trim().to_ascii_lowercase())
    };
    let name = args.controller.clone().map_or_else(own, Ok)?;
    let addresses = if args.address.is_empty() { vec![own()?] } else { args.address.clone() };
    let store = if args.store == "sqlite" { DEFAULT_STORE.to_owned() } else { args.store.clone() };
    let config = Config {
        fencing: FencingConfig::default(),
        name,
        listen: args.listen,
        addresses,
        store,
        identity: args.identity.clone(),
        ca: Some(args.ca.clone()),
        certificate_days: default_certificate_days(),
        metrics: None,
        admin_token: args.identity.join(TOKEN_FILE),
        etcd: etcd(args)?,
    };
    let kind = config.store_kind()?;
    if kind != StoreKind::Etcd && config.etcd.is_some() {
        bail!("certificates for etcd go with a store in etcd: add --store etcd:https://HOST:2379");
    }
    names(&config)?;
    Ok(config)
}

fn etcd(args: &Args) -> anyhow::Result<Option<EtcdConfig>> {
    // The service has another working directory.
    let whole = |path: &Option<PathBuf>| path.as_ref().map(std::path::absolute).transpose();
    let Some(ca) = whole(&args.etcd_ca)? else { return Ok(None) };
    Ok(Some(EtcdConfig { ca, certificate: whole(&args.etcd_certificate)?, key: whole(&args.etcd_key)? }))
}

fn names(config: &Config) -> anyhow::Result<ControllerNames> {
    // `localhost`, so that this machine's own programs may dial it.
    let dialled = config.addresses.iter().map(String::as_str).chain(["localhost", "127.0.0.1", "::1"]);
    Ok(ControllerNames::new(&config.name, dialled)?)
}

fn preview(args: &Args, config: &Config, is_new: bool) -> String {
    let verb = |is_there: bool| if is_there { "is there already: " } else { "would be made:    " };
    let ca = config.ca.as_deref().unwrap_or(&args.ca);
    let mut said = String::new();
    let mut line = |is_there: bool, what: String| said += &format!("{}{what}\n", verb(is_there));
    line(ca.join(ClusterCa::CERTIFICATE_FILE).exists(), format!("the CA in {}", ca.display()));
    let certificate = config.identity.join(ControllerIdentity::CERTIFICATE_FILE);
    line(certificate.exists(), format!("the identity of {} in {}", config.name, config.identity.display()));
    line(config.admin_token.exists(), format!("the admin's token in {}", config.admin_token.display()));
    let is_stored = config.store.strip_prefix("sqlite:").is_some_and(|file| Path::new(file).exists());
    line(is_stored, format!("the cluster '{}' in {}", args.name, config.store));
    line(!is_new, format!("the configuration {}, to listen on {}", args.config.display(), config.listen));
    said
}

fn certificate_authority(dir: &Path, name: &str, said: &mut String) -> anyhow::Result<ClusterCa> {
    if dir.join(ClusterCa::CERTIFICATE_FILE).exists() {
        let ca = ClusterCa::load(dir)?;
        writeln!(said, "kept    the CA in {}", dir.display())?;
        return Ok(ca);
    }
    // Not the cluster's name alone: a controller may have the same, and a certificate whose subject is its issuer
    // counts as self-signed with OpenSSL.
    let ca = ClusterCa::create(&format!("{name} CA"))?;
    ca.save(dir)?;
    writeln!(said, "made    the CA in {}: back up ca.key, it is secret", dir.display())?;
    Ok(ca)
}

fn identity(config: &Config, ca: &ClusterCa, said: &mut String) -> anyhow::Result<ControllerIdentity> {
    let dir = &config.identity;
    if dir.join(ControllerIdentity::CERTIFICATE_FILE).exists() {
        let identity = load_identity(dir, Some(ca), config.certificate_time())?;
        if identity.roots().iter().all(|root| root != ca.certificate()) {
            bail!("the identity in {} is of another CA: move it away, and try again", dir.display());
        }
        writeln!(said, "kept    the identity of {} in {}", identity.name(), dir.display())?;
        return Ok(identity);
    }
    if ca.info().common_name.as_deref() == Some(&config.name) {
        bail!("the CA is called {} itself: give the controller another name with --controller", config.name);
    }
    let identity = ca.issue_controller(&names(config)?, Validity::lasting(config.certificate_time()))?;
    identity.save(dir)?;
    writeln!(said, "made    the identity of {} in {}", identity.name(), dir.display())?;
    Ok(identity)
}

/// Returns the admin's secret: what is in the file, or a new one.
fn admin_token(path: &Path, said: &mut String) -> anyhow::Result<String> {
    if path.exists() {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let secret = text.trim().to_owned();
        if secret.len() < 32 {
            bail!("{} has no token in it: remove it, and try again", path.display());
        }
        writeln!(said, "kept    the admin's token in {}", path.display())?;
        return Ok(secret);
    }
    let secret = token_secret().context("the system has no random numbers")?;
    write_new(path, format!("{secret}\n").as_bytes(), 0o600)?;
    writeln!(said, "made    the admin's token in {}: it is secret", path.display())?;
    Ok(secret)
}

fn words(founded: &Founded, config: &Config) -> String {
    let verb = if founded.is_new { "made" } else { "kept" };
    format!("{verb}    the cluster '{}' ({}) in {}\n", founded.cluster.name, founded.cluster.id, config.store)
}

fn make_dir(dir: &Path) -> anyhow::Result<()> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.with_context(|| format!("cannot make {}", dir.display()))
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    if let Some(dir) = path.parent() {
        make_dir(dir)?;
    }
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn what_is_to_be_run_next_reads_the_same_configuration() {
        let args = |more: &[&str]| Cli::parse_from([&["init"], more].concat()).args;
        let usual = args(&[]);
        assert_eq!(usual.command("ticket"), "skein-controller ticket");
        assert_eq!(usual.start_command(), "systemctl enable --now skein-controller");
        let other = args(&["--config", "/srv/c.toml"]);
        assert_eq!(other.start_command(), "skein-controller run --config /srv/c.toml");
        assert!(runs(&other).ends_with("skein-controller ticket --config /srv/c.toml\n"));
    }
}
