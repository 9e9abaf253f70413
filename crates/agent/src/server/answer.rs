//! Says which request is answered by what.

use std::time::{Duration, Instant};

use skein_api::{API_VERSION, Reply, Request, RequestLine, VersionView};
use skein_units::Rate;

use super::migrations::{MigrateRequest, Watching};
use super::refusal::Answered;
use super::request_server::{AskedBy, RequestServer, Say};
use crate::attempts::{AskedMigration, ChangedOptions};

impl RequestServer {
    /// Does what is asked. `say` is for progress; the returned reply is the last. `is_gone` tells whether nobody waits
    /// for it any more.
    pub(super) fn answer(
        &self,
        line: RequestLine,
        by: AskedBy,
        say: &mut Say<'_>,
        is_gone: &(dyn Fn() -> bool + Sync),
    ) -> Answered<Reply> {
        let request_id = line.request_id.as_deref();
        let by_controller = by == AskedBy::Controller;
        match line.request {
            Request::Version => {
                Ok(Reply::Version(VersionView { release: env!("CARGO_PKG_VERSION").into(), api: API_VERSION }))
            }
            Request::VmStart { from, options } => self.vm_start(from, options, by, request_id),
            Request::VmAdopt { qmp, name } => self.vm_adopt(&qmp, name),
            Request::VmList => Ok(self.vm_list()),
            Request::VmShow { name } => self.vm_show(&name),
            Request::VmStop { name, timeout_s, force } => self.vm_stop(&name, timeout_s, force),
            Request::VmResume { name } => self.vm_resume(&name),
            Request::VmConsole(asked) => self.vm_console(&asked),
            Request::VmForget { name } => match request_id {
                None => self.vm_forget(&name, by),
                Some(reservation) => self.vm_leave(&name, reservation),
            },
            Request::VmOffer { name } => self.vm_offer(&name),
            Request::VmReserve { reservation, offer } => self.vm_reserve(&reservation, &offer),
            Request::VmRelease { name, reservation, keep } => self.vm_release(&name, &reservation, keep),
            Request::HostList => self.host_list(),
            Request::HostShow { name } => self.host_show(name),
            Request::NetShow { name } => self.net_show(&name),
            Request::NetProbe { to } => self.net_probe(&to, say, is_gone),
            Request::NetProbes => Ok(self.net_probes()),
            Request::Check { vm, to, options } => self.check(&vm, &to, &options),
            Request::Migrate { vm, to, options, detach } => {
                let watching = if detach { Watching::NotAtAll } else { Watching::UntilTheEnd };
                let asked = AskedMigration { vm, to, options, hold: None, by_controller };
                self.migrate(MigrateRequest { asked, watching, request_id }, say)
            }
            Request::MigrateHeld { vm, to, options, hold, detach } => {
                let watching = if detach { Watching::NotAtAll } else { Watching::UntilTheEnd };
                let asked = AskedMigration { vm, to, options, hold: Some(hold), by_controller };
                self.migrate(MigrateRequest { asked, watching, request_id }, say)
            }
            Request::MigrationList => Ok(self.migration_list()),
            Request::MigrationShow { id } => self.migration_show(&id),
            Request::HostSample => Ok(Reply::HostSample(Box::new(self.samples.host()))),
            Request::MigrationRecord { id } => self.migration_record(&id),
            Request::MigrationWatch { id } => self.migration_watch(&id, say),
            Request::MigrationCancel { id } => self.migration_cancel(&id),
            Request::MigrationWithdraw { id } => self.migration_withdraw(&id),
            Request::MigrationLimit { id, rate_bits_per_s } => self.migration_limit(&id, rate_bits_per_s),
            Request::MigrationRestart { id, hold, allow_throttle } => {
                self.migration_restart(&id, ChangedOptions { hold, allow_throttle, rate_bits_per_s: None })
            }
            Request::HostLimit { rate_bits_per_s, for_s } => {
                let limit = rate_bits_per_s.and_then(Rate::of_bits_per_s);
                self.migrations.rates().set_cluster(limit, Instant::now() + Duration::from_secs(for_s));
                Ok(Reply::Done)
            }
            Request::HostClose { for_s, power_off, stays_on } => self.host_close(for_s, power_off, stays_on),
            Request::HostUpdate { id, how, order, for_s } => self.host_update(&id, how, order, for_s),
            Request::MigrationSwitch { id, deadline_s } => self.migration_switch(&id, deadline_s),
            Request::MigrationResolve { id, other_host_is_off } => self.migration_resolve(&id, other_host_is_off),
        }
    }
}
