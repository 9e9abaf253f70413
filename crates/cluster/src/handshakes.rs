//! Connections of agents that came to nothing, and why, in words.

use std::collections::BTreeMap;
use std::net::IpAddr;

use skein_api::cluster::UnixMs;

use crate::records::CertificateValidity;
use crate::words::utc_words;

/// Why a connection came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeFailure {
    /// The controller's clock is before the begin of the agent's certificate.
    NotValidYet {
        /// When the certificate begins.
        begins: UnixMs,
    },
    /// The controller's clock is after the end of the agent's certificate.
    Expired {
        /// When the certificate ended.
        ended: UnixMs,
    },
    /// The agent's certificate is refused otherwise: mostly it is signed by another CA.
    OtherCertificate,
    /// The agent says that the controller's certificate is expired, or not valid yet.
    AgentRefusesDates {
        /// From when until when the controller's certificate is valid.
        own: Option<CertificateValidity>,
    },
    /// The agent refuses the controller's certificate otherwise: mostly it trusts another CA.
    AgentRefuses,
    /// It ended before either end said why.
    Broken,
    /// The handshake was well, and the host is not taken.
    NotTaken {
        /// Why not.
        why: String,
    },
}

impl HandshakeFailure {
    pub(crate) fn kind(&self) -> std::mem::Discriminant<HandshakeFailure> {
        std::mem::discriminant(self)
    }
}

/// A connection that came to nothing.
#[derive(Clone, Debug)]
pub(crate) struct Tried {
    /// Where it came from. `None`: not known.
    pub(crate) address: Option<IpAddr>,
    pub(crate) failure: HandshakeFailure,
    /// When the last one came, by the clock that never jumps.
    pub(crate) at_ms: u64,
    /// The controller's clock by which the certificate was judged.
    pub(crate) wall: UnixMs,
    /// Whether another machine tries: the host's own agent was connected meanwhile.
    pub(crate) is_other: bool,
}

/// The last connection of each host that came to nothing.
#[derive(Debug, Default)]
pub(crate) struct Handshakes(pub(crate) BTreeMap<String, Tried>);

/// Says why a host that answers does not report: `whose` certificate was judged, when this controller's clock said
/// `wall`. `host`: only this one has that reason.
pub(crate) fn words(failure: &HandshakeFailure, whose: &str, who: &str, host: Option<&str>, wall: UnixMs) -> String {
    let now = utc_words(wall);
    let name = host.unwrap_or("HOST");
    // Several hosts are seldom wrong in the same way.
    let clock = match host {
        Some(_) => "set the clock that is wrong: this controller's, or the one by which that was signed",
        None => "set this controller's clock, if that is wrong",
    };
    let anew = format!("skein-controller ticket --host {name} makes a token for skein join there");
    match failure {
        HandshakeFailure::NotValidYet { begins } => format!(
            "{who}, and {whose} certificate is refused as not valid yet: it begins {}, and this controller's clock \
             says {now}: {clock}; with the right clock a certificate of the future is made anew ({anew})",
            utc_words(*begins)
        ),
        HandshakeFailure::Expired { ended } => format!(
            "{who}, and {whose} certificate is refused as expired: it ended {}, and this controller's clock says \
             {now}: {clock}; with the right clock, {anew}",
            utc_words(*ended)
        ),
        HandshakeFailure::OtherCertificate => format!(
            "{who}, and {whose} certificate is refused: another CA than the cluster's has signed it, or it is damaged: \
             {anew}"
        ),
        HandshakeFailure::AgentRefusesDates { own } => {
            let own = own.map_or_else(
                || "that".to_owned(),
                |own| format!("that is valid from {} to {}", utc_words(own.begins), utc_words(own.ends)),
            );
            let clock = match host {
                Some(_) => "set the host's clock, or this controller's",
                None => "set this controller's clock, or the hosts'",
            };
            format!(
                "{who}, and refuses this controller's certificate as expired or not valid yet: {own}, and this \
                 controller's clock says {now}: {clock}, and start skein-controller again if its own was wrong"
            )
        }
        HandshakeFailure::AgentRefuses => format!(
            "{who}, and refuses this controller's certificate: one of both has been given another CA than the \
             cluster's (docs/identity.md)"
        ),
        HandshakeFailure::Broken => format!(
            "{who}, and no connection with its agent comes about: the agent's log says why (there: journalctl -u \
             skein-agent)"
        ),
        HandshakeFailure::NotTaken { why } => format!("{who}, and its agent is refused: {why}; {anew}"),
    }
}
