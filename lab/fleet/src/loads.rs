//! How busy guests are.

use std::f64::consts::TAU;
use std::fs;
use std::path::{Path, PathBuf};

use skein_api::VmLoad;
use skein_lab_placement::planetlab::{SAMPLE_S, SAMPLES, Trace, read_trace};
use skein_placement::dice::Dice;

use crate::error::FleetError;
use crate::settings::FleetSettings;

/// The days that are drawn from a seed where there are no traces.
const DRAWN: usize = 512;
/// The most that is measured beside a trace, as a share of it: no two measurements are the same.
const NOISE: f64 = 0.02;

/// The days of machines, of which each guest has one.
pub(crate) struct Loads {
    days: Vec<Trace>,
    seed: u64,
}

impl Loads {
    /// Reads traces, or draws days from the seed.
    pub(crate) fn new(planetlab: Option<&Path>, seed: u64) -> Result<Loads, FleetError> {
        let days = match planetlab {
            Some(dir) => read_days(dir)?,
            None => {
                let mut dice = Dice::new(seed);
                (0..DRAWN).map(|_| drawn(&mut dice)).collect()
            }
        };
        Ok(Loads { days, seed })
    }

    /// Returns what a guest uses that has so much memory and so many CPUs, after some milliseconds of the fleet.
    pub(crate) fn of(&self, vm: u32, memory_bytes: u64, cpus: u32, at_ms: u64) -> VmLoad {
        let mut dice = Dice::new(self.seed ^ u64::from(vm).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let day = dice.pick(&self.days);
        let first = dice.below(SAMPLES);
        let sample_ms = u64::from(SAMPLE_S) * 1000 / u64::from(FleetSettings::SPEED);
        let percent = day[(first + (at_ms / sample_ms) as usize) % SAMPLES];
        let mut noise = Dice::new(self.seed ^ u64::from(vm) << 40 ^ at_ms);
        let share = f64::from(percent) / 100.0 * (1.0 + NOISE * (noise.unit() - 0.5));
        let about = |of: f64| (of * (0.5 + share) * (1.0 + NOISE * (noise.unit() - 0.5))) as u64;
        let bytes = [2e6, 1e6, 3e6, 4e6].map(about);
        VmLoad {
            cpu_millicores: (share * f64::from(cpus) * 1000.0) as u64,
            ram_bytes: (memory_bytes as f64 * (0.7 + 0.2 * dice.unit())) as u64,
            disk_read_bytes_per_s: bytes[0],
            disk_write_bytes_per_s: bytes[1],
            net_receive_bytes_per_s: bytes[2],
            net_send_bytes_per_s: bytes[3],
        }
    }
}

/// Draws a day: a wave with some peaks, mostly low, as PlanetLab's.
fn drawn(dice: &mut Dice) -> Trace {
    let (mean, wave, phase) = (3.0 + 25.0 * dice.unit().powi(3), dice.unit(), TAU * dice.unit());
    let mut day: Trace = std::array::from_fn(|sample| {
        let at = TAU * sample as f64 / SAMPLES as f64 + phase;
        (mean * (1.0 + wave * at.sin())).clamp(0.0, 100.0) as u8
    });
    for _ in 0..dice.below(8) {
        let (from, long, height) = (dice.below(SAMPLES), 1 + dice.below(12), 20 + dice.below(80));
        (from..from + long).for_each(|at| day[at % SAMPLES] = height as u8);
    }
    day
}

fn read_days(dir: &Path) -> Result<Vec<Trace>, FleetError> {
    let mut days = Vec::new();
    let mut directories = vec![dir.to_owned()];
    while let Some(next) = directories.pop() {
        for path in entries(&next)? {
            if path.is_dir() {
                // A directory of days has days, and no further directories in these.
                if next == dir {
                    directories.push(path);
                }
                continue;
            }
            let text = fs::read_to_string(&path).map_err(FleetError::io(format!("cannot read {}", path.display())))?;
            days.push(read_trace(&text).map_err(|source| FleetError::Trace { path, source })?);
        }
    }
    if days.is_empty() { Err(FleetError::NoTraces(dir.to_owned())) } else { Ok(days) }
}

/// Returns the entries of a directory, in an order that is always the same.
fn entries(dir: &Path) -> Result<Vec<PathBuf>, FleetError> {
    let failed = || FleetError::io(format!("cannot read the directory {}", dir.display()));
    let read = fs::read_dir(dir).map_err(failed())?;
    let mut paths: Vec<PathBuf> =
        read.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>().map_err(failed())?;
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_has_the_load_of_its_trace_ten_times_as_fast() {
        let dir = tempfile::tempdir().unwrap();
        let day: String = (0..SAMPLES).map(|n| format!("{}\n", n % 100)).collect();
        fs::create_dir(dir.path().join("day")).unwrap();
        fs::write(dir.path().join("day/machine"), day).unwrap();
        let loads = Loads::new(Some(dir.path()), 7).unwrap();
        let cores = |at_ms| loads.of(3, 1 << 30, 2, at_ms).cpu_millicores as f64 / 2000.0;
        let (now, later) = (cores(1000), cores(1000 + 30_000));
        let is_next = (later - now - 0.01).abs() < 0.02 || now > 0.9;
        assert!(is_next, "{now} {later}");
        assert_eq!(loads.of(3, 1 << 30, 2, 5), loads.of(3, 1 << 30, 2, 5));
        assert_ne!(loads.of(3, 1 << 30, 2, 5), loads.of(3, 1 << 30, 2, 6), "no two measurements are the same");
    }

    #[test]
    fn what_is_no_trace_is_told() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(Loads::new(Some(dir.path()), 1), Err(FleetError::NoTraces(_))));
        fs::write(dir.path().join("x"), "101\n").unwrap();
        assert!(matches!(Loads::new(Some(dir.path()), 1), Err(FleetError::Trace { .. })));
    }

    #[test]
    fn drawn_days_are_mostly_low() {
        let loads = Loads::new(None, 1).unwrap();
        let all: Vec<u64> = (0..1000).map(|vm| loads.of(vm, 1 << 30, 1, 1000).cpu_millicores).collect();
        let mean = all.iter().sum::<u64>() as f64 / 1000.0;
        assert!((20.0..300.0).contains(&mean) && all.iter().all(|of| *of <= 1010), "{mean}");
    }
}
