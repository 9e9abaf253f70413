//! `skein-lab completions`.

use clap_complete::Shell;

/// Print a shell's completions for this program.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein-lab completions bash >/etc/bash_completion.d/skein-lab
  skein-lab completions fish >~/.config/fish/completions/skein-lab.fish")]
pub struct Args {
    /// The shell
    shell: Shell,
}

/// Runs the command. `program` is the command whose arguments are completed.
pub fn run(args: Args, program: &clap::Command) -> anyhow::Result<()> {
    skein_terminal::print(&skein_terminal::completions("skein-lab", program, args.shell))
}
