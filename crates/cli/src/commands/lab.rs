//! `skein lab`.

/// Hosts in network namespaces on this machine, with links to shape, cut and heal.
#[derive(clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("not built yet")
}
