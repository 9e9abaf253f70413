//! The files that QEMU's `tls-creds-x509` needs.
//!
//! They are not Skein's own identities: QEMU insists on certificates that permit key encipherment, which Skein's
//! rightly do not.

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use super::carried::{CarryError, write};

/// The name in the certificate of every host.
pub const HOST_NAME: &str = "host.bench.internal";

/// Makes the files in a directory.
pub(super) fn prepare(directory: &Path) -> Result<(), CarryError> {
    std::fs::create_dir_all(directory).map_err(|source| CarryError::File { path: directory.into(), source })?;

    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "skein bench");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::generate()?;
    write(&directory.join("ca-cert.pem"), &params.self_signed(&key)?.pem())?;
    let ca = Issuer::new(params, key);

    let mut params = CertificateParams::new([HOST_NAME.to_string()])?;
    params.distinguished_name.push(DnType::CommonName, HOST_NAME);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &ca)?.pem();
    for end in ["server", "client"] {
        write(&directory.join(format!("{end}-cert.pem")), &certificate)?;
        write(&directory.join(format!("{end}-key.pem")), &key.serialize_pem())?;
    }
    Ok(())
}
