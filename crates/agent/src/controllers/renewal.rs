//! Has the host's certificate renewed, before it ends, by the controller that leads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use skein_api::Refusal;
use skein_identity::{Identity, RenewalError, clock_words, parse_pem, utc_words};
use tracing::{info, warn};

use crate::error_chain;

/// Bounds how long is waited before a controller is asked again: of a certificate of a year there are 2900 such times
/// left when it is asked first.
const RETRY_RANGE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3600));

/// The renewal of the host's certificate. All connections to controllers share it, and one of them asks at a time.
pub(crate) struct Renewal {
    identity: Identity,
    /// How often the certificate was renewed since the agent started.
    renewals: AtomicU64,
    state: Mutex<State>,
}

struct State {
    /// When a controller may be asked again.
    next: Instant,
    /// Why the last attempt failed, as the log has it.
    told: String,
}

impl Renewal {
    pub(crate) fn new(identity: Identity) -> Renewal {
        let state = State { next: Instant::now(), told: String::new() };
        Renewal { identity, renewals: AtomicU64::new(0), state: Mutex::new(state) }
    }

    /// Returns how often the certificate was renewed: a connection of before shows an older one.
    pub(crate) fn renewals(&self) -> u64 {
        self.renewals.load(Ordering::SeqCst)
    }

    /// Says from when until when the certificate is valid, and what this host's clock says.
    pub(crate) fn dates(&self, now: SystemTime) -> String {
        let info = self.identity.info();
        let [begins, ends] = [info.not_before, info.not_after].map(utc_words);
        format!("it is valid from {begins} to {ends}, and this host's clock says {}", clock_words(now))
    }

    /// Returns whether the leader is to be asked now. It is not asked again for a while then, whatever becomes of it.
    pub(crate) fn wants(&self) -> bool {
        let mut state = self.state.lock();
        let now = Instant::now();
        if now < state.next || !self.identity.is_renewal_due(SystemTime::now()) {
            return false;
        }
        let info = self.identity.info();
        let all = Duration::try_from(info.not_before.duration_until(info.not_after)).unwrap_or_default();
        state.next = now + (all / 100).clamp(RETRY_RANGE.0, RETRY_RANGE.1);
        true
    }

    /// Takes the certificate that a controller has signed: keeps it, and shows it from now on.
    pub(crate) fn take(&self, certificate: &str) {
        let renew = || -> Result<(), RenewalError> {
            let new = parse_pem(certificate.as_bytes())?.swap_remove(0);
            self.identity.renew(new)
        };
        match renew() {
            Ok(()) => {
                self.state.lock().told.clear();
                self.renewals.fetch_add(1, Ordering::SeqCst);
                info!(
                    "the host's certificate was renewed: it ends on {}",
                    self.identity.info().not_after.strftime("%F")
                );
            }
            Err(error) => self.fail(error_chain(&error)),
        }
    }

    /// Notes that a controller does not renew the certificate.
    pub(crate) fn refuse(&self, Refusal { message, cure }: Refusal) {
        self.fail(format!("{message}: {cure}"));
    }

    fn fail(&self, why: String) {
        let mut state = self.state.lock();
        // The same reason again and again is worth one line.
        if state.told != why {
            let end = self.identity.info().not_after;
            warn!("the host's certificate ends on {} and is not renewed: {why}", end.strftime("%F"));
            state.told = why;
        }
    }
}
