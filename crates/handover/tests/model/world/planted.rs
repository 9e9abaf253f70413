//! The errors that are planted.

use skein_handover::{Intent, SourceInput, SourceOrder, SourcePhase, TargetInput, TargetPhase, TargetRecord};

use super::faults::Error;
use super::state::World;

impl World {
    pub(super) fn err(&mut self) -> Option<()> {
        match self.error? {
            Error::GrantUnwritten => {
                let granting = self.source.machine().is_some_and(|source| source.phase() == SourcePhase::Grant);
                granting.then(|| self.intents |= 1 << Intent::Grant as u8)
            }
            Error::SourceImpatient => {
                let waits = self.source.machine().is_some_and(|source| source.wants().intent == Some(Intent::Grant));
                waits.then(|| self.obey_source(SourceOrder::Resume))
            }
            Error::CompletedIsPermission => {
                let has_all = self.target.machine().is_some_and(|target| target.phase() == TargetPhase::Completed);
                has_all.then(|| self.tell_target(TargetInput::Intent(Intent::Grant)))?
            }
            Error::RunUnwritten => {
                let unwritten = self.target_write() == Some(TargetRecord::Run);
                unwritten.then(|| self.tell_target(TargetInput::Written(TargetRecord::Run)))?
            }
            Error::SwitchUnasked => self.tell_source(SourceInput::Switch),
            // These errors act at the crash, and when the last byte arrives.
            Error::TargetForgets | Error::RailsOpen | Error::ReceiverForgotten => None,
        }
    }
}
