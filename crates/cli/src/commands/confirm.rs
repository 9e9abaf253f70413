//! Has somebody at a terminal say twice what cannot be taken back.

use std::io::{BufRead, IsTerminal, Read, Write};

use anyhow::bail;

/// Asks the user a question to which only yes is a yes.
///
/// # Errors
///
/// Nobody can be asked, or the answer is no.
pub fn is_sure(question: &str) -> anyhow::Result<()> {
    const ANSWER_BYTES_MAX: u64 = 1024;
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        bail!("nothing was done: nobody can be asked here; say that you are sure with --yes");
    }
    let mut err = std::io::stderr().lock();
    write!(err, "{question} [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().take(ANSWER_BYTES_MAX).read_line(&mut answer)?;
    if !matches!(answer.trim(), "y" | "Y" | "yes") {
        bail!("nothing was done");
    }
    Ok(())
}

/// Asks the user to type a host's name that is off, so that the user has thought about it.
///
/// # Errors
///
/// Nobody can be asked, or the name that was typed is another.
pub fn is_off(words: &str, host: &str) -> anyhow::Result<()> {
    const NAME_BYTES_MAX: u64 = 1024;
    if !std::io::stdin().is_terminal() {
        bail!("nobody can be asked here: make sure that {host} is off, then give --yes");
    }
    let mut err = std::io::stderr().lock();
    write!(
        err,
        "{words}\n\
         A host that does not answer need not be off: look at its power supply or its remote management.\n\n\
         {host} is off, and stays off until this is over? Then type its name: "
    )?;
    err.flush()?;
    let mut typed = String::new();
    std::io::stdin().lock().take(NAME_BYTES_MAX).read_line(&mut typed)?;
    if typed.trim() != host {
        bail!("that is not {host}: nothing was done");
    }
    Ok(())
}
