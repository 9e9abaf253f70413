//! Is what is said of a VM's serial console that somebody has open from afar.
//!
//! Whoever has a console open asks again and again. All positions are totals since the session began, so that a request
//! or an answer that is lost or repeated loses nothing and doubles nothing: an answer begins where the caller says that
//! it is, and input that the agent has already is passed over.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Bounds the input of one request, in bytes: a serial port takes as much in some hundred milliseconds.
pub const CONSOLE_INPUT_BYTES_MAX: usize = 8 << 10;
/// Bounds the output that is kept of a console, and so that of one answer, in bytes: 30 screens of text.
pub const CONSOLE_OUTPUT_BYTES_MAX: usize = 64 << 10;
/// Bounds the milliseconds that a request waits for output.
pub const CONSOLE_WAIT_MS_MAX: u64 = 10_000;

/// Bytes of a console, which are base64 in a line (RFC 4648, section 4): they may be no text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = String))]
pub struct ConsoleBytes(#[cfg_attr(test, schemars(with = "String"))] pub Vec<u8>);

impl ConsoleBytes {
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for ConsoleBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for ConsoleBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ConsoleBytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map(ConsoleBytes).map_err(|_| de::Error::custom("the bytes of a console are no base64"))
    }
}

/// What becomes of a console by a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ConsoleStep {
    /// The session goes on.
    #[default]
    GoOn,
    /// The session begins, unless another one has the console. Begun again, it goes on.
    Begin,
    /// The session begins, and ends another one that has the console.
    TakeOver,
    /// The session ends, and lets the console go.
    End,
}

/// A request about a VM's serial console.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ConsoleRequest {
    /// The VM's name.
    pub name: String,
    /// A name of the session that the caller chose at random, as a request id.
    pub session: String,
    /// Who has the console, in words that others are told: at most 128 bytes.
    pub by: String,
    /// What becomes of the session.
    #[serde(default)]
    pub step: ConsoleStep,
    /// What is typed, at most [`CONSOLE_INPUT_BYTES_MAX`].
    #[serde(default, skip_serializing_if = "ConsoleBytes::is_empty")]
    pub input: ConsoleBytes,
    /// The bytes that were typed in this session before `input`.
    #[serde(default)]
    pub input_at: u64,
    /// The bytes of output that the caller has of this session.
    #[serde(default)]
    pub after: u64,
    /// How long to wait for more output, in milliseconds, at most [`CONSOLE_WAIT_MS_MAX`].
    #[serde(default)]
    pub wait_ms: u64,
}

/// How a session of a console is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ConsoleState {
    /// The caller has the console.
    Open,
    /// Another session has the console.
    Held,
    /// There is no such session here: it has ended, or was on another host. It may begin.
    #[default]
    Unknown,
    /// The VM's end of the console closed: the VM was stopped, or moved.
    Closed,
}

/// What there is of a console's session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConsoleView {
    /// How the session is.
    pub state: ConsoleState,
    /// What the VM wrote, from `at` on, as base64.
    #[serde(default)]
    pub output: ConsoleBytes,
    /// The bytes of output before `output`. More than the caller has: what is between is not kept any more.
    #[serde(default)]
    pub at: u64,
    /// The bytes that were taken of what was typed. What is missing is to be sent again, from there on.
    #[serde(default)]
    pub typed: u64,
    /// Who else has the console.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
}
