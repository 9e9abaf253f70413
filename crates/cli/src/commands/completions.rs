//! `skein completions`.

use clap::CommandFactory;
use clap_complete::Shell;

/// Print a shell's completions for this program.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein completions bash >/etc/bash_completion.d/skein
  skein completions zsh >\"${fpath[1]}/_skein\"
  skein completions fish >~/.config/fish/completions/skein.fish")]
pub struct Args {
    /// The shell
    shell: Shell,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    // Hidden ones are generated, too, if they are there.
    let all = crate::Cli::command();
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut command = clap::Command::new("skein").version(env!("CARGO_PKG_VERSION")).subcommands(shown);
    clap_complete::generate(args.shell, &mut command, "skein", &mut script);
    super::dataplane::print_bytes(&script);
    Ok(())
}
