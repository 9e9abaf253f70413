//! Shows who may do what, and who did what.

use serde::{Deserialize, Serialize};

use super::UnixMs;

/// What somebody may do. A later role may do all that an earlier role may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// May look.
    Viewer,
    /// May move guests, drain hosts, and call operations off.
    Operator,
    /// May do everything: hosts join and leave, tokens, settings.
    Admin,
}

impl Role {
    /// Returns the word for it on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Token {
    /// The token's name, which the audit log has.
    pub name: String,
    /// What its holder may do.
    pub role: Role,
    /// When the token was made.
    pub created: UnixMs,
    /// When the token ends. `None`: never.
    pub expires: Option<UnixMs>,
}

/// Asks for a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// The token's name.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"))]
    pub name: String,
    /// What its holder may do.
    pub role: Role,
    /// The seconds until the token ends. `None`: never.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 315360000))]
    #[serde(default)]
    pub expires_s: Option<u64>,
}

/// A new token. The secret is shown this once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TokenSecret {
    /// The token.
    pub token: Token,
    /// What is sent as `Authorization: Bearer SECRET`.
    pub secret: String,
}

/// Asks for a ticket with which one host joins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct NewJoinTicket {
    /// The only host that may join by the ticket. `None`: any host whose name is free.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"))]
    pub host: Option<String>,
    /// The seconds until the ticket ends. `None`: an hour.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 315360000))]
    pub expires_s: Option<u64>,
}

/// A ticket with which one host joins, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JoinTicket {
    /// The ticket's id, without its secret.
    pub id: String,
    /// The token for `skein join --token`: has the fingerprint of the cluster's CA and the ticket's secret.
    pub token: String,
    /// The command for the host that is to join.
    pub command: String,
    /// When the ticket ends.
    pub expires: UnixMs,
}

/// Asks to join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// The host's name.
    pub host: String,
    /// The token.
    pub token: String,
    /// The host's request for a certificate (PKCS #10), as PEM.
    pub signing_request: String,
    /// The kernel's id of the host's boot (`/proc/sys/kernel/random/boot_id`): guests of another boot are not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
}

/// What a host that has joined needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Joined {
    /// The cluster's name.
    pub cluster: String,
    /// The host's certificate, as PEM.
    pub certificate: String,
    /// The CA's certificate, as PEM.
    pub ca: String,
    /// The addresses of the cluster's controllers, as `10.0.0.1:7443`.
    pub controllers: Vec<String>,
}

/// Something that somebody asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditRecord {
    /// The record's id: later records have greater ids.
    pub id: String,
    /// When it was asked for.
    pub at: UnixMs,
    /// Who asked: the name of a token or a certificate.
    pub by: String,
    /// The address that the request came from.
    pub from: String,
    /// What was asked for, as `POST /api/v1/hosts/alpha/drain`.
    pub what: String,
    /// The HTTP status of the answer.
    pub status: u16,
    /// What was answered, in a sentence. May be empty.
    pub detail: String,
}

impl AuditRecord {
    /// Returns whether nothing was done.
    pub fn is_refusal(&self) -> bool {
        self.status >= 400
    }
}
