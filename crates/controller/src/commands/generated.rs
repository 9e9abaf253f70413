//! `skein-controller completions` and `skein-controller man`.

use std::path::PathBuf;

use clap_complete::Shell;

/// Print a shell's completions for this program.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein-controller completions bash >/etc/bash_completion.d/skein-controller")]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Write the manual pages: skein-controller(1), and one for each command.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein-controller man --out /usr/local/share/man/man1")]
pub struct ManArgs {
    /// The directory; made if it is not there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Prints completions.
pub fn completions(args: CompletionsArgs, program: &clap::Command) -> anyhow::Result<()> {
    skein_terminal::print(&skein_terminal::completions("skein-controller", program, args.shell))
}

/// Writes manual pages.
pub fn man(args: ManArgs, program: clap::Command) -> anyhow::Result<()> {
    skein_terminal::write_manual_pages(program, &args.out)
}
