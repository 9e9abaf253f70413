//! `skein ca`.

/// Make a cluster's CA; issue, renew and show the identities of its hosts.
#[derive(clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("not built yet")
}
