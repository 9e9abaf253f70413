//! The guest workload: pid 1 of the lab's initramfs.
//!
//! Fills RAM with known pages, rewrites them at a steady rate, checks them, beats, works on a disk, and answers
//! commands on a virtio-serial port. The commands are in [`command_port`].

mod beat;
mod command_port;
mod disk;
mod memory;
mod software;
mod sys;
mod workload;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use skein_workload::Params;

use crate::beat::Beat;
use crate::disk::Disk;
use crate::memory::Memory;
use crate::software::Software;
use crate::workload::Workload;

fn main() {
    if std::process::id() != 1 {
        eprintln!("skein-workload: this is pid 1 of the lab's guest: it mounts, loads modules and powers off");
        std::process::exit(2);
    }
    if let Err(error) = run() {
        // QEMU's console is where the error is looked for. Returning would make the kernel panic, and print a lot more.
        eprintln!("skein-workload: {error}");
        sys::power_off();
    }
}

fn run() -> Result<(), String> {
    if std::process::id() != 1 {
        return Err(
            "this program is meant to be pid 1 of the lab's guest; it mounts, loads modules and powers off".into()
        );
    }
    sys::mount_all()?;
    sys::load_modules()?;
    let command_line = std::fs::read_to_string("/proc/cmdline").map_err(|e| format!("/proc/cmdline: {e}"))?;
    let params = Params::parse(&command_line).map_err(|e| e.to_string())?;
    if let Some(address) = params.ip {
        sys::configure_nic(address)?;
    }

    let workload = Arc::new(Workload {
        beat: Beat::default(),
        memory: Memory::new(&params)?,
        disk: Disk::open(&params)?,
        build: params.build,
        freed_mb: params.freed_mb,
        software: OnceLock::new(),
        ready: AtomicBool::new(false),
    });
    if params.beat_ms > 0 {
        let workload = workload.clone();
        spawn("beat", move || workload.beat.run(params.beat_ms));
    }
    let worker = workload.clone();
    spawn("work", move || work(&worker));
    command_port::serve(&workload)
}

/// Does what comes before the load.
///
/// # Errors
///
/// What could not be done.
fn prepare(workload: &Workload) -> Result<(), String> {
    if workload.build {
        drop(workload.software.set(Software::build()?));
    }
    memory::use_and_free(workload.freed_mb)
}

/// Builds and fills everything, then keeps all threads of the load running.
fn work(workload: &Arc<Workload>) {
    if let Err(error) = prepare(workload) {
        eprintln!("skein-workload: {error}");
        sys::power_off();
    }
    workload.memory.fill();
    if let Some(disk) = &workload.disk {
        disk.fill();
    }
    for slice in 0..workload.memory.writers() {
        let workload = workload.clone();
        spawn("write", move || workload.memory.keep_rewriting(slice));
    }
    let verifier = workload.clone();
    spawn("verify", move || verifier.memory.keep_verifying());
    if workload.disk.is_some() {
        let workload = workload.clone();
        spawn("disk", move || workload.disk.iter().for_each(Disk::keep_working));
    }
    workload.ready.store(true, std::sync::atomic::Ordering::Release);
    eprintln!("skein-workload: ready");
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().name(name.into()).spawn(body).expect("a thread");
}
