//! Measures the ROADEF/EURO challenge 2012: instances as published, with what others reached in `anchors.csv`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use skein_placement::verdict::judge;
use skein_solver::Goal;
use skein_terminal::files;

use super::super::solve;
use super::rows::Bench;

/// What is known of an instance.
struct Anchor {
    name: String,
    initial: f64,
    /// The lower bound of the load's cost, whatever the assignment.
    bound: f64,
    /// The winner's average of 100 runs.
    s41: f64,
    /// The average of 40 runs of multi-start iterated local search (Masson et al. 2013).
    msils: f64,
}

impl Anchor {
    /// Returns how far a cost is from the bound, in per cent of the initial cost.
    fn gap(&self, cost: f64) -> f64 {
        100.0 * (cost - self.bound) / self.initial
    }
}

/// Returns the instances with a model whose names begin with a prefix.
fn anchors(dir: &Path, prefix: &str) -> anyhow::Result<Vec<Anchor>> {
    let path = dir.join("anchors.csv");
    let text = files::read(&path)?;
    let mut lines = text.lines();
    let heads: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let read = |line: &str| -> Option<Anchor> {
        let cells: BTreeMap<&str, &str> = heads.iter().copied().zip(line.split(',')).collect();
        let number = |name: &str| cells.get(name)?.parse().ok();
        Some(Anchor {
            name: (*cells.get("instance")?).to_owned(),
            initial: number("initial_cost")?,
            bound: number("trivial_lb")?,
            s41: number("s41_avg100")?,
            msils: number("msils_avg40")?,
        })
    };
    let mut all = Vec::new();
    for (n, line) in lines.enumerate().filter(|(_, line)| line.starts_with(prefix)) {
        let anchor = read(line).with_context(|| format!("{}: line {}: a figure is missing", path.display(), n + 2))?;
        if dir.join(format!("model_{}.txt", anchor.name)).exists() {
            all.push(anchor);
        }
    }
    Ok(all)
}

/// Returns the cost that is found, which is infinite if anything is broken.
fn cost(bench: &Bench, dir: &Path, name: &str) -> anyhow::Result<f64> {
    let file = |what: &str| dir.join(format!("{what}_{name}.txt"));
    let problem = solve::read_roadef(&file("model"), &file("assignment"))?;
    let found = bench.solve(name, &problem, Goal::Cheapest, bench.long())?;
    let verdict = judge(&problem, &found.assignment);
    Ok(if verdict.is_valid() { verdict.cost.total() as f64 } else { f64::INFINITY })
}

/// Measures each instance of set A.
pub fn set_a(bench: &mut Bench) -> anyhow::Result<()> {
    let Some(dir) = bench.directory("roadef2012")? else { return Ok(()) };
    for anchor in anchors(&dir, "a")? {
        let cost = cost(bench, &dir, &anchor.name)?;
        let beside = format!("MS-ILS {}, S41 {}, bound {}", anchor.msils, anchor.s41, anchor.bound);
        bench.row(&anchor.name, cost.to_string(), beside, bench.judged(cost <= anchor.msils))?;
    }
    Ok(())
}

/// Measures the sum over set B without the first instance.
pub fn set_b(bench: &mut Bench) -> anyhow::Result<()> {
    let Some(dir) = bench.directory("roadef2012")? else { return Ok(()) };
    let mut sums = [0.0; 3];
    for anchor in anchors(&dir, "b")? {
        let cost = cost(bench, &dir, &anchor.name)?;
        let gaps = [cost, anchor.msils, anchor.s41].map(|cost| anchor.gap(cost));
        let is_apart = anchor.name == "b_1";
        let met = is_apart.then(|| bench.judged(gaps[0] <= gaps[1])).flatten();
        let beside = format!("MS-ILS {:.4} %, S41 {:.4} %", gaps[1], gaps[2]);
        bench.row(&anchor.name, format!("{cost} ({:.4} %)", gaps[0]), beside, met)?;
        if !is_apart {
            sums.iter_mut().zip(gaps).for_each(|(sum, gap)| *sum += gap);
        }
    }
    let beside = format!("MS-ILS {:.4} %, S41 {:.4} %", sums[1], sums[2]);
    bench.row("all but b_1", format!("{:.4} %", sums[0]), beside, bench.judged(sums[0] <= sums[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let csv =
            "instance,machines,initial_cost,trivial_lb,s41_avg100,msils_avg40\nb_1,100,400,100,140,200\nb_2,1,2,1,,3\n";
        std::fs::write(dir.path().join("anchors.csv"), csv).unwrap();
        assert!(anchors(dir.path(), "b").err().unwrap().to_string().ends_with("line 3: a figure is missing"));
        std::fs::write(dir.path().join("anchors.csv"), csv.replace(",,", ",1,")).unwrap();
        std::fs::write(dir.path().join("model_b_1.txt"), "").unwrap();
        let all = anchors(dir.path(), "b").unwrap();
        assert_eq!((all.len(), all[0].gap(all[0].msils), all[0].gap(all[0].s41)), (1, 25.0, 10.0));
    }
}
