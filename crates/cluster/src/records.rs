//! What the store holds: a value of JSON for each key.
//!
//! | key | value |
//! |---|---|
//! | `cluster` | [`ClusterRecord`] |
//! | `host/NAME` | [`HostRecord`] |
//! | `removed/NAME` | [`RemovedRecord`] |
//! | `vm/NAME` | [`VmRecord`] |
//! | `operation/ID` | [`Operation`] |
//! | `token/NAME` | [`TokenRecord`] |
//! | `ticket/ID` | [`TicketRecord`] |
//! | `rule/NAME` | [`RuleRecord`] |
//! | `settings` | [`ClusterSettings`](skein_api::cluster::ClusterSettings) |
//! | `power/last` | [`PowerRoundRecord`] |
//! | `restored/last` | [`RestoredRecord`] |
//! | `repeat/WHO/KEY` | [`RepeatRecord`] |
//! | `voters/NUMBER` | [`VotersRecord`] |
//! | `audit/ID` | [`AuditRecord`] |

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use skein_api::MigrationId;
use skein_api::cluster::{
    AuditRecord, Contact, HostMode, HostSettings, Operation, Token, UnixMs, VmRunState, VmSettings,
};

use crate::cpu_models::HostCpuModels;

/// The cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// The name, chosen by the administrator.
    pub name: String,
    /// The id, chosen at random.
    pub id: String,
    /// The SHA-256 of the CA's certificate, by which a controller with another CA is known. `None`: the cluster was
    /// made before that was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_sha256: Option<String>,
}

/// What is kept of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRecord {
    /// When the host joined.
    pub joined: UnixMs,
    /// Whether the host reports, as last noted by a leader.
    pub contact: Contact,
    /// Since when.
    pub contact_since: UnixMs,
    /// Whether guests may be put on the host.
    pub mode: HostMode,
    /// The drain that empties the host, or has emptied it.
    #[serde(default)]
    pub drain: Option<String>,
    /// Whether the host was to take guests again without those of the drain. They come home if somebody asks for that,
    /// and are no part of a later drain.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guests_stay_away: bool,
    /// What people have set.
    #[serde(default)]
    pub settings: HostSettings,
    /// The addresses of the host's agent, as the agent last told.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// The kernel's id of the boot in which the agent last reported.
    #[serde(default)]
    pub boot_id: Option<String>,
    /// The CPU models that the host can give a guest whole, as the agent last told. An accelerator that does not work,
    /// or of which nothing was told, is left out.
    #[serde(default, skip_serializing_if = "HostCpuModels::is_empty")]
    pub cpu_models: HostCpuModels,
    /// The SHA-256 of the certificates with which the host joined and its agent reported, and of those that were signed
    /// for it since; the newest last.
    #[serde(default)]
    pub certificates: Vec<String>,
    /// The SHA-256 of the certificate that was signed last in place of another, until the host shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed: Option<String>,
    /// The SHA-256 of certificates that are refused, as the host has shown one since that was signed in their place;
    /// the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<String>,
    /// From when until when the certificate is valid that the agent last showed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validity: Option<CertificateValidity>,
    /// Whether the host sleeps, and how it went.
    #[serde(default)]
    pub power: PowerRecord,
    /// The watchdog that resets the host unless its agent feeds it, as the agent last told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watchdog: Option<WatchdogRecord>,
    /// Whether the store was restored from a backup, and the host has neither reported nor been proven to be off since:
    /// nobody knows what it runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unheard_since_restore: bool,
}

/// That the store was restored from a backup: what it says of hosts is of the time before. The first leader takes the
/// record away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredRecord {
    /// When the store was restored.
    pub at: UnixMs,
}

impl RestoredRecord {
    /// The only record's name.
    pub const NAME: &'static str = "last";

    /// Returns the key and the value that a store gets with a backup.
    pub fn entry(at: UnixMs) -> (String, Vec<u8>) {
        (format!("{}{}", Self::PREFIX, Self::NAME), RestoredRecord { at }.bytes())
    }
}

/// A host's watchdog that is armed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchdogRecord {
    /// What the device says it is.
    pub identity: String,
    /// Within which time the host is reset, from the last moment on at which its agent could be given a reason to feed
    /// the watchdog, in milliseconds.
    pub resets_within_ms: u64,
    /// The number of the voters by which the host's agent last said that it goes, the greatest. 0: it has not said.
    pub voters: u64,
}

/// The hosts of which more than half have to have no leader, so that a watchdog is fed without one. A number's hosts
/// never change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VotersRecord {
    /// Their names.
    pub hosts: BTreeSet<String>,
}

impl VotersRecord {
    /// Returns the key of a number, so that keys have the order of numbers.
    pub(crate) fn key(number: u64) -> String {
        format!("{number:016}")
    }
}

/// From when until when a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateValidity {
    /// From when.
    pub begins: UnixMs,
    /// Until when.
    pub ends: UnixMs,
}

impl HostRecord {
    /// The most certificates that are remembered of a host: one for each year, mostly.
    const CERTIFICATES_MAX: usize = 8;
    /// The most certificates that are remembered as replaced. Each was shown until two thirds of its time were over, so
    /// those of before have ended.
    const REPLACED_MAX: usize = 16;

    /// Returns the addresses of the host's agent, without ports. Names of hosts are left out.
    pub(crate) fn ips(&self) -> Vec<IpAddr> {
        let ip = |of: &String| of.parse().ok().map(|of: SocketAddr| of.ip().to_canonical());
        self.addresses.iter().filter_map(ip).collect()
    }

    /// Returns the drain whose guests come home with those of a drain that begins now.
    pub(crate) fn drain_before(&self) -> Option<String> {
        self.drain.clone().filter(|_| !self.guests_stay_away)
    }

    /// Returns the host as it is drained from now on.
    pub(crate) fn drained_by(self, drain: String) -> HostRecord {
        HostRecord { mode: HostMode::Draining, drain: Some(drain), guests_stay_away: false, ..self }
    }

    /// Remembers a certificate of the host, which shows it. If it was signed in place of others, these are replaced.
    pub(crate) fn note_certificate(&mut self, sha256: &str, validity: Option<CertificateValidity>) {
        self.add_certificate(sha256);
        self.validity = validity.or(self.validity);
        if self.signed.take_if(|signed| signed == sha256).is_some() {
            let kept = self.certificates.pop();
            self.replaced.append(&mut self.certificates);
            self.certificates.extend(kept);
            self.replaced.drain(..self.replaced.len().saturating_sub(HostRecord::REPLACED_MAX));
        }
    }

    /// Notes that a certificate was signed in place of the others, and is about to be handed to the host.
    pub(crate) fn sign(&mut self, sha256: &str) {
        self.add_certificate(sha256);
        self.signed = Some(sha256.to_owned());
    }

    fn add_certificate(&mut self, sha256: &str) {
        if self.certificates.last().is_none_or(|last| last != sha256) {
            self.certificates.retain(|known| known != sha256);
            self.certificates.push(sha256.to_owned());
        }
        let more = self.certificates.len().saturating_sub(HostRecord::CERTIFICATES_MAX);
        self.certificates.drain(..more);
    }
}

/// What is kept of a host's power.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PowerRecord {
    /// Whether the host sleeps.
    pub asleep: Option<AsleepRecord>,
    /// When the host last woke.
    pub woken: Option<UnixMs>,
    /// What went wrong when the host was last to sleep or to wake. It is not put to sleep by anybody until that is
    /// cleared.
    pub trouble: Option<String>,
    /// For how long the host slept until it last woke, in milliseconds.
    pub slept_ms: u64,
}

impl PowerRecord {
    /// Notes that the host is awake.
    pub(crate) fn wake(&mut self, now: UnixMs) {
        if let Some(asleep) = self.asleep.take() {
            self.slept_ms = self.slept_ms.saturating_add(now.0.saturating_sub(asleep.since.0));
            self.woken = Some(now);
        }
    }

    /// Returns for how long the host has slept in all, in milliseconds.
    pub(crate) fn slept_ms(&self, now: UnixMs) -> u64 {
        let since = self.asleep.as_ref().map_or(0, |asleep| now.0.saturating_sub(asleep.since.0));
        self.slept_ms.saturating_add(since)
    }
}

/// A host that sleeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AsleepRecord {
    /// Since when.
    pub since: UnixMs,
    /// Who put it to sleep.
    pub by: String,
    /// Whether nobody asked for it.
    pub automatic: bool,
    /// The CPUs that it has.
    pub cpus: u32,
    /// The memory that it has for guests, in bytes.
    pub ram_bytes: u64,
}

/// What was decided last of hosts that sleep and wake.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PowerRoundRecord {
    /// When that was first decided.
    pub at: UnixMs,
    /// What was decided, in a sentence.
    pub decision: String,
    /// Why each host is not put to sleep.
    pub against: BTreeMap<String, String>,
}

/// A host that was removed. It is refused until it joins anew, and its certificates of before are refused for good.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedRecord {
    /// When the host was last removed.
    pub at: UnixMs,
    /// Who removed the host.
    pub by: String,
    /// The SHA-256 of the certificates that are refused, the newest last.
    pub certificates: Vec<String>,
}

impl RemovedRecord {
    /// The most certificates that are refused of a host: those of before end by themselves.
    pub(crate) const CERTIFICATES_MAX: usize = 64;
}

/// What is kept of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmRecord {
    /// The host where the VM is, or was last.
    pub host: Option<String>,
    /// Whether the guest ran, as the host last told.
    pub state: VmRunState,
    /// Since when.
    pub since: UnixMs,
    /// The RAM, in bytes.
    pub ram_bytes: u64,
    /// The number of virtual CPUs.
    pub cpus: u32,
    /// Whether another program started the VM.
    #[serde(default)]
    pub adopted: bool,
    /// The definition, as TOML.
    #[serde(default)]
    pub definition: Option<String>,
    /// A fact for people. May be empty.
    #[serde(default)]
    pub note: String,
    /// What people have set.
    #[serde(default)]
    pub settings: VmSettings,
    /// Whether the VM is its host's by the controller's decision, and the host has not had it yet.
    #[serde(default)]
    pub is_claimed: bool,
    /// Whether the guest ended with a boot of its host, which has not said since that it has the VM.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_ended: bool,
    /// Whether the cluster was asked to stop the VM, which is not started by itself then.
    #[serde(default)]
    pub stop_asked: bool,
    /// The migration from the VM's host that a person was last allowed to begin, unless its end is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub move_by_hand: Option<MoveByHandRecord>,
    /// The migrations of the VM that were over when the VM was last seen on its host, or came there: the VM has not
    /// left by one of these. Hosts' clocks do not tell their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub past_migrations: Vec<MigrationId>,
}

impl VmRecord {
    /// The most migrations that are remembered as over. Agents tell of those of the last minutes.
    pub(crate) const PAST_MIGRATIONS_MAX: usize = 32;

    /// Remembers migrations that are over. Of too many the first are forgotten.
    pub(crate) fn note_past(&mut self, migrations: impl IntoIterator<Item = MigrationId>) {
        for migration in migrations {
            if !self.past_migrations.contains(&migration) {
                self.past_migrations.push(migration);
            }
        }
        self.past_migrations.drain(..self.past_migrations.len().saturating_sub(VmRecord::PAST_MIGRATIONS_MAX));
    }

    /// Returns the record of a VM that has come to another host by a migration: what was allowed on its host of before
    /// is over.
    pub(crate) fn put_on(self, host: &str, state: VmRunState, since: UnixMs, migration: MigrationId) -> VmRecord {
        let host = Some(host.to_owned());
        let mut record = VmRecord { host, state, since, is_ended: false, move_by_hand: None, ..self };
        record.note_past([migration]);
        record
    }
}

/// A migration that a person was allowed to begin: the guest may be at its target, whether that reports or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveByHandRecord {
    /// The target.
    pub to: String,
    /// The migration's id, by which the VM's host tells of it.
    pub migration: MigrationId,
}

/// A token, by which a caller of the API is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// What the API shows.
    pub token: Token,
    /// The SHA-256 of the secret, in hexadecimal digits. The secret is random, and too long to be guessed.
    pub secret_sha256: String,
}

/// A ticket with which one host joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketRecord {
    /// The only host that may join by the ticket. `None`: any.
    pub host: Option<String>,
    /// The SHA-256 of the secret, in hexadecimal digits.
    pub secret_sha256: String,
    /// Who made the ticket.
    pub by: String,
    /// When the ticket ends.
    pub expires: UnixMs,
    /// The host that joined by the ticket, and when.
    #[serde(default)]
    pub used: Option<(String, UnixMs)>,
}

/// A rule about where guests run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleRecord {
    /// The rule, in the words of the cluster file.
    pub rule: serde_json::Value,
}

/// The answer to a request that may be repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepeatRecord {
    /// The request, in words that differ if it is another one.
    pub request: String,
    /// The operation that the request began.
    pub operation: String,
    /// When the request came.
    pub at: UnixMs,
}

/// A value of the store.
pub(crate) trait Record: Sized + Clone {
    /// The first part of the key, with the `/` behind it.
    const PREFIX: &'static str;
    /// Returns the value as bytes.
    fn bytes(&self) -> Vec<u8>;
    /// Reads the value.
    fn read(bytes: &[u8]) -> Result<Self, serde_json::Error>;
}

macro_rules! records {
    ($($record:ty => $prefix:literal),* $(,)?) => {
        $(impl Record for $record {
            const PREFIX: &'static str = $prefix;
            fn bytes(&self) -> Vec<u8> {
                serde_json::to_vec(self).expect("plain data always serialises")
            }
            fn read(bytes: &[u8]) -> Result<Self, serde_json::Error> {
                serde_json::from_slice(bytes)
            }
        })*
    };
}

records! {
    HostRecord => "host/",
    RemovedRecord => "removed/",
    VmRecord => "vm/",
    Operation => "operation/",
    TokenRecord => "token/",
    TicketRecord => "ticket/",
    RuleRecord => "rule/",
    PowerRoundRecord => "power/",
    RestoredRecord => "restored/",
    RepeatRecord => "repeat/",
    VotersRecord => "voters/",
    AuditRecord => "audit/",
}

/// The key of the [`ClusterRecord`].
pub const CLUSTER_KEY: &str = "cluster";
/// The key of the [`ClusterSettings`](skein_api::cluster::ClusterSettings).
pub const SETTINGS_KEY: &str = "settings";
