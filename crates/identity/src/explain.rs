//! TLS errors in words, for the person who has to fix them.

use std::io;
use std::time::SystemTime;

use jiff::Timestamp;
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

/// Returns a sentence that says what went wrong with a TLS connection, and what to do.
///
/// An alert is the *peer's* verdict on this end; every other error is this end's verdict on the peer.
pub fn explain(error: &Error) -> String {
    let said = match error {
        Error::InvalidCertificate(why) => return certificate(why),
        Error::AlertReceived(alert) => return received(*alert),
        Error::NoCertificatesPresented => {
            "the peer showed no certificate: give it an identity of this cluster with `skein ca issue HOST`"
        }
        Error::NoApplicationProtocol => {
            "the peer speaks TLS, but not skein's protocol: both ends need the same major version of skein"
        }
        Error::PeerIncompatible(
            PeerIncompatible::SupportedVersionsExtensionRequired
            | PeerIncompatible::Tls13RequiredForQuic
            | PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled,
        ) => "the other end does not speak TLS 1.3 (is that port really a skein agent?)",
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType
            | InvalidMessage::UnknownProtocolVersion
            | InvalidMessage::MessageTooLarge
            | InvalidMessage::InvalidEmptyPayload,
        )
        | Error::PeerSentOversizedRecord
        | Error::InappropriateMessage { .. }
        | Error::InappropriateHandshakeMessage { .. } => {
            "the other end does not speak TLS (is that port really a skein agent?)"
        }
        Error::DecryptError => {
            "data from the peer was changed on the way: something between the hosts alters TCP's payload"
        }
        Error::FailedToGetCurrentTime => "this host's clock cannot be read: set it",
        _ => return format!("TLS with the peer failed: {error}"),
    };
    said.to_owned()
}

/// As [`explain`], for the error of an agent that dials a controller.
pub fn explain_controller(error: &Error) -> String {
    use CertificateError::{NotValidForName, NotValidForNameContext};
    match error {
        Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => {
            "the peer is no controller of this cluster: its certificate is not a controller's".to_owned()
        }
        Error::NoApplicationProtocol | Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            "the peer speaks TLS, but not as a controller does to agents: is that port a controller's?".to_owned()
        }
        error => explain(error),
    }
}

/// As [`explain`], for the error of a read or write on a TLS stream.
///
/// rustls wraps its own errors in I/O errors of kind `InvalidData`; the others are the connection's.
pub fn explain_io(error: &io::Error) -> String {
    if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        return explain(tls);
    }
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            "the other end closed the connection in the middle (is that port really a skein agent?)".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Explains why this end refused the peer's certificate.
fn certificate(why: &CertificateError) -> String {
    use CertificateError::*;
    match why {
        Expired => {
            "the peer's certificate has expired: renew it with `skein ca renew HOST` (or is this host's clock ahead?)"
                .into()
        }
        ExpiredContext { not_after, .. } => format!(
            "the peer's certificate has expired: it ended on {}: renew it with `skein ca renew HOST` (or is this \
             host's clock ahead?)",
            utc(*not_after)
        ),
        NotValidYet => "the peer's certificate is not valid yet: is this host's clock behind?".into(),
        NotValidYetContext { not_before, .. } => format!(
            "the peer's certificate is not valid yet: it begins on {}: is this host's clock behind?",
            utc(*not_before)
        ),
        UnknownIssuer | BadSignature => {
            "the peer is not of this cluster: its certificate is signed by another CA".into()
        }
        NotValidForName | NotValidForNameContext { .. } | InvalidPurpose | InvalidPurposeContext { .. } => {
            "the peer's certificate is not a skein identity: issue one with `skein ca issue HOST`".into()
        }
        BadEncoding | UnhandledCriticalExtension => {
            "the peer's certificate is damaged: issue it again with `skein ca issue HOST`".into()
        }
        Other(why) => format!("the peer is refused: {}", why.0),
        other => format!("the peer's certificate is refused: {other}"),
    }
}

/// Returns a time in words, by the minute.
pub fn utc_words(time: Timestamp) -> String {
    time.strftime("%F %H:%M UTC").to_string()
}

/// Returns what a clock says, in words.
pub fn clock_words(now: SystemTime) -> String {
    Timestamp::try_from(now).map_or_else(|_| "no date".to_owned(), utc_words)
}

/// Returns a time in words.
fn utc(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).ok();
    let time = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(|| "a time that is no date".to_owned(), utc_words)
}

/// Explains why the peer refused something of this end.
fn received(alert: AlertDescription) -> String {
    use AlertDescription::*;
    match alert {
        CertificateExpired => {
            "the peer refused our certificate as expired (or not valid yet): renew it with `skein ca renew HOST`, \
             or set the clock that is wrong"
        }
        // DecryptError: a CA of the same name with another key.
        UnknownCA | DecryptError => {
            "the peer is not of this cluster: it refused our certificate, which is signed by another CA than its own"
        }
        CertificateRequired => "the peer requires a certificate and we showed none: get one with `skein ca issue HOST`",
        BadCertificate | UnsupportedCertificate | CertificateUnknown => {
            "the peer refused our certificate as no skein identity: issue one with `skein ca issue HOST`"
        }
        CertificateRevoked => "the peer refused our certificate as revoked: issue a new one with `skein ca issue HOST`",
        NoApplicationProtocol => {
            "the peer speaks TLS, but not skein's protocol: both ends need the same major version of skein"
        }
        ProtocolVersion | HandshakeFailure | InsufficientSecurity => {
            "the peer does not offer TLS 1.3 as skein speaks it (is that port really a skein agent?)"
        }
        RecordOverflow | DecodeError | UnexpectedMessage => {
            "the peer did not understand what we sent (is that port really a skein agent?)"
        }
        BadRecordMac => "data to the peer was changed on the way: something between the hosts alters TCP's payload",
        AccessDenied => "the peer denied us access",
        InternalError => "the peer failed inside: see its log",
        other => return format!("the peer ended TLS with the alert {other:?}"),
    }
    .to_owned()
}
