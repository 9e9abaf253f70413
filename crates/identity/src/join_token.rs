//! The token with which a host joins a cluster: whom to trust, and by which ticket.

use std::fmt;
use std::str::FromStr;

use crate::pin::CaFingerprint;

/// What every token begins with.
const BEGIN: &str = "skein-join-1";
/// Bounds a ticket's id and secret.
const PART_CHARS_MAX: usize = 128;

/// A token: `skein-join-1.FINGERPRINT.ID.SECRET`.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// The SHA-256 of the cluster's CA: the host trusts no other.
    pub ca: CaFingerprint,
    /// The ticket's id.
    pub id: String,
    /// The ticket's secret.
    pub secret: String,
}

/// The error for a text that is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("that is no token for a join: copy all of it, from `{BEGIN}` on, as `skein-controller ticket` prints it")]
pub struct NoJoinToken;

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{BEGIN}.{}.{}.{}", self.ca.to_hex(), self.id, self.secret)
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken").field("ca", &self.ca).field("id", &self.id).finish_non_exhaustive()
    }
}

impl FromStr for JoinToken {
    type Err = NoJoinToken;

    fn from_str(text: &str) -> Result<Self, NoJoinToken> {
        let parts: Vec<&str> = text.split('.').collect();
        let [BEGIN, ca, id, secret] = parts[..] else { return Err(NoJoinToken) };
        let is_part =
            |part: &str| (1..=PART_CHARS_MAX).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_alphanumeric());
        if ca.len() != 64 || !is_part(id) || !is_part(secret) {
            return Err(NoJoinToken);
        }
        let ca = ca.parse().map_err(|_| NoJoinToken)?;
        Ok(Self { ca, id: id.to_owned(), secret: secret.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_back_and_keeps_its_secret() {
        let ca = "ab".repeat(32).parse().unwrap();
        let token = JoinToken { ca, id: "00ff".into(), secret: "5ec2e7".into() };
        let text = token.to_string();
        assert_eq!(text, format!("skein-join-1.{}.00ff.5ec2e7", "ab".repeat(32)));
        assert_eq!(text.parse(), Ok(token.clone()));
        assert!(!format!("{token:?}").contains("5ec2e7"));
    }

    #[test]
    fn what_is_cut_or_changed_is_no_token() {
        let whole = format!("skein-join-1.{}.00ff.5ec2e7", "ab".repeat(32));
        let fingerprint = whole.len() - ".00ff.5ec2e7".len();
        for end in (0..=fingerprint + ".00ff.".len()).filter(|end| whole.is_char_boundary(*end)) {
            assert_eq!(whole[..end].parse::<JoinToken>(), Err(NoJoinToken), "{end}");
        }
        let long = format!("skein-join-1.{}.00ff.{}", "ab".repeat(32), "a".repeat(129));
        let other = whole.replace("join-1", "join-2");
        for text in [&long, &other, &format!("{whole}."), &format!("{whole}/x"), &whole.replace("ab", "zz")] {
            assert_eq!(text.parse::<JoinToken>(), Err(NoJoinToken), "{text}");
        }
    }
}
