//! Says how a migration is held, and how a held migration is.

use serde::{Deserialize, Deserializer, Serialize};

/// How a migration is held: copied until the guest would switch within its downtime limit, and kept fresh until
/// somebody says that the guest may switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct HoldOptions {
    /// The seconds for which the guest may be held. After that the migration is called off. `None`: a day, or until the
    /// window if there is a window.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 2592000))]
    pub longest_s: Option<u64>,
    /// The window in which the guest switches by itself; `None`: only when somebody says so.
    pub window: Option<SwitchWindow>,
}

/// The window in which a held guest switches by itself, by the clock of the source's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SwitchWindow {
    /// When the window opens: seconds since 1970 began, UTC.
    #[cfg_attr(feature = "openapi", schema(maximum = 253402300799u64))]
    pub from_unix_s: u64,
    /// When the window is over: the migration of a guest that is not stopped for its switchover by then is called off.
    /// `None`: the guest may take as long as it needs.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(maximum = 253402300799u64))]
    pub until_unix_s: Option<u64>,
}

/// How a caller of a controller asks for a hold: a field that is not known is a slip, and is refused. Agents pass over
/// what a later release adds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct HoldRequest {
    /// As in `HoldOptions`.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 2592000))]
    pub longest_s: Option<u64>,
    /// As in `HoldOptions`.
    pub window: Option<WindowRequest>,
}

/// How a caller of a controller asks for a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WindowRequest {
    /// As in `SwitchWindow`.
    #[cfg_attr(feature = "openapi", schema(maximum = 253402300799u64))]
    pub from_unix_s: u64,
    /// As in `SwitchWindow`.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(maximum = 253402300799u64))]
    pub until_unix_s: Option<u64>,
}

impl HoldRequest {
    /// Reads what a caller asks for.
    ///
    /// # Errors
    ///
    /// A field is not known, or is of another type.
    pub(crate) fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Option<HoldOptions>, D::Error> {
        Ok(Option::<HoldRequest>::deserialize(from)?.map(HoldOptions::from))
    }
}

impl From<HoldRequest> for HoldOptions {
    fn from(HoldRequest { longest_s, window }: HoldRequest) -> HoldOptions {
        let window =
            window.map(|WindowRequest { from_unix_s, until_unix_s }| SwitchWindow { from_unix_s, until_unix_s });
        HoldOptions { longest_s, window }
    }
}

/// How a migration is held that is held, or is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct HoldView {
    /// Since when the guest is held: RFC 3339. `None`: the guest is not held yet, or not any more.
    pub since: Option<String>,
    /// The bytes of pages that the guest has written, and that the target does not have yet.
    pub dirty_bytes: Option<u64>,
    /// The milliseconds that the guest would stand still if it switched now.
    pub downtime_ms: Option<u64>,
    /// When the guest switches by itself: RFC 3339.
    pub switches_from: Option<String>,
    /// When the migration is called off if the guest has not switched: RFC 3339. `None`: that is not known before the
    /// guest is held.
    pub called_off_at: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::MigrateRequest;

    #[test]
    fn a_callers_slip_in_a_hold_is_refused_and_an_agent_passes_over_what_it_does_not_know() {
        let read = |text: &str| serde_json::from_str::<MigrateRequest>(text);
        let window = SwitchWindow { from_unix_s: 9, until_unix_s: None };
        let asked = read(r#"{"hold":{"longest_s":60,"window":{"from_unix_s":9}}}"#).unwrap();
        assert_eq!(asked.hold, Some(HoldOptions { longest_s: Some(60), window: Some(window) }));
        let again = read(&serde_json::to_string(&asked).unwrap()).unwrap();
        assert_eq!(again, asked);
        assert_eq!(read(r#"{"hold":null}"#).unwrap().hold, None);
        for slip in [r#"{"hold":{"max_s":60}}"#, r#"{"hold":{"window":{"from_unix_s":9,"to_unix_s":10}}}"#] {
            let error = read(slip).unwrap_err().to_string();
            assert!(error.contains("unknown field"), "{slip}: {error}");
        }
        assert_eq!(serde_json::from_str::<HoldOptions>(r#"{"max_s":60}"#).unwrap(), HoldOptions::default());
    }
}
