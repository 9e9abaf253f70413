//! `skein login`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use skein_client::{ControllerClient, ControllerUrl, Credentials, Login};
use skein_identity::{CaFingerprint, parse_pem};
use skein_terminal::files;

use super::access::{config_dir, login_path};
use crate::commands::text::{clean_line, print, print_json};

/// How many bytes a file with a token or a certificate has at most.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Keep where the cluster's controllers are, and a token for them.
///
/// The controller is asked with the token first; only if it answers is the login kept, in a file of this user
/// ($SKEIN_LOGIN, else ~/.config/skein/login.toml), mode 0600. The token is sent to controllers of this cluster only,
/// which is known by the fingerprint of its CA.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein login https://ctl.example:7443 --token-file admin.token --ca ca.pem
  skein login ctl.example --token-file - --fingerprint AB:CD:... <admin.token
      the fingerprint is what `skein ca show` prints
  sudo skein login localhost --token-file /etc/skein/controller/admin.token
      where the controller runs; the CA is found there")]
pub struct Args {
    /// The controller's URL
    url: ControllerUrl,
    /// The file with the token (- is standard input)
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// The certificate of the cluster's CA [default: ca/ca.pem or identity/ca.pem in /etc/skein]
    #[arg(long, value_name = "FILE", conflicts_with = "fingerprint")]
    ca: Option<PathBuf>,
    /// The SHA-256 of the CA's certificate, in place of the certificate
    #[arg(long, value_name = "HEX")]
    fingerprint: Option<CaFingerprint>,
    /// The cluster's state as JSON, as of `skein cluster status`
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let ca = match (args.fingerprint, &args.ca) {
        (Some(fingerprint), _) => fingerprint,
        (None, Some(file)) => fingerprint(file)?,
        (None, None) => known()?,
    };
    let token = files::read_small(&args.token_file, FILE_BYTES_MAX)?.trim().to_owned();
    if token.is_empty() || token.contains(char::is_whitespace) {
        bail!("{} is no token: it has one word", args.token_file.display());
    }
    let credentials = Credentials::Token { ca, secret: token.clone() };
    let cluster = ControllerClient::new(vec![args.url.clone()], &credentials)?.cluster()?;
    let mut controllers = vec![args.url];
    for url in cluster.controllers.iter().filter_map(|of| of.url.parse::<ControllerUrl>().ok()) {
        if !controllers.contains(&url) && controllers.len() < skein_inventory::CONTROLLERS_MAX {
            controllers.push(url);
        }
    }
    let path = login_path()?;
    Login { controllers, ca, token }.save(&path)?;
    if args.json {
        print_json(&cluster)?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&format!("logged in to {}; kept in {}, which is secret\n", clean_line(&cluster.name), path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the fingerprint of the CA that this machine knows.
fn known() -> anyhow::Result<CaFingerprint> {
    let files = ["identity/ca.pem", "ca/ca.pem"].map(|file| config_dir().join(file));
    match files.iter().find(|file| std::fs::File::open(file).is_ok()) {
        Some(file) => fingerprint(file),
        None => bail!("the cluster's CA is not known here: give its certificate by --ca, or --fingerprint"),
    }
}

fn fingerprint(file: &Path) -> anyhow::Result<CaFingerprint> {
    let found = parse_pem(files::read_small(file, FILE_BYTES_MAX)?.as_bytes())
        .with_context(|| format!("cannot use {}", file.display()))?;
    match &found[..] {
        [ca] => Ok(CaFingerprint::of(ca)),
        _ => bail!("{} has {} certificates: say which by --fingerprint", file.display(), found.len()),
    }
}
