//! Replays PlanetLab's days with each policy: `planetlab DIR [SEEDS [USED]]`. DIR has a folder for each day, with a
//! file for each machine. SEEDS is the number of worlds for each day (1), and USED the part of the hosts' CPU that is
//! used on average (0.6).

#![expect(clippy::disallowed_types, reason = "an example is a program: it measures how long the crate takes")]
#![expect(clippy::disallowed_methods, reason = "an example is a program: it reads files")]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use skein_lab_placement::planetlab::{Trace, read_trace};
use skein_lab_placement::replay::{Kind, Replay, Setup, World};

fn entries(dir: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut paths = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, std::io::Error>>()?;
    paths.sort();
    Ok(paths)
}

fn read_day(dir: &Path) -> Result<Vec<Trace>, Box<dyn Error>> {
    let read = |path: &PathBuf| Ok(read_trace(&fs::read_to_string(path)?).map_err(|e| format!("{path:?}: {e}"))?);
    entries(dir)?.iter().map(read).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let dir = args.get(1).ok_or("which directory?")?;
    let seeds: u64 = args.get(2).map_or(Ok(1), |seeds| seeds.parse())?;
    let cpu_used: f64 = args.get(3).map_or(Ok(0.6), |used| used.parse())?;
    println!(
        "day      seed policy       overload_min longest_min left_alone_min moves guest_max lost_% refused seconds"
    );
    for day in entries(Path::new(dir))?.into_iter().filter(|path| path.is_dir()) {
        let traces = read_day(&day)?;
        for seed in 1..=seeds {
            let world = World::new(&traces, &Setup { seed, cpu_used, ..Setup::default() })?;
            for kind in Kind::ALL {
                let (mut replay, begun) = (Replay::new(&world, kind), Instant::now());
                while replay.step()? {}
                let of = replay.report();
                println!(
                    "{} {seed:4} {:12} {:12.0} {:11} {:14} {:5} {:9} {:6.3} {:7} {:7.2}",
                    day.file_name().unwrap_or_default().to_string_lossy(),
                    format!("{kind:?}"),
                    of.overload_min,
                    of.longest_min,
                    of.left_alone_min,
                    of.moves,
                    of.guest_moves_max,
                    of.lost * 100.0,
                    of.refused,
                    begun.elapsed().as_secs_f64()
                );
            }
        }
    }
    Ok(())
}
