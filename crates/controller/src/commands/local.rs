//! The API of the controller on this machine, with the admin's token, or of another one, as a controller.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use hyper::Method;
use hyper::header::LOCATION;
use skein_api::cluster::ProblemDetails;
use skein_controller::client::{Answered, Client};
use skein_controller::config::{Config, ConfigError};
use skein_identity::{CaFingerprint, ControllerIdentity};

/// The file of a host that has joined, which names the cluster's controllers.
const CONTROLLERS: &str = "/etc/skein/controllers.toml";

/// Reads the configuration of the controller on this machine, which has to be there already.
pub fn config(path: &Path) -> anyhow::Result<Config> {
    Config::load(path).map_err(|error| match error {
        ConfigError::Read { path, source } if source.kind() == ErrorKind::NotFound => {
            no_controller(&path, std::fs::read_to_string(CONTROLLERS).ok().as_deref())
        }
        error => error.into(),
    })
}

/// Says where controllers run, as far as `joined` names them, the text of this host's file of them. A controller that
/// is made here would be of another cluster.
fn no_controller(config: &Path, joined: Option<&str>) -> anyhow::Error {
    let file = joined.and_then(|text| text.parse::<toml::Table>().ok());
    let named = file.iter().filter_map(|file| file.get("controllers")?.as_array()).flatten();
    let named: Vec<&str> = named.filter_map(toml::Value::as_str).collect();
    let there = match named.is_empty() {
        true => String::new(),
        false => format!(": this host's are at {}", named.join(", ")),
    };
    anyhow!(
        "no controller is on this machine, as there is no {}: run this command where a controller of the cluster runs\
         {there}",
        config.display()
    )
}

/// Sends a request to the controller on this machine. A refusal is an error.
pub fn ask(config: &Config, method: Method, path: &str, body: Option<&[u8]>) -> anyhow::Result<Answered> {
    let token = std::fs::read_to_string(&config.admin_token)
        .with_context(|| format!("cannot read the admin's token in {}", config.admin_token.display()))?;
    let identity = ControllerIdentity::load(&config.identity)?;
    let ca = identity.roots().first().context("the controller's identity names no CA")?;
    let client = Client::new(&config.local_address().to_string(), CaFingerprint::of(ca), Some(token.trim().to_owned()));
    send(&client, method, path, body)
}

/// Returns the address in a URL of the API, which ends with the path that was asked for.
fn leader_in<'a>(url: &'a str, path: &str) -> Option<&'a str> {
    url.strip_prefix("https://")?.strip_suffix(path)
}

/// Sends a request to a controller, or to the one that it names as the leader. A refusal is an error.
pub fn send(client: &Client, method: Method, path: &str, body: Option<&[u8]>) -> anyhow::Result<Answered> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no event loop")?;
    let mut answer = runtime.block_on(client.send(method.clone(), path, &[], body))?;
    if answer.status == 307 {
        let leader = answer.headers.get(LOCATION).and_then(|at| leader_in(at.to_str().ok()?, path));
        let leader = leader.context("another controller leads, and it is not known where: try again in a moment")?;
        answer = runtime.block_on(client.at(leader).send(method, path, &[], body))?;
    }
    if (200..300).contains(&answer.status) {
        return Ok(answer);
    }
    let Ok(problem) = answer.json::<ProblemDetails>() else {
        bail!("the controller refuses with status {}", answer.status);
    };
    match problem.cure.is_empty() {
        true => bail!("{}", problem.detail),
        false => bail!("{}: {}", problem.detail, problem.cure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_a_controller_is_told_where_they_are() {
        let told = |joined| no_controller(Path::new("/x/controller.toml"), joined).to_string();
        let joined = "# Written by skein join\ncontrollers = [\"10.0.0.9:7443\", \"ctl2\"]\n";
        assert!(told(Some(joined)).ends_with("controller of the cluster runs: this host's are at 10.0.0.9:7443, ctl2"));
        for odd in [None, Some(""), Some("nonsense"), Some("controllers = 7")] {
            let told = told(odd);
            assert!(told.contains("there is no /x/controller.toml") && told.ends_with("of the cluster runs"), "{told}");
        }
        let error = config(Path::new("/nowhere/controller.toml")).unwrap_err().to_string();
        assert!(error.starts_with("no controller is on this machine") && !error.contains("init"), "{error}");
    }

    #[test]
    fn the_leader_is_in_the_url_that_a_follower_names() {
        let path = "/api/v1/tickets";
        assert_eq!(leader_in("https://10.0.0.1:7443/api/v1/tickets", path), Some("10.0.0.1:7443"));
        assert_eq!(leader_in("https://[fd00::1]:7443/api/v1/tickets", path), Some("[fd00::1]:7443"));
        assert_eq!(leader_in("http://10.0.0.1:7443/api/v1/tickets", path), None);
    }
}
