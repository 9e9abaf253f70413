//! `skein ca`: a cluster's CA, and the identities of its hosts.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, bail};
use serde::Serialize;
use skein_identity::{
    CertificateDer, CertificateInfo, ClusterCa, DEFAULT_CA_DIR, DEFAULT_IDENTITY_DIR, DEFAULT_VALIDITY_DAYS, Identity,
    IdentityRequest, RENEW_DAYS_BEFORE, SigningRequest, Validity, WriteError, parse_pem,
};

/// The request for a certificate in an identity's directory.
const REQUEST_FILE: &str = "host.csr";

/// Make a cluster's CA; issue, sign, renew and show the identities of its hosts.
///
/// Agents and tunnels talk only to hosts of their own cluster: to those whose identity is signed by the same CA. Keep
/// the CA on one machine that is well looked after; hosts need their own identity only.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein ca init --name rack7        once, where the CA is to live
  skein ca issue node1              once a host; says what to copy where
  skein ca request node1            instead of issue: on the host, whose key never leaves it
  skein ca sign host.csr --host node1        and this where the CA lives
  skein ca renew node1              once a year; only host.pem has to be copied
  skein ca show                     names, validity, days left")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
    /// Where the CA lives: ca.pem, ca.key, and what it issued in hosts/HOST
    #[arg(long, global = true, value_name = "DIR", default_value = DEFAULT_CA_DIR)]
    dir: PathBuf,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Make the CA of a new cluster, valid for ten years
    ///
    /// Writes ca.pem (the certificate, no secret) and ca.key (mode 0600: whoever has it can make members of the
    /// cluster; back it up in a safe place). Never overwrites a CA.
    #[command(after_help = "\
Examples:
  skein ca init --name rack7
  skein ca init --dir ./ca          without root, for a trial")]
    Init {
        /// What people call the cluster; stands in the CA's certificate
        #[arg(long, default_value = "skein")]
        name: String,
    },
    /// Issue an identity to a host
    ///
    /// Writes ca.pem, host.pem and host.key (mode 0600), which the host needs in /etc/skein/identity. With --out the CA
    /// keeps a copy of host.pem, no secret, so that it can show and renew it.
    #[command(after_help = "\
Examples:
  skein ca issue node1.example.org
  skein ca issue node1 --days 90 --out ./node1")]
    Issue {
        /// The host's name, as logs are to show it; not an address
        host: String,
        /// Where to write the three files [default: hosts/HOST beside the CA]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// How long it is valid, in days; never longer than the CA
        #[arg(long, default_value_t = DEFAULT_VALIDITY_DAYS, value_parser = clap::value_parser!(u32).range(1..=3652))]
        days: u32,
    },
    /// Make a host's key on the host itself, and a request that the CA signs
    ///
    /// Writes host.key (mode 0600), which never leaves the host, and host.csr, which goes to where the CA is. There
    /// `skein ca sign` signs it. A key that is there already is taken. Works without the CA.
    #[command(after_help = "\
Examples:
  skein ca request node1.example.org
  skein ca request node1 --out ./node1")]
    Request {
        /// The host's name, as logs are to show it; not an address
        host: String,
        /// Where to write the files
        #[arg(long, value_name = "DIR", default_value = DEFAULT_IDENTITY_DIR)]
        out: PathBuf,
    },
    /// Sign the request of a host that made its key itself
    ///
    /// Writes host.pem, which is no secret, and belongs on the host with the CA's ca.pem. The CA keeps a copy, so that
    /// it can show and renew it.
    #[command(after_help = "\
Examples:
  skein ca sign host.csr --host node1
  skein ca sign host.csr --host node1 --days 90 --out ./node1")]
    Sign {
        /// The request, as `skein ca request` wrote it
        #[arg(value_name = "FILE")]
        request: PathBuf,
        /// The host whose request it has to be
        #[arg(long)]
        host: String,
        /// Where to write ca.pem and host.pem [default: hosts/HOST beside the CA]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// How long it is valid, in days; never longer than the CA
        #[arg(long, default_value_t = DEFAULT_VALIDITY_DAYS, value_parser = clap::value_parser!(u32).range(1..=3652))]
        days: u32,
    },
    /// Renew a host's identity: same name, same key, new dates
    ///
    /// Only host.pem changes, and it is no secret. To change the key as well, issue a new identity.
    #[command(after_help = "\
Examples:
  skein ca renew node1
  skein ca renew ./node1 --days 90  an identity in a directory of its own")]
    Renew {
        /// The host's name, or the directory of its identity (with a '/')
        #[arg(value_name = "HOST|DIR")]
        which: String,
        /// How long it is valid from now on, in days; never longer than the CA
        #[arg(long, default_value_t = DEFAULT_VALIDITY_DAYS, value_parser = clap::value_parser!(u32).range(1..=3652))]
        days: u32,
    },
    /// Show certificates: names, validity, days left, fingerprint
    ///
    /// Without an argument: this machine's CA and what it issued, and this machine's own identity. Warns of what ends
    /// in less than 30 days, and of an identity that peers would refuse.
    #[command(after_help = "\
Examples:
  skein ca show
  skein ca show /etc/skein/identity
  skein ca show host.pem --json")]
    Show {
        /// A certificate's file, an identity's directory or a CA's
        #[arg(value_name = "FILE|DIR")]
        path: Option<PathBuf>,
        /// A JSON array with an object a certificate
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let text = match args.command {
        Command::Init { name } => init(&args.dir, &name)?,
        Command::Issue { host, out, days } => issue(&args.dir, &host, out, days)?,
        Command::Request { host, out } => request(&host, &out)?,
        Command::Sign { request, host, out, days } => sign(&args.dir, &request, &host, out, days)?,
        Command::Renew { which, days } => renew(&args.dir, &which, days)?,
        Command::Show { path, json } => show(&args.dir, path, json)?,
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        // A closed pipe is no failure, as in `skein ca show | head`.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("cannot print"),
        _ => Ok(()),
    }
}

fn init(dir: &Path, name: &str) -> anyhow::Result<String> {
    let ca = ClusterCa::create(name)?;
    ca.save(dir)?;
    let at = option(dir);
    Ok(format!(
        "Made the CA '{name}' in {dir}, valid until {end}:\n\
         \x20 ca.pem   its certificate; every host gets a copy\n\
         \x20 ca.key   its key; never leaves this machine, except into your backup\n\
         Next, for each host:\n\
         \x20 skein ca issue HOST{at}\n",
        dir = dir.display(),
        end = ca.info().not_after.strftime("%F"),
    ))
}

fn issue(ca_dir: &Path, host: &str, out: Option<PathBuf>, days: u32) -> anyhow::Result<String> {
    let identity = ClusterCa::load(ca_dir)?.issue(host, Validity::days(days))?;
    let host = identity.host();
    let dir = out.unwrap_or_else(|| hosts_dir(ca_dir).join(host));
    identity.save(&dir).map_err(|error| {
        let exists = matches!(error, WriteError::Exists(_));
        let error = anyhow::Error::new(error);
        if exists {
            error.context(format!("to renew an identity use `skein ca renew {host}`; for a second one give --out"))
        } else {
            error
        }
    })?;
    let kept = keep(ca_dir, &dir, host, &identity.chain()[0])
        .with_context(|| format!("{host} was issued in {}, but the CA cannot keep a copy", dir.display()))?;
    let renew = if kept { host.to_owned() } else { quoted(&dir.join("")) };
    Ok(format!(
        "Issued {host}, {validity}, in {shown}:\n\
         \x20 ca.pem host.pem host.key\n\
         Copy them to {DEFAULT_IDENTITY_DIR} on {host}; host.key is secret:\n\
         \x20 ssh root@{host} install -d -m 700 {DEFAULT_IDENTITY_DIR}\n\
         \x20 scp -p {from}/ca.pem {from}/host.pem {from}/host.key root@{host}:{DEFAULT_IDENTITY_DIR}/\n\
         Renew it before it ends:\n\
         \x20 skein ca renew {renew}{at}\n",
        validity = validity(&identity.info()),
        at = option(ca_dir),
        shown = dir.display(),
        from = quoted(&dir),
    ))
}

/// Gives the CA a copy of a certificate whose identity was written elsewhere. Returns `false` if the CA holds another
/// whole identity of that host, with its key, which stays as it is.
fn keep(ca_dir: &Path, dir: &Path, host: &str, certificate: &CertificateDer<'_>) -> Result<bool, WriteError> {
    let own = hosts_dir(ca_dir).join(host);
    if own.join(Identity::KEY_FILE).exists() {
        return Ok(own == dir);
    }
    Identity::save_certificate(&own, certificate).map(|()| true)
}

fn request(host: &str, dir: &Path) -> anyhow::Result<String> {
    let request = if dir.join(Identity::KEY_FILE).exists() {
        IdentityRequest::with_key_of(dir, host)?
    } else {
        let request = IdentityRequest::new(host)?;
        request.save_key(dir)?;
        request
    };
    let file = dir.join(REQUEST_FILE);
    std::fs::write(&file, request.pem()?).with_context(|| format!("cannot write {}", file.display()))?;
    let host = request.name();
    Ok(format!(
        "Made a request for {host} in {shown}; the key stays in {dir}.\n\
         Take it to where the cluster's CA is, and there:\n\
         \x20 skein ca sign {REQUEST_FILE} --host {host}\n\
         Then copy ca.pem and host.pem from there to {dir}.\n",
        shown = file.display(),
        dir = dir.display(),
    ))
}

fn sign(ca_dir: &Path, file: &Path, host: &str, out: Option<PathBuf>, days: u32) -> anyhow::Result<String> {
    let ca = ClusterCa::load(ca_dir)?;
    let text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let request = SigningRequest::parse(&text).with_context(|| format!("cannot sign {}", file.display()))?;
    let certificate = ca
        .sign_host(&request, host, Validity::days(days))
        .with_context(|| format!("cannot sign {}", file.display()))?;
    let host = request.name();
    let own = hosts_dir(ca_dir).join(host);
    let dir = out.unwrap_or_else(|| own.clone());
    if dir.join(Identity::KEY_FILE).exists() {
        bail!("{} has another identity with its key: give another --out", dir.display());
    }
    Identity::save_certificate(&dir, &certificate)?;
    let ca_file = if dir == own {
        ca_dir.join(ClusterCa::CERTIFICATE_FILE)
    } else {
        let copy = dir.join(Identity::CA_FILE);
        std::fs::write(&copy, ca.certificate_pem()).with_context(|| format!("cannot write {}", copy.display()))?;
        copy
    };
    let kept = keep(ca_dir, &dir, host, &certificate)
        .with_context(|| format!("{host} was signed in {}, but the CA cannot keep a copy", dir.display()))?;
    let renew = if kept { host.to_owned() } else { quoted(&dir.join("")) };
    Ok(format!(
        "Signed {host}, {validity}, in {shown}.\n\
         Copy the two files to where its key is, {DEFAULT_IDENTITY_DIR} on {host}; neither is secret:\n\
         \x20 scp {ca} {from} root@{host}:{DEFAULT_IDENTITY_DIR}/\n\
         Renew it before it ends:\n\
         \x20 skein ca renew {renew}{at}\n",
        validity = validity(&CertificateInfo::parse(&certificate)?),
        shown = dir.display(),
        ca = quoted(&ca_file),
        from = quoted(&dir.join(Identity::CERTIFICATE_FILE)),
        at = option(ca_dir),
    ))
}

fn renew(ca_dir: &Path, which: &str, days: u32) -> anyhow::Result<String> {
    let dir = if which.contains('/') { PathBuf::from(which) } else { hosts_dir(ca_dir).join(which.to_lowercase()) };
    let file = dir.join(Identity::CERTIFICATE_FILE);
    let ca = ClusterCa::load(ca_dir)?;
    let pem = std::fs::read(&file).with_context(|| {
        format!("no identity to renew: cannot read {} (`skein ca issue HOST` makes new ones)", file.display())
    })?;
    let earlier = parse_pem(&pem).with_context(|| format!("cannot renew {}", file.display()))?.swap_remove(0);
    let certificate =
        ca.renew(&earlier, Validity::days(days)).with_context(|| format!("cannot renew {}", file.display()))?;
    Identity::save_certificate(&dir, &certificate)?;
    let info = CertificateInfo::parse(&certificate)?;
    let host = info.host().unwrap_or(which);
    // Updates the CA's copy of what was issued elsewhere.
    let own = hosts_dir(ca_dir).join(host);
    let copy = std::fs::read(own.join(Identity::CERTIFICATE_FILE)).ok().and_then(|pem| parse_pem(&pem).ok());
    if copy.is_some_and(|copy| copy[0] == earlier) {
        Identity::save_certificate(&own, &certificate)?;
    }
    Ok(format!(
        "Renewed {host}, {validity}, in {shown}.\n\
         The key is the same: copy only this file to {host}, then restart its agent:\n\
         \x20 scp {from} root@{host}:{DEFAULT_IDENTITY_DIR}/\n",
        validity = validity(&info),
        shown = file.display(),
        from = quoted(&file),
    ))
}

/// A certificate, as `show` prints it. The field names are those of the JSON.
#[derive(Serialize)]
struct Shown {
    path: PathBuf,
    kind: Kind,
    subject: String,
    issuer: String,
    names: Vec<String>,
    not_before: String,
    not_after: String,
    days_left: i64,
    fingerprint_sha256: String,
    warning: Option<String>,
}

#[derive(Serialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Ca,
    Host,
    Controller,
    Other,
}

fn show(ca_dir: &Path, path: Option<PathBuf>, json: bool) -> anyhow::Result<String> {
    let mut all = Vec::new();
    match path {
        Some(path) if path.is_dir() => show_dir(&path, &mut all)?,
        Some(path) => show_file(&path, &mut all)?,
        None => {
            for dir in [ca_dir, Path::new(DEFAULT_IDENTITY_DIR)] {
                if dir.is_dir() {
                    show_dir(dir, &mut all)?;
                }
            }
            if all.is_empty() {
                bail!(
                    "there is neither a CA in {} nor an identity in {DEFAULT_IDENTITY_DIR}: give a file or a directory",
                    ca_dir.display()
                );
            }
        }
    }
    if json {
        return Ok(serde_json::to_string_pretty(&all)? + "\n");
    }
    let mut text = String::new();
    for shown in all {
        let kind = match shown.kind {
            Kind::Ca => "a CA",
            Kind::Host => "a host's identity",
            Kind::Controller => "a controller's identity",
            Kind::Other => "no skein certificate",
        };
        writeln!(text, "{} ({kind})", shown.path.display())?;
        writeln!(text, "  subject      {}", shown.subject)?;
        if shown.issuer != shown.subject {
            writeln!(text, "  signed by    {}", shown.issuer)?;
        }
        if !shown.names.is_empty() {
            writeln!(text, "  names        {}", shown.names.join(", "))?;
        }
        writeln!(text, "  valid        {} to {}", shown.not_before, shown.not_after)?;
        writeln!(text, "  days left    {}", shown.days_left)?;
        writeln!(text, "  fingerprint  {}", shown.fingerprint_sha256)?;
        if let Some(warning) = &shown.warning {
            writeln!(text, "  WARNING      {warning}")?;
        }
    }
    Ok(text)
}

/// Adds an identity's directory, or a CA's with all that it issued.
fn show_dir(dir: &Path, all: &mut Vec<Shown>) -> anyhow::Result<()> {
    let host = dir.join(Identity::CERTIFICATE_FILE);
    let ca = dir.join(Identity::CA_FILE);
    let before = all.len();
    if host.exists() {
        show_file(&host, all)?;
        // Reports what only shows when the three files are read together; dates are warned of already. A certificate
        // alone is the CA's copy of what was issued elsewhere.
        let alone = !ca.exists() && !dir.join(Identity::KEY_FILE).exists();
        if let (Some(shown), Err(error)) = (all.get_mut(before), Identity::load(dir))
            && shown.warning.is_none()
            && !alone
        {
            shown.warning = Some(format!("{:#}", anyhow::Error::new(error)));
        }
    }
    if ca.exists() {
        show_file(&ca, all)?;
    }
    if let Ok(hosts) = std::fs::read_dir(hosts_dir(dir)) {
        let mut hosts = hosts.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
        hosts.sort();
        for host in hosts.iter().map(|dir| dir.join(Identity::CERTIFICATE_FILE)).filter(|file| file.exists()) {
            show_file(&host, all)?;
        }
    }
    if all.len() == before {
        bail!("{} holds neither an identity (host.pem) nor a CA (ca.pem)", dir.display());
    }
    Ok(())
}

fn show_file(path: &Path, all: &mut Vec<Shown>) -> anyhow::Result<()> {
    let cannot = || format!("cannot show {}", path.display());
    let pem = std::fs::read(path).with_context(cannot)?;
    for certificate in parse_pem(&pem).with_context(cannot)? {
        all.push(shown(path, CertificateInfo::parse(&certificate).with_context(cannot)?, SystemTime::now()));
    }
    Ok(())
}

fn shown(path: &Path, info: CertificateInfo, now: SystemTime) -> Shown {
    let kind = match info.host() {
        _ if info.is_ca => Kind::Ca,
        _ if info.controller().is_some() => Kind::Controller,
        Some(_) if info.is_member() => Kind::Host,
        _ => Kind::Other,
    };
    let days_left = info.days_left(now);
    let remedy = match (kind, info.host()) {
        (Kind::Ca, _) => "make a new one with `skein ca init` and issue new identities".to_owned(),
        (Kind::Host, Some(host)) => format!("renew it with `skein ca renew {host}`"),
        (Kind::Controller, _) => "have the CA sign a new one".to_owned(),
        _ => "it is not of skein's making".to_owned(),
    };
    let warning = if SystemTime::from(info.not_before) > now {
        Some("not valid yet: is this machine's clock right?".to_owned())
    } else if days_left < 0 {
        Some(format!("expired: {remedy}"))
    } else if days_left < RENEW_DAYS_BEFORE {
        Some(format!("ends in less than {} days: {remedy}", days_left + 1))
    } else {
        None
    };
    Shown {
        path: path.to_owned(),
        kind,
        days_left,
        warning,
        not_before: info.not_before.to_string(),
        not_after: info.not_after.to_string(),
        subject: info.subject,
        issuer: info.issuer,
        names: info.names.into_iter().chain(info.addresses.iter().map(ToString::to_string)).collect(),
        fingerprint_sha256: info.fingerprint,
    }
}

fn hosts_dir(ca_dir: &Path) -> PathBuf {
    ca_dir.join("hosts")
}

fn validity(info: &CertificateInfo) -> String {
    format!("valid until {}", info.not_after.strftime("%F"))
}

/// Returns the `--dir` to repeat in a command that is shown, if it is not the default.
fn option(dir: &Path) -> String {
    if dir == Path::new(DEFAULT_CA_DIR) { String::new() } else { format!(" --dir {}", quoted(dir)) }
}

/// Returns a path quoted for a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn warns_in_time() {
        let day = Duration::from_secs(24 * 3600);
        let now = SystemTime::now();
        let identity = ClusterCa::create("lab").unwrap().issue("node1", Validity::days(365)).unwrap();
        let warning = |at| shown(Path::new("host.pem"), (*identity.info()).clone(), at).warning;
        assert_eq!(warning(now), None);
        assert_eq!(warning(now + 334 * day), None);
        let soon = warning(now + 336 * day).unwrap();
        assert!(soon.contains("less than 30 days") || soon.contains("less than 29 days"), "{soon}");
        assert!(soon.contains("skein ca renew node1"), "{soon}");
        assert!(warning(now + 366 * day).unwrap().starts_with("expired"));
        assert!(warning(now - day).unwrap().contains("clock"));
    }

    #[test]
    fn paths_are_quoted_for_a_shell() {
        assert_eq!(quoted(Path::new("/etc/skein/ca")), "/etc/skein/ca");
        assert_eq!(quoted(Path::new("it's here")), "'it'\\''s here'");
    }
}
