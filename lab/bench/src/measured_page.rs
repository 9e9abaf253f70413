//! The figures that the documents show: `docs/measured.json`, kept case by case, and `docs/measured.md`, made from it.
//!
//! A full bench takes hours, and a case is often measured alone. So each [`Figure`] records on which commit, when and
//! on what it was measured, and [`Figures::take`] replaces the figures of the cases that a run has.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::{
    case::Case,
    results::{About, CaseResult, Results},
};

/// The figures that the documents show.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The cases of `skein-lab bench`, in the order of `skein-lab bench list`.
    pub cases: Vec<Figure>,
    /// Figures of other programs: tests, the simulation, `skein-lab placement bench`. They are edited by hand.
    pub others: Vec<Group>,
}

/// The figures of one program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// The heading.
    pub name: String,
    /// The command that measures, and on what it was run.
    pub how: String,
    /// The figures.
    pub figures: Vec<Figure>,
}

/// What one case measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The name of the case.
    pub case: String,
    /// The figure to reach, as the case had it then.
    pub asked: String,
    /// What was measured, in words.
    pub measured: String,
    /// Whether the figure was reached; null when part of it could not be judged.
    pub met: Option<bool>,
    /// On what it was measured.
    #[serde(default)]
    pub on: Provenance,
}

/// On what a figure was measured. Two figures can be compared only if this is the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Provenance {
    /// The program's `git describe`.
    pub commit: String,
    /// The day, such as `2026-11-25`.
    pub date: String,
    /// The CPU model and the number of cores.
    pub cpu: String,
    /// How AES-GCM was computed (see [`crate::machine::cipher_kernel`]), and which cipher Skein preferred.
    pub cipher: String,
    /// The version of QEMU.
    pub qemu: String,
    /// Whether the run was `--quick`.
    pub quick: bool,
}

impl Provenance {
    fn of(about: &About) -> Provenance {
        let machine = &about.machine;
        Provenance {
            commit: about.commit.clone(),
            date: about.started_at.chars().take(10).collect(),
            cpu: format!("{}, {} cores", machine.cpu, machine.cores),
            cipher: machine.cipher.clone(),
            qemu: machine.qemu.clone(),
            quick: about.quick,
        }
    }
}

impl Figures {
    /// Takes the figures of a run, in the order of `all`. Cases that did not run to their end are left as they were.
    /// Returns the names of these, and of cases that no longer exist.
    pub fn take(&mut self, results: &Results, all: &[Case]) -> Vec<String> {
        let on = Provenance::of(&results.about);
        let (whole, left): (Vec<&CaseResult>, Vec<&CaseResult>) =
            results.cases.iter().partition(|case| case.complete && all.iter().any(|known| known.name == case.case));
        for case in whole {
            // A result has besides what all cases ask for: that every migration completes.
            let own = all.iter().find(|known| known.name == case.case).map(Case::figure);
            let asked = own.filter(|own| case.figure.starts_with(own)).unwrap_or_else(|| case.figure.clone());
            self.cases.retain(|figure| figure.case != case.case);
            self.cases.push(Figure {
                case: case.case.clone(),
                asked,
                measured: case.measured.clone(),
                met: case.met,
                on: on.clone(),
            });
        }
        let place = |figure: &Figure| all.iter().position(|case| case.name == figure.case);
        self.cases.sort_by_key(|figure| place(figure).unwrap_or(usize::MAX));
        left.into_iter().map(|case| case.case.clone()).collect()
    }

    /// Returns what is wrong with the figures of `all` cases: a case without a figure, a figure without a case, a
    /// figure that a case no longer asks for. Empty: nothing.
    pub fn lacking(&self, all: &[Case]) -> Vec<String> {
        let mut lacking = Vec::new();
        for case in all {
            match self.cases.iter().find(|figure| figure.case == case.name) {
                None => lacking.push(format!("{} was never measured", case.name)),
                Some(figure) if figure.asked != case.figure() => lacking.push(format!(
                    "{} was measured when it asked for '{}'; now it asks for '{}'",
                    case.name,
                    figure.asked,
                    case.figure()
                )),
                Some(_) => {}
            }
        }
        let is_gone = |figure: &&Figure| all.iter().all(|case| case.name != figure.case);
        lacking.extend(self.cases.iter().filter(is_gone).map(|figure| format!("{} is no case any more", figure.case)));
        lacking
    }

    /// Returns the page in Markdown. Misses come first.
    pub fn page(&self) -> String {
        let mut on: Vec<&Provenance> = self.cases.iter().map(|figure| &figure.on).collect();
        on.sort();
        on.dedup();
        let mut out = String::from(HEAD);
        for (number, on) in on.iter().enumerate() {
            let quick = if on.quick { " --quick" } else { "" };
            let Provenance { commit, date, cpu, cipher, qemu, .. } = on;
            let _ = writeln!(out, "| {} | {commit}{quick} | {date} | {cpu} | {cipher} | {qemu} |", number + 1);
        }
        let by_number = |figure: &Figure| on.iter().position(|on| **on == figure.on).map_or(0, |number| number + 1);
        let (missed, others): (Vec<&Figure>, Vec<&Figure>) =
            self.cases.iter().partition(|figure| figure.met == Some(false));
        for (title, figures) in [("Missed", missed), ("Met, or not judged in full", others)] {
            let _ = writeln!(out, "\n## {title}\n\n| case | asked | measured | on |\n|---|---|---|---|");
            for figure in figures {
                let Figure { case, asked, measured, .. } = figure;
                let _ = writeln!(out, "| `{case}` | {} | {} | {} |", cell(asked), cell(measured), by_number(figure));
            }
        }
        for group in &self.others {
            let _ = writeln!(out, "\n## {}\n\n{}\n\n| case | asked | measured |\n|---|---|---|", group.name, group.how);
            for Figure { case, asked, measured, .. } in &group.figures {
                let _ = writeln!(out, "| {} | {} | {} |", cell(case), cell(asked), cell(measured));
            }
        }
        out
    }
}

const HEAD: &str = "# What was measured

This page is made from [measured.json](measured.json) by `skein-lab bench figures`; a test compares. How cases are run:
[bench.md](bench.md). Both hosts are on one machine, guests are emulated (TCG) unless a row says otherwise, and their
RAM is a shared memfd, but for agents' guests (since 2026-11-26 RAM of QEMU's own) and where a mover's name says
otherwise. TLS is on for Skein and off for QEMU's own transports. What the CPU limits drifts with the machine: compare
rows of one run only.

The last column of the cases is the run:

| run | commit | day | CPU | cipher | QEMU |
|---|---|---|---|---|---|
";

/// Returns a cell of a table, without line ends and bars.
fn cell(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::case;

    fn docs() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
    }

    fn kept() -> Figures {
        serde_json::from_str(&std::fs::read_to_string(docs().join("measured.json")).unwrap()).unwrap()
    }

    #[test]
    fn the_page_is_made_from_the_figures() {
        let page = std::fs::read_to_string(docs().join("measured.md")).unwrap();
        assert!(
            page == kept().page(),
            "docs/measured.md is older than docs/measured.json: run skein-lab bench figures"
        );
    }

    #[test]
    fn every_case_has_the_figure_that_it_asks_for() {
        let lacking = kept().lacking(&case::all());
        assert!(lacking.is_empty(), "measure these, and run skein-lab bench figures RESULTS.json: {lacking:#?}");
    }

    #[test]
    fn what_is_lacking_is_named() {
        let all = case::all();
        let mut figures = kept();
        figures.cases[0].asked = "the moon".into();
        figures.cases[1].case = "gone".into();
        let lacking = figures.lacking(&all).join("\n");
        for words in ["asked for 'the moon'", "gone is no case any more", "was never measured"] {
            assert!(lacking.contains(words), "{words}: {lacking}");
        }
    }

    #[test]
    fn a_run_replaces_its_cases_alone() {
        let all = case::all();
        let mut results: Results = serde_json::from_str(include_str!("../tests/golden/results.json")).unwrap();
        results.cases[0].case = all[1].name.into();
        results.cases[0].complete = true;
        results.cases[0].figure = format!("{}; every migration completes", all[1].figure());
        let (mut figures, before) = (kept(), kept());
        assert_eq!(figures.take(&results, &all), [""; 0]);
        assert_eq!(figures.cases[1].measured, results.cases[0].measured);
        assert_eq!(figures.cases[1].asked, all[1].figure());
        assert_eq!(figures.cases[1].on.commit, results.about.commit);
        assert_eq!((&figures.cases[0], &figures.cases[2..]), (&before.cases[0], &before.cases[2..]));
        results.cases[0].complete = false;
        assert_eq!(figures.take(&results, &all), [all[1].name]);
    }
}
