//! Shows results as one self-contained HTML page: without scripts or further files, so that it opens anywhere and
//! prints.

mod chart;
mod markup;

use std::fmt::Write;

use skein_api::PageFigures;
use skein_units::measured;

use crate::{
    figure::throughput_bps,
    results::{CaseResult, EndMemory, Machine, PrivateMemory, Results, RoundTrips, Run, Samples, Total},
    stats::median,
};
use markup::escape;

/// Returns the whole page.
pub fn page(results: &Results) -> String {
    let mut out = String::new();
    let about = &results.about;
    let title = match &results.cases[..] {
        [case] => format!("Skein bench: {}", case.case),
        _ => "Skein bench".to_string(),
    };
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n<header>\n<h1>{}</h1>\n",
        escape(&title),
        include_str!("style.css"),
        escape(&title),
    );
    let method = if about.quick { "quick: strongest peer only" } else { "highest and lowest of each dropped" };
    definition_list(
        &mut out,
        &[
            ("when", &about.started_at),
            ("commit", &about.commit),
            ("machine", &machine(&about.machine)),
            ("hypervisor", &about.machine.qemu),
            ("ciphers", &about.machine.cipher),
            ("a core seals", &about.machine.cipher_speeds),
            ("huge pages", &about.machine.huge_pages),
            ("method", method),
            ("command", &about.command.join(" ")),
        ],
    );
    out.push_str("</header>\n<main>\n");
    if !results.cases.is_empty() {
        overview(&mut out, &results.cases);
    }
    for case in &results.cases {
        let runs: Vec<&Run> = results.runs.iter().filter(|r| r.case == case.case).collect();
        section(&mut out, case, &runs);
    }
    out.push_str("</main>\n");
    out.push_str(NOTES);
    out.push_str("</body>\n</html>\n");
    out
}

const NOTES: &str = "<footer>\n<h2>How to read this</h2>\n<ul>\n\
<li>Both hosts are network namespaces of one machine and share its cores: compare within one report only.</li>\n\
<li><b>Total time</b> runs from <code>migrate</code> until QEMU says <code>completed</code>. Bars show the median; \
a dot is a run, a hollow one was the highest or lowest and is left out of the mean.</li>\n\
<li><b>Throughput</b> is the content of guest pages sent (zero pages, headers, compression and device state not \
counted), \
over the time between the first and the last byte of bulk on the source's NICs.</li>\n\
<li><b>Downtime</b> is given as QEMU reports it, as the guest saw it (the gap between its heartbeats over the \
switchover), and \
as the longest time without an answer to an outside pinger.</li>\n\
<li><b>CPU</b> is that of both ends per GB of guest content: QEMU's part in the migration (without the guest itself), \
and the mover's processes.</li>\n\
<li><b>On the wire</b> is all that the NICs of both hosts sent, in both directions; beside it the same for each byte \
of guest \
content.</li>\n\
<li>Below a mover's numbers: what kinds of bytes its pages were, as its agents say, or QEMU; <b>sent again</b> is \
part of \
the others, and the time that comparing took is part of the downtime.</li>\n\
<li>Charts show 200 ms samples of the NICs' own counters against the capacity of the link, where one is set.</li>\n\
</ul>\n</footer>\n";

fn machine(machine: &Machine) -> String {
    format!(
        "{}, {} cores, {}, Linux {}, {}",
        machine.cpu,
        machine.cores,
        measured::bytes(machine.memory_bytes as f64),
        machine.kernel,
        machine.os,
    )
}

fn definition_list(out: &mut String, facts: &[(&str, &str)]) {
    out.push_str("<dl class=\"facts\">\n");
    for (name, value) in facts {
        let _ = writeln!(out, "<div><dt>{}</dt><dd>{}</dd></div>", escape(name), escape(value));
    }
    out.push_str("</dl>\n");
}

fn badge(met: Option<bool>) -> &'static str {
    match met {
        Some(true) => "<span class=\"badge met\">met</span>",
        Some(false) => "<span class=\"badge missed\">missed</span>",
        None => "<span class=\"badge open\">not judged</span>",
    }
}

fn overview(out: &mut String, cases: &[CaseResult]) {
    let count = |met: Option<bool>| cases.iter().filter(|c| c.met == met).count();
    let _ = write!(out, "<section>\n<h2>Figures</h2>\n<p class=\"tally\"><b>{}</b> met", count(Some(true)));
    for (n, word) in [(count(Some(false)), "missed"), (count(None), "not judged")] {
        if n > 0 {
            let _ = write!(out, " · <b>{n}</b> {word}");
        }
    }
    out.push_str(
        "</p>\n<div class=\"scroll\"><table>\n\
                  <thead><tr><th>case</th><th>figure</th><th>measured</th><th></th></tr></thead>\n",
    );
    for case in cases {
        out.push_str("<tbody>\n");
        for (n, part) in case.parts.iter().enumerate() {
            out.push_str("<tr>");
            if n == 0 {
                let name = escape(&case.case);
                let _ = write!(
                    out,
                    "<th scope=\"rowgroup\" rowspan=\"{}\"><a href=\"#{name}\">{name}</a></th>",
                    case.parts.len()
                );
            }
            let _ = writeln!(
                out,
                "<td>{}</td><td>{}</td><td>{}</td></tr>",
                escape(&part.figure),
                escape(&part.measured),
                badge(part.met)
            );
        }
        out.push_str("</tbody>\n");
    }
    out.push_str("</table></div>\n</section>\n");
}

fn section(out: &mut String, case: &CaseResult, runs: &[&Run]) {
    let name = escape(&case.case);
    let _ =
        writeln!(out, "<section id=\"{name}\">\n<h2>{name} {}</h2>\n<p>{}</p>", badge(case.met), escape(&case.shows));
    let mut stages: Vec<&str> = Vec::new();
    for stage in runs.iter().map(|r| r.stage.as_str()).chain(case.skipped.iter().map(|s| s.stage.as_str())) {
        if !stages.contains(&stage) {
            stages.push(stage);
        }
    }
    for note in &case.notes {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", escape(note));
    }
    for stage in stages {
        let runs: Vec<&Run> = runs.iter().copied().filter(|r| r.stage == stage).collect();
        if !stage.is_empty() {
            let _ = writeln!(out, "<h3>{}</h3>", escape(stage));
        }
        yardstick(out, case, stage, &runs);
        let mut totals: Vec<&Total> = case.totals.iter().filter(|t| t.stage == stage).collect();
        totals.sort_by(|a, b| middle(a).total_cmp(&middle(b)));
        if !totals.is_empty() {
            out.push_str("<figure>\n<figcaption>Total time, s</figcaption>\n");
            chart::bars(out, &totals);
            out.push_str("</figure>\n");
            table(out, &totals, &runs);
            besides(out, &totals, &runs);
        }
        for skipped in case.skipped.iter().filter(|s| s.stage == stage) {
            let _ = writeln!(
                out,
                "<p class=\"note\"><b>{}</b> was skipped: {}</p>",
                escape(skipped.mover.label()),
                escape(&skipped.why)
            );
        }
        // Skein is shown in full, and then the fastest other mover. The rest can be unfolded.
        let (own, peers): (Vec<&Total>, Vec<&Total>) = totals.iter().partition(|t| t.mover.is_skein());
        own.iter().for_each(|total| over_time(out, total, &runs, Detail::Full));
        peers.iter().enumerate().for_each(|(n, total)| {
            over_time(out, total, &runs, if n == 0 { Detail::Full } else { Detail::Folded });
        });
    }
    out.push_str("</section>\n");
}

fn yardstick(out: &mut String, case: &CaseResult, stage: &str, runs: &[&Run]) {
    let mut words = Vec::new();
    if let Some(run) = runs.first() {
        words.push(format!("links: {}", links(&run.link_bps)));
        words.push(format!("guest RAM: {} to {}", run.memory_backend_source, run.memory_backend_target));
        let accelerator = run.qemu_source_cmdline.iter().skip_while(|a| *a != "-accel").nth(1);
        words.extend(accelerator.map(|name| format!("guests run on {name}")));
    }
    for yardstick in case.yardsticks.iter().filter(|y| y.stage == stage && !y.iperf3_bps.is_empty()) {
        let each: Vec<String> = yardstick.iperf3_bps.iter().map(|&bps| measured::bps(bps)).collect();
        let sum = measured::bps(yardstick.iperf3_bps.iter().sum());
        words.push(format!("iperf3 on all links together: {sum} ({})", each.join(" + ")));
    }
    if !words.is_empty() {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", escape(&words.join(" · ")));
    }
}

/// Returns `2 x 1 Gb/s`, `1 Gb/s + 250 Mb/s`.
fn links(link_bps: &[Option<u64>]) -> String {
    let words = |links: &[Option<u64>]| {
        let each = links[0].map_or("unshaped".into(), measured::nominal);
        if links.len() > 1 { format!("{} x {each}", links.len()) } else { each }
    };
    link_bps.chunk_by(PartialEq::eq).map(words).collect::<Vec<_>>().join(" + ")
}

fn middle(total: &Total) -> f64 {
    total.total_s.as_ref().map_or(f64::INFINITY, |s| s.median)
}

fn of<'a>(total: &Total, runs: &[&'a Run]) -> Vec<&'a Run> {
    runs.iter().copied().filter(|r| r.mover == total.mover).collect()
}

fn table(out: &mut String, totals: &[&Total], runs: &[&Run]) {
    out.push_str(
        "<div class=\"scroll\"><table class=\"numbers\">\n<thead><tr><th>mover</th><th>total: mean ± \
         spread</th><th>median</th>\
         <th>every run</th><th>throughput</th><th>downtime<br>QEMU · guest · ping</th><th>CPU per GB<br>QEMU · mover \
         · both</th>\
         <th>on the wire<br>per guest byte</th><th>guest</th></tr></thead>\n<tbody>\n",
    );
    for total in totals {
        let runs = of(total, runs);
        let good: Vec<&Run> = runs.iter().copied().filter(|r| r.error.is_none()).collect();
        let value = |get: &dyn Fn(&Run) -> Option<f64>, unit: fn(f64) -> String| {
            median(&good.iter().filter_map(|r| get(r)).collect::<Vec<_>>()).map_or("–".to_string(), unit)
        };
        let (mean, middle, every) = total.total_s.as_ref().map_or(("–".into(), "–".into(), "–".into()), |s| {
            let every: Vec<_> = s.values.iter().map(|&v| measured::digits(v)).collect();
            (
                format!("{} ± {} s", measured::digits(s.mean), measured::digits(s.spread)),
                measured::seconds(s.median),
                every.join(" "),
            )
        });
        let downtime = [
            value(&|r| r.downtime_ms, measured::digits),
            value(&|r| r.guest_switchover_ms, measured::digits),
            value(&|r| r.ping_gap_ms, measured::digits),
        ];
        let cpu = [
            value(&|r| per_gb(r, |c| c.qemu), measured::digits),
            value(&|r| per_gb(r, |c| c.mover), measured::digits),
            value(&Run::cpu_s_per_gb, measured::digits),
        ];
        let wire = [
            value(&|r| Some(r.all_wire_bytes() as f64), measured::bytes),
            value(&Run::wire_per_guest_byte, measured::digits),
        ];
        let intact = runs.iter().filter(|r| r.intact()).count();
        let cells = [
            mean,
            middle,
            every,
            throughput_bps(runs.iter().copied()).map_or("–".to_string(), measured::bps),
            format!("{} ms", downtime.join(" · ")),
            format!("{} s", cpu.join(" · ")),
            wire.join(" · "),
            format!("{intact} of {} intact", runs.len()),
        ];
        let class = if total.mover.is_skein() { " class=\"own\"" } else { "" };
        let _ = write!(out, "<tr{class}><th scope=\"row\">{}</th>", escape(total.mover.label()));
        for cell in cells {
            let _ = write!(out, "<td>{}</td>", escape(&cell));
        }
        out.push_str("</tr>\n");
        let whole: Vec<f64> = runs.iter().filter_map(|run| run.whole_s()).collect();
        if let Some(whole_s) = median(&whole) {
            let words = format!(
                "{} from the order until the guest runs: with the check and the start of the target's QEMU",
                measured::seconds(whole_s)
            );
            let _ = writeln!(out, "<tr><td></td><td colspan=\"8\">{}</td></tr>", escape(&words));
        }
        if let Some(words) = kinds(&good) {
            let _ = writeln!(out, "<tr><td></td><td colspan=\"8\">{}</td></tr>", escape(&words));
        }
        let mut errors: Vec<&str> = runs.iter().filter_map(|r| r.error.as_deref()).collect();
        errors.dedup();
        for error in errors {
            let _ = writeln!(out, "<tr><td></td><td colspan=\"8\" class=\"error\">{}</td></tr>", escape(error));
        }
    }
    out.push_str("</tbody></table></div>\n");
}

/// Returns what became of the bytes, by kind: as agents report it, or else as QEMU does. The figures are medians.
/// `None`: there is no run.
fn kinds(runs: &[&Run]) -> Option<String> {
    let of_agents: Vec<&PageFigures> = runs.iter().filter_map(|run| run.pages.as_ref()).collect();
    if of_agents.is_empty() {
        let bytes = |of: fn(&Run) -> u64| median_of(runs, |run| Some(of(run) as f64)).map(measured::bytes);
        let (zero, other) = (bytes(|run| run.zero_bytes)?, bytes(|run| run.guest_bytes)?);
        let sent = bytes(|run| run.transferred_bytes)?;
        return Some(format!("zero {zero} · other pages {other} · QEMU sent {sent} for all of them"));
    }
    let bytes = |of: &dyn Fn(&PageFigures) -> u64| {
        median_of(&of_agents, |pages| Some(of(pages) as f64)).map_or("–".into(), measured::bytes)
    };
    let mut words = vec![format!("zero {}", bytes(&|pages| pages.counts.zero_bytes()))];
    if of_agents.iter().any(|pages| pages.counts.unchanged_pages + pages.counts.delta_pages > 0) {
        words.push(format!(
            "unchanged {} · {} of {} changed",
            bytes(&|pages| pages.counts.unchanged_bytes()),
            bytes(&|pages| pages.counts.delta_bytes + pages.counts.packed_delta_bytes),
            bytes(&|pages| pages.counts.changed_bytes()),
        ));
    }
    if let Some(ratio) = median_of(&of_agents, |pages| pages.counts.ratio()) {
        let cpu_s = median_of(&of_agents, |pages| Some(pages.counts.packing_us as f64 / 1e6)).unwrap_or_default();
        words.push(format!(
            "compressed {} to {} ({ratio:.1}:1, {} of CPU)",
            bytes(&|pages| pages.counts.unpacked_bytes()),
            bytes(&|pages| pages.counts.packed_bytes),
            measured::seconds(cpu_s),
        ));
    }
    words.push(format!("as it is {}", bytes(&|pages| pages.counts.stored_bytes())));
    words.push(format!("sent again {}", bytes(&|pages| pages.again_bytes + pages.counts.repaired_bytes())));
    words.push(format!("sent {} in all", bytes(&|pages| pages.counts.wire_bytes())));
    let compared_ms = median_of(&of_agents, |pages| Some(pages.counts.compared_us? as f64 / 1e3));
    words.extend(compared_ms.map(|ms| format!("compared in {} ms", measured::digits(ms))));
    Some(words.join(" · "))
}

fn median_of<T>(all: &[&T], of: impl Fn(&T) -> Option<f64>) -> Option<f64> {
    median(&all.iter().filter_map(|one| of(one)).collect::<Vec<_>>())
}

/// Adds what only some cases measure: faults, the small stream, the mover's memory, other guests' CPU.
fn besides(out: &mut String, totals: &[&Total], runs: &[&Run]) {
    let mut item = |run: &Run, words: String| {
        let name = format!("{}, run {}", run.mover.label(), run.round);
        let _ = writeln!(out, "<p class=\"note\"><b>{}</b>: {}</p>", escape(&name), escape(&words));
    };
    for run in totals.iter().flat_map(|total| of(total, runs)).filter(|run| run.guest == 0) {
        for fault in &run.faults {
            let links: Vec<String> = fault.links.iter().map(|link| format!("nic{link}")).collect();
            let mut words = format!("{} of {} at {}", fault.kind, links.join(", "), measured::seconds(fault.at_s));
            if let Some(healed) = fault.healed_s {
                let _ = write!(words, ", healed at {}", measured::seconds(healed));
            }
            if let Some(below) = fault.below_90_s {
                let _ = write!(words, "; the others under 90 % for {}", measured::seconds(below));
            }
            if let Some(again) = fault.used_again_s {
                let _ = write!(words, "; used again {} after healing", measured::seconds(again));
            }
            item(run, words);
        }
        if let Some(control) = &run.control {
            let part = |name: &str, r: &RoundTrips| {
                let [median, p99, max] = [r.median_us, r.p99_us, r.max_us].map(|us| measured::millis(us / 1e3));
                format!("{name} {median} (p99 {p99}, longest {max}, of {})", r.count)
            };
            item(run, format!("round trips {}; {}", part("idle", &control.idle), part("beside bulk", &control.loaded)));
        }
        if let Some(memory) = &run.memory {
            let end = |end: &EndMemory| {
                let [anonymous, locked, sockets] = [end.anonymous_bytes, end.locked_bytes, end.socket_bytes]
                    .map(|bytes| measured::bytes(bytes as f64));
                format!("{anonymous} anonymous, {locked} locked, {sockets} in sockets")
            };
            item(
                run,
                format!("most memory at the source {}; at the target {}", end(&memory.source), end(&memory.target)),
            );
        }
        if let Some(private) = &run.private_memory {
            let end = |end: &PrivateMemory| {
                let [before, most] = [end.before_bytes, end.most_bytes].map(|bytes| measured::bytes(bytes as f64));
                format!("{before} before and {most} at most")
            };
            item(
                run,
                format!("own memory at the source {}; at the target {}", end(&private.source), end(&private.target)),
            );
        }
        if let Some(pages) = run.guest_pages {
            let [source, target] = [pages.source, pages.target].map(|end| measured::percent(end.huge_share()));
            item(run, format!("RAM on huge pages: {source} at the source, {target} at the target"));
        }
        if let Some(reads) = run.memory_reads {
            let [started, moved, huge, shared] =
                [reads.started_ns, reads.moved_ns, reads.huge_ns, reads.shared_ns].map(|ns| format!("{ns:.1} ns"));
            let words = format!("as the guest was started {started}, as it is now {moved}");
            item(run, format!("a read of memory {words}; all on huge pages {huge}, shared {shared}"));
        }
        if let Some(work) = &run.guests_work {
            let [lost, window] = [work.lost_s(), work.window_s].map(measured::seconds);
            let before = measured::digits(work.cores_before);
            item(run, format!("guests at work lost {lost} of CPU in {window}; before, they got {before} cores"));
        }
    }
}

fn per_gb(run: &Run, of: fn(&crate::results::CpuSeconds) -> f64) -> Option<f64> {
    (run.guest_bytes > 0).then(|| (of(&run.cpu_source_s) + of(&run.cpu_target_s)) / (run.guest_bytes as f64 / 1e9))
}

/// How the typical run of a mover is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Detail {
    /// In full view.
    Full,
    /// Folded, as the other runs are.
    Folded,
}

/// Adds the typical run, in full view or folded, and the others folded.
fn over_time(out: &mut String, total: &Total, runs: &[&Run], detail: Detail) {
    let with: Vec<(&Run, &Samples)> =
        of(total, runs).into_iter().filter_map(|r| Some((r, r.samples.as_ref()?))).collect();
    let middle = total.total_s.as_ref().map_or(0.0, |s| s.median);
    let distance = |run: &Run| (run.total_s.unwrap_or(f64::INFINITY) - middle).abs();
    let Some(typical) = (0..with.len()).min_by(|&a, &b| distance(with[a].0).total_cmp(&distance(with[b].0))) else {
        return;
    };
    let picture = |out: &mut String, (run, samples): (&Run, &Samples)| {
        let _ = writeln!(out, "<figure>\n<figcaption>{}</figcaption>", escape(&caption(run)));
        chart::lanes(out, run, samples);
        out.push_str(LEGEND);
        out.push_str("</figure>\n");
    };
    if detail == Detail::Full {
        picture(out, with[typical]);
    }
    // All runs of Skein and one of each peer are shown: otherwise a long bench's page would grow to tens of megabytes.
    // The JSON has them all.
    let folded: Vec<usize> = if total.mover.is_skein() {
        (0..with.len()).filter(|&n| n != typical || detail == Detail::Folded).collect()
    } else {
        (detail == Detail::Folded).then_some(typical).into_iter().collect()
    };
    let what = match (folded.len(), detail) {
        (0, _) => "",
        (_, Detail::Full) => "the other runs over time, ",
        (_, Detail::Folded) => "over time, ",
    };
    let _ = writeln!(out, "<details><summary>{}: {what}how it was set up</summary>", escape(total.mover.label()),);
    for n in folded {
        picture(out, with[n]);
    }
    set_up(out, with[typical].0);
    out.push_str("</details>\n");
}

const LEGEND: &str = "<p class=\"legend\"><i class=\"mover\"></i>mover <i class=\"qemu\"></i>QEMU \
<i class=\"guest\"></i>the guest itself <i class=\"cap\"></i>capacity</p>\n";

fn caption(run: &Run) -> String {
    let outcome = match (&run.error, run.total_s) {
        (Some(error), _) => error.clone(),
        (None, Some(total)) => measured::seconds(total),
        (None, None) => String::new(),
    };
    format!("{}, run {}, {} to {}: {outcome}", run.mover.label(), run.round, run.source, run.target)
}

fn set_up(out: &mut String, run: &Run) {
    out.push_str("<dl class=\"setup\">\n");
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(out, "<dt>{}</dt><dd><code>{}</code></dd>", escape(name), escape(value));
    };
    for (name, value) in &run.parameters {
        row(name, &value.as_str().map_or_else(|| value.to_string(), str::to_string));
    }
    row("QEMU on the source", &run.qemu_source_cmdline.join(" "));
    row("QEMU on the target", &run.qemu_target_cmdline.join(" "));
    out.push_str("</dl>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        figure::{self, Data},
        mover::Mover,
        results::{self, About, CoreSamples, FaultSeen, NicSamples, SCHEMA, Skipped, UseSamples, Yardstick},
    };

    /// Returns results in which every text that comes from outside tries to be markup.
    fn hostile(text: &str) -> Results {
        let mut run = results::tests::run(text, text, Mover::SkeinTls);
        for field in [
            &mut run.source,
            &mut run.target,
            &mut run.started_at,
            &mut run.commit,
            &mut run.memory_backend_source,
            &mut run.memory_backend_target,
        ] {
            *field = text.into();
        }
        run.qemu_source_cmdline = vec![text.into()];
        run.qemu_target_cmdline = vec![text.into()];
        run.parameters = [(text.to_string(), text.into())].into();
        run.faults = vec![FaultSeen {
            kind: text.into(),
            links: vec![0],
            at_s: 1.0,
            healed_s: Some(2.0),
            below_90_s: None,
            used_again_s: None,
            went_on_s: None,
        }];
        run.private_memory = Some(Default::default());
        run.guests_work = Some(Default::default());
        let ups = vec![1e9, 1e9, 1e9];
        let nic = NicSamples { host: text.into(), nic: text.into(), link: 0, tx_bps: ups.clone(), rx_bps: ups.clone() };
        run.samples = Some(Samples {
            t_s: vec![1.0, 2.0, 3.0],
            nics: vec![nic],
            cores: vec![CoreSamples { core: 0, busy: vec![0.5; 3] }],
            uses: vec![UseSamples { host: text.into(), what: "mover".into(), cores: vec![0.5; 3] }],
        });
        let failed = Run { error: Some(text.into()), mover: Mover::Ssh, ..run.clone() };
        let runs = vec![run, failed];
        let yardsticks = [Yardstick { stage: text.into(), iperf3_bps: vec![1e9], wire_bps: vec![1e9] }];
        let skipped = vec![Skipped { stage: text.into(), mover: Mover::Mptcp, why: text.into() }];
        let data = Data { subject: Mover::SkeinTls, runs: &runs, yardsticks: &yardsticks };
        let mut case = figure::judge(text, text, &[], data, skipped);
        case.parts[0].figure = text.into();
        case.parts[0].measured = text.into();
        let [t1, t2, t3, t4, t5, t6, t7] = [(); 7].map(|()| text.to_string());
        let machine = Machine {
            cpu: t1,
            cores: 2,
            memory_bytes: 1,
            kernel: t2,
            os: t3,
            qemu: t4,
            cipher: String::new(),
            cipher_speeds: String::new(),
            huge_pages: String::new(),
        };
        let about = About { commit: t5, started_at: t6, command: vec![t7], quick: true, machine };
        Results { schema: SCHEMA, about, cases: vec![case], runs }
    }

    #[test]
    fn whatever_comes_in_is_text() {
        let plain = page(&hostile("plain"));
        let attack = page(&hostile("<script>alert(\"1\")</script><img src=x onerror='x'>&"));
        assert!(plain.matches("plain").count() > 30, "the page shows its data");
        for shown in [
            "zero 8.19 MB · other pages 1.00 GB · QEMU sent 1.00 GB for all of them",
            "own memory at the source",
            "guests at work lost",
            "1.05 GB · 1.05",
            "0.70 · 1.10 · 1.80 s",
        ] {
            assert!(plain.contains(shown), "{shown}");
        }
        assert!(!attack.contains("<script") && !attack.contains("<img") && !attack.contains("onerror='"));
        // Text adds no tag: both pages have the same tags.
        assert_eq!(plain.matches('<').count(), attack.matches('<').count());
        assert_eq!(plain.matches('"').count(), attack.matches('"').count());
    }

    #[test]
    fn the_page_needs_nothing_else() {
        let page = page(&hostile("plain"));
        for outside in ["http:", "https:", "src=", "url(", "@import", "<link", "<script"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("class=\"cap\"") && page.contains("class=\"fault\"") && page.contains("switchover"));
        for tag in ["section", "table", "tbody", "svg", "figure", "details", "tr", "td", "p"] {
            let open = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
            assert_eq!(open, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }

    #[test]
    fn nothing_measured_is_still_a_page() {
        let mut empty = hostile("plain");
        empty.cases.clear();
        empty.runs.clear();
        assert!(page(&empty).ends_with("</html>\n"));
    }

    #[test]
    fn agents_tell_more_of_where_the_bytes_went() {
        let run = Run { pages: Some(results::tests::pages()), ..results::tests::run("", "", Mover::SkeinAgents) };
        let told = "zero 8.19 MB · compressed 606 MB to 101 MB (6.0:1, 0.42 s of CPU) · as it is 410 MB · sent again \
                    50.0 MB · \
                    sent 511 MB in all · compared in 11.2 ms";
        assert_eq!(kinds(&[&run]).as_deref(), Some(told));
        assert_eq!(kinds(&[]), None);
    }

    #[test]
    fn links_in_words() {
        assert_eq!(links(&[Some(1_000_000_000), Some(1_000_000_000)]), "2 x 1 Gb/s");
        assert_eq!(links(&[Some(10_000_000), Some(1_000_000_000), None]), "10 Mb/s + 1 Gb/s + unshaped");
    }
}
