//! Is the handle of a guest that lives in virtual time.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use skein_hypervisor::guest::facts::{BlockNode, DeviceSnapshot, ImageSnapshot, InspectedGuest, RamSize};
use skein_hypervisor::{
    CompositionError, EventSink, Guest, GuestError, GuestEvent, Hold, Inspect, Migrate, MigrationSettings,
    MigrationState, QemuVersion, Quirks, RunControl, RunState, StopCause, Throttling,
};
use skein_inventory::Composition;
use skein_inventory::composition::Drive;

use crate::clock::{Timed, VirtualClock};
use crate::fault::{Command, CommandError, Fault, Told};
use crate::machine::{GuestParameters, Machine};

/// Says how long a command waits for its answer unless the caller has another bound: as long as QMP's.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a source that is held waits for.
const SWITCHOVER_WORD: &[u8] = b"go on";

/// A guest that lives in virtual time. Clones are the same guest, with the same patience.
#[derive(Clone)]
pub struct FakeGuest {
    inner: Arc<Inner>,
    patience: Duration,
}

struct Inner {
    clock: VirtualClock,
    machine: Mutex<Machine>,
    faults: Mutex<Faults>,
    told: Mutex<Vec<Told>>,
}

#[derive(Default)]
struct Faults {
    /// The fault of a command, for the next so many times; `None`: for good.
    of_commands: BTreeMap<Command, (Fault, Option<u32>)>,
    /// The time until which no command is received.
    deaf_until: Option<Duration>,
}

impl Timed for Inner {
    fn live(&self, now: Duration) {
        self.machine.lock().live(now);
    }
}

impl fmt::Debug for FakeGuest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeGuest").field("state", &self.inner.machine.lock().state()).finish_non_exhaustive()
    }
}

impl FakeGuest {
    /// Makes a running guest.
    pub fn running(clock: &VirtualClock, parameters: GuestParameters) -> FakeGuest {
        Self::new(clock, parameters, RunState::Running)
    }

    /// Makes a guest that is to arrive here.
    pub fn incoming(clock: &VirtualClock, parameters: GuestParameters) -> FakeGuest {
        Self::new(clock, parameters, RunState::InMigrate)
    }

    fn new(clock: &VirtualClock, parameters: GuestParameters, state: RunState) -> FakeGuest {
        let inner = Arc::new(Inner {
            clock: clock.clone(),
            machine: Mutex::new(Machine::new(parameters, clock.now(), state)),
            faults: Mutex::default(),
            told: Mutex::default(),
        });
        let timed: Arc<dyn Timed> = inner.clone();
        clock.add(Arc::downgrade(&timed));
        FakeGuest { inner, patience: PATIENCE }
    }

    fn machine<T>(&self, act: impl FnOnce(&mut Machine) -> T) -> T {
        let mut machine = self.inner.machine.lock();
        let done = act(&mut machine);
        machine.live(self.inner.clock.now());
        done
    }

    // What a test asks of the guest.

    /// Returns the commands that the guest received and what it did, in order.
    pub fn told(&self) -> Vec<Told> {
        self.inner.told.lock().clone()
    }

    /// Returns whether what runs the guest is there.
    pub fn is_alive(&self) -> bool {
        self.machine(|machine| machine.is_alive)
    }

    /// Returns the guest's state, without asking the guest.
    pub fn seen(&self) -> (RunState, MigrationState) {
        self.machine(|machine| (machine.run_state.clone(), machine.state()))
    }

    // What a test makes happen.

    /// Gives what runs the guest the word that it may go to the switchover, as from the target.
    pub fn let_switch(&self) {
        self.machine(Machine::let_switch);
    }

    /// Makes a command go wrong, the next so many times.
    pub fn fail(&self, command: Command, fault: Fault, times: u32) {
        self.inner.faults.lock().of_commands.insert(command, (fault, Some(times)));
    }

    /// Makes a command go wrong until [`FakeGuest::mend`].
    pub fn fail_always(&self, command: Command, fault: Fault) {
        self.inner.faults.lock().of_commands.insert(command, (fault, None));
    }

    /// Lets no command be received for so long.
    pub fn deafen(&self, time: Duration) {
        self.inner.faults.lock().deaf_until = Some(self.inner.clock.now().saturating_add(time));
    }

    /// Ends all that goes wrong with commands.
    pub fn mend(&self) {
        *self.inner.faults.lock() = Faults::default();
    }

    /// Ends what runs the guest, as if by itself or by a kill.
    pub fn end(&self) {
        self.machine(Machine::end);
    }

    /// Gives the connection's place to another client: what runs the guest lives on.
    pub fn disconnect(&self) {
        self.machine(Machine::close);
    }

    /// Loses events from now on, or does not any more.
    pub fn lose_events(&self, loses: Events) {
        self.machine(|machine| machine.loses_events = loses == Events::Lost);
    }

    /// Delays events by so much.
    pub fn delay_events(&self, time: Duration) {
        self.machine(|machine| machine.event_delay = time);
    }

    /// Stops the guest, or sends the guest to sleep.
    pub fn stop(&self, state: RunState, cause: Option<StopCause>) {
        self.machine(|machine| machine.stop(state, cause));
    }

    /// Sends an event.
    pub fn tell(&self, event: GuestEvent) {
        self.machine(|machine| machine.tell(event));
    }

    /// Changes the guest's composition from now on. No event tells that.
    pub fn recompose(&self, change: impl FnOnce(&mut Composition)) {
        self.machine(|machine| change(&mut machine.parameters.composition));
    }

    /// Makes the link take so many bytes of pages a second from now on; 0: the network is out.
    pub fn set_link(&self, bytes_per_s: u64) {
        self.machine(|machine| machine.set_link(bytes_per_s));
    }

    /// Makes the guest write so many bytes of pages a second from now on.
    pub fn set_writes(&self, bytes_per_s: u64) {
        self.machine(|machine| machine.parameters.writes_bytes_per_s = bytes_per_s);
    }

    /// Ends the target of the guest's migration, or the migration's main channel.
    pub fn lose_target(&self, why: &str) {
        self.machine(|machine| machine.lose_target(why));
    }

    /// Makes all of the guest arrive here, in this state.
    pub fn arrive(&self, state: RunState) {
        self.machine(|machine| machine.arrive(state));
    }

    /// Makes the guest's arrival fail here.
    pub fn fail_to_arrive(&self, why: &str) {
        self.machine(|machine| machine.fail_to_arrive(why));
    }

    // How commands are received.

    fn silent(&self, what: Command) -> GuestError {
        self.inner.clock.advance(self.patience);
        GuestError::Silent(CommandError::Silent { what, after: self.patience }.into())
    }

    fn is_deaf(&self) -> bool {
        let now = self.inner.clock.now();
        self.machine(|machine| machine.is_deaf())
            || self.inner.faults.lock().deaf_until.is_some_and(|until| until > now)
    }

    /// Waits until commands are received again, as long as the patience.
    fn is_heard(&self) -> bool {
        let until = self.inner.faults.lock().deaf_until;
        let now = self.inner.clock.now();
        let hears_again = until.filter(|until| *until > now && *until - now < self.patience);
        if let Some(until) = hears_again {
            self.inner.clock.advance(until - now);
        }
        !self.is_deaf()
    }

    fn fault(&self, command: Command) -> Option<Fault> {
        let mut faults = self.inner.faults.lock();
        let (fault, times) = faults.of_commands.get_mut(&command)?;
        let fault = fault.clone();
        if let Some(times) = times {
            *times -= 1;
            if *times == 0 {
                faults.of_commands.remove(&command);
            }
        }
        Some(fault)
    }

    /// Does what a command asks, unless a fault is set for the command.
    fn heed<T>(
        &self,
        command: Command,
        told: Option<Told>,
        act: impl FnOnce(&mut Machine) -> Result<T, String>,
    ) -> Result<T, GuestError> {
        let gone = || GuestError::Gone(CommandError::Gone.into());
        if self.is_closed() {
            return Err(gone());
        }
        if !self.is_heard() {
            return Err(self.silent(command));
        }
        let refused = |why| GuestError::Refused(CommandError::Refused { what: command, why }.into());
        let fault = self.fault(command);
        match fault {
            Some(Fault::Unheard) => return Err(self.silent(command)),
            Some(Fault::Refused(why)) => return Err(refused(why)),
            Some(Fault::Unanswered) | None => {}
        }
        let done = self.machine(act).map_err(refused)?;
        self.inner.told.lock().extend(told);
        match fault {
            Some(_) => Err(self.silent(command)),
            None => Ok(done),
        }
    }

    fn order(
        &self,
        command: Command,
        told: Told,
        act: impl FnOnce(&mut Machine) -> Result<(), String>,
    ) -> Result<(), GuestError> {
        self.heed(command, Some(told), act)
    }

    fn ask<T>(&self, command: Command, act: impl FnOnce(&mut Machine) -> T) -> Result<T, GuestError> {
        self.heed(command, None, |machine| Ok(act(machine)))
    }
}

/// Whether a guest's events are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Events {
    /// Events are sent.
    Told,
    /// Events are lost.
    Lost,
}

impl Guest for FakeGuest {
    fn program(&self) -> String {
        format!("QEMU {}", self.version())
    }

    fn version(&self) -> String {
        self.machine(|machine| machine.parameters.version.to_string())
    }

    fn quirks(&self) -> Quirks {
        let version = self.machine(|machine| machine.parameters.version);
        Quirks {
            freezes_throttled_without_network: version >= QemuVersion { major: 9, minor: 2, micro: 0 },
            moves_asleep: version >= QemuVersion { major: 9, minor: 0, micro: 0 },
        }
    }

    fn with_patience(&self, patience: Duration) -> Arc<dyn Guest> {
        Arc::new(FakeGuest { patience, ..self.clone() })
    }

    fn forward(&self, sink: EventSink) {
        self.machine(|machine| machine.listen(sink));
    }

    fn is_closed(&self) -> bool {
        self.machine(|machine| machine.is_closed)
    }

    fn close(&self) {
        self.machine(Machine::close);
    }
}

impl RunControl for FakeGuest {
    fn run_state(&self) -> Result<RunState, GuestError> {
        self.ask(Command::RunState, |machine| machine.run_state.clone())
    }

    fn resume(&self) -> Result<(), GuestError> {
        self.order(Command::Resume, Told::Resume, Machine::resume)
    }

    fn press_power_button(&self) -> Result<(), GuestError> {
        self.order(Command::PressPowerButton, Told::PressPowerButton, |_| Ok(()))
    }

    fn quit(&self) -> Result<(), GuestError> {
        self.order(Command::Quit, Told::Quit, |machine| {
            machine.end();
            Ok(())
        })
    }

    fn announce(&self) -> Result<(), GuestError> {
        self.order(Command::Announce, Told::Announce, |_| Ok(()))
    }
}

impl Migrate for FakeGuest {
    fn migration(&self) -> Result<MigrationState, GuestError> {
        self.ask(Command::Migration, |machine| machine.state())
    }

    fn holds_migration(&self) -> Result<bool, GuestError> {
        self.ask(Command::HoldsMigration, |machine| machine.holds())
    }

    fn begin_outgoing(
        &self,
        settings: &MigrationSettings,
        throttling: Throttling,
        hold: Hold,
        to: &Path,
    ) -> Result<(), GuestError> {
        let told = Told::BeginOutgoing { settings: *settings, throttling, hold, to: to.to_owned() };
        self.order(Command::BeginOutgoing, told, |machine| {
            machine.begin_outgoing(settings.downtime_limit_ms, throttling, hold)
        })
    }

    fn begin_incoming(&self, settings: &MigrationSettings, at: &Path) -> Result<(), GuestError> {
        let told = Told::BeginIncoming { settings: *settings, at: at.to_owned() };
        self.order(Command::BeginIncoming, told, Machine::begin_incoming)
    }

    fn continue_migration(&self) -> Result<(), GuestError> {
        self.order(Command::ContinueMigration, Told::ContinueMigration, Machine::continue_migration)
    }

    fn continue_cancelling(&self) -> Result<(), GuestError> {
        self.order(Command::ContinueCancelling, Told::ContinueCancelling, Machine::continue_cancelling)
    }

    fn cancel_migration(&self) -> Result<(), GuestError> {
        self.order(Command::CancelMigration, Told::CancelMigration, |machine| {
            machine.cancel();
            Ok(())
        })
    }

    fn forget_migration_settings(&self) -> Result<(), GuestError> {
        self.order(Command::ForgetMigrationSettings, Told::ForgetMigrationSettings, |machine| {
            machine.forget_settings();
            Ok(())
        })
    }

    fn set_switchover(&self, bytes: u64, limit_ms: u64, _socket_mbit_per_s: f64) -> Result<(), GuestError> {
        if !self.machine(|machine| machine.parameters.abilities.steers) {
            return Err(GuestError::Unsupported("be told when to switch over"));
        }
        self.order(Command::SetSwitchover, Told::SetSwitchover { bytes, limit_ms }, |machine| {
            machine.set_switchover(bytes);
            Ok(())
        })
    }

    fn switchover_word(&self) -> Option<&'static [u8]> {
        self.machine(|machine| machine.parameters.abilities.holds.then_some(SWITCHOVER_WORD))
    }

    fn limit_rate(&self, bytes_per_s: Option<u64>) -> Result<(), GuestError> {
        self.order(Command::LimitRate, Told::LimitRate(bytes_per_s), |machine| {
            machine.limit_rate(bytes_per_s);
            Ok(())
        })
    }

    fn set_throttle(&self, percent: u8) -> Result<(), GuestError> {
        if !self.machine(|machine| machine.parameters.abilities.throttles) {
            return Err(GuestError::Unsupported("throttle a guest"));
        }
        self.order(Command::SetThrottle, Told::SetThrottle(percent), |machine| {
            machine.set_throttle(percent);
            Ok(())
        })
    }

    fn measure_dirty_rate(&self, time: Duration, _pages_per_gib: u64) -> Result<(), GuestError> {
        if !self.machine(|machine| machine.parameters.abilities.samples) {
            return Err(GuestError::Unsupported("measure what a guest writes"));
        }
        self.order(Command::MeasureDirtyRate, Told::MeasureDirtyRate(time), |machine| machine.measure(time))
    }

    fn dirty_rate(&self) -> Result<Option<u64>, GuestError> {
        self.ask(Command::DirtyRate, |machine| machine.dirty_rate())
    }
}

impl Inspect for FakeGuest {
    fn composition(&self) -> Result<Composition, CompositionError> {
        Ok(self.ask(Command::Inspect, |machine| machine.parameters.composition.clone())?)
    }

    fn drives(&self) -> Result<Vec<Drive>, CompositionError> {
        Ok(self.composition()?.drives)
    }

    fn devices(&self) -> Result<DeviceSnapshot, GuestError> {
        let composition = self.ask(Command::Inspect, |machine| machine.parameters.composition.clone())?;
        Ok(DeviceSnapshot(vec![json!(composition.drives), json!(composition.peripherals)]))
    }

    fn images(&self) -> Result<ImageSnapshot, GuestError> {
        self.ask(Command::Inspect, |machine| ImageSnapshot(json!(machine.parameters.composition.drives)))
    }

    fn ram_size(&self) -> Result<RamSize, GuestError> {
        self.ask(Command::Inspect, |machine| RamSize { base_bytes: machine.parameters.ram_bytes, plugged_bytes: 0 })
    }

    fn cpus(&self) -> Result<u32, GuestError> {
        self.ask(Command::Inspect, |_| 1)
    }

    fn inspect(&self) -> Result<InspectedGuest, GuestError> {
        Err(GuestError::Unsupported("say what a guest is made of"))
    }

    fn block_nodes(&self) -> Result<Vec<BlockNode>, GuestError> {
        self.ask(Command::Inspect, |_| Vec::new())
    }

    fn blocked_reasons(&self) -> Result<Vec<String>, GuestError> {
        self.ask(Command::Inspect, |machine| machine.parameters.blocked_reasons.clone())
    }

    fn name(&self) -> Result<String, GuestError> {
        self.ask(Command::Inspect, |machine| machine.parameters.name.clone())
    }
}
