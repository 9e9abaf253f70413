//! Compares the plans of UCC'15 with Skein's.

use std::path::PathBuf;

use skein_placement_command::STEPS_TRIED;

use super::super::ucc15::Compared;
use super::rows::{Bench, files_in};

/// The name of each set, its folder, and the beginning of its files' names.
const SETS: [(&str, &str, &str); 3] = [("random", "", "random."), ("energy", "energy", ""), ("capping", "", "capping")];

pub fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let Some(dir) = bench.directory("ucc15")? else { return Ok(()) };
    for (name, folder, prefix) in SETS {
        let dir = dir.join(folder);
        let files = if dir.is_dir() { files_in(&dir, prefix)? } else { Vec::new() };
        set(bench, name, &files)?;
    }
    Ok(())
}

fn set(bench: &mut Bench, name: &str, files: &[PathBuf]) -> anyhow::Result<()> {
    if files.is_empty() {
        return bench.row(name, "skipped: there are no files".into(), String::new(), None);
    }
    let (mut ours, mut theirs, mut wrong) = (0.0, 0.0, 0);
    for path in files {
        let compared = Compared::new(path, bench.seed, STEPS_TRIED)?;
        ours += compared.ours.makespan / files.len() as f64;
        theirs += compared.theirs.makespan / files.len() as f64;
        wrong += compared.wrong();
        bench.go_on()?;
    }
    let measured = format!("{ours:.1} s mean of {}, {wrong} wrong", files.len());
    bench.row(name, measured, format!("{theirs:.1} s in the files"), Some(ours <= theirs && wrong == 0))
}
