//! The API of the controller on this machine, with the admin's token, or of another one, as a controller.

use anyhow::{Context, bail};
use hyper::Method;
use hyper::header::LOCATION;
use skein_api::cluster::ProblemDetails;
use skein_controller::client::{Answered, Client};
use skein_controller::config::Config;
use skein_identity::{CaFingerprint, ControllerIdentity};

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
    fn the_leader_is_in_the_url_that_a_follower_names() {
        let path = "/api/v1/tickets";
        assert_eq!(leader_in("https://10.0.0.1:7443/api/v1/tickets", path), Some("10.0.0.1:7443"));
        assert_eq!(leader_in("https://[fd00::1]:7443/api/v1/tickets", path), Some("[fd00::1]:7443"));
        assert_eq!(leader_in("http://10.0.0.1:7443/api/v1/tickets", path), None);
    }
}
