//! `skein join`.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ArgGroup;
use skein_api::cluster::{Contact, JoinRequest};
use skein_client::{Client, ControllerClient, ControllerError, ControllerUrl, Credentials};
use skein_identity::{CaFingerprint, CertificateDer, Identity, IdentityError, IdentityRequest, JoinToken, parse_pem};
use skein_inventory::{CONTROLLERS_MAX, ControllersFile};
use skein_terminal::files;

use super::access::{DEFAULT_CONFIG_DIR, config_dir};
use crate::commands::local::LocalAgent;
use crate::commands::text::{clean_line, print, print_json, say};

/// How large a file with a token may be.
const TOKEN_FILE_BYTES_MAX: u64 = 4 << 10;
/// How long the controller may take until the host's agent reports to it.
const SEEN_WITHIN: Duration = Duration::from_secs(10);
/// The status by which a controller refuses a host that was removed.
const FORBIDDEN: u16 = 403;
/// How often the controller is asked.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

/// Make this host a member of a cluster.
///
/// Makes the host's key, which never leaves it, has it signed by the controller, writes /etc/skein/identity and
/// /etc/skein/controllers.toml, starts the agent where systemd runs, and waits until the controller hears of it. The
/// controller is known by the fingerprint in the token. If anything fails, nothing is changed; it may be run again.
///
/// A host that has an identity of the cluster's CA already, as of `skein ca issue`, keeps it, and uses no token up. A
/// host that was removed from the cluster, or whose certificate has ended, joins anew, and its key gets another
/// certificate. Of a host that the cluster still knows, that takes a token for its name (`skein-controller ticket
/// --host NAME`). VMs on the host go on. Where systemd does not run, nothing is started and nothing waited for: the
/// agent's command is printed.
#[derive(clap::Args)]
#[command(group = ArgGroup::new("secret").args(["token", "token_file"]).required(true))]
#[command(after_help = "\
Examples:
  skein join https://ctl.example:7443 --token skein-join-1.4f...
      `skein-controller ticket` prints the whole line
  skein join ctl.example --token skein-join-1.4f... --name node3
  skein join ctl.example --token-file - <node3.token
      the token is not among the process's arguments, which every user of the host can read")]
pub struct Args {
    #[command(flatten)]
    local: LocalAgent,
    /// The controller's URL
    url: ControllerUrl,
    /// The token: for one host, once, and for a while
    #[arg(long)]
    token: Option<JoinToken>,
    /// The file with the token (- is standard input), so that no list of processes shows it
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The host's name in the cluster [default: the host's own]
    #[arg(long)]
    name: Option<String>,
    /// The cluster's host as JSON, as of `skein host show --cluster`; words go to standard error
    #[arg(long)]
    json: bool,
}

/// Which host joins, and by what.
struct Joining {
    url: ControllerUrl,
    token: JoinToken,
    name: Option<String>,
}

impl Joining {
    fn of(args: &Args) -> anyhow::Result<Joining> {
        let token = match (&args.token, &args.token_file) {
            (Some(token), _) => token.clone(),
            (None, Some(file)) => {
                let text = files::read_small(file, TOKEN_FILE_BYTES_MAX)?;
                text.trim().parse().with_context(|| format!("{} has no token", file.display()))?
            }
            (None, None) => bail!("give the token by --token-file FILE"),
        };
        Ok(Joining { url: args.url.clone(), token, name: args.name.clone() })
    }
}

/// How a host becomes a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joins {
    /// It had no identity.
    First,
    /// It has its identity already.
    Already,
    /// Its certificate is not taken any more: the host was removed from the cluster, or the certificate has ended or
    /// was replaced.
    Anew,
}

impl Joins {
    fn words(self) -> &'static str {
        match self {
            Joins::First => "has an identity now",
            Joins::Already => "has its identity already",
            Joins::Anew => "has another certificate now, of the same key",
        }
    }
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let local = args.local.client();
    let json = args.json;
    let say = |text: &str| say(json, text);
    let args = Joining::of(&args)?;
    let dir = config_dir();
    let identity_dir = dir.join("identity");
    let (identity, joins) = match present(&identity_dir)? {
        Present::Ended(host) => {
            ended(&host, &args, &identity_dir)?;
            writable(&dir)?;
            (joined_anew(&args, &identity_dir, &host)?, Joins::Anew)
        }
        Present::Valid(identity) => match kept(*identity, &args, &identity_dir)? {
            identity if is_removed(&args, &identity)? => {
                writable(&dir)?;
                (joined_anew(&args, &identity_dir, identity.host())?, Joins::Anew)
            }
            identity => (identity, Joins::Already),
        },
        Present::None => {
            writable(&dir)?;
            (joined(&args, &identity_dir)?, Joins::First)
        }
    };
    let host = identity.host().to_owned();
    write_controllers(&dir.join("controllers.toml"), &args.url)?;
    let client = ControllerClient::new(vec![args.url.clone()], &Credentials::Host(Box::new(identity)))?;
    say(&format!("{host} {}: {}\n", joins.words(), identity_dir.display()))?;
    match start_agent(&local, joins)? {
        Agent::Runs => say(&seen(&client, &host, begun)?)?,
        Agent::Stale => say("start the agent anew, so that it shows the new certificate; its VMs go on meanwhile\n")?,
        Agent::Manual => say(&format!(
            "start the agent: {}\nnothing is waited for here: skein host list shows when {host} is online\n",
            agent_command(&dir)
        ))?,
    }
    match json {
        true => print_json(&client.host(&host)?)?,
        false => print("what there is: skein cluster status; skein host list\n")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The identity that the host has.
enum Present {
    None,
    Valid(Box<Identity>),
    /// Its certificate has ended, which was this host's.
    Ended(String),
}

/// Returns the identity that the host has.
fn present(dir: &Path) -> anyhow::Result<Present> {
    let files = [Identity::CERTIFICATE_FILE, Identity::KEY_FILE, "ca.pem"];
    if files.iter().any(|file| dir.join(file).exists()) {
        let why =
            || format!("{} has a part of an identity that cannot be used: move it away, or mend it", dir.display());
        return match Identity::load(dir) {
            Err(IdentityError::Expired { host, .. }) => Ok(Present::Ended(host)),
            loaded => loaded.map(Box::new).map(Present::Valid).with_context(why),
        };
    }
    Ok(Present::None)
}

/// Refuses a token of another cluster than that of a certificate that has ended.
fn ended(host: &str, args: &Joining, dir: &Path) -> anyhow::Result<()> {
    let roots = parse_pem(&std::fs::read(dir.join(Identity::CA_FILE))?)?;
    is_of_cluster(&roots, host, args, dir)?;
    is_named(host, args)
}

/// Returns an identity that the host has already, if it is of the token's cluster.
fn kept(identity: Identity, args: &Joining, dir: &Path) -> anyhow::Result<Identity> {
    is_of_cluster(identity.roots(), identity.host(), args, dir)?;
    is_named(identity.host(), args)?;
    Ok(identity)
}

fn is_of_cluster(roots: &[CertificateDer<'_>], host: &str, args: &Joining, dir: &Path) -> anyhow::Result<()> {
    if !roots.iter().any(|root| CaFingerprint::of(root) == args.token.ca) {
        bail!(
            "this host is '{host}' of another cluster, and stays so: to leave that one, drain the host there, stop its \
             agent, move {} away, and try again",
            dir.display()
        );
    }
    Ok(())
}

fn is_named(host: &str, args: &Joining) -> anyhow::Result<()> {
    if let Some(name) = args.name.as_deref().filter(|name| !name.eq_ignore_ascii_case(host)) {
        bail!("this host is '{host}' of the cluster already, and not '{name}': leave --name out");
    }
    Ok(())
}

/// Returns whether the controller refuses the host's certificate, as the host was removed.
///
/// # Errors
///
/// No controller answers there, or another cluster's: nothing of the host may change.
fn is_removed(args: &Joining, identity: &Identity) -> anyhow::Result<bool> {
    let credentials = Credentials::Host(Box::new(identity.clone()));
    match ControllerClient::new(vec![args.url.clone()], &credentials)?.host(identity.host()) {
        Err(ControllerError::Refused(problem)) => Ok(problem.status == FORBIDDEN),
        // A host of `skein ca issue` is known when its agent is there.
        Ok(_) => Ok(false),
        Err(error) => Err(error).context("nothing was changed"),
    }
}

/// Has the key that is there signed again, and keeps the certificate in place of the one that is refused.
fn joined_anew(args: &Joining, dir: &Path, name: &str) -> anyhow::Result<Identity> {
    let identity = signed(args, IdentityRequest::with_key_of(dir, name)?)?;
    identity.save_beside_key(dir).context("the token is used up; get a new one by `skein-controller ticket`")?;
    Ok(identity)
}

/// Fails before the token is used up if the files could not be written.
fn writable(dir: &Path) -> anyhow::Result<()> {
    let probe = dir.join(format!(".join.{}", std::process::id()));
    let tried = DirBuilder::new().recursive(true).mode(0o755).create(dir).and_then(|()| File::create_new(&probe));
    let _ = std::fs::remove_file(&probe);
    tried.map(drop).with_context(|| format!("cannot write to {}: run it as root", dir.display()))
}

/// Has a new key signed, and keeps the identity.
fn joined(args: &Joining, dir: &Path) -> anyhow::Result<Identity> {
    let own = || -> anyhow::Result<String> {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").context("cannot find the host's name")?;
        Ok(name.trim().to_owned())
    };
    let name = args.name.clone().map_or_else(own, Ok)?;
    let request = IdentityRequest::new(&name).context("the host's name does not do: give another by --name")?;
    let identity = signed(args, request)?;
    identity.save(dir).context("the token is used up; get a new one by `skein-controller ticket`")?;
    Ok(identity)
}

/// Has a key signed by the controller.
fn signed(args: &Joining, request: IdentityRequest) -> anyhow::Result<Identity> {
    let ask = JoinRequest {
        host: request.name().to_owned(),
        token: args.token.to_string(),
        signing_request: request.pem()?,
        boot_id: skein_agent::boot_id(),
    };
    let credentials = Credentials::Nothing { ca: args.token.ca };
    let answer = ControllerClient::new(vec![args.url.clone()], &credentials)?.join(&ask);
    let answer = answer.context("the host did not join, and nothing was changed")?;
    let identity = request.identity(&answer.ca, &answer.certificate)?;
    if !identity.roots().iter().any(|root| CaFingerprint::of(root) == args.token.ca) {
        bail!("the controller's answer names another CA than the token: nothing was changed");
    }
    Ok(identity)
}

/// Adds a controller to the file that the agent reads, which sees the change by itself.
fn write_controllers(path: &Path, url: &ControllerUrl) -> anyhow::Result<()> {
    let file = path.display().to_string();
    let mut addresses: Vec<String> = match std::fs::read_to_string(path) {
        Ok(text) => ControllersFile::parse(&text, &file)?.addresses.iter().map(ToString::to_string).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {file}")),
    };
    let known = |address: &String| address.parse::<ControllerUrl>().is_ok_and(|known| known == *url);
    if addresses.iter().any(known) {
        return Ok(());
    }
    if addresses.len() >= CONTROLLERS_MAX {
        bail!("{file} names {CONTROLLERS_MAX} controllers already: take one out");
    }
    addresses.push(url.address());
    let list = addresses.iter().map(|address| format!("\"{address}\"")).collect::<Vec<_>>().join(", ");
    let text = format!("# Written by `skein join`; the agent sees changes by itself.\ncontrollers = [{list}]\n");
    let part: PathBuf = path.with_extension(format!("{}.part", std::process::id()));
    let write = || {
        let mut out = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&part)?;
        out.write_all(text.as_bytes())?;
        out.sync_all()?;
        std::fs::rename(&part, path)
    };
    let done = write();
    if done.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    done.with_context(|| format!("cannot write {file}: run the same command again"))
}

/// Returns the command that starts the agent with a directory of configuration.
fn agent_command(dir: &Path) -> String {
    let shown = dir.display();
    match dir == Path::new(DEFAULT_CONFIG_DIR) {
        true => "skein agent".to_owned(),
        false => format!("skein agent --identity {shown}/identity --hosts {shown}/hosts.toml"),
    }
}

/// How the agent is started.
enum Agent {
    /// It runs.
    Runs,
    /// It runs, with the certificate of before.
    Stale,
    /// Somebody has to start it.
    Manual,
}

/// Starts the agent where systemd runs, now and at each boot. One that runs already reads the file of controllers.
/// An agent reads its certificate when it starts, so after another certificate it is started anew.
fn start_agent(client: &Client, joins: Joins) -> anyhow::Result<Agent> {
    let runs = client.connect().is_ok();
    let unit =
        ["/etc/systemd/system", "/usr/lib/systemd/system", "/usr/local/lib/systemd/system", "/lib/systemd/system"]
            .iter()
            .any(|dir| Path::new(dir).join("skein-agent.service").exists());
    if !Path::new("/run/systemd/system").exists() || !unit {
        return Ok(match (runs, joins) {
            (true, Joins::Anew) => Agent::Stale,
            (true, Joins::First | Joins::Already) => Agent::Runs,
            (false, _) => Agent::Manual,
        });
    }
    if runs && joins == Joins::Anew {
        systemctl(&["restart", "skein-agent"])?;
    }
    systemctl(&["enable", "--now", "skein-agent"])?;
    Ok(Agent::Runs)
}

fn systemctl(args: &[&str]) -> anyhow::Result<()> {
    match Command::new("systemctl").args(args).status().context("cannot run systemctl")? {
        status if status.success() => Ok(()),
        _ => bail!("the host has joined, and its agent does not start: see journalctl -u skein-agent"),
    }
}

/// Waits until the controller hears of the agent. Returns how long that took in words.
fn seen(client: &ControllerClient, host: &str, begun: Instant) -> anyhow::Result<String> {
    let end = Instant::now() + SEEN_WITHIN;
    loop {
        let why = match client.host(host) {
            Ok(found) if found.contact == Contact::Online => {
                let took = skein_units::duration(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
                return Ok(format!("{} is online, {took} after this command began\n", clean_line(host)));
            }
            Ok(_) => "its agent has not reported".to_owned(),
            Err(error) => error.to_string(),
        };
        if Instant::now() >= end {
            bail!(
                "{host} has joined, and the controller does not see it yet ({why}): look at the agent's log \
                 (journalctl -u skein-agent), and whether an agent runs that was started with another configuration"
            );
        }
        std::thread::sleep(LOOK_PERIOD);
    }
}
