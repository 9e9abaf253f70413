//! Agents and hosts that go down and come back.

use skein_handover::{SourceHandover, SourceInput, SourceRecord, TargetHandover, TargetInput, TargetRecord};

use super::faults::Error;
use super::state::{Agent, Rails, TargetQemu, World};
use super::step::End::{self, Source as S, Target as T};

impl World {
    pub(super) fn crash(&mut self, end: End) {
        match end {
            S => {
                self.source = Agent::Down;
                self.source_writes = None;
                self.source_orders = None;
            }
            T => {
                self.target = Agent::Down;
                self.target_writes = None;
                self.target_orders = None;
                self.watched = false;
                if self.rails == Rails::Open {
                    self.rails = Rails::Left;
                    self.stream_broken |= self.target_qemu == TargetQemu::Waiting;
                }
                if self.error == Some(Error::TargetForgets) {
                    self.target_disk = None;
                }
            }
        }
    }

    /// Crashes an agent right after its record reached the disk.
    pub(super) fn crash_after_writing(&mut self, end: End) -> Option<()> {
        self.spend(|budget| &mut budget.crashes[end as usize])?;
        match end {
            S => self.source_disk = self.source_disk.max(self.source_write()),
            T => self.target_disk = self.target_disk.max(self.target_write()),
        }
        self.crash(end);
        Some(())
    }

    /// Crashes the target when the first of the records of a refusal is on disk.
    pub(super) fn crash_while_refusing(&mut self) -> Option<()> {
        let refuses = self.target_write() == Some(TargetRecord::Refused) && self.target_disk.is_none();
        refuses.then_some(())?;
        self.spend(|budget| &mut budget.crashes[1])?;
        self.target_disk = Some(TargetRecord::Begin);
        self.crash(T);
        Some(())
    }

    pub(super) fn restart(&mut self, end: End) -> Option<()> {
        match end {
            S => {
                (self.source_on && self.source == Agent::Down).then_some(())?;
                let last = self.source_disk.filter(|last| *last != SourceRecord::Settled);
                let recover = if self.followed { SourceHandover::recover_followed } else { SourceHandover::recover };
                self.source = last.map_or(Agent::Idle, |last| Agent::Busy(recover(last)));
                let _ = self.tell_source(SourceInput::Contact(false));
            }
            T => {
                (self.target_on && self.target == Agent::Down).then_some(())?;
                let last = self.target_disk.filter(|last| *last != TargetRecord::Settled);
                self.target = last.map_or(Agent::Idle, |last| Agent::Busy(TargetHandover::recover(last)));
                let _ = self.tell_target(TargetInput::Contact(false));
            }
        }
        Some(())
    }

    /// Takes a host off, with its agent and its QEMU.
    pub(super) fn host_off(&mut self, end: End) -> Option<()> {
        self.spend(|budget| &mut budget.offs[end as usize])?;
        self.crash(end);
        let _ = self.end_qemu(end);
        match end {
            S => self.source_on = false,
            T => {
                self.target_on = false;
                // The NIC is off, too.
                if self.rails == Rails::Left {
                    self.rails = Rails::Ended;
                }
            }
        }
        Some(())
    }
}
