//! Manual pages and completions, generated from a program's own description of its commands.

use std::path::Path;

use anyhow::Context;
use clap::Command;
use clap_complete::Shell;

/// Writes the manual pages of a program and of each of its commands into `dir`, which is made if need be.
///
/// # Errors
/// `dir` cannot be made, or a page cannot be written.
pub fn write_manual_pages(program: Command, dir: &Path) -> anyhow::Result<()> {
    let shown = dir.display();
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {shown}"))?;
    clap_mangen::generate_to(program, dir).with_context(|| format!("cannot write to {shown}"))
}

/// Returns the script by which `shell` completes the arguments of the program `name`, without the hidden commands.
pub fn completions(name: &'static str, program: &Command, shell: Shell) -> String {
    // The generators would include hidden commands.
    let shown = program.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut command = Command::new(name).version(env!("CARGO_PKG_VERSION")).subcommands(shown);
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}
