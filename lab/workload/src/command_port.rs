//! Answers commands: lines `ID COMMAND [ARGUMENT]` on the control port. Each is answered with one line of JSON that has
//! the `id` and either results or `error`.
//!
//! | command | does |
//! |---|---|
//! | `status` | returns state, counters, and gaps of the heartbeat |
//! | `verify` | compares every page, every file of built software, and every block of the disk |
//! | `quiet`, `dirty` | stops, starts the rewriting of RAM |
//! | `rate N` | sets the pages per second to rewrite from now on |
//! | `reset-gap` | forgets the gaps of the heartbeat |
//! | `hash` | returns a hash of all pages under test |
//! | `corrupt [PAGE]` | flips one bit, for a test of the verification itself |
//! | `exit` | powers off |

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use skein_workload::CONTROL_PORT;

use crate::software::Software;
use crate::sys;
use crate::workload::Workload;

/// The longest command in bytes.
const LINE_BYTES_MAX: usize = 256;
/// How long to wait before it is checked again whether a host is connected.
const RETRY_NS: u64 = 20_000_000;
/// A port that does not exist after this time does not exist at all.
const PORT_DEADLINE_NS: u64 = 10_000_000_000;
const ANSWER_DEADLINE_NS: u64 = 5_000_000_000;

/// Answers commands, for ever.
///
/// # Errors
///
/// Why the port cannot be opened or read.
pub fn serve(workload: &Arc<Workload>) -> Result<(), String> {
    // QEMU sends the ports' names in messages that the driver handles in its own time: on a busy machine, after this
    // program starts.
    let end = sys::now_ns() + PORT_DEADLINE_NS;
    let mut port = loop {
        match sys::open_port(CONTROL_PORT) {
            Some(port) => break port,
            None if sys::now_ns() > end => return Err(format!("no virtio-serial port is called {CONTROL_PORT}")),
            None => sys::sleep_ns(RETRY_NS),
        }
    };
    let mut line = Vec::new();
    loop {
        let mut buffer = [0; LINE_BYTES_MAX];
        match port.read(&mut buffer) {
            Ok(count) if count > 0 => {
                for &byte in &buffer[..count] {
                    if byte != b'\n' {
                        // One byte more than allowed marks a line as too long, without keeping the line.
                        if line.len() <= LINE_BYTES_MAX {
                            line.push(byte);
                        }
                        continue;
                    }
                    let answer = answer(workload, &line);
                    line.clear();
                    send(&mut port, answer.as_bytes());
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => sys::wait_readable(&port),
            // 0 bytes: no host is connected, as after a migration until the target's is.
            Ok(_) => sys::sleep_ns(RETRY_NS),
            Err(error) => return Err(format!("reading {CONTROL_PORT}: {error}")),
        }
    }
}

/// Writes an answer, or drops it if the host does not take it. The host may have gone, and the guest must go on.
fn send(port: &mut File, mut answer: &[u8]) {
    let deadline = sys::now_ns() + ANSWER_DEADLINE_NS;
    while !answer.is_empty() && sys::now_ns() < deadline {
        match port.write(answer) {
            Ok(count) => answer = &answer[count..],
            Err(_) => sys::sleep_ns(RETRY_NS / 10),
        }
    }
}

fn answer(workload: &Workload, line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut words = text.split_ascii_whitespace();
    // The host cannot match a line without a number anyhow.
    let id: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let done = if line.len() > LINE_BYTES_MAX {
        Err("the line is too long".into())
    } else {
        execute(workload, words.next().unwrap_or(""), words.next())
    };
    match done {
        Ok(fields) if fields.is_empty() => format!("{{\"id\":{id}}}\n"),
        Ok(fields) => format!("{{\"id\":{id},{fields}}}\n"),
        Err(error) => format!("{{\"id\":{id},\"error\":{}}}\n", quote(&error)),
    }
}

/// Executes a command and returns the fields of its answer.
fn execute(workload: &Workload, command: &str, argument: Option<&str>) -> Result<String, String> {
    let memory = &workload.memory;
    let number = || argument.map(|word| word.parse::<u64>().map_err(|_| format!("{word}: not a number"))).transpose();
    let only_when_ready = || match workload.ready.load(Ordering::Acquire) {
        true => Ok(()),
        false => Err("not ready: still filling".to_string()),
    };
    match command {
        "status" => return Ok(status(workload)),
        "exit" => sys::power_off(),
        _ => only_when_ready()?,
    }
    match command {
        "reset-gap" => workload.beat.gaps.lock().unwrap().reset(),
        "quiet" => memory.stop_dirtying(),
        "dirty" => memory.start_dirtying(),
        "rate" => {
            let rate = number()?.and_then(|n| u32::try_from(n).ok()).ok_or("rate needs pages a second")?;
            memory.set_rate(rate);
        }
        "hash" => return Ok(format!("\"hash\":\"{:016x}\"", memory.hash())),
        "corrupt" => return Ok(format!("\"page\":{}", memory.corrupt(number()?)?)),
        "verify" => {
            let started = sys::now_ns();
            let found = memory.verify();
            let (files, bad_files) = workload.software.get().map(Software::verify).unwrap_or_default();
            let (blocks, bad_blocks) = workload.disk.as_ref().map(|disk| disk.verify()).unwrap_or_default();
            return Ok(format!(
                "\"pages\":{},\"bad\":{},\"first_bad\":{},\
                 \"blocks\":{blocks},\"bad_blocks\":{bad_blocks},\"took_us\":{}",
                found.pages + files,
                found.bad + bad_files,
                or_null(found.first_bad),
                (sys::now_ns() - started) / 1000
            ));
        }
        _ => return Err(format!("{command}: no such command")),
    }
    Ok(String::new())
}

fn status(workload: &Workload) -> String {
    let memory = &workload.memory;
    let ready = workload.ready.load(Ordering::Acquire);
    let mut fields =
        format!("\"ready\":{ready},\"time_us\":{},\"filled_pages\":{}", sys::now_ns() / 1000, memory.filled_pages());
    // The slices are locked while they are filled.
    if ready {
        let found = *memory.background.lock().unwrap();
        fields += &format!(
            ",\"pages\":{},\"written\":{},\"dirtying\":{},\"rate\":{},\"checked\":{},\"bad\":{},\"first_bad\":{}",
            memory.pages(),
            memory.written(),
            memory.is_dirtying(),
            memory.rate.load(Ordering::Relaxed),
            found.pages,
            found.bad,
            or_null(found.first_bad)
        );
        if let Some(disk) = &workload.disk {
            let report = disk.report();
            fields += &format!(
                ",\"disk\":{{\"blocks\":{},\"written\":{},\"checked\":{},\"bad\":{},\"error\":{}}}",
                disk.blocks(),
                report.written,
                report.checked,
                report.bad,
                report.error.as_deref().map_or("null".into(), quote)
            );
        }
    }
    let gaps = workload.beat.gaps.lock().unwrap();
    fields += &format!(
        ",\"beat\":{{\"count\":{},\"longest_us\":{},\"second_us\":{},\"p99_us\":{}}}",
        gaps.total(),
        gaps.longest() / 1000,
        gaps.second() / 1000,
        gaps.quantile(990) / 1000
    );
    fields
}

fn or_null(number: Option<u64>) -> String {
    number.map_or("null".into(), |n| n.to_string())
}

/// Returns a text as a JSON string.
fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c < ' ' => quoted += &format!("\\u{:04x}", c as u32),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}
