//! Hosts' certificates: which are taken, and how one takes the place of another.
//!
//! The cluster's CA has signed whatever comes here. A certificate that was signed in place of another is first written,
//! and then handed out; it is taken from then on. The others of its host are taken until the host has shown it, and
//! never again. So a host always has one that is taken: it keeps the new one before it shows it.

use skein_api::Refusal;
use skein_api::cluster::{Contact, UnixMs};

use crate::answer::{Answer, RefusedKind};
use crate::observed::ShownCertificate;
use crate::records::{CertificateValidity, HostRecord};
use crate::state::{Controller, Planted};

/// A day, in milliseconds.
const DAY_MS: u64 = 86_400_000;
/// The share of its validity that is left of a certificate when somebody is told that it was not renewed. Its agent has
/// tried for a while then, as it begins when a third is left.
const TOLD_SHARE: u64 = 4;

impl Controller {
    /// Returns why a host with a certificate of the cluster's CA is not taken: it was removed, and has not joined anew,
    /// or shows a certificate of before. A certificate that was signed after the removal is of a host that has joined
    /// anew, also if a backup was restored that does not know of that.
    pub fn host_refusal(&self, host: &str, certificate: &ShownCertificate) -> Option<Refusal> {
        let is_one_of = |denied: &[String]| denied.contains(&certificate.sha256);
        let found = self.tables.hosts.get(host);
        if found.is_some_and(|found| is_one_of(&found.value.replaced)) {
            return Some(Refusal {
                message: format!("the certificate of '{host}' was replaced by another, which the host has shown"),
                cure: format!(
                    "have its key signed again: skein-controller ticket --host {host} makes a token for skein join"
                ),
            });
        }
        let removed = &self.tables.removed.get(host)?.value;
        let is_signed_since = certificate.validity.is_some_and(|validity| validity.begins > removed.at);
        (is_one_of(&removed.certificates) || found.is_none() && !is_signed_since).then(|| Refusal {
            message: format!("'{host}' was removed from the cluster"),
            cure: "join it anew: skein-controller ticket makes a token for skein join".into(),
        })
    }

    /// Keeps that a certificate was signed in place of the one that a host shows.
    pub(crate) fn renew_certificate(&mut self, host: &str, shown: &str, signed: &str) -> Answer {
        if let Some(Refusal { message, cure }) = self.host_refusal(host, &ShownCertificate::from(shown.to_owned())) {
            return Answer::refused(RefusedKind::Forbidden, message, cure);
        }
        let Some(mut record) = self.tables.hosts.get(host).map(|found| found.value.clone()) else {
            return crate::ask::no_host(host);
        };
        record.sign(signed);
        if self.has(Planted::ReplacedAtOnce) {
            record.note_certificate(signed, None);
        }
        self.tables.put(host, record);
        Answer::Done
    }

    /// Returns whether a host of the cluster may have its key signed again by a ticket for its name: it has no
    /// certificate by which its agent is here, or none that is valid any longer.
    pub(crate) fn may_be_signed_again(&self, host: &str, record: &HostRecord) -> bool {
        let has_ended = record.validity.is_some_and(|validity| validity.ends <= self.wall);
        self.session_of(host).is_none() || has_ended
    }

    /// Returns whose certificates have ended, or end soon and were not renewed, one sentence each.
    pub(crate) fn certificate_attention(&self) -> Vec<String> {
        let hosts = self.tables.hosts.iter().filter(|(_, host)| host.value.contact != Contact::Off);
        hosts.filter_map(|(name, host)| told_of_end(name, host.value.validity?, self.wall)).collect()
    }
}

fn told_of_end(host: &str, validity: CertificateValidity, now: UnixMs) -> Option<String> {
    let again = format!("skein-controller ticket --host {host} makes a token for skein join there");
    let left_ms = validity.ends.0.saturating_sub(now.0);
    if left_ms == 0 {
        return Some(format!("the certificate of host '{host}' has ended, and nobody takes it any more: {again}"));
    }
    if left_ms > validity.ends.0.saturating_sub(validity.begins.0) / TOLD_SHARE {
        return None;
    }
    let left = match left_ms / DAY_MS {
        0 => "within a day".to_owned(),
        days => format!("in {days} days"),
    };
    Some(format!(
        "the certificate of host '{host}' ends {left} and was not renewed: its agent's log says why (journalctl -u \
         skein-agent); {again}"
    ))
}
