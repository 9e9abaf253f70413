//! The names that certificates carry.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rustls::pki_types::DnsName;

use crate::{CONTROLLER_NAME, MEMBER_NAME};

/// Bounds the names and addresses of a controller: its NICs' and those of a proxy before it.
const CONTROLLER_NAMES_MAX: usize = 32;

/// The error for a text that certificates cannot carry as a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no host name: {why}")]
pub struct BadName {
    /// The text.
    pub name: String,
    /// What is wrong with it, and what to do.
    pub why: &'static str,
}

/// The names of a controller's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerNames {
    name: String,
    dns: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
}

impl ControllerNames {
    /// Takes the controller's own name, by which agents and operators know it, and the DNS names and IP addresses by
    /// which HTTPS clients dial it.
    ///
    /// # Errors
    /// A text is neither a DNS name nor an IP address, or there are too many.
    pub fn new<'a>(name: &str, dialled: impl IntoIterator<Item = &'a str>) -> Result<Self, BadName> {
        let name = host_name(name)?;
        let mut names = Self { dns: BTreeSet::from([name.clone()]), name, addresses: BTreeSet::new() };
        for dialled in dialled {
            match dialled.parse::<IpAddr>() {
                Ok(address) => drop(names.addresses.insert(address)),
                Err(_) => drop(names.dns.insert(host_name(dialled)?)),
            }
            if names.dns.len() + names.addresses.len() > CONTROLLER_NAMES_MAX {
                let why = "a controller's certificate has at most 32 names and addresses";
                return Err(BadName { name: dialled.to_owned(), why });
            }
        }
        Ok(names)
    }

    /// Returns the controller's own name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the DNS names, the controller's own among them.
    pub fn dns(&self) -> impl Iterator<Item = &str> {
        self.dns.iter().map(String::as_str)
    }

    /// Returns the IP addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().copied()
    }
}

/// Returns a host name in the form that certificates carry: a DNS name in lower case.
pub(crate) fn host_name(host: &str) -> Result<String, BadName> {
    let refuse = |why| Err(BadName { name: host.to_owned(), why });
    if host.parse::<IpAddr>().is_ok() {
        return refuse("it is an IP address; a host has one identity for all its addresses, so give its name");
    }
    let name = host.to_ascii_lowercase();
    // RFC 5280, appendix A.1: a common name has at most 64 characters.
    if name.len() > 64 {
        return refuse("it has more than 64 characters");
    }
    if DnsName::try_from(name.as_str()).is_err() || name.ends_with('.') {
        return refuse("use letters, digits and '-', with '.' between the parts");
    }
    match name.as_str() {
        MEMBER_NAME => refuse("that name belongs to every member"),
        CONTROLLER_NAME => refuse("that name belongs to every controller"),
        _ => Ok(name),
    }
}
