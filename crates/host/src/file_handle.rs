//! Asks a file system for its own name of a file, which is the same whatever path leads to the file.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bounds the bytes of a handle (MAX_HANDLE_SZ of Linux' include/uapi/linux/fcntl.h).
const HANDLE_BYTES_MAX: usize = 128;

#[repr(C)]
struct Handle {
    head: libc::file_handle,
    bytes: [u8; HANDLE_BYTES_MAX],
}

/// Returns the handle of a file, by name_to_handle_at(2), in hexadecimal digits. The handle of a file on NFS holds the
/// server's own handle of the file (nfs_encode_fh of fs/nfs/export.c). So two hosts have the same handle for one file,
/// and other handles for files of two exports.
///
/// # Errors
/// The file is not there, or its file system gives no handles (`EOPNOTSUPP`).
pub fn file_handle(path: &Path) -> io::Result<String> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: All zeros is a value of each of the fields.
    let mut handle: Handle = unsafe { std::mem::zeroed() };
    handle.head.handle_bytes = HANDLE_BYTES_MAX as u32;
    let mut mount = 0;
    // SAFETY: The path ends with a zero; the handle has room for as many bytes as it says; both outlive the call.
    let result = unsafe {
        let head = (&raw mut handle).cast::<libc::file_handle>();
        libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), head, &raw mut mount, libc::AT_SYMLINK_FOLLOW)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let bytes = &handle.bytes[..(handle.head.handle_bytes as usize).min(HANDLE_BYTES_MAX)];
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{:x}:{digits}", handle.head.handle_type))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn of_one_file_by_any_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("a"), "1").unwrap();
        fs::write(path("b"), "1").unwrap();
        fs::hard_link(path("a"), path("c")).unwrap();
        std::os::unix::fs::symlink(path("a"), path("d")).unwrap();
        let first = match file_handle(&path("a")) {
            // Some overlay file systems give no handles.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return,
            other => other.unwrap(),
        };
        assert!(first.len() > 4, "{first}");
        assert_eq!(file_handle(&path("c")).unwrap(), first);
        assert_eq!(file_handle(&path("d")).unwrap(), first);
        assert_ne!(file_handle(&path("b")).unwrap(), first);
        assert!(file_handle(&path("none")).is_err());
    }
}
