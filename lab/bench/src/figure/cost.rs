//! Checks of what migrations cost: CPU, bytes, memory.

use skein_api::PageCounts;
use skein_units::measured;

use super::data::{Data, completed};
use super::part::{
    Limit::{AtLeast, AtMost},
    figure, part, times,
};
use crate::{
    mover::Mover,
    results::{GuestRam, Part, Run},
};

pub(super) fn cpu_of(data: Data<'_>, stage: &'static str, peer: Mover, at_most: f64) -> Part {
    let subject = data.subject;
    part(
        figure(stage, format!("CPU of the mover per GB at most {at_most:.3} x {}", peer.label())),
        AtMost(at_most),
        times(data.cpu_per_gb(stage, subject), data.cpu_per_gb(stage, peer), |s| {
            format!("{} s/GB", measured::digits(s))
        }),
    )
}

pub(super) fn cpu_of_stage(data: Data<'_>, stage: &'static str, other: &'static str, at_most: f64) -> Part {
    let of = |stage| data.cpu_per_gb(stage, data.subject);
    part(
        figure(stage, format!("CPU of the mover per GB at most {at_most} x stage {other}'s")),
        AtMost(at_most),
        times(of(stage), of(other), |s| format!("{} s/GB", measured::digits(s))),
    )
}

pub(super) fn written_at_least(data: Data<'_>, stage: &'static str, share: f64) -> Part {
    let written = |run: &Run| {
        let pages = run.pages.as_ref()?;
        let pages = &pages.counts;
        let whole = pages.pages.checked_sub(pages.zero_pages).filter(|whole| *whole > 0)?;
        Some(pages.written_pages as f64 / whole as f64)
    };
    let measured = data.median_of(stage, data.subject, written);
    part(
        figure(
            stage,
            format!("at least {} of the pages that are not zero written one-sided", measured::percent(share)),
        ),
        AtLeast(share),
        measured.map(|share| (share, measured::percent(share))),
    )
}

/// How often the target copies a page that comes whole (into the RAM, and back, to see what is there), and one that was
/// changed (its base as well).
const COPIES_OF_WHOLE: u64 = 2;
const COPIES_OF_CHANGED: u64 = 3;

/// Returns how many bytes the target may have copied of pages that no NIC wrote.
fn copied_anyway(counts: &PageCounts) -> u64 {
    let changed = counts.changed_bytes() + counts.unchanged_bytes();
    counts.guest_bytes().saturating_sub(counts.zero_bytes() + counts.written_bytes() + changed) * COPIES_OF_WHOLE
        + changed * COPIES_OF_CHANGED
}

pub(super) fn target_copies_at_most(data: Data<'_>, stage: &'static str, bytes: u64) -> Part {
    let of_written = |run: &Run| {
        let counts = &run.pages.as_ref()?.counts;
        let copied = Some(counts.target_copied_bytes).filter(|copied| *copied > 0)?;
        Some(copied.saturating_sub(copied_anyway(counts)) as f64)
    };
    let worst = data.of(stage, data.subject).filter_map(completed).filter_map(of_written).reduce(f64::max);
    part(
        figure(stage, format!("at most {bytes} bytes of what NICs write copied by the target's threads")),
        AtMost(bytes as f64),
        worst.map(|worst| (worst, format!("{worst} bytes"))).ok_or("no target said what it has copied".into()),
    )
}

pub(super) fn copies_of(data: Data<'_>, stage: &'static str, peer: Mover, at_most: f64) -> Part {
    let copies = |run: &Run| {
        let counts = &completed(run)?.pages.as_ref()?.counts;
        let moved = counts.guest_bytes().checked_sub(counts.zero_bytes()).filter(|bytes| *bytes > 0)?;
        // What goes over connections is copied to the network here, and from the network there.
        let by_connections = counts.wire_bytes().saturating_sub(counts.written_bytes());
        // Who was not asked has written each page once, at least.
        let there = Some(counts.target_copied_bytes).filter(|copied| *copied > 0).unwrap_or(moved);
        Some((counts.copied_bytes + 2 * by_connections + there) as f64 / moved as f64)
    };
    let of = |mover| data.median_of(stage, mover, copies);
    part(
        figure(stage, format!("bytes copied by the mover at most {at_most} x {}", peer.label())),
        AtMost(at_most),
        times(of(data.subject), of(peer), |times| format!("{} copies", measured::digits(times))),
    )
}

pub(super) fn all_cpu_of(data: Data<'_>, stage: &'static str, peer: Mover, at_most: f64) -> Part {
    let subject = data.subject;
    let of = |mover| data.median_of(stage, mover, Run::cpu_s_per_gb);
    part(
        figure(stage, format!("CPU of QEMU and mover per GB at most {at_most} x {}", peer.label())),
        AtMost(at_most),
        times(of(subject), of(peer), |s| format!("{} s/GB", measured::digits(s))),
    )
}

pub(super) fn wire_of(data: Data<'_>, stage: &'static str, peer: Mover, at_most: f64) -> Part {
    let subject = data.subject;
    let of = |mover| data.median_of(stage, mover, |r| Some(r.all_wire_bytes() as f64));
    part(
        figure(stage, format!("bytes on the wire at most {at_most} x {}", peer.label())),
        AtMost(at_most),
        times(of(subject), of(peer), measured::bytes),
    )
}

pub(super) fn wire_back(data: Data<'_>, stage: &'static str, at_most: f64) -> Part {
    let subject = data.subject;
    let of = |is_back| {
        let bytes = |r: &Run| ((r.round > 1) == is_back).then(|| r.all_wire_bytes() as f64);
        data.median_of(stage, subject, bytes)
    };
    part(
        figure(stage, format!("bytes on the wire of a trip back at most {at_most} x the first trip's")),
        AtMost(at_most),
        times(of(true), of(false), measured::bytes),
    )
}

pub(super) fn lost_of(data: Data<'_>, stage: &'static str, peer: Mover, at_most: f64) -> Part {
    let subject = data.subject;
    let of = |mover| {
        let seen = || data.of(stage, mover).filter_map(completed).filter_map(|r| r.guests_work);
        if seen().next().is_some() && !seen().any(|work| work.undisturbed()) {
            return Err("something else used the cores".into());
        }
        data.median_of(stage, mover, |r| Some(r.guests_work.filter(|work| work.undisturbed())?.lost_s()))
    };
    // A loss within the noise cannot be compared.
    let lost = of(peer).and_then(|s| if s > 0.0 { Ok(s) } else { Err("the peer cost nothing".into()) });
    part(
        figure(stage, format!("CPU that guests at work lose at most {at_most} x {}", peer.label())),
        AtMost(at_most),
        times(of(subject), lost, measured::seconds),
    )
}

pub(super) fn growth_at_most(data: Data<'_>, stage: &'static str, share: f64) -> Part {
    let subject = data.subject;
    let ends = |run: &'_ Run| run.private_memory.map(|m| (run.guest_memory_bytes, [m.source, m.target]));
    let seen: Vec<_> = data.of(stage, subject).filter_map(ends).collect();
    // An agent may keep memory that it once had, so only the first migration begins with an idle agent.
    let idle = seen.iter().flat_map(|(_, ends)| ends).map(|end| end.before_bytes).min();
    let most = seen.iter().flat_map(|(_, ends)| ends).map(|end| end.most_bytes).max();
    let ram = seen.iter().map(|(ram, _)| *ram).find(|ram| *ram > 0);
    let measured = idle.zip(most).zip(ram).map(|((idle, most), ram)| {
        let grown = most.saturating_sub(idle) as f64;
        let [words, idle, ram_words] = [grown, idle as f64, ram as f64].map(measured::bytes);
        (grown / ram as f64, format!("{words} over {idle}, for a guest of {ram_words}"))
    });
    part(
        figure(
            stage,
            format!("own memory of each end grows by at most {} of the guest's RAM", measured::percent(share)),
        ),
        AtMost(share),
        measured
            .map(|(value, words)| (value, format!("{} ({words})", measured::percent(value))))
            .ok_or("memory was not watched".into()),
    )
}

pub(super) fn allocated_at_most(data: Data<'_>, stage: &'static str, factor: f64) -> Part {
    let allocated = |run: &Run| {
        let GuestRam { source, target } = run.guest_ram?;
        let more = [source, target].map(|end| end.most_bytes.saturating_sub(end.before_bytes));
        (source.before_bytes > 0).then_some((more, source.before_bytes))
    };
    let ratio = |(more, held): &([u64; 2], u64)| more[0].max(more[1]) as f64 / *held as f64;
    let worst = data.of(stage, data.subject).filter_map(allocated).max_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    part(
        figure(stage, format!("memory that either host gives for the move at most {factor} x what the guest held")),
        AtMost(factor),
        worst
            .map(|worst @ ([source, target], held)| {
                let [source, target, held] = [source, target, held].map(|bytes| measured::bytes(bytes as f64));
                let ratio = ratio(&worst);
                (ratio, format!("{ratio:.2} x (the source {source}, the target {target}, for {held})"))
            })
            .ok_or("memory was not watched".into()),
    )
}

pub(super) fn growth_over(data: Data<'_>, stage: &'static str, without: &'static str, share: f64) -> Part {
    let measured = data.source_growth(stage).and_then(|(ram, with)| {
        let (_, usual) = data.source_growth(without)?;
        let [more, with_words, usual_words, ram_words] = [with - usual, with, usual, ram].map(measured::bytes);
        let words = format!("{more}: {with_words} against {usual_words}, for a guest of {ram_words}");
        Ok(((with - usual) / ram, words))
    });
    part(
        figure(
            stage,
            format!(
                "own memory of the source grows by at most {} of the guest's RAM more than in '{without}'",
                measured::percent(share)
            ),
        ),
        AtMost(share),
        measured.map(|(value, words)| (value, format!("{} ({words})", measured::percent(value)))),
    )
}

pub(super) fn memory_at_most(data: Data<'_>, stage: &'static str, bytes: u64) -> Part {
    let subject = data.subject;
    let ends = |run: &Run| run.memory.map(|m| (m.source.total_bytes(), m.target.total_bytes()));
    let seen: Vec<_> = data.of(stage, subject).filter_map(ends).collect();
    let most = |end: fn(&(u64, u64)) -> u64| seen.iter().map(end).max();
    let measured = most(|m| m.0).zip(most(|m| m.1)).map(|(source, target)| {
        let words = format!(
            "{} at the source, {} at the target",
            measured::bytes(source as f64),
            measured::bytes(target as f64)
        );
        (source.max(target) as f64, words)
    });
    part(
        figure(stage, format!("memory and socket buffers of each end at most {}", measured::bytes(bytes as f64))),
        AtMost(bytes as f64),
        measured.ok_or("memory was not watched".into()),
    )
}
