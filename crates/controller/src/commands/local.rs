//! The API of the controller on this machine, with the admin's token.

use anyhow::{Context, bail};
use hyper::Method;
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
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no event loop")?;
    let answer = runtime.block_on(client.send(method, path, &[], body))?;
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
