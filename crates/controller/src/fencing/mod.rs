//! Fencing devices: what switches hosts off, and says whether they have power.
//!
//! | file | what |
//! |---|---|
//! | `redfish` | a management controller that speaks Redfish |
//! | `tls` | which certificate is the management controller's |
//! | `agent` | a fence agent: a program with the interface of ClusterLabs' fence-agents |
//! | `secret` | files with passwords |
//!
//! What switches a host off or on goes out only while this controller leads, with so much of its lease left that
//! sending is over before another controller can lead. An answer may be waited for longer: it changes nothing that a
//! later leader knows.

mod agent;
mod redfish;
mod secret;
mod tls;

use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use skein_api::cluster::{FencingDevice, PowerState};
use skein_cluster::{PowerAction, PowerResult, error_chain};

use self::agent::FenceAgent;
use self::redfish::{Redfish, ResetType};
use self::secret::{SecretError, read_secret};

/// How much of its lease a leader has left when a power-off goes out: sending takes no longer. A leader that keeps its
/// lease of five seconds alive has more left at any time.
const SENT_WITHIN: Duration = Duration::from_secs(3);
/// How often it is seen whether the lease was kept alive.
const LOOK: Duration = Duration::from_millis(50);

/// Where a controller has what fencing devices need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FencingConfig {
    /// The directory of the fence agents.
    pub agents: PathBuf,
    /// The directory with a file for each secret, which only root can read.
    pub secrets: PathBuf,
}

impl Default for FencingConfig {
    fn default() -> FencingConfig {
        FencingConfig { agents: "/usr/sbin".into(), secrets: "/etc/skein/controller/fencing".into() }
    }
}

/// What is done with a device, and by when.
pub struct PowerCall<'a> {
    /// The device.
    pub device: &'a FencingDevice,
    /// What it is told or asked.
    pub action: PowerAction,
    /// When the answer is of no use any more.
    pub until: Instant,
    /// Returns how much of its lease the controller has left that wants this; `None`: it does not lead any more.
    pub lease_left: &'a dyn Fn() -> Option<Duration>,
}

/// Whatever reaches fencing devices.
pub trait FencingDevices: Send + Sync {
    /// Tells or asks a device something, and waits for its answer until the call is over.
    fn call(&self, call: &PowerCall<'_>) -> PowerResult;
}

/// The devices that there are.
#[derive(Clone, Debug)]
pub struct RealDevices(pub FencingConfig);

/// Why a device did not do or say what it was to.
#[derive(Debug, thiserror::Error)]
enum DeviceError {
    #[error("the secret '{name}' cannot be read")]
    Secret { name: String, source: SecretError },
    #[error("this controller does not lead any more")]
    LeadsNoMore,
    #[error("this controller's lease is not kept alive")]
    LeaseTooShort,
    #[error("a fence agent cannot shut a host down in order: skein property set host NAME sleep=agent")]
    NotInOrder,
    #[error(transparent)]
    Redfish(#[from] redfish::RedfishError),
    #[error(transparent)]
    Agent(#[from] agent::AgentError),
}

impl DeviceError {
    /// Whether nothing was done for sure.
    fn is_refusal(&self) -> bool {
        match self {
            DeviceError::Secret { .. } | DeviceError::LeadsNoMore | DeviceError::LeaseTooShort => true,
            DeviceError::NotInOrder => true,
            DeviceError::Redfish(error) => error.is_refusal(),
            DeviceError::Agent(error) => error.is_refusal(),
        }
    }
}

impl FencingDevices for RealDevices {
    fn call(&self, call: &PowerCall<'_>) -> PowerResult {
        self.try_call(call).unwrap_or_else(|error| match error.is_refusal() {
            true => PowerResult::Refused(error_chain(&error)),
            false => PowerResult::Unknown(error_chain(&error)),
        })
    }
}

impl RealDevices {
    fn try_call(&self, call: &PowerCall<'_>) -> Result<PowerResult, DeviceError> {
        let secret = |name: &Option<String>| {
            let read = |name: &String| {
                let path = self.0.secrets.join(name);
                read_secret(&path).map_err(|source| DeviceError::Secret { name: name.clone(), source })
            };
            name.as_ref().map(read).transpose()
        };
        match call.device {
            FencingDevice::Redfish { url, system, user, secret: name, certificate_sha256, ca } => {
                let account = user.clone().zip(secret(name)?);
                let trust = tls::Trust::of(certificate_sha256.as_deref(), ca.as_deref())
                    .map_err(redfish::RedfishError::Trust)?;
                let redfish = Redfish::new(url, account, trust, call.until)?;
                let found = redfish.system(system.as_deref())?;
                match call.action {
                    PowerAction::Read => Ok(PowerResult::State(found.power(), found.words())),
                    PowerAction::Check { shutdown } => {
                        let kinds = [Some(ResetType::On), shutdown.then_some(ResetType::GracefulShutdown)];
                        kinds.into_iter().flatten().try_for_each(|kind| found.reset_target(kind).map(drop))?;
                        Ok(PowerResult::State(found.power(), found.words()))
                    }
                    PowerAction::Off | PowerAction::Shutdown | PowerAction::On => {
                        let kind = match call.action {
                            PowerAction::Shutdown => ResetType::GracefulShutdown,
                            PowerAction::On => ResetType::On,
                            _ => ResetType::ForceOff,
                        };
                        let target = found.reset_target(kind)?;
                        wait_for_lease(call)?;
                        redfish.reset(&target, kind, SENT_WITHIN)?;
                        Ok(PowerResult::Accepted)
                    }
                }
            }
            FencingDevice::Agent { agent, options, secret: name, .. } => {
                let agent = FenceAgent { program: &self.0.agents.join(agent), options, password: secret(name)? };
                match call.action {
                    PowerAction::Shutdown | PowerAction::Check { shutdown: true } => Err(DeviceError::NotInOrder),
                    PowerAction::Read | PowerAction::Check { shutdown: false } => {
                        let state = agent.is_on(call.until)?;
                        let state = if state { PowerState::On } else { PowerState::Off };
                        Ok(PowerResult::State(state, format!("{} says so", agent.program.display())))
                    }
                    PowerAction::Off | PowerAction::On => {
                        wait_for_lease(call)?;
                        let is_on = call.action == PowerAction::On;
                        agent.switch(is_on, call.until, &|| (call.lease_left)().is_some())?;
                        Ok(PowerResult::Accepted)
                    }
                }
            }
        }
    }
}

/// Returns the SHA-256 of the certificate that a management controller shows; `None`: it shows none in time.
pub fn shown_certificate(url: &str, until: Instant) -> Option<String> {
    let (trust, seen) = tls::Trust::noting().ok()?;
    // The certificate is refused: nothing is asked, and no password sent.
    let _ = Redfish::new(url, None, trust, until).ok()?.system(None);
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
    (!seen.is_empty()).then_some(seen)
}

/// Waits until the controller has so much of its lease left that a power-off may go out.
fn wait_for_lease(call: &PowerCall<'_>) -> Result<(), DeviceError> {
    loop {
        match (call.lease_left)() {
            None => return Err(DeviceError::LeadsNoMore),
            Some(left) if left > SENT_WITHIN => return Ok(()),
            Some(_) if Instant::now() >= call.until => return Err(DeviceError::LeaseTooShort),
            Some(_) => std::thread::sleep(LOOK),
        }
    }
}
