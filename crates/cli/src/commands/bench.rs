//! `skein bench`.

/// Measure migrations: Skein and its peers, side by side in one run.
#[derive(clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("not built yet")
}
