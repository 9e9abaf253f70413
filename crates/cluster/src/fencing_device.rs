//! Whether what is set of a fencing device can be right.

use skein_api::cluster::FencingDevice;

/// How long a name is at most.
const NAME_CHARS_MAX: usize = 64;
/// The seconds that a fence agent may be given.
const TIMEOUT_S: std::ops::RangeInclusive<u32> = 1..=300;
/// Options of fence agents that hold secrets or name programs and files: everybody who may look could read them, and
/// whoever sets them would choose what runs on a controller.
const FORBIDDEN: [&str; 4] = ["password", "passwd", "identity_file", "ssh_options"];

/// Returns what is wrong with a device, and what to do about it.
pub(crate) fn wrong(device: &FencingDevice) -> Option<(String, String)> {
    let wrong = |what: &str, cure: &str| Some((what.to_owned(), cure.to_owned()));
    match device {
        FencingDevice::Redfish { url, system, user, secret, certificate_sha256, ca } => {
            let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
            let host = host.map(|host| host.trim_end_matches('/'));
            if !host.is_some_and(|host| {
                !host.is_empty() && host.chars().all(|c| c.is_ascii_graphic() && !"/@?#".contains(c))
            }) {
                return wrong("the Redfish URL is none", "write https://ADDRESS or https://ADDRESS:PORT");
            }
            if system.as_ref().is_some_and(|id| !is_name(id)) {
                return wrong("the Redfish system's id is none", "see /redfish/v1/Systems for the ids");
            }
            if user.is_some() != secret.is_some() {
                return wrong("an account has a user and a secret", "set both, or neither");
            }
            let is_tls = url.starts_with("https://");
            if is_tls && certificate_sha256.is_some() == ca.is_some() {
                let host = host.unwrap_or_default();
                let port = if host.ends_with(']') || !host.contains(':') { ":443" } else { "" };
                let cure = format!(
                    "set the certificate's SHA-256, or the CA; openssl s_client -connect {host}{port} </dev/null | \
                     openssl x509 -noout -fingerprint -sha256 says the SHA-256"
                );
                return wrong("it has to be known which certificate is the device's", &cure);
            }
            if !is_tls && (certificate_sha256.is_some() || ca.is_some()) {
                return wrong("http:// has no certificate", "write https://, or leave the certificate out");
            }
            if certificate_sha256.as_ref().is_some_and(|sum| !is_sha256(sum)) {
                return wrong("the certificate's SHA-256 is none", "write 64 hexadecimal digits");
            }
            if ca.as_ref().is_some_and(|pem| !pem.contains("-----BEGIN CERTIFICATE-----")) {
                return wrong("the CA is none", "give its certificate as PEM");
            }
            bad_secret(secret.as_deref())
        }
        FencingDevice::Agent { agent, options, secret, timeout_s } => {
            if !agent.starts_with("fence_") || !is_word(agent) {
                return wrong("the fence agent's name is none", "write a name such as fence_ipmilan");
            }
            for (key, value) in options {
                if matches!(key.as_str(), "action" | "option") {
                    return wrong("the controller chooses the action", "leave this option out");
                }
                if FORBIDDEN.contains(&key.as_str()) || key.ends_with("_script") || key.ends_with("_path") {
                    let what = format!("the option '{key}' cannot be set here");
                    return Some((what, "put a password into a file on each controller, and name it as secret".into()));
                }
                if !is_word(key) || value.chars().any(char::is_control) {
                    return wrong("an option of the fence agent is none", "write KEY=VALUE, on one line");
                }
            }
            if timeout_s.is_some_and(|seconds| !TIMEOUT_S.contains(&seconds)) {
                return wrong("timeout_s is 1 to 300", "");
            }
            bad_secret(secret.as_deref())
        }
    }
}

fn bad_secret(name: Option<&str>) -> Option<(String, String)> {
    let cure = "write the name of a file in the controllers' directory of secrets".to_owned();
    name.filter(|name| !is_name(name)).map(|_| ("the secret's name is none".to_owned(), cure))
}

/// Returns whether a text is a name of a file or an id, and no path.
fn is_name(text: &str) -> bool {
    let is_sign = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    text.len() <= NAME_CHARS_MAX && text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(is_sign)
}

fn is_word(text: &str) -> bool {
    let is_sign = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    !text.is_empty() && text.len() <= NAME_CHARS_MAX && text.chars().all(is_sign)
}

/// Returns whether a text is a SHA-256 in hexadecimal digits.
fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redfish(url: &str, certificate_sha256: Option<&str>, secret: Option<&str>) -> FencingDevice {
        let user = Some("fencing".to_owned());
        let (certificate_sha256, secret) = (certificate_sha256.map(str::to_owned), secret.map(str::to_owned));
        FencingDevice::Redfish { url: url.into(), system: None, user, secret, certificate_sha256, ca: None }
    }

    fn agent(agent: &str, key: &str, value: &str) -> FencingDevice {
        let options = [(key.to_owned(), value.to_owned())].into();
        FencingDevice::Agent { agent: agent.into(), options, secret: None, timeout_s: None }
    }

    #[test]
    fn what_cannot_be_right_is_refused() {
        let sum = "0123456789abcdef".repeat(4);
        assert_eq!(wrong(&redfish("https://10.0.0.1", Some(&sum), Some("bmc"))), None);
        assert_eq!(wrong(&redfish("http://10.0.0.1:8000/", None, Some("bmc"))), None);
        for bad in [
            redfish("https://10.0.0.1", None, Some("bmc")),
            redfish("https://10.0.0.1", Some("12:34"), Some("bmc")),
            redfish("https://admin@10.0.0.1", Some(&sum), Some("bmc")),
            redfish("https://10.0.0.1/redfish/v1", Some(&sum), Some("bmc")),
            redfish("ftp://10.0.0.1", None, Some("bmc")),
            redfish("https://10.0.0.1", Some(&sum), Some("../shadow")),
            redfish("https://10.0.0.1", Some(&sum), None),
            redfish("http://10.0.0.1", Some(&sum), Some("bmc")),
        ] {
            assert!(wrong(&bad).is_some(), "{bad:?}");
        }
    }

    #[test]
    fn a_fence_agent_gets_no_secret_and_no_program_by_its_options() {
        assert_eq!(wrong(&agent("fence_ipmilan", "ip", "10.0.0.1")), None);
        for (name, key, value) in [
            ("/bin/sh", "ip", "10.0.0.1"),
            ("fence_../sh", "ip", "10.0.0.1"),
            ("fence_ipmilan", "password", "secret"),
            ("fence_ipmilan", "passwd_script", "/tmp/x"),
            ("fence_ipmilan", "ipmitool_path", "/tmp/x"),
            ("fence_ipmilan", "action", "on"),
            ("fence_ipmilan", "ip", "10.0.0.1\naction=on"),
        ] {
            assert!(wrong(&agent(name, key, value)).is_some(), "{name} {key} {value}");
        }
    }
}
