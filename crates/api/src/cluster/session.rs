//! Is how a browser shows its token: once, and then by a cookie.

use serde::{Deserialize, Serialize};

use super::{Role, UnixMs};

/// Begins a browser's session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewSession {
    /// The secret of a token.
    pub token: String,
}

/// Who a session stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Session {
    /// The token's name.
    pub name: String,
    /// What the session may do.
    pub role: Role,
    /// When the token ends. `None`: it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<UnixMs>,
}
