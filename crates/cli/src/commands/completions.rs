//! `skein completions`.

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

/// Runs the command. `program` is the command whose arguments are completed.
pub fn run(args: Args, program: &clap::Command) -> anyhow::Result<()> {
    let names = match args.shell {
        Shell::Bash => include_str!("completions.bash"),
        Shell::Fish => include_str!("completions.fish"),
        _ => "",
    };
    super::text::print(&(skein_terminal::completions("skein", program, args.shell) + names))
}
