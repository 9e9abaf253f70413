//! Draws a host and its migrations. Pure: a sample in, cells of a terminal out.

use jiff::Timestamp;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table, TableState, Widget};
use ratatui::{Frame, widgets::StatefulWidget};
use skein_api::{CopyProgress, MigrationId, MigrationSample, NicRates, PageCounts, Role, SampledHost, TimeLeft};
use skein_units::measured::bps;
use skein_units::{about_bytes, duration};

use crate::commands::follow::copy_words;
use crate::commands::local::{migration_state, other_host};
use crate::commands::text::clean_line;

/// How many columns a bar has.
const BAR_COLUMNS: usize = 20;
/// How many cores have a bar of their own; more are shown as a number for each.
const CORES_BARS: usize = 8;
/// Above so many thousandths something is full.
const FULL_PERMILLE: u64 = 900;

/// What is shown.
pub(super) struct View {
    host: SampledHost,
    selected: Option<MigrationId>,
}

impl View {
    pub(super) fn new(host: SampledHost) -> View {
        let mut view = View { host: SampledHost::default(), selected: None };
        view.update(host);
        view
    }

    /// Shows a newer sample.
    pub(super) fn update(&mut self, host: SampledHost) {
        self.host = host;
        let is_there = |id: &MigrationId| self.host.migrations.iter().any(|of| of.migration.id == *id);
        self.selected = self.selected.filter(is_there).or(self.host.migrations.first().map(|of| of.migration.id));
    }

    /// Selects the migration so many places on.
    pub(super) fn select(&mut self, places: isize) {
        let Some(now) = self.place() else { return };
        let last = self.host.migrations.len() - 1;
        self.selected = Some(self.host.migrations[now.saturating_add_signed(places).min(last)].migration.id);
    }

    fn place(&self) -> Option<usize> {
        self.host.migrations.iter().position(|of| Some(of.migration.id) == self.selected)
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        self.render(frame.area(), frame.buffer_mut());
    }

    /// Returns the picture as text of so many columns.
    pub(super) fn text(&self, columns: u16) -> String {
        let rows = self.host_rows() + self.migration_rows() + DETAIL_ROWS;
        let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
        self.render(buffer.area, &mut buffer);
        let row = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        let lines: Vec<String> = (0..rows).map(row).collect();
        format!("{}\n", lines.join("\n").trim_end())
    }

    fn host_rows(&self) -> u16 {
        (self.core_lines().len() + self.host.host.nics.len()) as u16 + 2
    }

    fn migration_rows(&self) -> u16 {
        self.host.migrations.len().max(1) as u16 + 3
    }

    fn render(&self, area: Rect, buffer: &mut Buffer) {
        let parts =
            [Constraint::Length(self.host_rows()), Constraint::Length(self.migration_rows()), Constraint::Min(0)];
        let [host, migrations, detail] = Layout::vertical(parts).areas(area);
        self.render_host(host, buffer);
        self.render_migrations(migrations, buffer);
        if let Some(sample) = self.place().map(|place| &self.host.migrations[place]) {
            Paragraph::new(detail_lines(sample)).block(block(&sample.migration.vm)).render(detail, buffer);
        }
    }

    fn core_lines(&self) -> Vec<Line<'static>> {
        let cores = &self.host.host.cores_permille;
        let mover = self.host.host.mover_millicores;
        let of_mover = format!("Skein takes {:.2} cores", mover as f64 / 1000.0);
        if cores.is_empty() {
            return vec![Line::from("measuring")];
        }
        let mean = cores.iter().map(|permille| u64::from(*permille)).sum::<u64>() / cores.len() as u64;
        let mut lines = vec![bar_line(&format!("{} cores", cores.len()), mean, &of_mover)];
        if cores.len() <= CORES_BARS {
            let core = |(nth, permille): (usize, &u16)| bar_line(&format!("core {nth}"), u64::from(*permille), "");
            lines.extend(cores.iter().enumerate().map(core));
        }
        lines
    }

    fn render_host(&self, area: Rect, buffer: &mut Buffer) {
        let at = Timestamp::from_millisecond(self.host.at as i64).ok().filter(|_| self.host.at > 0);
        let at = at.map(|at| format!("skein top, {}", at.strftime("%H:%M:%S UTC"))).unwrap_or("skein top".into());
        let mut lines = self.core_lines();
        lines.extend(self.host.host.nics.iter().map(nic_line));
        Paragraph::new(lines).block(block(&at)).render(area, buffer);
    }

    fn render_migrations(&self, area: Rect, buffer: &mut Buffer) {
        let title = "migrations";
        if self.host.migrations.is_empty() {
            return Paragraph::new("none is under way").block(block(title)).render(area, buffer);
        }
        let header = Row::new(["VM", "", "with", "phase", "done", "left", "moves", "dirties"])
            .style(Style::new().add_modifier(Modifier::DIM));
        let widths = [16, 4, 12, 24, 6, 14, 11, 11].map(Constraint::Length);
        let table = Table::new(self.host.migrations.iter().map(row), widths).header(header).block(block(title));
        let table = table.row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let mut state = TableState::default().with_selected(self.place());
        StatefulWidget::render(table, area, buffer, &mut state);
    }
}

/// How many rows the picture has for the selected migration.
const DETAIL_ROWS: u16 = 16;

fn block(title: &str) -> Block<'static> {
    Block::new().borders(Borders::TOP).title(format!(" {} ", clean_line(title)))
}

/// Returns a name, a bar of so many thousandths, and a note.
fn bar_line(name: &str, permille: u64, note: &str) -> Line<'static> {
    let full = (permille as usize * BAR_COLUMNS).div_ceil(1000).min(BAR_COLUMNS);
    let bar = format!("{}{}", "█".repeat(full), "░".repeat(BAR_COLUMNS - full));
    let style = if permille >= FULL_PERMILLE { Style::new().fg(Color::Yellow) } else { Style::new() };
    let text = format!("{:<12} {bar} {:>5.1} %  {note}", clean_line(name), permille as f64 / 10.0);
    Line::styled(text.trim_end().to_owned(), style)
}

fn nic_line(nic: &NicRates) -> Line<'static> {
    let rates = format!("sends {}, receives {}", bps(nic.send_bits_per_s as f64), bps(nic.receive_bits_per_s as f64));
    match nic.speed_bits_per_s.filter(|speed| *speed > 0) {
        Some(speed) => {
            let busier = nic.send_bits_per_s.max(nic.receive_bits_per_s);
            bar_line(
                &nic.name,
                (busier.saturating_mul(1000) / speed).min(1000),
                &format!("{rates} of {}", bps(speed as f64)),
            )
        }
        None => Line::from(format!("{:<12} {rates}; its speed is not known", clean_line(&nic.name))),
    }
}

fn row(sample: &MigrationSample) -> Row<'static> {
    let migration = &sample.migration;
    let (way, copy) = match migration.role {
        Role::Source => ("to", migration.copy.as_ref()),
        Role::Target => ("from", None),
    };
    let rate = |bytes: u64| bps(bytes as f64 * 8.0);
    let cells = [
        clean_line(&migration.vm),
        way.to_owned(),
        clean_line(other_host(migration)),
        migration_state(migration).to_owned(),
        sample.forecast.map_or_else(String::new, |left| format!("{:.0} %", f64::from(left.done_permille) / 10.0)),
        sample.forecast.as_ref().map_or_else(String::new, left_words),
        copy.map_or_else(String::new, |copy| bps(copy.bits_per_s as f64)),
        copy.filter(|copy| copy.dirty_bytes_per_s > 0).map_or_else(String::new, |copy| rate(copy.dirty_bytes_per_s)),
    ];
    Row::new(cells.map(Cell::from))
}

/// Returns `27 to 34 s`.
fn left_words(left: &TimeLeft) -> String {
    let seconds = |ms: u64| (ms as f64 / 1000.0).round() as u64;
    let (low, high) = (seconds(left.left_low_ms), seconds(left.left_high_ms));
    match high {
        _ if low == high => format!("{high} s"),
        ..600 => format!("{low} to {high} s"),
        _ => format!("{:.0} to {:.0} min", low as f64 / 60.0, high as f64 / 60.0),
    }
}

fn detail_lines(sample: &MigrationSample) -> Vec<Line<'static>> {
    let migration = &sample.migration;
    let mut lines = Vec::new();
    let mut field = |name: &str, value: String| lines.push(Line::from(format!("{name:<12} {}", clean_line(&value))));
    field("migration", format!("{}, for {}", migration.id, duration(migration.elapsed_ms)));
    if !migration.detail.is_empty() {
        field("why", migration.detail.clone());
    }
    if let Some(CopyProgress { total_bytes, remaining_bytes, round, .. }) = &migration.copy {
        let left = format!("{} of {}, round {round}", about_bytes(*remaining_bytes), about_bytes(*total_bytes));
        field("left", left);
        let words = migration.copy.as_ref().map(copy_words).unwrap_or_default();
        if !words.is_empty() {
            field("forecast", words.join(", "));
        }
    }
    if let Some(limit) = migration.rate_limit {
        field("limited", limit.to_string());
    }
    if let Some(downtime) = migration.downtime_ms {
        field("downtime", duration(downtime));
    }
    for path in &migration.paths {
        let rdma = if path.rdma_connections > 0 { " (RDMA)" } else { "" };
        let rate = if path.usable { bps(path.bits_per_s as f64) } else { "down".into() };
        let note = if path.note.is_empty() { String::new() } else { format!(", {}", path.note) };
        field("path", format!("{}{rdma} to {}: {rate}{note}", path.nic, path.remote));
    }
    if let Some(counts) = migration.copy.as_ref().and_then(|copy| copy.pages.as_ref()).map(|pages| &pages.counts) {
        field("bytes", kinds_words(counts));
        field("on the wire", about_bytes(counts.wire_bytes()));
    }
    lines
}

/// Returns what became of the pages so far, by kind.
fn kinds_words(counts: &PageCounts) -> String {
    let kinds = [
        ("zero", counts.zero_bytes()),
        ("unchanged", counts.unchanged_bytes()),
        ("what changed", counts.changed_bytes()),
        ("compressed", counts.unpacked_bytes()),
        ("by NICs", counts.written_bytes()),
        ("as it is", counts.stored_bytes()),
    ];
    let some = kinds.iter().filter(|(_, bytes)| *bytes > 0);
    some.map(|(kind, bytes)| format!("{} {kind}", about_bytes(*bytes))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use skein_api::{HostSample, Migration, MigrationPhase, PageFigures, PathView, SourcePhase, Transport};

    use super::*;

    fn nic(name: &str, speed_bits_per_s: Option<u64>, send_bits_per_s: u64) -> NicRates {
        NicRates { name: name.into(), speed_bits_per_s, send_bits_per_s, receive_bits_per_s: 1_000_000 }
    }

    fn sample(id: u64, vm: &str) -> MigrationSample {
        let counts = PageCounts { pages: 3000, zero_pages: 1000, stored_pages: 2000, ..PageCounts::default() };
        let copy = CopyProgress {
            total_bytes: 4 << 30,
            remaining_bytes: 1 << 30,
            remaining_wire_bytes: None,
            transferred_bytes: 3 << 30,
            round: 1,
            dirty_bytes_per_s: 21_000_000,
            bits_per_s: 1_880_000_000,
            converges: None,
            throttle_percent: 0,
            pages: Some(PageFigures {
                transport: Transport::default(),
                direct: Some(true),
                why_not_direct: String::new(),
                not_compared: String::new(),
                again_bytes: 0,
                counts,
            }),
        };
        let path = PathView {
            nic: "eth0".into(),
            remote: "10.0.0.2".into(),
            usable: true,
            sent_bytes: 1 << 30,
            bits_per_s: 940_000_000,
            note: String::new(),
            connections: String::new(),
            rdma_connections: 0,
            rdma: None,
        };
        let migration = Migration {
            stage: Some(MigrationPhase::Source(SourcePhase::Precopy)),
            elapsed_ms: 12_300,
            copy: Some(copy),
            paths: vec![path],
            ..Migration::new(MigrationId(id), vm, Role::Source, "hosta", "hostb")
        };
        let forecast = TimeLeft { done_permille: 712, left_ms: 5000, left_low_ms: 4600, left_high_ms: 5900 };
        MigrationSample { at: 0, migration, host: HostSample::default(), forecast: Some(forecast) }
    }

    fn host(migrations: Vec<MigrationSample>) -> SampledHost {
        let nics = vec![nic("eth0", Some(1_000_000_000), 940_000_000), nic("eth1", None, 5_000_000)];
        let host = HostSample { nics, cores_permille: vec![1000, 250], mover_millicores: 700 };
        SampledHost { at: 1_795_687_159_798, host, migrations }
    }

    #[test]
    fn a_picture_has_all_that_goes_on() {
        let text = View::new(host(vec![sample(7, "web1")])).text(100);
        for part in [
            "2 cores",
            "62.5 %  Skein takes 0.70 cores",
            "core 1",
            "eth0",
            "94.0 %",
            "940 Mb/s",
            "eth1",
            "its speed is not known",
            "web1",
            "hostb",
            "71 %",
            "5 to 6 s",
            "1.88 Gb/s",
            "168 Mb/s",
            "round 1",
            "for 12 s",
            "eth0 to 10.0.0.2: 940 Mb/s",
            "zero",
            "as it is",
            "on the wire",
        ] {
            assert!(text.contains(part), "{part} in:\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(View::new(host(vec![])).text(100).contains("none is under way"));
        assert!(View::new(SampledHost::default()).text(100).contains("measuring"));
    }

    #[test]
    fn what_is_selected_stays_selected_while_others_come_and_go() {
        let mut view = View::new(host(vec![sample(1, "a"), sample(2, "b"), sample(3, "c")]));
        view.select(-1);
        assert_eq!(view.selected, Some(MigrationId(1)));
        view.select(1);
        view.update(host(vec![sample(2, "b"), sample(3, "c")]));
        assert_eq!((view.selected, view.place()), (Some(MigrationId(2)), Some(0)));
        view.select(5);
        view.update(host(vec![sample(2, "b")]));
        assert_eq!(view.selected, Some(MigrationId(2)));
        view.update(host(vec![]));
        view.select(1);
        assert_eq!(view.selected, None);
    }

    #[test]
    fn odd_numbers_and_small_screens_break_nothing() {
        let mut odd = host(vec![sample(1, "a\u{1b}[31m")]);
        odd.host.nics.push(nic("eth9", Some(1), u64::MAX));
        odd.host.cores_permille = vec![u16::MAX; 300];
        odd.migrations[0].forecast =
            Some(TimeLeft { done_permille: 1000, left_ms: 0, left_low_ms: 0, left_high_ms: u64::MAX });
        for columns in [1, 20, 80, 300] {
            let text = View::new(odd.clone()).text(columns);
            assert!(!text.contains('\u{1b}'), "{text}");
        }
    }
}
