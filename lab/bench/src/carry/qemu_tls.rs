//! The files that QEMU's `tls-creds-x509` wants, from Skein's own identities.

use std::{fs, path::PathBuf};

use skein_identity::Identity;

use super::{CarryError, Kit};

/// The directory with the credentials of `host`, as a server and as a client.
pub fn directory(kit: &Kit, host: &str) -> PathBuf {
    kit.directory.path().join(format!("qemu-tls-{host}"))
}

pub fn prepare(kit: &Kit, host: &str) -> Result<(), CarryError> {
    let (from, to) = (kit.identity(host), directory(kit, host));
    let wrong = |path: &PathBuf| {
        let path = path.clone();
        move |source| CarryError::File { path, source }
    };
    fs::create_dir_all(&to).map_err(wrong(&to))?;
    for (file, names) in [
        (Identity::CA_FILE, &["ca-cert.pem"][..]),
        (Identity::CERTIFICATE_FILE, &["server-cert.pem", "client-cert.pem"]),
        (Identity::KEY_FILE, &["server-key.pem", "client-key.pem"]),
    ] {
        for name in names {
            let path = to.join(name);
            fs::copy(from.join(file), &path).map_err(wrong(&path))?;
        }
    }
    Ok(())
}
