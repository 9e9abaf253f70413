//! Reads whole files within bounds, and writes files whole or not at all.

use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, bail, ensure};

/// The most bytes of a file. No cluster is as large: it would have millions of guests.
const BYTES_MAX: u64 = 1 << 29;
/// The first bytes of a gzip file (RFC 1952, section 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Reads a text file, and unpacks it if it is gzip's.
///
/// # Errors
/// The file cannot be read, is too large, empty, or no text.
pub fn read(path: &Path) -> anyhow::Result<String> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    let mut file = BufReader::new(file);
    let is_packed = file.fill_buf().with_context(|| format!("cannot read {name}"))?.starts_with(&GZIP);
    let bytes = match is_packed {
        true => bounded(flate2::bufread::MultiGzDecoder::new(file), BYTES_MAX),
        false => bounded(file, BYTES_MAX),
    };
    text(bytes.with_context(|| format!("cannot read {name}"))?, BYTES_MAX).with_context(|| name.to_string())
}

/// Reads a text file of so many bytes at most; `-` is standard input.
///
/// # Errors
/// The file cannot be read, is too large, empty, or no text.
pub fn read_small(path: &Path, bytes_max: u64) -> anyhow::Result<String> {
    let name = path.display();
    let bytes = match path.to_str() {
        Some("-") => bounded(std::io::stdin().lock(), bytes_max),
        _ => File::open(path).and_then(|file| bounded(file, bytes_max)),
    };
    text(bytes.with_context(|| format!("cannot read {name}"))?, bytes_max).with_context(|| name.to_string())
}

fn bounded(from: impl Read, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(bytes_max + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn text(bytes: Vec<u8>, bytes_max: u64) -> anyhow::Result<String> {
    let (number, unit) = if bytes_max < 1 << 20 { (bytes_max >> 10, "KiB") } else { (bytes_max >> 20, "MiB") };
    ensure!(bytes.len() as u64 <= bytes_max, "it is larger than {number} {unit}");
    match String::from_utf8(bytes) {
        Ok(text) if text.trim_start().is_empty() => bail!("it is empty"),
        Ok(text) => Ok(text),
        Err(error) => {
            let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            bail!("line {}: this is no text in UTF-8", 1 + good.iter().filter(|byte| **byte == b'\n').count())
        }
    }
}

/// Returns the file for the output. Refuses a file that is one of the inputs, as that would be overwritten.
///
/// # Errors
/// The file is an input or a directory, or its directory is missing.
pub fn output<'a>(out: Option<&'a Path>, inputs: &[&Path]) -> anyhow::Result<Option<&'a Path>> {
    let Some(path) = out else { return Ok(None) };
    let real = |path: &Path| path.canonicalize().ok();
    let is_input = real(path).is_some_and(|out| inputs.iter().any(|input| real(input) == Some(out.clone())));
    ensure!(!is_input, "{} is read: write to another file", path.display());
    let names_dir = path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/");
    ensure!(!names_dir, "{} is a directory: name a file", path.display());
    ensure!(path != Path::new("-"), "'-' is no file: name one, or /dev/stdout for the terminal");
    let dir = directory(path);
    ensure!(dir.is_dir(), "there is no directory {} for {}", dir.display(), path.display());
    Ok(Some(path))
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes a file whole or not at all: a new file takes its place, with its mode. A device or a pipe is written to
/// directly.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let written = || -> std::io::Result<()> {
        // Links are followed and stay what they are.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let there = std::fs::metadata(&path).ok();
        if there.as_ref().is_some_and(|there| !there.is_file()) {
            return File::options().write(true).open(&path)?.write_all(text.as_bytes());
        }
        // A new file has the mode that the user's umask leaves.
        let mode = there.map(|there| there.permissions());
        let first = mode.clone().unwrap_or(Permissions::from_mode(0o666));
        let mut part = tempfile::Builder::new().permissions(first).tempfile_in(directory(&path))?;
        part.write_all(text.as_bytes())?;
        if let Some(mode) = mode {
            part.as_file().set_permissions(mode)?;
        }
        part.as_file().sync_all()?;
        part.persist(&path).map_err(|error| error.error)?;
        Ok(())
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn dir() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn file(dir: &tempfile::TempDir, bytes: &[u8]) -> PathBuf {
        let path = dir.path().join("file");
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn error(path: &Path) -> String {
        read(path).unwrap_err().chain().map(|error| error.to_string()).collect::<Vec<_>>().join(": ")
    }

    #[test]
    fn packed_or_not_it_is_the_same() {
        let dir = dir();
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all("1 2\n".as_bytes()).unwrap();
        let packed = packer.finish().unwrap();
        assert_eq!(read(&file(&dir, &packed)).unwrap(), "1 2\n");
        assert_eq!(read(&file(&dir, b"1 2\n")).unwrap(), "1 2\n");
        assert!(error(&file(&dir, &packed[..packed.len() - 6])).contains("cannot read"), "cut off");
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let dir = dir();
        assert!(error(&file(&dir, b" \n")).ends_with("file: it is empty"));
        assert!(error(&file(&dir, b"1\n2 \xff\n")).ends_with("file: line 2: this is no text in UTF-8"));
        assert!(error(dir.path()).ends_with("Is a directory (os error 21)"));
        assert!(error(&dir.path().join("none")).contains("No such file"));
    }

    #[test]
    fn a_small_file_that_is_too_large_is_refused_and_not_cut() {
        let dir = dir();
        let path = file(&dir, &[b'a'; 1025]);
        assert_eq!(read_small(&path, 1025).unwrap().len(), 1025);
        let error = format!("{:#}", read_small(&path, 1024).unwrap_err());
        assert!(error.ends_with("file: it is larger than 1 KiB"), "{error}");
    }

    #[test]
    fn nothing_is_left_half() {
        let dir = dir();
        let path = dir.path().join("out");
        write(&path, "old").unwrap();
        write(&path, "new").unwrap();
        assert_eq!(read(&path).unwrap(), "new");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o400, 0o400);
        assert!(write(&dir.path().join("none/out"), "new").is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_file_stays_what_it_is() {
        let dir = dir();
        let (path, link, pipe) = (file(&dir, b"old"), dir.path().join("link"), dir.path().join("pipe"));
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write(&link, "new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(
            (read(&path).unwrap().as_str(), path.metadata().unwrap().permissions().mode() & 0o777),
            ("new", 0o600)
        );
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read_to_string(pipe).unwrap()
        });
        write(&pipe, "piped").unwrap();
        assert_eq!(reader.join().unwrap(), "piped");
        assert!(!pipe.metadata().unwrap().is_file());
    }

    #[test]
    fn inputs_are_not_overwritten() {
        let dir = dir();
        let path = file(&dir, b"in");
        assert!(output(Some(&path), &[&path]).is_err());
        assert!(output(Some(&dir.path().join("./file")), &[&path]).is_err());
        assert!(output(Some(dir.path()), &[&path]).is_err());
        assert!(output(Some(Path::new("none/")), &[&path]).is_err());
        assert!(output(Some(Path::new("-")), &[&path]).is_err());
        assert!(output(Some(&dir.path().join("none/out")), &[&path]).is_err());
        assert!(output(Some(&dir.path().join("out")), &[&path]).unwrap().is_some());
        assert!(output(None, &[&path]).unwrap().is_none());
    }
}
