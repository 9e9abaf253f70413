//! The routes of a controller's API.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use skein_api::cluster::{
    AuditRecord, ClusterSettings, ClusterStatus, Complaint, ConsoleAnswer, ConsoleAsk, CreateVmRequest, DrainRequest,
    Explanation, FenceRequest, Host, HostSettings, JoinRequest, Joined, LimitRequest, MigrateRequest, MigrationEnds,
    MigrationView, NewToken, Operation, OptimizeRequest, Page, PowerReading, ResumeRequest, Rule, StartVmRequest,
    StopVmRequest, SwitchRequest, ThrottleRequest, Token, TokenSecret, UpdateRequest, Vm, VmMigration, VmSettings,
};
use skein_api::{HoldOptions, MigrationId};
use ureq::http::Method;
use ureq::http::header::ETAG;

use super::error::ControllerError;
use super::events::Events;
use super::items::Items;
use super::request::{Ask, Sender, Times, encoded, json};
use super::transport::Credentials;
use super::url::ControllerUrl;

/// A VM and the migration in which it is: if the VM is in another one by then, nothing is done.
#[derive(Clone, Copy, Debug)]
pub struct Moving<'a> {
    /// The VM's name.
    pub vm: &'a str,
    /// The migration's id.
    pub id: MigrationId,
}

impl Moving<'_> {
    /// Returns the path of something that is asked of the migration.
    fn path(self, what: &str) -> String {
        format!("/vms/{}/migration/{what}?id={}", encoded(self.vm), self.id)
    }
}

/// What people set, of a host or a VM.
#[derive(Clone, Copy, Debug)]
pub enum Settings<'a> {
    /// A host's.
    Host(&'a HostSettings),
    /// A VM's.
    Vm(&'a VmSettings),
}

/// Asks a cluster's controllers. Each is tried in turn; one that does not lead names the one that does.
///
/// A request that changes something has a key of its own, so that it is done once if its answer is lost and it is sent
/// again.
#[derive(Debug)]
pub struct ControllerClient {
    sender: Sender,
}

impl ControllerClient {
    /// Makes a client of the controllers at these URLs, which are tried in this order.
    ///
    /// # Errors
    ///
    /// TLS does not take the credentials.
    pub fn new(urls: Vec<ControllerUrl>, credentials: &Credentials) -> Result<ControllerClient, ControllerError> {
        let times = if urls.len() > 1 { Times::OF_SEVERAL } else { Times::USUAL };
        Ok(ControllerClient { sender: Sender::new(urls, credentials, times)? })
    }

    /// Makes a client that gives up soon, for what a user waits for at a key.
    ///
    /// # Errors
    ///
    /// TLS does not take the credentials.
    pub fn hasty(
        urls: Vec<ControllerUrl>,
        credentials: &Credentials,
        within: Duration,
    ) -> Result<ControllerClient, ControllerError> {
        let times = Times { connect: within, answer: within, leaderless: Duration::ZERO };
        Ok(ControllerClient { sender: Sender::new(urls, credentials, times)? })
    }

    /// Returns the cluster as a whole.
    pub fn cluster(&self) -> Result<ClusterStatus, ControllerError> {
        self.sender.read("/cluster")
    }

    /// Returns the hosts, by name.
    pub fn hosts(&self) -> Items<'_, Host> {
        Items::new(&self.sender, "/hosts", "after", None)
    }

    /// Returns a host.
    pub fn host(&self, name: &str) -> Result<Host, ControllerError> {
        self.sender.read(&format!("/hosts/{}", encoded(name)))
    }

    /// Returns the VMs, by name; those on a host, if one is named.
    pub fn vms(&self, host: Option<&str>) -> Items<'_, Vm> {
        let path = host.map_or_else(|| "/vms".to_owned(), |host| format!("/vms?host={}", encoded(host)));
        Items::new(&self.sender, &path, "after", None)
    }

    /// Returns a VM.
    pub fn vm(&self, name: &str) -> Result<Vm, ControllerError> {
        self.sender.read(&format!("/vms/{}", encoded(name)))
    }

    /// Returns why a VM is where it is, and what speaks against each host.
    pub fn explanation(&self, vm: &str) -> Result<Explanation, ControllerError> {
        self.sender.read(&format!("/vms/{}/explanation", encoded(vm)))
    }

    /// Returns the rules, by name, without their warnings.
    pub fn rules(&self) -> Items<'_, Rule> {
        Items::new(&self.sender, "/rules", "after", None)
    }

    /// Returns a rule, with what is wrong with it beside the others.
    pub fn rule(&self, name: &str) -> Result<Rule, ControllerError> {
        self.sender.read(&format!("/rules/{}", encoded(name)))
    }

    /// Adds or changes a rule, given in the words of the cluster file. With a version the rule is changed only if it
    /// still has that version.
    pub fn set_rule(&self, name: &str, rule: &Value, version: Option<u64>) -> Result<(), ControllerError> {
        let headers = version.map(|version| ("if-match", format!("\"{version}\""))).into_iter().collect();
        let path = format!("/rules/{}", encoded(name));
        self.sender.send(&Ask { method: Method::PUT, path, headers, body: Some(plain(rule)) }).map(drop)
    }

    /// Takes a rule away.
    pub fn remove_rule(&self, name: &str) -> Result<(), ControllerError> {
        self.delete(format!("/rules/{}", encoded(name)))
    }

    /// Returns what is broken, the worst first: not more than a controller tells at once.
    pub fn complaints(&self) -> Result<Vec<Complaint>, ControllerError> {
        Ok(self.sender.read::<Page<Complaint>>("/complaints")?.items)
    }

    /// Moves guests where less is broken or load is better spread, or says what would be done.
    pub fn optimize(&self, request: &OptimizeRequest) -> Result<Operation, ControllerError> {
        self.change("/optimize", Some(request))
    }

    /// Returns what is set of the whole cluster, with the ETag for [`set_cluster`](Self::set_cluster).
    pub fn cluster_settings(&self) -> Result<(ClusterSettings, Option<String>), ControllerError> {
        let answer = self.sender.send(&Ask::get("/settings"))?;
        let etag = answer.1.headers().get(ETAG).and_then(|etag| etag.to_str().ok()).map(str::to_owned);
        let (at, status) = (answer.0.clone(), answer.1.status().as_u16());
        let settings = json(answer)?.ok_or(ControllerError::NoReason { at, status })?;
        Ok((settings, etag))
    }

    /// Sets what is set of the whole cluster, all of it. With an ETag only if nobody else did so since.
    pub fn set_cluster(&self, settings: &ClusterSettings, etag: Option<String>) -> Result<(), ControllerError> {
        let headers = etag.map(|etag| ("if-match", etag)).into_iter().collect();
        let ask = Ask { method: Method::PUT, path: "/settings".into(), headers, body: Some(plain(settings)) };
        self.sender.send(&ask).map(drop)
    }

    /// Returns the tokens, by name, without their secrets.
    pub fn tokens(&self) -> Items<'_, Token> {
        Items::new(&self.sender, "/tokens", "after", None)
    }

    /// Makes a token. The answer is the only one that has the secret.
    pub fn new_token(&self, token: &NewToken) -> Result<TokenSecret, ControllerError> {
        self.change("/tokens", Some(token))
    }

    /// Takes a token away.
    pub fn remove_token(&self, name: &str) -> Result<(), ControllerError> {
        self.delete(format!("/tokens/{}", encoded(name)))
    }

    /// Returns the audit log, the oldest record first.
    pub fn audit(&self) -> Items<'_, AuditRecord> {
        Items::new(&self.sender, "/audit", "after", None)
    }

    /// Returns operations, the newest first, in pages of `page` items.
    pub fn operations(&self, page: u32) -> Items<'_, Operation> {
        Items::new(&self.sender, "/operations", "before", Some(page))
    }

    /// Returns the migrations that hosts tell of, by id; those of a VM, if one is named.
    pub fn migrations(&self, vm: Option<&str>) -> Items<'_, MigrationView> {
        let path = vm.map_or_else(|| "/migrations".to_owned(), |vm| format!("/migrations?vm={}", encoded(vm)));
        Items::new(&self.sender, &path, "after", None)
    }

    /// Returns what both hosts know of a migration.
    pub fn migration(&self, id: MigrationId) -> Result<MigrationEnds, ControllerError> {
        self.sender.read(&format!("/migrations/{id}"))
    }

    /// Returns an operation.
    pub fn operation(&self, id: &str) -> Result<Operation, ControllerError> {
        self.sender.read(&format!("/operations/{}", encoded(id)))
    }

    /// Empties a host, or says what would be done.
    pub fn drain(&self, host: &str, request: &DrainRequest) -> Result<Operation, ControllerError> {
        self.change(&format!("/hosts/{}/drain", encoded(host)), Some(request))
    }

    /// Lets a host take guests again. Returns the operation that brings guests home, if that was asked for.
    pub fn resume(&self, host: &str, request: &ResumeRequest) -> Result<Option<Operation>, ControllerError> {
        let ask = Ask::post(format!("/hosts/{}/resume", encoded(host)), Some(plain(request)));
        json(self.sender.send(&ask)?)
    }

    /// Has a lost host switched off, or says that it is off. Returns the operation that does so, or that starts its
    /// guests elsewhere, if there is any.
    pub fn fence(&self, host: &str, request: &FenceRequest) -> Result<Option<Operation>, ControllerError> {
        let ask = Ask::post(format!("/hosts/{}/fence", encoded(host)), Some(plain(request)));
        json(self.sender.send(&ask)?)
    }

    /// Updates hosts one after the other, or says what would be done.
    pub fn update(&self, request: &UpdateRequest) -> Result<Operation, ControllerError> {
        self.change("/cluster/update", Some(request))
    }

    /// Puts a host to sleep.
    pub fn sleep(&self, host: &str) -> Result<Operation, ControllerError> {
        self.change(&format!("/hosts/{}/sleep", encoded(host)), None::<&()>)
    }

    /// Wakes a host. Returns the operation that does so; none for a host that is awake, and may be put to sleep again.
    pub fn wake(&self, host: &str) -> Result<Option<Operation>, ControllerError> {
        let ask = Ask::post(format!("/hosts/{}/wake", encoded(host)), None);
        json(self.sender.send(&ask)?)
    }

    /// Asks a host's fencing device whether the host has power.
    pub fn test_fencing(&self, host: &str) -> Result<PowerReading, ControllerError> {
        self.change(&format!("/hosts/{}/fencing/test", encoded(host)), None::<&()>)
    }

    /// Removes a host that has no VMs.
    pub fn remove_host(&self, host: &str, force: bool) -> Result<(), ControllerError> {
        let path = format!("/hosts/{}{}", encoded(host), if force { "?force=true" } else { "" });
        self.delete(path)
    }

    /// Creates a VM. Returns the operation that starts it, or would, if that was asked for.
    pub fn create_vm(&self, request: &CreateVmRequest) -> Result<Option<Operation>, ControllerError> {
        json(self.sender.send(&Ask::post("/vms", Some(plain(request))))?)
    }

    /// Starts a VM that is off, or says what would be done.
    pub fn start_vm(&self, vm: &str, request: &StartVmRequest) -> Result<Operation, ControllerError> {
        self.change(&format!("/vms/{}/start", encoded(vm)), Some(request))
    }

    /// Stops a VM.
    pub fn stop_vm(&self, vm: &str, request: &StopVmRequest) -> Result<Operation, ControllerError> {
        self.change(&format!("/vms/{}/stop", encoded(vm)), Some(request))
    }

    /// Has a VM that is off forgotten by its host and the cluster.
    pub fn delete_vm(&self, vm: &str) -> Result<Operation, ControllerError> {
        let path = format!("/vms/{}", encoded(vm));
        self.sender.whole(&Ask { method: Method::DELETE, ..Ask::post(path, None) })
    }

    /// Reads and writes a VM's serial console, as its session says.
    pub fn console(&self, vm: &str, asked: &ConsoleAsk) -> Result<ConsoleAnswer, ControllerError> {
        // The positions make one of what is sent twice, and a key would have the answer kept.
        let path = format!("/vms/{}/console", encoded(vm));
        self.sender.whole(&Ask { headers: Vec::new(), ..Ask::post(path, Some(plain(asked))) })
    }

    /// Moves a VM, or says what would be done.
    pub fn migrate(&self, vm: &str, request: &MigrateRequest) -> Result<Operation, ControllerError> {
        self.change(&format!("/vms/{}/migrate", encoded(vm)), Some(request))
    }

    /// Has a VM switch that is held in its migration. Returns the migration as it was just before.
    pub fn switch_migration(&self, of: Moving<'_>, request: &SwitchRequest) -> Result<VmMigration, ControllerError> {
        self.change(&of.path("switch"), Some(request))
    }

    /// Limits how fast a VM's migration sends.
    pub fn limit_migration(&self, of: Moving<'_>, request: &LimitRequest) -> Result<VmMigration, ControllerError> {
        self.change(&of.path("limit"), Some(request))
    }

    /// Begins a VM's migration again, so that its guest is held before it switches.
    pub fn hold_migration(&self, of: Moving<'_>, request: &HoldOptions) -> Result<VmMigration, ControllerError> {
        self.change(&of.path("hold"), Some(request))
    }

    /// Begins a VM's migration again, so that its guest may be throttled.
    pub fn throttle_migration(
        &self,
        of: Moving<'_>,
        request: &ThrottleRequest,
    ) -> Result<VmMigration, ControllerError> {
        self.change(&of.path("throttle"), Some(request))
    }

    /// Calls a VM's migration off.
    pub fn cancel_migration(&self, of: Moving<'_>) -> Result<VmMigration, ControllerError> {
        self.change(&of.path("cancel"), None::<&()>)
    }

    /// Calls an operation off.
    pub fn cancel(&self, operation: &str) -> Result<Operation, ControllerError> {
        self.change(&format!("/operations/{}/cancel", encoded(operation)), None::<&()>)
    }

    /// Sets what people set of a host or VM, all of it, if it still has that version.
    pub fn set(&self, name: &str, settings: Settings<'_>, version: u64) -> Result<(), ControllerError> {
        let (kind, body) = match settings {
            Settings::Host(settings) => ("hosts", plain(settings)),
            Settings::Vm(settings) => ("vms", plain(settings)),
        };
        let ask = Ask {
            method: Method::PUT,
            path: format!("/{kind}/{}/settings", encoded(name)),
            headers: vec![("if-match", format!("\"{version}\""))],
            body: Some(body),
        };
        self.sender.send(&ask).map(drop)
    }

    /// Has a host's request for a certificate signed.
    pub fn join(&self, request: &JoinRequest) -> Result<Joined, ControllerError> {
        self.change("/join", Some(request))
    }

    /// Subscribes to what changes from now on.
    pub fn events(&self) -> Result<Events<'_>, ControllerError> {
        Events::open(&self.sender)
    }

    fn delete(&self, path: String) -> Result<(), ControllerError> {
        self.sender.send(&Ask { method: Method::DELETE, path, headers: Vec::new(), body: None }).map(drop)
    }

    fn change<T: DeserializeOwned>(&self, path: &str, body: Option<&impl Serialize>) -> Result<T, ControllerError> {
        self.sender.whole(&Ask::post(path, body.map(plain)))
    }
}

/// Returns plain data as JSON, which always works.
fn plain(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
