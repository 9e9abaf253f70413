//! Records on their way to the disks.

use skein_handover::{SourceInput, SourceRecord, TargetInput, TargetRecord};

use super::state::World;
use super::step::Write;

impl World {
    /// Ends the writing of a record, and tells the source.
    pub(super) fn source_written(&mut self, record: SourceRecord, write: Write) -> Option<()> {
        self.source_writes = None;
        let input = match write {
            Write::Done => SourceInput::Written(record),
            _ => SourceInput::WriteFailed(record),
        };
        if write != Write::Failed {
            self.source_disk = self.source_disk.max(Some(record));
        }
        if write != Write::Done {
            self.spend(|budget| &mut budget.writes[0])?;
        }
        self.tell_source(input)
    }

    /// Ends the writing of a record, and tells the target.
    pub(super) fn target_written(&mut self, record: TargetRecord, write: Write) -> Option<()> {
        self.target_writes = None;
        let input = match write {
            Write::Done => TargetInput::Written(record),
            _ => TargetInput::WriteFailed(record),
        };
        if write != Write::Failed {
            self.target_disk = self.target_disk.max(Some(record));
        }
        if write != Write::Done {
            self.spend(|budget| &mut budget.writes[1])?;
        }
        self.tell_target(input)
    }
}
