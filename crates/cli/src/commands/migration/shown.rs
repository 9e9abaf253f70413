//! Words for what is known of a migration.

use skein_api::{
    CopyProgress, LogEntry, LoggedEvent, Migration, MigrationEvent, Outcome, PATHS_CARRIED, PageFigures, Report, Role,
    rdma_words,
};
use skein_units::measured::bps;
use skein_units::{about_bytes, duration};

use super::ask::Teller;
use crate::commands::follow::{attempt_words, copied_words, copy_words, dirties, end_text, role};
use crate::commands::hold::hold_words;
use crate::commands::local::{migration_state, reason};
use crate::commands::text::{clean_line, count, fields, moment, table};

fn downtime(migration: &Migration) -> String {
    migration.downtime_ms.map(duration).unwrap_or_default()
}

/// Returns `copy`, or `copy, attempt 2 of 4`.
fn state(migration: &Migration) -> String {
    let words = attempt_words(migration).map(|words| format!(", {words}")).unwrap_or_default();
    migration_state(migration).to_owned() + &words
}

/// Returns `2 of 4, the next one in 1.5 s`, or an empty text if there is only one attempt.
fn attempt(migration: &Migration) -> String {
    let Some(attempt) = migration.attempt.filter(|attempt| attempt.of > 1) else { return String::new() };
    let not_begun = attempt.not_begun.map(|number| format!("; attempt {number} was not begun: see --events"));
    let next = match attempt.next_in_ms {
        None => String::new(),
        Some(0) => ", the next one is being checked".into(),
        Some(ms) => format!(", the next one in {}", duration(ms)),
    };
    format!("{} of {}{}{next}", attempt.number, attempt.of, not_begun.unwrap_or_default())
}

/// Returns a table of migrations.
pub(super) fn listed(migrations: &[Migration]) -> String {
    let rows: Vec<_> = migrations
        .iter()
        .map(|migration| {
            [
                migration.id.to_string(),
                migration.vm.clone(),
                migration.source.clone(),
                migration.target.clone(),
                state(migration),
                moment(&migration.begun),
                duration(migration.elapsed_ms),
                downtime(migration),
                reason(migration),
            ]
        })
        .collect();
    table(["ID", "VM", "FROM", "TO", "STATE", "BEGUN (UTC)", "TOOK", "DOWNTIME", "WHY"], &rows)
}

/// Returns what is known of a migration; with its events, if they are asked for.
pub(super) fn shown(migration: &Migration, events: bool, teller: Teller) -> String {
    let state = match migration.stage {
        Some(stage) if migration.outcome.is_none() && !migration.in_doubt => stage.words().1,
        _ => migration_state(migration),
    };
    let mut rows = vec![
        ("vm", migration.vm.clone()),
        ("from", migration.source.clone()),
        ("to", migration.target.clone()),
        match teller {
            Teller::ThisHost => ("this host", format!("is the {}", role(migration.role))),
            Teller::Controller => ("told by", format!("the {}", role(migration.role))),
        },
        ("state", state.to_owned()),
        ("hold", migration.hold.as_ref().map(|hold| hold_words(hold).join(", ")).unwrap_or_default()),
        ("attempt", attempt(migration)),
        ("why", reason(migration)),
        ("begun", moment(&migration.begun) + " UTC"),
        ("took", duration(migration.elapsed_ms)),
        ("downtime", downtime(migration)),
    ];
    if let Some(copy) = &migration.copy {
        rows.extend([
            ("memory", memory(copy)),
            (
                "copied",
                format!(
                    "{} in {}",
                    about_bytes(copy.transferred_bytes),
                    count(copy.round.try_into().unwrap_or(usize::MAX), "round")
                ),
            ),
        ]);
        if migration.outcome.is_none() {
            let rate = bps(copy.bits_per_s as f64);
            rows.push(("rate", std::iter::once(rate).chain(dirties(copy)).collect::<Vec<_>>().join(", ")));
            rows.extend(migration.rate_limit.as_ref().map(|limit| ("limit", limit.to_string())));
            rows.push(("forecast", copy_words(copy).join(", ")));
        }
        rows.extend(copy.pages.iter().flat_map(page_rows));
    }
    rows.extend(migration.paths.iter().flat_map(|path| {
        let state = if path.usable { bps(path.bits_per_s as f64) } else { "DOWN".into() };
        let note = match &path.note[..] {
            "" if path.rdma_connections > 0 => ", RDMA",
            "" => "",
            note => &format!(", {}", clean_line(note)),
        };
        let path_words =
            format!("{} → {}  {state}, {} sent{note}", path.nic, path.remote, about_bytes(path.sent_bytes));
        let connections = Some(&path.connections).filter(|words| !words.is_empty());
        std::iter::once(("path", path_words))
            .chain(connections.map(|words| ("connections", clean_line(words))))
            .chain(path.rdma.as_ref().map(|counters| ("RDMA", clean_line(&rdma_words(counters)))))
    }));
    let carried = migration.events.iter().rev().find_map(|event| match &event.event {
        LogEntry::Note { text } => text.strip_prefix(PATHS_CARRIED),
        _ => None,
    });
    rows.extend(carried.map(|paths| ("carried", clean_line(paths))));
    let mut text = format!("migration {}\n", migration.id) + &fields(&rows);
    if migration.in_doubt {
        text += &doubt(migration, teller);
    }
    if events {
        text += "events (UTC):\n";
        text.extend(migration.events.iter().map(|event| format!("  {}\n", event_line(event))));
        if migration.events.is_empty() {
            text += "  none are kept\n";
        }
    }
    text
}

/// Returns what to do about a guest in doubt, or where that is said.
fn doubt(migration: &Migration, teller: Teller) -> String {
    let (vm, host) = match (teller, migration.role) {
        (Teller::ThisHost, _) => return end_text(&Migration { outcome: None, ..migration.clone() }),
        (Teller::Controller, Role::Source) => (&migration.vm, &migration.source),
        (Teller::Controller, Role::Target) => (&migration.vm, &migration.target),
    };
    let (vm, host, id) = (clean_line(vm), clean_line(host), migration.id);
    format!("{vm} is IN DOUBT on {host}: `skein migration show {id}` on that host says what to do\n")
}

/// Returns how much memory is left: `4 GiB, 1 GiB left, about 256 MiB of that on the wire`.
fn memory(copy: &CopyProgress) -> String {
    let on_wire = copy.remaining_wire_bytes.map(|bytes| format!(", about {} of that on the wire", about_bytes(bytes)));
    let (total, left) = (about_bytes(copy.total_bytes), about_bytes(copy.remaining_bytes));
    format!("{total}, {left} left{}", on_wire.unwrap_or_default())
}

/// Returns rows that say what became of the bytes.
fn page_rows(pages: &PageFigures) -> Vec<(&'static str, String)> {
    let counts = &pages.counts;
    let mut rows = vec![("transport", pages.transport.to_string()), ("placement", placement(pages))];
    if let Some(share) = counts.wire_per_guest_byte() {
        rows.push((
            "sent",
            format!(
                "{} for {} of pages: {share:.2} of them",
                about_bytes(counts.wire_bytes()),
                about_bytes(counts.guest_bytes())
            ),
        ));
        rows.push(("zero", about_bytes(counts.zero_bytes())));
    }
    if counts.unchanged_pages + counts.delta_pages > 0 {
        rows.push(("unchanged", about_bytes(counts.unchanged_bytes())));
        let changes = about_bytes(counts.delta_bytes.saturating_add(counts.packed_delta_bytes));
        rows.push(("changed", format!("{changes} of {}", about_bytes(counts.changed_bytes()))));
    }
    if let Some(ratio) = counts.ratio() {
        let level = counts.zstd_level.map_or("lz4".into(), |level| format!("zstd {level}"));
        rows.push((
            "compressed",
            format!(
                "{} to {} ({ratio:.1}:1, mostly {level}, {:.1} s of CPU)",
                about_bytes(counts.unpacked_bytes()),
                about_bytes(counts.packed_bytes),
                counts.packing_us as f64 / 1e6
            ),
        ));
    } else if counts.packing_us >= 50_000 {
        rows.push(("compressed", format!("nothing, after {:.1} s of CPU", counts.packing_us as f64 / 1e6)));
    }
    if counts.pages > 0 {
        let late = match counts.late_bytes() {
            0 => String::new(),
            late => format!(", {} of it as no CPU was idle to compress it in time", about_bytes(late)),
        };
        rows.push(("as it is", about_bytes(counts.stored_bytes()) + &late));
        if counts.written_pages > 0 {
            rows.push((
                "by NICs",
                format!("{} straight into the guest's RAM (RDMA), not encrypted", about_bytes(counts.written_bytes())),
            ));
        }
        if counts.other_bytes > 0 {
            rows.push(("else", format!("{} of headers and devices' state", about_bytes(counts.other_bytes))));
        }
    }
    let again = [
        (pages.again_bytes, "as the guest wrote to it"),
        (counts.repaired_bytes(), "as the target's copy differed"),
        (counts.missed_bytes(), "as QEMU had missed it"),
    ];
    let again = again.iter().filter(|(bytes, _)| *bytes > 0);
    let again: Vec<String> = again.map(|(bytes, why)| format!("{} {why}", about_bytes(*bytes))).collect();
    rows.push(("sent again", again.join(", ")));
    rows
}

/// Describes how the pages came into the target's RAM, and how long comparing them took.
fn placement(pages: &PageFigures) -> String {
    let why = &pages.why_not_direct;
    let mut words = match (pages.direct, &why[..]) {
        (None, _) => String::new(),
        (Some(true), "") => "by the target's agent, past QEMU".into(),
        (Some(true), why) => format!("of smaller blocks by the target's agent, else through QEMU: {why}"),
        (Some(false), "") => "through QEMU".into(),
        (Some(false), why) => format!("through QEMU: {why}"),
    };
    if let Some(us) = pages.counts.compared_us {
        words += &format!("; compared in {} while it stood still", duration(us.div_ceil(1000)));
    }
    // A reason of both is told once.
    if !pages.not_compared.is_empty() && pages.not_compared != *why {
        words += &format!("; {}", pages.not_compared);
    }
    words
}

/// Returns a line for an event: `2026-11-22 03:41:07.120  copying while it runs`.
fn event_line(logged: &LoggedEvent) -> String {
    let words = match &logged.event {
        LogEntry::Begun { vm, source, target, .. } => format!("asked for: {vm} from {source} to {target}"),
        LogEntry::Note { text } => text.clone(),
        LogEntry::Copied { copy } => copied_words(copy),
        LogEntry::Downtime { ms } => format!("the guest stood still for {}", duration(*ms)),
        LogEntry::Handover { event } => match event {
            MigrationEvent::Queued => "waits for a place".into(),
            MigrationEvent::Phase { stage } => stage.words().1.into(),
            MigrationEvent::Reported { report, detail } if detail.is_empty() => {
                format!("the target says: {}", report_words(*report))
            }
            MigrationEvent::Reported { report, detail } => {
                format!("the target says: {}: {detail}", report_words(*report))
            }
            MigrationEvent::CalledOff { why: reason, detail } if detail.is_empty() => {
                format!("called off: {}", reason.words())
            }
            MigrationEvent::CalledOff { why: reason, detail } => format!("called off: {}: {detail}", reason.words()),
            MigrationEvent::InDoubt => "IN DOUBT: paused, until it is known where it runs".into(),
            MigrationEvent::Recovered => "taken up again after the agent was started again".into(),
            MigrationEvent::WriteFailed => "the journal could not be written".into(),
            MigrationEvent::Over { outcome } => match outcome {
                Outcome::Moved => "moved".into(),
                Outcome::CalledOff => "kept at the source".into(),
                Outcome::Ended => "the guest ended".into(),
            },
        },
    };
    let time = logged.time.trim_end_matches('Z').replacen('T', " ", 1);
    clean_line(&format!("{time:23}  {words}"))
}

fn report_words(report: Report) -> &'static str {
    match report {
        Report::Queued => "it has no free place yet",
        Report::Preparing => "its QEMU starts",
        Report::Ready => "its QEMU waits for the guest",
        Report::Completed => "it has all of the guest",
        Report::Run => "it has decided to run the guest",
        Report::Refusing => "it will not run the guest",
        Report::Running => "the guest runs there",
        Report::Refused => "its QEMU is gone, the guest never ran there",
        Report::Settled => "it has forgotten the migration",
    }
}
