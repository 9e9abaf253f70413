//! Has points where a test halts the agent, to kill a process there. Compiled only with the feature `fault-points`.
//!
//! `SKEIN_FAULT_POINT=LABEL` names a point, `SKEIN_FAULT_FILE=PATH` a file. The first time that the label is reached
//! the file is made, and the thread halts until the file is gone, or a minute is over. Labels: `SIDE-MOMENT-ACTION`,
//! such as `source-after-write-grant`.

use std::path::Path;
use std::sync::{Arc, Once};

use skein_handover::{
    Action, Intent, Message, Order, Record, Report, SourceOrder, SourceRecord, TargetOrder, TargetRecord,
};

use crate::migrations::Offer;

/// The moment of a point: before or after an action.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    Before,
    After,
}

/// Halts here, if this is the point that a test asked for.
pub(crate) fn point(moment: Moment, action: &Action<Arc<Offer>>) {
    static ONCE: Once = Once::new();
    let (Ok(wanted), Ok(file)) = (std::env::var("SKEIN_FAULT_POINT"), std::env::var("SKEIN_FAULT_FILE")) else {
        return;
    };
    let Some((side, what)) = label(action) else { return };
    let moment = if moment == Moment::Before { "before" } else { "after" };
    if wanted != format!("{side}-{moment}-{what}") {
        return;
    }
    ONCE.call_once(|| {
        skein_dataplane::fault_points::halt(Path::new(&file), &wanted);
    });
}

fn label(action: &Action<Arc<Offer>>) -> Option<(&'static str, &'static str)> {
    Some(match action {
        Action::Write(records) => match records.last()? {
            Record::Begin { role: skein_handover::Role::Source, .. } => ("source", "write-begin"),
            Record::Begin { role: skein_handover::Role::Target, .. } => ("target", "write-begin"),
            Record::Source(_, record) => (
                "source",
                match record {
                    SourceRecord::Begin => "write-begin",
                    SourceRecord::Grant => "write-grant",
                    SourceRecord::Release => "write-release",
                    SourceRecord::Keep => "write-keep",
                    SourceRecord::Settled => "write-settled",
                },
            ),
            Record::Target(_, record) => (
                "target",
                match record {
                    TargetRecord::Begin => "write-begin",
                    TargetRecord::Run => "write-run",
                    TargetRecord::Refused => "write-refused",
                    TargetRecord::Settled => "write-settled",
                },
            ),
        },
        Action::Send(_, Message::Intent { intent, .. }) => (
            "source",
            match intent {
                Intent::Prepare => "send-prepare",
                Intent::Abort => "send-abort",
                Intent::Grant => "send-grant",
                Intent::Settle => "send-settle",
            },
        ),
        Action::Send(_, Message::Report { report, .. }) => (
            "target",
            match report {
                Report::Queued => "send-queued",
                Report::Preparing => "send-preparing",
                Report::Ready => "send-ready",
                Report::Completed => "send-completed",
                Report::Run => "send-run",
                Report::Refusing => "send-refusing",
                Report::Running => "send-running",
                Report::Refused => "send-refused",
                Report::Settled => "send-settled",
            },
        ),
        Action::Order(_, Order::Source(order)) => (
            "source",
            match order {
                SourceOrder::Migrate => "order-migrate",
                SourceOrder::Switch => "order-switch",
                SourceOrder::Continue => "order-continue",
                SourceOrder::CancelMigration => "order-cancel",
                SourceOrder::Resume => "order-resume",
                SourceOrder::Quit => "order-quit",
            },
        ),
        Action::Order(_, Order::Target(order)) => (
            "target",
            match order {
                TargetOrder::Start => "order-start",
                TargetOrder::Continue => "order-continue",
                TargetOrder::Kill => "order-kill",
            },
        ),
        Action::Reach(..) | Action::Event(..) | Action::Forget(_) => return None,
    })
}
