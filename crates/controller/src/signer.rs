//! Signs certificates, where this controller has the CA's key: of hosts that join, of hosts whose certificate is to be
//! renewed, and its own.

use std::path::Path;
use std::time::{Duration, SystemTime};

use skein_api::Refusal;
use skein_cluster::error_chain;
use skein_identity::{
    CaError, CertificateDer, CertificateInfo, ClusterCa, ControllerIdentity, IdentityError, ParseError, RenewalError,
    SigningRequest, Validity, WriteError, clock_words, parse_pem, utc_words,
};
use tracing::{info, warn};

/// How often it is looked whether the own certificate is to be renewed, at most and at least.
const LOOK_PERIOD_MAX: Duration = Duration::from_secs(3600);
const LOOK_PERIOD_MIN: Duration = Duration::from_secs(1);

/// Why the own certificate is not renewed.
#[derive(Debug, thiserror::Error)]
enum NotRenewed {
    #[error("this controller does not have the CA's key")]
    NoKey,
    #[error("it cannot be signed")]
    Sign(#[from] CaError),
    #[error("the new one is not taken")]
    Take(#[from] RenewalError),
}

/// Why there is no identity of this controller.
#[derive(Debug, thiserror::Error)]
pub enum NoIdentity {
    /// It cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The certificate that is not valid now cannot be read.
    #[error("this controller's certificate is not valid now, and cannot be read")]
    Read(#[from] std::io::Error),
    /// The certificate that is not valid now is none.
    #[error("this controller's certificate is not valid now, and cannot be read")]
    Parse(#[from] ParseError),
    /// A new certificate cannot be signed.
    #[error("this controller's certificate is not valid now, and is not renewed")]
    Sign(#[from] CaError),
    /// The new certificate cannot be written.
    #[error("this controller's certificate is not valid now, and is not renewed")]
    Write(#[from] WriteError),
}

/// Reads a controller's identity, as [`Signer::load_identity`] does.
///
/// # Errors
///
/// There is no usable identity, and it cannot be made one.
pub fn load_identity(
    dir: &Path,
    ca: Option<&ClusterCa>,
    valid_for: Duration,
) -> Result<ControllerIdentity, NoIdentity> {
    let loaded = ControllerIdentity::load(dir);
    let was = match &loaded {
        Err(IdentityError::ControllerExpired { .. }) => "had ended, and was renewed",
        Err(IdentityError::ControllerNotYetValid { .. }) => "was from the future, and was replaced",
        _ => return Ok(loaded?),
    };
    let Some(ca) = ca else { return Ok(loaded?) };
    let earlier = parse_pem(&std::fs::read(dir.join(ControllerIdentity::CERTIFICATE_FILE))?)?.swap_remove(0);
    ControllerIdentity::save_certificate(dir, &ca.renew(&earlier, Validity::lasting(valid_for))?)?;
    info!("this controller's certificate {was}");
    Ok(ControllerIdentity::load(dir)?)
}

/// Signs certificates.
pub struct Signer {
    ca: Option<ClusterCa>,
    /// For how long a certificate is valid.
    valid_for: Duration,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer").field("signs", &self.ca.is_some()).field("valid_for", &self.valid_for).finish()
    }
}

impl Signer {
    /// Makes a signer of the cluster's CA, if it is at hand.
    pub fn new(ca: Option<ClusterCa>, valid_for: Duration) -> Signer {
        Signer { ca, valid_for }
    }

    /// Returns the cluster's CA, if it is at hand.
    pub fn ca(&self) -> Option<&ClusterCa> {
        self.ca.as_ref()
    }

    /// Returns for how long a certificate is valid.
    pub fn valid_for(&self) -> Duration {
        self.valid_for
    }

    /// Signs the request of a host that joins, if it is for this name.
    ///
    /// # Errors
    ///
    /// It is not, or cannot be signed.
    pub fn sign(
        &self,
        ca: &ClusterCa,
        request: &SigningRequest,
        host: &str,
    ) -> Result<CertificateDer<'static>, CaError> {
        ca.sign_host(request, host, Validity::lasting(self.valid_for))
    }

    /// Signs a certificate of the name and key of the one that a host has shown, whose key it has therefore.
    ///
    /// # Errors
    ///
    /// The CA's key is not here, the host's certificate is of another CA, or more than half of its time is left.
    pub fn renew(&self, shown: &CertificateDer<'_>) -> Result<CertificateDer<'static>, Refusal> {
        let refuse = |message: String, cure: &str| Refusal { message, cure: cure.to_owned() };
        let Some(ca) = &self.ca else {
            let cure =
                "give it the CA's directory (`ca` in /etc/skein/controller.toml), or let another controller lead";
            return Err(refuse("the controller that leads does not have the CA's key".into(), cure));
        };
        let info = CertificateInfo::parse(shown).map_err(|error| refuse(error_chain(&error), ""))?;
        let (begin, end) = (info.not_before.as_second(), info.not_after.as_second());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        if i64::try_from(now).unwrap_or(i64::MAX) < end - (end - begin) / 2 {
            let cure = "see that the clocks of the host and the controller are right";
            return Err(refuse("more than half of the certificate's time is left".into(), cure));
        }
        let cure = "issue the host an identity of the cluster's CA: docs/identity.md";
        ca.renew(shown, Validity::lasting(self.valid_for)).map_err(|error| refuse(error_chain(&error), cure))
    }

    /// Reads a controller's identity. Replaces its certificate if that has ended while the controller was off, or is
    /// from the future, as it was signed with a clock that was ahead.
    ///
    /// # Errors
    ///
    /// There is no usable identity, and it cannot be made one.
    pub fn load_identity(&self, dir: &Path) -> Result<ControllerIdentity, NoIdentity> {
        load_identity(dir, self.ca.as_ref(), self.valid_for)
    }

    /// Renews a controller's certificate whenever that is due. Connections that are open go on.
    pub async fn keep_renewed(&self, identity: &ControllerIdentity) {
        let period = (self.valid_for / 100).clamp(LOOK_PERIOD_MIN, LOOK_PERIOD_MAX);
        let mut told = String::new();
        loop {
            if identity.is_renewal_due(SystemTime::now()) {
                match self.renew_own(identity) {
                    Ok(()) => info!("this controller's certificate was renewed, until {}", identity.info().not_after),
                    Err(error) => {
                        let why = error_chain(&error);
                        if why != told {
                            let end = identity.info().not_after;
                            warn!("this controller's certificate ends on {end} and is not renewed: {why}");
                            told = why;
                        }
                    }
                }
            }
            tokio::time::sleep(period).await;
        }
    }

    fn renew_own(&self, identity: &ControllerIdentity) -> Result<(), NotRenewed> {
        let ca = self.ca.as_ref().ok_or(NotRenewed::NoKey)?;
        let new = ca.renew(&identity.chain()[0], Validity::lasting(self.valid_for))?;
        Ok(identity.renew(new)?)
    }

    /// Returns what of certificates needs a person, one sentence each: those of `identity`, a controller, and its CA.
    pub fn attention(&self, identity: &ControllerIdentity, now: SystemTime) -> Vec<String> {
        let mut found = Vec::new();
        let day = |time: jiff::Timestamp| time.strftime("%F").to_string();
        let own = identity.info();
        if self.ca.is_none() && identity.is_renewal_due(now) {
            found.push(format!(
                "the certificate of the controller '{}' ends on {}, and the CA's key, by which it would be renewed, is \
                 not here: give it the CA's directory (`ca` in /etc/skein/controller.toml)",
                identity.name(),
                day(own.not_after)
            ));
        }
        if jiff::Timestamp::try_from(now).is_ok_and(|now| now < own.not_before) {
            found.push(format!(
                "the certificate of the controller '{}' begins on {}, and this machine's clock says {}, so hosts \
                 refuse it: set the clock if it is wrong; else start skein-controller again, with the CA's key, which \
                 replaces the certificate",
                identity.name(),
                utc_words(own.not_before),
                clock_words(now)
            ));
        }
        let roots = identity.roots().iter().filter_map(|root| CertificateInfo::parse(root).ok());
        let last = roots.map(|root| root.not_after).max();
        let cut_short = jiff::Timestamp::try_from(now + self.valid_for).ok();
        if let Some(last) = last.filter(|last| cut_short.is_some_and(|new| *last < new)) {
            found.push(format!(
                "the cluster's CA ends on {}, and every certificate with it: change it (docs/identity.md, 'Change the \
                 CA')",
                day(last)
            ));
        }
        found
    }
}
