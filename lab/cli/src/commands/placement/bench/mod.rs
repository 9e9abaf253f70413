//! `skein-lab placement bench`: cases on public data, compared with what others reached.

mod btrplace;
mod exact;
mod fleet;
mod planetlab;
mod roadef;
mod rows;
mod ucc15;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use rows::Bench;
use skein_placement_command::success_if;
use skein_terminal::{files, print};

/// Measure on public problems, beside what others reached
///
/// The directory has the data sets as they are published: roadef2012/ (with anchors.csv), btrplace/, ucc15/, planetlab/
/// (unpacked: a directory for each day). What is not there is skipped, and told. All of it takes about 80 minutes, with
/// --quick some minutes. All CPUs search; nothing else should run.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein-lab placement bench --list
  skein-lab placement bench --data ~/data --quick
  skein-lab placement bench --data ~/data roadef-b --seed 7 --json rows.json

Exit codes:
  0  every figure that was judged is met
  1  an error; what it was is said
  2  wrong arguments
  3  a figure is missed")]
pub struct Args {
    /// Cases, all of them if none is named
    #[arg(value_name = "CASE")]
    cases: Vec<String>,
    /// Where the data sets are
    #[arg(long, value_name = "DIR", required_unless_present = "list")]
    data: Option<PathBuf>,
    /// Ten seconds where figures allow 300; judges nothing that depends on them
    #[arg(long)]
    quick: bool,
    /// Of all searches and made-up clusters
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Write the rows here too, as a JSON array
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only list the cases
    #[arg(long)]
    list: bool,
}

/// Something to measure.
struct Case {
    name: &'static str,
    figure: &'static str,
    run: fn(&mut Bench) -> anyhow::Result<()>,
}

/// All cases, in the order in which they run.
const CASES: [Case; 8] = [
    Case {
        name: "roadef-a",
        figure: "ROADEF set A, 300 s each: none worse than MS-ILS's average; aims at S41's",
        run: roadef::set_a,
    },
    Case {
        name: "roadef-b",
        figure: "ROADEF b_1 and b_2 to b_5, 300 s each: sum of 100 x (cost - bound) / initial cost not worse than \
                 MS-ILS; aims at S41",
        run: roadef::set_b,
    },
    Case {
        name: "fleet",
        figure: "1,000 hosts, 20,000 guests: one host failed or overloaded, repaired in 1 s; under 500 MB",
        run: fleet::run,
    },
    Case { name: "fleet-replan", figure: "the same, planned anew in 5 s", run: fleet::replan },
    Case {
        name: "btrplace",
        figure: "li6-c100, nr6-c100 (5,000 nodes, 30,000 VMs): nothing broken in 5 s; moves beside the least possible",
        run: btrplace::run,
    },
    Case {
        name: "ucc15",
        figure: "random plans, energy, capping: mean makespan at most that of the plans in the files, simulated",
        run: ucc15::run,
    },
    Case {
        name: "planetlab",
        figure: "a day, 100 hosts: no overload over 10 min that a move could end; no guest moved over 3 times; fewer \
                 moves and less overload than greedy and thresholds",
        run: planetlab::run,
    },
    Case {
        name: "exact",
        figure: "1,000 random small clusters beside HiGHS: never invalid, 90 % optimal, the rest within 2 %; ROADEF \
                 a1_1 proven",
        run: exact::run,
    },
];

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let cases = select(&args.cases)?;
    let Some(data) = args.data.filter(|_| !args.list) else {
        let lines: String = cases.iter().map(|case| format!("{:12}  {}\n", case.name, case.figure)).collect();
        print(&lines)?;
        return Ok(ExitCode::SUCCESS);
    };
    ensure!(data.is_dir(), "there is no directory {}: --data names where the data sets are", data.display());
    let json = files::output(args.json.as_deref(), &[])?;
    let (quick, seed, interrupt) = (args.quick, args.seed, skein_terminal::interrupt_flag()?);
    let mut bench = Bench { data, quick, seed, interrupt, case: "", rows: Vec::new() };
    let done = cases.into_iter().try_for_each(|case| {
        bench.case = case.name;
        (case.run)(&mut bench)
    });
    if let Some(path) = json {
        files::write(path, &(serde_json::to_string_pretty(&bench.rows)? + "\n"))?;
    }
    done?;
    Ok(success_if(bench.rows.iter().all(|row| row.met != Some(false))))
}

fn select(names: &[String]) -> anyhow::Result<Vec<&'static Case>> {
    if names.is_empty() {
        return Ok(CASES.iter().collect());
    }
    let find = |name: &String| {
        let case = CASES.iter().find(|case| case.name == name);
        case.with_context(|| format!("there is no case '{name}': `skein-lab placement bench --list` lists them"))
    };
    names.iter().map(find).collect()
}
