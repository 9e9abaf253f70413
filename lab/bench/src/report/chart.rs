//! Draws the two kinds of pictures: bars of movers side by side, and lanes over time as in perfmon and esxtop.

use std::fmt::Write;

use skein_units::measured;

use super::markup::escape;
use crate::results::{Run, Samples, Total};

const WIDTH: f64 = 1040.0;

/// Draws the total time of each mover: a bar to the median, and a dot for each run. Hollow dots are dropped from the
/// mean.
pub fn bars(out: &mut String, totals: &[&Total]) {
    const LEFT: f64 = 220.0;
    const RIGHT: f64 = 110.0;
    const ROW: f64 = 30.0;
    let longest = totals.iter().filter_map(|t| Some(t.total_s.as_ref()?.max)).fold(0.0, f64::max);
    let step = nice_step(longest / 6.0);
    let top = longest.max(step * 0.5) * 1.02;
    let x = |v: f64| LEFT + v / top * (WIDTH - LEFT - RIGHT);
    let height = ROW * totals.len() as f64 + 26.0;
    open(out, height, "total time of each mover");
    for n in 0..=(top / step) as usize {
        let at = x(n as f64 * step);
        line(out, "grid", at, 0.0, at, height - 20.0);
        text(out, "soft small mid", at, height - 6.0, &tick(n as f64 * step, step));
    }
    for (row, total) in totals.iter().enumerate() {
        let y = row as f64 * ROW;
        let own = total.mover.is_skein();
        text(out, if own { "end strong" } else { "end" }, LEFT - 12.0, y + 19.0, total.mover.label());
        let Some(sum) = &total.total_s else {
            let words = match total.failed {
                runs if runs == total.called_off => format!("none of {runs} runs came to an end"),
                runs => format!("none of {runs} runs completed"),
            };
            text(out, "faulttext", LEFT + 8.0, y + 19.0, &words);
            continue;
        };
        rect(out, if own { "own" } else { "peer" }, LEFT, y + 5.0, x(sum.median) - LEFT, ROW - 10.0);
        let mut dropped = sum.dropped.map_or(vec![], |(low, high)| vec![low, high]);
        for value in &sum.values {
            // Of equal values only one was dropped at each end.
            let hollow = dropped.iter().position(|d| d == value).map(|at| dropped.swap_remove(at)).is_some();
            let _ = writeln!(
                out,
                "<circle class=\"dot{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"><title>{}{}</title></circle>",
                if hollow { " dropped" } else { "" },
                x(*value),
                y + ROW / 2.0,
                escape(&measured::seconds(*value)),
                if hollow { ", dropped" } else { "" },
            );
        }
        let mut words = measured::seconds(sum.median);
        for (runs, what) in [(total.called_off, "did not end"), (total.failed - total.called_off, "failed")] {
            if runs > 0 {
                let _ = write!(words, ", {runs} {what}");
            }
        }
        text(out, "strong", x(sum.max.max(sum.median)) + 12.0, y + 19.0, &words);
    }
    out.push_str("</svg>\n");
}

/// Draws one run over time: a lane for each NIC at source and target, for each core, and for what the CPU was used for.
pub fn lanes(out: &mut String, run: &Run, samples: &Samples) {
    let end = end_s(run, samples);
    let start = samples.t_s.first().copied().unwrap_or(0.0).clamp(-0.05 * end, 0.0);
    if end <= start || samples.t_s.is_empty() {
        return;
    }
    let lanes = make_lanes(run, samples);
    let tall = if lanes.len() > 14 { 24.0 } else { 38.0 };
    let plot = Plot { start, end, left: 150.0, right: 100.0 };
    // Phases are in the lower line, faults above them.
    let head = if run.faults.is_empty() { 22.0 } else { 38.0 };
    let heights: Vec<f64> = lanes
        .iter()
        .scan(head, |y, lane| {
            *y += if lane.first { 14.0 } else { 0.0 };
            let at = *y;
            *y += tall + 6.0;
            Some(at)
        })
        .collect();
    let bottom = heights.last().copied().unwrap_or(head) + tall;
    open(out, bottom + 22.0, "rates and cores over time");
    marks_behind(out, run, &plot, head, bottom, &lanes, &heights, tall);
    let step = nice_step((end - start) / 8.0);
    let mut t = 0.0;
    while t <= end {
        line(out, "grid", plot.x(t), head, plot.x(t), bottom);
        text(out, "soft small mid", plot.x(t), bottom + 16.0, &format!("{} s", tick(t, step)));
        t += step;
    }
    for (lane, &y) in lanes.iter().zip(&heights) {
        lane.draw(out, &plot, &samples.t_s, y, tall);
    }
    marks_in_front(out, run, &plot, head, bottom);
    hover(out, &plot, &lanes, &samples.t_s, head, bottom);
    out.push_str("</svg>\n");
}

/// Adds one invisible column for each sample, which shows all lanes' values when pointed at.
fn hover(out: &mut String, plot: &Plot, lanes: &[Lane], t_s: &[f64], head: f64, bottom: f64) {
    for (n, (from, to)) in plot.intervals(t_s) {
        let mut words = format!("{:.1} s", t_s[n]);
        for lane in lanes {
            let values: Vec<String> = lane
                .bands
                .iter()
                .filter_map(|(_, what, values)| Some(format!("{what} {}", (lane.unit)(*values.get(n)?))))
                .collect();
            let _ = write!(words, "\n{}: {}", lane.label, values.join(", "));
        }
        let _ = writeln!(
            out,
            "<rect class=\"hover\" x=\"{from:.1}\" y=\"{head:.1}\" width=\"{:.1}\" \
             height=\"{:.1}\"><title>{}</title></rect>",
            to - from,
            bottom - head,
            escape(&words),
        );
    }
}

struct Plot {
    start: f64,
    end: f64,
    left: f64,
    right: f64,
}

impl Plot {
    fn x(&self, t: f64) -> f64 {
        let t = t.clamp(self.start, self.end);
        self.left + (t - self.start) / (self.end - self.start) * (WIDTH - self.left - self.right)
    }

    /// Returns where each visible interval begins and ends.
    fn intervals(&self, t_s: &[f64]) -> impl Iterator<Item = (usize, (f64, f64))> {
        let from = |n: usize| if n == 0 { self.start } else { t_s[n - 1] };
        (0..t_s.len())
            .filter(move |&n| t_s[n] > self.start && from(n) < self.end)
            .map(move |n| (n, (self.x(from(n)), self.x(t_s[n]))))
    }
}

/// A lane: bands that are stacked on each other, with a ceiling.
struct Lane<'a> {
    /// Whether the lane begins a group, before which there is a little space.
    first: bool,
    label: String,
    /// The text beside the lane: its sum or mean.
    note: String,
    /// The number of the link whose faults are shown behind the lane.
    link: Option<usize>,
    /// The value at the lane's upper edge.
    top: f64,
    /// Whether the upper edge is a capacity, and not only the scale.
    capped: bool,
    bands: Vec<(&'static str, &'a str, &'a [f64])>,
    unit: fn(f64) -> String,
}

fn make_lanes<'a>(run: &Run, samples: &'a Samples) -> Vec<Lane<'a>> {
    let mut lanes = Vec::new();
    let highest = samples.nics.iter().flat_map(|n| n.tx_bps.iter().chain(&n.rx_bps)).copied().fold(1.0, f64::max);
    for (end, host, sends) in [("source", &run.source, true), ("target", &run.target, false)] {
        let mut first = true;
        for (nic, sent) in samples.nics.iter().filter(|n| n.host == *host).flat_map(|n| [(n, sends), (n, !sends)]) {
            let values: &[f64] = if sent { &nic.tx_bps } else { &nic.rx_bps };
            let capacity = run.link_bps.get(nic.link).copied().flatten().map(|bps| bps as f64);
            let top = capacity.unwrap_or(highest);
            // Against the direction of the guest there are mostly only acknowledgements.
            if sent != sends && values.iter().copied().fold(0.0, f64::max) < top * 0.1 {
                continue;
            }
            let mean = mean_between(&samples.t_s, values, run.first_byte_s, run.last_byte_s);
            let note = match (mean, capacity) {
                (Some(mean), Some(capacity)) => format!("{}, {:.0} %", measured::bps(mean), mean / capacity * 100.0),
                (Some(mean), None) => measured::bps(mean),
                (None, _) => String::new(),
            };
            let way = if sent { "sent" } else { "received" };
            lanes.push(Lane {
                first,
                label: format!("{end} {} {way}", nic.nic),
                note,
                link: Some(nic.link),
                top,
                capped: capacity.is_some(),
                bands: vec![("nic", way, values)],
                unit: measured::bps,
            });
            first = false;
        }
    }
    for (n, core) in samples.cores.iter().enumerate() {
        let mean = mean_between(&samples.t_s, &core.busy, Some(0.0), run.phases.completed_s);
        lanes.push(Lane {
            first: n == 0,
            label: format!("core {} (both hosts)", core.core),
            note: mean.map_or(String::new(), |m| format!("{:.0} % busy", m * 100.0)),
            link: None,
            top: 1.0,
            capped: true,
            bands: vec![("core", "busy", &core.busy)],
            unit: |v| format!("{:.0} %", v * 100.0),
        });
    }
    let ends = [("source", &run.source, run.cpu_source_s), ("target", &run.target, run.cpu_target_s)];
    for (n, (end, host, cpu)) in ends.into_iter().enumerate() {
        let bands: Vec<_> = ["mover", "qemu", "guest"]
            .into_iter()
            .filter_map(|what| {
                let of = samples.uses.iter().find(|u| u.host == *host && u.what == what)?;
                Some((what, what, of.cores.as_slice()))
            })
            .collect();
        if bands.is_empty() {
            continue;
        }
        lanes.push(Lane {
            first: n == 0,
            label: format!("{end} CPU"),
            note: format!("mover {}", measured::seconds(cpu.mover)),
            link: None,
            top: samples.cores.len().max(1) as f64,
            capped: true,
            bands,
            unit: |v| format!("{v:.2} cores"),
        });
    }
    lanes
}

impl Lane<'_> {
    fn draw(&self, out: &mut String, plot: &Plot, t_s: &[f64], y: f64, tall: f64) {
        let base = y + tall;
        let height = |v: f64| base - (v / self.top).clamp(0.0, 1.08) * tall;
        line(out, if self.capped { "cap" } else { "grid" }, plot.left, y, WIDTH - plot.right, y);
        line(out, "base", plot.left, base, WIDTH - plot.right, base);
        let mut below = vec![0.0; t_s.len()];
        for (class, _, values) in &self.bands {
            let above: Vec<f64> = below.iter().zip(*values).map(|(b, v)| b + v).collect();
            area(out, class, plot, t_s, &below, &above, height);
            below = above;
        }
        text(out, "small end", plot.left - 8.0, y + tall / 2.0 + 4.0, &self.label);
        text(out, "small soft", WIDTH - plot.right + 8.0, y + tall / 2.0 + 4.0, &self.note);
    }
}

/// Draws phases and faults as bands behind the lanes.
#[expect(clippy::too_many_arguments, reason = "one picture's geometry")]
fn marks_behind(
    out: &mut String,
    run: &Run,
    plot: &Plot,
    head: f64,
    bottom: f64,
    lanes: &[Lane],
    heights: &[f64],
    tall: f64,
) {
    let active = run.phases.active_s.unwrap_or(0.0);
    rect(out, "setup", plot.x(0.0), head, plot.x(active) - plot.x(0.0), bottom - head);
    for fault in &run.faults {
        let (from, to) = (plot.x(fault.at_s), plot.x(fault.healed_s.unwrap_or(plot.end)));
        for (lane, &y) in lanes.iter().zip(heights) {
            if lane.link.is_some_and(|link| fault.links.contains(&link)) {
                rect(out, "fault", from, y, to - from, tall);
            }
        }
    }
    if let Some((stop, resume)) = switchover(run) {
        rect(out, "switch", plot.x(stop), head, (plot.x(resume) - plot.x(stop)).max(1.0), bottom - head);
    }
}

/// Draws the names of phases and faults above the lanes, and lines through the lanes.
fn marks_in_front(out: &mut String, run: &Run, plot: &Plot, head: f64, bottom: f64) {
    let active = run.phases.active_s.unwrap_or(0.0);
    if plot.x(active) - plot.x(0.0) > 44.0 {
        text(out, "small soft mid", (plot.x(0.0) + plot.x(active)) / 2.0, head - 8.0, "set-up");
    }
    text(out, "small soft", plot.x(active) + 3.0, head - 8.0, "pre-copy");
    for fault in &run.faults {
        let at = plot.x(fault.at_s);
        line(out, "faultline", at, head - 24.0, at, bottom);
        text(out, "small faulttext", at + 3.0, head - 24.0, &fault.kind);
        if let Some(healed) = fault.healed_s.filter(|&t| t <= plot.end) {
            let at = plot.x(healed);
            line(out, "healline", at, head - 24.0, at, bottom);
            text(out, "small healtext", at + 3.0, head - 24.0, "healed");
        }
    }
    if let Some((stop, resume)) = switchover(run) {
        let at = plot.x(stop);
        line(out, "switchline", at, head - 4.0, at, bottom);
        let words = format!("switchover {}", measured::millis((resume - stop) * 1e3));
        let room = WIDTH - plot.right - at > 130.0;
        text(
            out,
            if room { "small switchtext" } else { "small switchtext end" },
            if room { at + 3.0 } else { at - 3.0 },
            head - 8.0,
            &words,
        );
    }
}

/// Returns the time from the guest's stop at the source until it runs at the target.
fn switchover(run: &Run) -> Option<(f64, f64)> {
    let stop = run.phases.stop_s?;
    Some((stop, run.phases.resume_s.or(run.phases.completed_s)?.max(stop)))
}

/// Returns a moment a little after the run's last event, or the last sample if that is earlier.
fn end_s(run: &Run, samples: &Samples) -> f64 {
    let last = samples.t_s.last().copied().unwrap_or(0.0);
    let done = [run.phases.completed_s, run.phases.resume_s].into_iter().flatten().fold(f64::NEG_INFINITY, f64::max);
    if done.is_finite() { last.min(done * 1.04 + 0.3) } else { last }
}

fn mean_between(t_s: &[f64], values: &[f64], from: Option<f64>, to: Option<f64>) -> Option<f64> {
    let (from, to) = (from?, to?);
    let within: Vec<f64> = t_s.iter().zip(values).filter(|(t, _)| **t > from && **t <= to).map(|(_, v)| *v).collect();
    (!within.is_empty()).then(|| within.iter().sum::<f64>() / within.len() as f64)
}

/// Draws a band of steps: each sample is the mean of its interval.
fn area(out: &mut String, class: &str, plot: &Plot, t_s: &[f64], below: &[f64], above: &[f64], y: impl Fn(f64) -> f64) {
    let mut path = String::new();
    for (n, (from, to)) in plot.intervals(t_s) {
        let pen = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{pen}{from:.1} {0:.1}L{to:.1} {0:.1}", y(above[n]));
    }
    for (n, (from, to)) in plot.intervals(t_s).collect::<Vec<_>>().into_iter().rev() {
        let _ = write!(path, "L{to:.1} {0:.1}L{from:.1} {0:.1}", y(below[n]));
    }
    let _ = writeln!(out, "<path class=\"{class}\" d=\"{path}Z\"/>");
}

fn open(out: &mut String, height: f64, what: &str) {
    let _ = writeln!(out, "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">", escape(what));
}

fn line(out: &mut String, class: &str, x1: f64, y1: f64, x2: f64, y2: f64) {
    let _ = writeln!(out, "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>");
}

fn rect(out: &mut String, class: &str, x: f64, y: f64, width: f64, height: f64) {
    let _ = writeln!(
        out,
        "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\"/>",
        width.max(0.0)
    );
}

fn text(out: &mut String, class: &str, x: f64, y: f64, words: &str) {
    let _ = writeln!(out, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(words));
}

/// Returns 1, 2 or 5 times a power of ten, at least `rough`.
fn nice_step(rough: f64) -> f64 {
    let rough = if rough.is_finite() && rough > 0.0 { rough } else { 1.0 };
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|&step| step >= rough * 0.999).unwrap_or(10.0 * power)
}

fn tick(value: f64, step: f64) -> String {
    let decimals = (-step.log10().floor()).clamp(0.0, 3.0) as usize;
    // Adding 0 avoids -0.
    format!("{:.decimals$}", value + 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        assert_eq!([0.013, 0.2, 0.21, 3.0, 7.0, 60.0].map(nice_step), [0.02, 0.2, 0.5, 5.0, 10.0, 100.0]);
        assert_eq!(nice_step(0.0), 1.0);
        assert_eq!((tick(0.4, 0.2), tick(10.0, 5.0)), ("0.4".into(), "10".into()));
    }

    #[test]
    fn mean_is_of_the_transfer_only() {
        assert_eq!(mean_between(&[1.0, 2.0, 3.0, 4.0], &[0.0, 4.0, 6.0, 0.0], Some(1.0), Some(3.0)), Some(5.0));
        assert_eq!(mean_between(&[1.0], &[1.0], None, Some(2.0)), None);
    }
}
