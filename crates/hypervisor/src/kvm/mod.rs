//! Tries whether KVM runs guests, with the QEMU that is to run them.
//!
//! That `/dev/kvm` opens says little. In sandboxes and VMs it has been seen that
//! - QEMU cannot make a CPU (it ends at a register that the host below does not give);
//! - machines can be made and firmware runs, and a kernel's decompressor never ends: the guest here stops at copying
//!   memory, each of whose instructions costs what it costs to leave a guest.
//!
//! So a QEMU is started with a small guest (`guest.s`) that does what a kernel does first, and has to say that it is
//! done. KVM's own interface would be quicker to ask, and would miss what only QEMU asks of it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::memfd::{MFdFlags, memfd_create};
use thiserror::Error;

use crate::config::Config;
use crate::guest::facts::Accel;
use crate::process::child::{Killed, collect, end_with_thread, text};

/// Bounds the time of the guest. A guest that works says so within some 300 ms, of which it needs 50 itself. On a host
/// so busy that QEMU takes this long to start …
const GUEST_TIME_MAX: Duration = Duration::from_secs(10);
/// … this is what tells: the CPU time of a guest that goes round in circles.
const CPU_TIME_MAX: Duration = Duration::from_secs(3);
/// Says after how long a guest that was too slow is tried again. All other results stay.
const SLOW_TIME: Duration = Duration::from_secs(600);
const LOOK_PERIOD: Duration = Duration::from_millis(5);
/// Says how long a QEMU that is about to end is waited for.
const LAST_WORDS_TIME: Duration = Duration::from_millis(500);
const KVM_DEVICE: &str = "/dev/kvm";
/// Holds the size of the image. An image of firmware is a multiple of 64 KiB (`x86_bios_rom_init` of QEMU's
/// hw/i386/x86-common.c).
const IMAGE_BYTES: usize = 64 << 10;
/// Holds the code at which the CPU begins, 16 bytes before the end: a jump, relative within 64 KiB, to the image's
/// first byte.
const RESET_VECTOR: [u8; 3] = [0xe9, 0x0d, 0x00];

/// Holds the letter of each step of the guest, and what the step shows.
const GUEST_STEPS: [(u8, &str); 6] = [
    (b'r', "real mode"),
    (b'p', "protected mode"),
    (b'l', "long mode"),
    (b'f', "page faults"),
    (b'c', "copying memory"),
    (b't', "interrupts"),
];

/// The reason why KVM runs no guests.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KvmError {
    /// The device cannot be opened.
    #[error("/dev/kvm cannot be opened: {}", io::Error::from(*.0))]
    Device(io::ErrorKind),
    /// QEMU cannot be started.
    #[error("QEMU cannot be started to try KVM: {0}")]
    Start(String),
    /// QEMU cannot use KVM.
    #[error("/dev/kvm is there, and QEMU cannot use it: {0}")]
    Unusable(String),
    /// A guest does not get through its first instructions.
    #[error("/dev/kvm is there, and a guest comes to nothing under it: {0} {1}")]
    Stuck(&'static str, &'static str),
}

impl KvmError {
    /// Returns what to do.
    pub fn cure(&self) -> &'static str {
        match self {
            KvmError::Device(io::ErrorKind::NotFound) => {
                "load kvm_intel or kvm_amd; switch virtualisation on in the firmware, or nested on below"
            }
            KvmError::Device(io::ErrorKind::PermissionDenied) => {
                "run this as root (sudo); the agent's user has to be in the group kvm"
            }
            KvmError::Device(_) => {
                "switch virtualisation on in the firmware; in a VM, let the host below give it (nested)"
            }
            KvmError::Start(_) => "install QEMU, or say where it is",
            KvmError::Unusable(_) | KvmError::Stuck(..) => {
                "in a VM, let the host below give it hardware virtualisation (nested), all of it"
            }
        }
    }

    /// Returns whether another try, later, may have another result.
    fn is_passing(&self) -> bool {
        matches!(self, KvmError::Stuck(_, TOO_SLOW) | KvmError::Device(_) | KvmError::Start(_))
    }
}

/// Bounds the letters that are read: more than a guest says that does what it should.
const LETTERS_MAX: usize = 64;
const TOO_SLOW: &str = "takes for ever";
const WRONG: &str = "goes wrong";

/// A remembered result: the program, the time of the try, and the result.
struct RememberedResult {
    program: (PathBuf, Option<SystemTime>),
    at: Instant,
    answer: Result<(), KvmError>,
}

static RESULTS: Mutex<Vec<RememberedResult>> = Mutex::new(Vec::new());

/// Checks that guests run under KVM in this QEMU (`None`: the usual one). The first check takes a start of QEMU; if KVM
/// is broken, up to 10 s.
///
/// # Errors
/// The reason why they do not.
pub fn works(program: Option<&Path>) -> Result<(), KvmError> {
    // This check is cheap, and is made each time.
    File::options().read(true).write(true).open(KVM_DEVICE).map_err(|error| KvmError::Device(error.kind()))?;
    let mut config = Config::new("", 0, "");
    config.binary = program.map(Path::to_owned);
    let program = config.program();
    // Another file under the same name may have another result.
    let modified = fs::metadata(&program).and_then(|file| file.modified()).ok();
    let key = (program, modified);
    // The lock is held meanwhile: other callers wait for the result.
    let mut asked = RESULTS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    asked.retain(|known| known.at.elapsed() < SLOW_TIME || !known.answer.as_ref().is_err_and(KvmError::is_passing));
    if let Some(known) = asked.iter().find(|known| known.program == key) {
        return known.answer.clone();
    }
    let answer = run_guest(&key.0, Accel::Kvm);
    asked.push(RememberedResult { program: key, at: Instant::now(), answer: answer.clone() });
    answer
}

/// Runs the guest in a QEMU of its own.
///
/// # Errors
/// What stopped the guest, or QEMU.
pub fn run_guest(program: &Path, accel: Accel) -> Result<(), KvmError> {
    let start = |error: io::Error| KvmError::Start(format!("{}: {error}", program.display()));
    let image = memfd_create("skein-kvm-guest", MFdFlags::MFD_CLOEXEC).map_err(|error| start(error.into()))?;
    let mut image = File::from(image);
    image.write_all(&guest()).map_err(start)?;
    // QEMU opens the image by name, in this process, and so need not inherit it.
    let firmware = format!("/proc/{}/fd/{}", std::process::id(), image.as_raw_fd());
    let cpu = if accel == Accel::Kvm { "host" } else { "max" };
    let words = ["-machine", "q35", "-accel", accel.as_str(), "-cpu", cpu, "-m", "96", "-smp", "1"];
    let rest = ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio", "-bios"];
    let arguments = words.into_iter().chain(rest).map(OsString::from).chain([firmware.into()]);
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    end_with_thread(&mut command);
    let mut qemu = Killed(command.spawn().map_err(start)?);
    let stderr = Arc::default();
    let reader = collect(qemu.0.stderr.take().expect("is piped"), Arc::clone(&stderr));
    let mut said = qemu.0.stdout.take().expect("is piped");
    let letters = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&letters);
    let hearing = thread::spawn(move || {
        let mut bytes = [0; 16];
        while let Ok(count @ 1..) = said.read(&mut bytes) {
            let mut told = told.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            // A guest that goes wrong may say the same for ever.
            told.extend(&bytes[..count]);
            told.truncate(LETTERS_MAX);
        }
    });
    let begun = Instant::now();
    loop {
        let ended = qemu.0.try_wait().ok().flatten();
        let end = Instant::now() + LAST_WORDS_TIME;
        while ended.is_some() && !(hearing.is_finished() && reader.is_finished()) && Instant::now() < end {
            thread::sleep(LOOK_PERIOD);
        }
        let letters = letters.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        let (steps, wrong) = progress(&letters);
        if steps == GUEST_STEPS.len() {
            return Ok(());
        }
        let next = GUEST_STEPS[steps].1;
        if wrong {
            return Err(KvmError::Stuck(next, WRONG));
        }
        if let Some(status) = ended {
            // A guest that faults beyond remedy resets the machine, and QEMU ends in order.
            return Err(match status.success() {
                true => KvmError::Stuck(next, WRONG),
                false => {
                    let words = text(&stderr).lines().collect::<Vec<_>>().join("; ");
                    KvmError::Unusable(format!("QEMU ended with {status}: {words}"))
                }
            });
        }
        let cpu = skein_host::process_time(qemu.0.id()).map_or(0.0, |time| time.own_s());
        if begun.elapsed() >= GUEST_TIME_MAX || cpu >= CPU_TIME_MAX.as_secs_f64() {
            return Err(KvmError::Stuck(next, TOO_SLOW));
        }
        thread::sleep(LOOK_PERIOD);
    }
}

/// Returns how many steps were done, and whether the next went wrong.
fn progress(letters: &[u8]) -> (usize, bool) {
    let steps = GUEST_STEPS.iter().zip(letters).take_while(|((step, _), letter)| step == *letter).count();
    (steps, steps < letters.len())
}

/// Returns the guest, as the image of a machine's firmware.
fn guest() -> Vec<u8> {
    let mut image = code().to_vec();
    image.resize(IMAGE_BYTES, 0);
    let reset = IMAGE_BYTES - 16;
    image[reset..][..RESET_VECTOR.len()].copy_from_slice(&RESET_VECTOR);
    image
}

std::arch::global_asm!(
    ".pushsection .rodata.skein_kvm_guest, \"a\"",
    ".balign 16",
    ".globl kvm_guest_start",
    "kvm_guest_start:",
    include_str!("guest.s"),
    ".globl kvm_guest_end",
    "kvm_guest_end:",
    ".popsection",
    ".code64",
    options(att_syntax),
);

unsafe extern "C" {
    static kvm_guest_start: u8;
    static kvm_guest_end: u8;
}

/// Returns what the assembler made of `guest.s`.
fn code() -> &'static [u8] {
    let (start, end) = (&raw const kvm_guest_start, &raw const kvm_guest_end);
    // SAFETY: both are labels of one section that is never written, in this order, with nothing but its bytes between
    // them.
    unsafe { std::slice::from_raw_parts(start, end.offset_from_unsigned(start)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_fits_and_begins_with_what_it_says() {
        let image = guest();
        assert_eq!(image.len(), IMAGE_BYTES);
        assert!(code().len() < 2048, "{}", code().len());
        // The instructions are: cli; mov $0x3f8, %dx
        assert_eq!(image[..4], [0xfa, 0xba, 0xf8, 0x03]);
        // The jump goes from its end to the first byte, within 64 KiB.
        let jump = u16::from_le_bytes([RESET_VECTOR[1], RESET_VECTOR[2]]);
        assert_eq!((IMAGE_BYTES as u16).wrapping_sub(16).wrapping_add(3).wrapping_add(jump), 0);
    }

    #[test]
    fn progress_is_told_by_letters() {
        for (said, expected) in
            [("", (0, false)), ("rpl", (3, false)), ("rpl!", (3, true)), ("rplfct", (6, false)), ("x", (0, true))]
        {
            assert_eq!(progress(said.as_bytes()), expected, "{said}");
        }
    }

    #[test]
    fn each_fault_has_its_cure() {
        let device = |kind| KvmError::Device(kind);
        assert!(device(io::ErrorKind::NotFound).cure().contains("kvm_amd"));
        assert!(device(io::ErrorKind::PermissionDenied).cure().contains("group kvm"));
        let stuck = KvmError::Stuck("copying memory", TOO_SLOW);
        let said = "/dev/kvm is there, and a guest comes to nothing under it: copying memory takes for ever";
        assert_eq!(stuck.to_string(), said);
        assert!(stuck.is_passing() && !KvmError::Stuck("page faults", WRONG).is_passing());
        assert!(stuck.cure().contains("nested"));
    }

    #[test]
    fn a_program_that_is_no_qemu_is_told() {
        let error = run_guest(Path::new("/nonexistent/qemu"), Accel::Kvm).unwrap_err();
        assert!(matches!(&error, KvmError::Start(why) if why.contains("/nonexistent/qemu")), "{error}");
        let error = run_guest(Path::new("false"), Accel::Kvm).unwrap_err();
        assert!(matches!(error, KvmError::Unusable(_)), "{error}");
        // The program ends in order, and no guest has run.
        assert_eq!(run_guest(Path::new("true"), Accel::Kvm), Err(KvmError::Stuck("real mode", WRONG)));
    }
}
