//! How cases of a cluster are run.

use std::{
    any::Any,
    fmt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::sync_channel,
    },
    thread,
};

use skein_lab_cluster::Settings;

use crate::error::BenchError;

/// How a case is run.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The `skein` program. `skein-controller` is beside it.
    pub skein: PathBuf,
    /// The QEMU program. `None`: the usual one.
    pub qemu: Option<PathBuf>,
    /// PlanetLab's traces, as loads of simulated guests. `None`: loads are drawn.
    pub planetlab: Option<PathBuf>,
    /// The rounds. `None`: the case's own.
    pub runs: Option<u32>,
    /// Whether the case is smaller.
    pub quick: bool,
    /// A flag that ends the case early when it is set.
    pub interrupt: Arc<AtomicBool>,
}

impl ClusterOptions {
    /// Returns an error if the case is to end early.
    pub(super) fn check_interrupt(&self) -> Result<(), BenchError> {
        if self.interrupt.load(Ordering::Relaxed) { Err(BenchError::Interrupted) } else { Ok(()) }
    }

    /// Returns the settings of a cluster of two hosts with this program and QEMU.
    pub(super) fn settings(&self) -> Settings {
        let usual = Settings::new(self.skein.clone());
        Settings { qemu: self.qemu.clone().unwrap_or_else(|| usual.qemu.clone()), ..usual }
    }

    /// Returns the program of controllers, which is built beside `skein`.
    pub(super) fn controller_program(&self) -> Result<PathBuf, BenchError> {
        let program = self.skein.with_file_name("skein-controller");
        if program.is_file() { Ok(program) } else { Err(BenchError::NoController(program)) }
    }
}

/// Runs rounds in a thread: what goes wrong in the lab's cluster panics, as in a test, which ends the case and not the
/// bench.
pub(super) fn in_thread<T: Send>(
    tell: &mut dyn FnMut(String),
    rounds: impl FnOnce(&dyn Fn(String)) -> Result<T, BenchError> + Send,
) -> Result<T, BenchError> {
    thread::scope(|scope| {
        let (sender, notes) = sync_channel(64);
        let running = scope.spawn(move || rounds(&|note| drop(sender.send(note))));
        notes.iter().for_each(tell);
        running.join().unwrap_or_else(|panic| Err(BenchError::Cluster(words_of_panic(&*panic))))
    })
}

/// Runs a case's rounds, three or one, as [`in_thread`] does, and tells what was seen in each.
pub(super) fn rounds<T: fmt::Display + Send>(
    options: &ClusterOptions,
    tell: &mut dyn FnMut(String),
    mut round: impl FnMut() -> Result<T, BenchError> + Send,
) -> Result<Vec<T>, BenchError> {
    in_thread(tell, |tell| {
        let mut seen = Vec::new();
        for nth in 1..=options.runs.unwrap_or(if options.quick { 1 } else { 3 }) {
            options.check_interrupt()?;
            let of = round()?;
            tell(format!("round {nth}: {of}"));
            seen.push(of);
        }
        Ok(seen)
    })
}

/// Returns what a thread said that panicked.
pub(super) fn words_of_panic(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    words.unwrap_or("it panicked").to_owned()
}
