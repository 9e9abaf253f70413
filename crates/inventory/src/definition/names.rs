//! What names and paths may be.

use std::path::{Component, Path, PathBuf};

/// The longest name.
pub const NAME_BYTES_MAX: usize = 63;
/// The longest name of a network interface: IFNAMSIZ of linux/if.h, without its end.
const INTERFACE_BYTES_MAX: usize = 15;

/// Checks a name of a VM or host.
///
/// # Errors
///
/// What to do about a wrong name.
pub(crate) fn check_name(name: &str) -> Result<String, String> {
    let first = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let rest = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b));
    if first && rest && name.len() <= NAME_BYTES_MAX {
        return Ok(name.to_owned());
    }
    Err(format!("names have 1 to {NAME_BYTES_MAX} of a-z 0-9 . _ - and begin with a letter or digit"))
}

/// Returns whether `name` can be a VM's name, for names from a command line or a peer.
pub fn is_name(name: &str) -> bool {
    check_name(name).is_ok()
}

/// Checks an absolute path. It has no `..`, which a symbolic link would make mean something else on another host.
///
/// # Errors
///
/// What to write instead.
pub(super) fn check_path(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    if !path.is_absolute() {
        return Err(format!("give it from the root, such as \"/srv/{}\"", text.trim_start_matches("./")));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Err("give it without \"..\"".into());
    }
    Ok(path.to_owned())
}

/// Checks the name of a network interface, by the kernel's rules (dev_valid_name of net/core/dev.c) and without QEMU's
/// comma.
///
/// # Errors
///
/// What to write instead.
pub(super) fn check_interface(text: &str) -> Result<String, String> {
    let unfit = |c: char| c == '/' || c == ':' || c == ',' || c.is_whitespace();
    if text.len() > INTERFACE_BYTES_MAX || text == "." || text == ".." || text.contains(unfit) {
        return Err(format!("interfaces' names have at most {INTERFACE_BYTES_MAX} letters and no / : , or blanks"));
    }
    Ok(text.to_owned())
}

/// Checks a model or type, with options after commas.
///
/// # Errors
///
/// What to write instead.
pub(super) fn check_model(text: &str) -> Result<String, String> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"._-+=,".contains(&b);
    if !text.bytes().all(fits) || !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err("give a name, and options after commas without blanks, such as \"EPYC-v4,+avx2\"".into());
    }
    Ok(text.to_owned())
}
