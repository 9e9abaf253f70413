//! How commands reach the cluster's controllers: by an option, a login, or as a host that has joined.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use skein_client::{ControllerClient, ControllerError, ControllerUrl, Credentials, Login};
use skein_identity::Identity;
use skein_inventory::ControllersFile;

use super::output::Output;
use crate::commands::local::LocalAgent;

/// The directory of a host's configuration unless $SKEIN_CONFIG_DIR names another.
pub const DEFAULT_CONFIG_DIR: &str = "/etc/skein";

/// How long controllers may take where the agent's view does as well.
const FALLBACK_WITHIN: Duration = Duration::from_secs(3);

/// Which controller is asked.
#[derive(clap::Args, Clone)]
pub struct ControllerArgs {
    /// A controller's URL [default: those of `skein login`, or of a host that has joined]
    #[arg(long, global = true, value_name = "URL", env = "SKEIN_CONTROLLER")]
    pub controller: Option<ControllerUrl>,
}

/// Whether a command asks this host's agent or the cluster's controllers.
#[derive(clap::Args, Clone)]
pub struct ViewArgs {
    #[command(flatten)]
    pub controllers: ControllerArgs,
    /// Ask this host's agent, though a controller is known
    #[arg(long, global = true, conflicts_with = "cluster")]
    pub local: bool,
    /// Ask the controller; --json is of the agent without it
    #[arg(long, global = true)]
    pub cluster: bool,
}

impl ViewArgs {
    /// Returns a client of the controllers, for a command that no agent answers.
    ///
    /// # Errors
    ///
    /// The agent's view was asked for; no controller is configured, or a file cannot be used.
    pub fn client(&self) -> anyhow::Result<ControllerClient> {
        ensure!(!self.local, "--local is for what this host's agent answers: this is for a controller");
        self.controllers.client()
    }

    /// Returns whether the cluster's view was asked for.
    pub fn names_cluster(&self) -> bool {
        self.cluster || self.controllers.controller.is_some() && !self.local
    }

    /// Returns whether a controller is asked before this host's agent: if the cluster's view was asked for, or where
    /// there is no agent, as on a desk.
    ///
    /// # Errors
    ///
    /// A file that says where the controllers are cannot be used.
    pub fn asks_cluster(&self, agent: &LocalAgent) -> anyhow::Result<bool> {
        let is_desk = || Ok::<_, anyhow::Error>(!agent.socket.exists() && self.controllers.access()?.is_some());
        Ok(self.names_cluster() || !self.local && is_desk()?)
    }

    /// Shows the cluster with --cluster; in words also where controllers are known and no agent was named. Otherwise,
    /// or if the controllers are out of reach and nobody asked for them, the agent's view is shown. What programs read
    /// stays the agent's unless they ask for the cluster's.
    ///
    /// # Errors
    ///
    /// No controller is configured, and --cluster asks for one; or a file cannot be used; or the view's own.
    pub fn show(
        &self,
        agent: &LocalAgent,
        output: Output,
        cluster: impl FnOnce(&ControllerClient) -> anyhow::Result<()>,
        local: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if self.names_cluster() {
            return cluster(&self.controllers.client()?);
        }
        if self.local || output == Output::Json {
            return local();
        }
        if agent.socket != Path::new(skein_api::DEFAULT_SOCKET) {
            let is_by_environment = std::env::var_os("SKEIN_SOCKET").is_some_and(|path| *path == *agent.socket);
            if is_by_environment && self.controllers.access()?.is_some() {
                eprintln!(
                    "skein: $SKEIN_SOCKET names this host's agent, whose view follows; --cluster is the cluster's"
                );
            }
            return local();
        }
        let Some(access) = self.controllers.access()? else { return local() };
        match cluster(&ControllerClient::hasty(access.urls, &access.credentials, FALLBACK_WITHIN)?) {
            Err(error) if error.downcast_ref::<ControllerError>().is_some_and(ControllerError::may_pass) => {
                eprintln!("skein: {error}; what follows is of this host's agent");
                local()
            }
            // As of a host that was removed from the cluster.
            Err(error) if is_refused(&error) && agent.socket.exists() => {
                Err(error.context("the controllers show nothing to this host (--local shows what its agent sees)"))
            }
            shown => shown,
        }
    }
}

/// Returns whether a controller does not take who asks.
fn is_refused(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<ControllerError>() {
        Some(ControllerError::Refused(problem)) => matches!(problem.status, 401 | 403),
        _ => false,
    }
}

/// Where the controllers are, and what they are shown.
pub struct Access {
    /// The controllers, the first to be tried first.
    pub urls: Vec<ControllerUrl>,
    /// What they are shown.
    pub credentials: Credentials,
}

impl ControllerArgs {
    /// Returns how the controllers are reached. `None`: no controller is configured.
    ///
    /// # Errors
    ///
    /// A file is there and cannot be used.
    pub fn access(&self) -> anyhow::Result<Option<Access>> {
        let found = match login()? {
            Some(login) => {
                let credentials = Credentials::Token { ca: login.ca, secret: login.token };
                Some(Access { urls: login.controllers, credentials })
            }
            None => joined(&config_dir(), self.controller.is_some())?,
        };
        Ok(match (found, &self.controller) {
            (Some(found), Some(url)) => Some(Access { urls: vec![url.clone()], ..found }),
            (Some(found), None) if found.urls.is_empty() => None,
            (None, Some(_)) => bail!("nothing is known by which that controller can be trusted: run `skein login`"),
            (found, None) => found,
        })
    }

    /// Returns a client of the controllers.
    ///
    /// # Errors
    ///
    /// No controller is configured, or a file cannot be used.
    pub fn client(&self) -> anyhow::Result<ControllerClient> {
        let access = self.needed()?;
        Ok(ControllerClient::new(access.urls, &access.credentials)?)
    }

    /// Returns a client that gives up `within` a time.
    ///
    /// # Errors
    ///
    /// As [`ControllerArgs::client`].
    pub fn hasty_client(&self, within: Duration) -> anyhow::Result<ControllerClient> {
        let access = self.needed()?;
        Ok(ControllerClient::hasty(access.urls, &access.credentials, within)?)
    }

    fn needed(&self) -> anyhow::Result<Access> {
        self.access()?
            .context("no controller is known here: run `skein login URL --token-file FILE`, or `skein join` on a host")
    }
}

/// Returns the directory of this host's configuration.
pub fn config_dir() -> PathBuf {
    std::env::var_os("SKEIN_CONFIG_DIR").map_or_else(|| DEFAULT_CONFIG_DIR.into(), PathBuf::from)
}

/// Returns whether this host's agent asks the cluster's controllers before a person starts or moves a VM.
pub fn agent_asks_controllers() -> bool {
    let file = config_dir().join("controllers.toml");
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    ControllersFile::parse(&text, &file.display().to_string()).is_ok_and(|named| !named.addresses.is_empty())
}

/// Returns where this user's login is kept.
///
/// # Errors
///
/// The user has no home.
pub fn login_path() -> anyhow::Result<PathBuf> {
    user_login().context("this user has no home directory: name a file with SKEIN_LOGIN")
}

fn user_login() -> Option<PathBuf> {
    let dir = |name: &str| std::env::var_os(name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    dir("SKEIN_LOGIN").or_else(|| {
        let config = dir("XDG_CONFIG_HOME").or_else(|| dir("HOME").map(|home| home.join(".config")));
        config.map(|config| config.join("skein/login.toml"))
    })
}

fn login() -> anyhow::Result<Option<Login>> {
    if let Some(login) = user_login().map(|path| Login::load(&path)).transpose()?.flatten() {
        return Ok(Some(login));
    }
    match Login::load(&config_dir().join("login.toml")) {
        // It is root's.
        Err(skein_client::LoginError::Read { source, .. }) if source.kind() == std::io::ErrorKind::PermissionDenied => {
            Ok(None)
        }
        found => Ok(found?),
    }
}

/// Returns how a host that has joined reaches the controllers. What another user may not read counts as absent, unless
/// it is `needed`.
fn joined(dir: &Path, needed: bool) -> anyhow::Result<Option<Access>> {
    let file = dir.join("controllers.toml");
    let urls = match std::fs::read_to_string(&file) {
        Ok(text) => urls(&ControllersFile::parse(&text, &file.display().to_string())?)?,
        Err(_) if needed => Vec::new(),
        Err(_) => return Ok(None),
    };
    let identity = dir.join("identity");
    if std::fs::File::open(identity.join(Identity::KEY_FILE)).is_err() {
        return Ok(None);
    }
    Ok(Some(Access { urls, credentials: Credentials::Host(Box::new(Identity::load(&identity)?)) }))
}

fn urls(file: &ControllersFile) -> anyhow::Result<Vec<ControllerUrl>> {
    Ok(file.addresses.iter().map(|address| address.to_string().parse()).collect::<Result<_, _>>()?)
}
