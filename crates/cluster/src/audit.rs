//! The audit log: what is written of what was asked, in which order, and for how long.
//!
//! What was done and what was refused have quotas of their own, so that refusals never push out what was done. Of one
//! caller no more than 60 refusals are written a minute; the next that is written says how many were left
//! out.

use skein_api::cluster::AuditRecord;

use crate::answer::Answer;
use crate::state::{Controller, Output};
use crate::time::Now;

/// Refusals are at most one of so many records that are kept.
const REFUSED_SHARE: usize = 10;
/// How many digits of a record's id are its time.
const TIME_DIGITS: usize = 13;

impl Controller {
    /// Answers what was asked by whom, from where, in which words, and notes it in the audit log.
    pub(crate) fn answer_audited(
        &mut self,
        now: Now,
        asked: u64,
        (by, from, what): (String, String, String),
        answer: Answer,
    ) {
        let (status, detail) = (answer.status(), answer.detail());
        self.audit(now, AuditRecord { id: String::new(), at: now.wall, by, from, what, status, detail });
        self.effect(Output::Answer { asked, answer });
    }

    /// Adds a record to the audit log, unless it is one of too many refusals.
    pub(crate) fn audit(&mut self, now: Now, mut record: AuditRecord) {
        if record.is_refusal() {
            let Some(left_out) = self.refusals.count(now, &record.by) else { return };
            if left_out > 0 {
                let more = format!("{left_out} refusals of this caller before this one are left out of the log");
                record.detail = if record.detail.is_empty() { more } else { format!("{} ({more})", record.detail) };
            }
        }
        self.audited += 1;
        let term = self.term().unwrap_or_default();
        // Ids are in the order of writing, also if the clock was ahead and is set back: the term grows with each
        // leader, and the number within a term.
        let last = self.tables.audit.keys().next_back();
        let last_ms: Option<u64> = last.and_then(|id| id.get(..TIME_DIGITS)?.parse().ok());
        let ms = now.wall.0.max(last_ms.unwrap_or_default());
        record.id = format!("{ms:0TIME_DIGITS$}-{:08}-{:012}", term.0, self.audited);
        self.tables.put(&record.id.clone(), record);
    }

    /// Takes away what is older than what is kept.
    pub(crate) fn trim_audit(&mut self) {
        let kept = self.settings.audit_kept;
        while self.tables.refused().len() > kept / REFUSED_SHARE
            && let Some(oldest) = self.tables.refused().first().cloned()
        {
            self.tables.delete::<AuditRecord>(&oldest);
        }
        while self.tables.audit.len() > kept
            && let Some(oldest) = self.tables.audit.keys().next().cloned()
        {
            self.tables.delete::<AuditRecord>(&oldest);
        }
    }
}
