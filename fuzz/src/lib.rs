//! One function for each decoder of bytes from outside. None may panic, or keep more than it should, whatever
//! the bytes; what decodes must survive being encoded again.
//!
//! The fuzzer (`targets/`) and the test that replays its corpus call the same functions.

mod input;
mod journal;
mod pages;
mod qemu_stream;
mod records;
mod session;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use skein_agent::ControlMessage;
use skein_api::{Refusal, ToAgent, ToController, parse_line, write_line};
use skein_forecast::{ForecastInputs, forecast};
use skein_hypervisor::{MigrationInfo, Qmp};
use skein_identity::{CertificateInfo, parse_pem};
use skein_inventory::{
    ControllersFile, Definition, GuestFacts, HostFacts, HostsFile, ParseError, PathFacts, Problem, Route, TargetLaunch,
    check,
};
use skein_session::address::{decode_addresses, encode_addresses};
use skein_session::frame::{Frame, HEADER_BYTES, Header};
use skein_session::handshake::{Hello, Welcome};

pub use journal::journal;
pub use pages::pages;
pub use qemu_stream::{qemu_main, qemu_multifd};
pub use records::records;
pub use session::session;

/// A target's name, which is also its corpus' directory, and what it does with an input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("frame", frame),
    ("handshake", handshake),
    ("addresses", addresses),
    ("session", session),
    ("records", records),
    ("qmp", qmp),
    ("migration", migration),
    ("pem", pem),
    ("journal", journal),
    ("definition", definition),
    ("facts", facts),
    ("control", control),
    ("controller_link", controller_link),
    ("pages", pages),
    ("qemu_main", qemu_main),
    ("qemu_multifd", qemu_multifd),
];

/// A header and what follows it, as from a connection.
fn split(bytes: &[u8]) -> Option<(Header, &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let header = Header::decode(header).ok()?;
    Some((header, rest.get(..header.len as usize)?))
}

/// Frames of an established session, one after the other.
pub fn frame(mut bytes: &[u8]) {
    while let Some((header, payload)) = split(bytes) {
        assert_eq!(header.encode(), bytes[..HEADER_BYTES]);
        if let Err(error) = Frame::parse(header, Bytes::copy_from_slice(payload)) {
            let _ = error.to_string();
        }
        bytes = &bytes[HEADER_BYTES + payload.len()..];
    }
}

/// The first message on a connection, or its answer.
pub fn handshake(bytes: &[u8]) {
    let Some((header, payload)) = split(bytes) else { return };
    let again = |encoded: Vec<u8>| {
        let (header, payload) = split(&encoded).expect("what was decoded fits in a frame again");
        (header, payload.to_vec())
    };
    match Hello::decode(&header, payload) {
        Ok(hello) => {
            let (header, payload) = again(hello.encode());
            assert_eq!(Hello::decode(&header, &payload), Ok(hello));
        }
        Err(error) => drop(error.to_string()),
    }
    match Welcome::decode(&header, payload) {
        Ok(welcome) => {
            let (header, payload) = again(welcome.encode());
            assert_eq!(Welcome::decode(&header, &payload), Ok(welcome));
        }
        Err(error) => {
            let _ = error.is_unknown_session();
            assert!(!error.to_string().contains('\u{1b}'), "a peer must not drive a terminal");
        }
    }
}

/// Where a peer says that it can be reached.
pub fn addresses(bytes: &[u8]) {
    if let Some(addresses) = decode_addresses(bytes) {
        assert_eq!(decode_addresses(&encode_addresses(&addresses)), Some(addresses));
    }
}

/// What a QEMU, or something in its place, says on its monitor.
pub fn qmp(bytes: &[u8]) {
    let (here, mut there) = UnixStream::pair().expect("a pair of sockets");
    there.set_nonblocking(true).expect("a socket option");
    // No more than the socket holds: nobody reads meanwhile.
    let _ = there.write(bytes);
    let _ = there.shutdown(std::net::Shutdown::Write);
    let wait = Duration::from_millis(50);
    match Qmp::negotiate(here, wait) {
        Ok(mut qmp) => {
            let _ = qmp.query("query-status");
            let _ = qmp.execute_within("stop", serde_json::Value::Null, wait);
            while let Ok(Some(event)) = qmp.next_event(Duration::ZERO) {
                let _ = event.name.len();
            }
        }
        Err(error) => drop(error.to_string()),
    }
}

/// A QEMU's answer to `query-migrate`.
pub fn migration(bytes: &[u8]) {
    if let Ok(value) = serde_json::from_slice(bytes) {
        let _ = MigrationInfo::parse(value);
    }
}

/// Certificates in PEM, and what they say.
pub fn pem(bytes: &[u8]) {
    for certificate in parse_pem(bytes).unwrap_or_default() {
        if let Ok(info) = CertificateInfo::parse(&certificate) {
            let _ = (info.host().map(str::len), info.is_member());
            let _ = info.days_left(std::time::SystemTime::UNIX_EPOCH);
        }
    }
}

/// A VM's file, the hosts', or the controllers'.
pub fn definition(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let told = |error: ParseError| {
        assert!(!error.diagnostics.is_empty() && error.diagnostics.len() <= 100);
        let printable = |c: char| c == '\n' || !c.is_control();
        assert!(error.to_string().chars().all(printable), "a file must not drive a terminal");
    };
    match Definition::parse(text, "fuzz.toml") {
        Ok(read) => assert_eq!(Definition::parse(&read.to_toml(), "again.toml"), Ok(read)),
        Err(error) => told(error),
    }
    if let Err(error) = HostsFile::parse(text, "hosts.toml") {
        told(error);
    }
    if let Err(error) = ControllersFile::parse(text, "controllers.toml") {
        told(error);
    }
}

/// What another agent says about a guest and both hosts, and what it finds against a migration.
pub fn facts(bytes: &[u8]) {
    type Facts = (GuestFacts, Option<Definition>, HostFacts, HostFacts, Vec<PathFacts>);
    if let Ok((guest, definition, source, target, paths)) = serde_json::from_slice::<Facts>(bytes) {
        let args = [guest.name.clone(), "-drive".into(), format!("file={}", guest.cpu)];
        let start = match &definition {
            Some(definition) => TargetLaunch::Definition { definition, launched: Some(&guest.composition), given: &[] },
            None => TargetLaunch::CommandLine(&args),
        };
        let problems = check(&guest, start, &source, &target, &paths);
        for problem in &problems {
            assert!(problem.what.len() + problem.cure.len() <= 4096 && !problem.what.contains('\u{1b}'));
        }
        let encoded = serde_json::to_vec(&problems).expect("problems are JSON");
        assert_eq!(serde_json::from_slice::<Vec<Problem>>(&encoded).expect("and read again"), problems);
        let rates: Vec<u64> = paths.iter().filter_map(|path| path.bits_per_s).collect();
        for transport in Route::ALL {
            let _ = forecast(guest.ram_bytes, Some(target.ram_bytes), &rates, transport, ForecastInputs::default())
                .to_string();
        }
    }
}

/// What agents say to each other.
pub fn control(bytes: &[u8]) {
    let mut lines = bytes;
    while !lines.is_empty() {
        match ControlMessage::read(&mut lines) {
            Ok(wire) => {
                // What was made printable may have become longer than it may be.
                let Ok(line) = wire.line() else { continue };
                assert_eq!(ControlMessage::read(&mut &line[..]).expect("just written"), wire);
            }
            Err(error) => drop(error.to_string()),
        }
    }
}

/// What an agent and a controller say to each other.
pub fn controller_link(bytes: &[u8]) {
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        controller_line(line, ToController::check);
        controller_line(line, ToAgent::check);
    }
}

fn controller_line<T: DeserializeOwned + Serialize>(line: &[u8], check: impl Fn(&T) -> Result<(), Refusal>) {
    match parse_line::<T>(line) {
        Ok(value) => {
            let checked = check(&value);
            if let Err(refusal) = &checked {
                let told = format!("{}: {}", refusal.message, refusal.cure);
                assert!(!told.contains(char::is_control), "an end must not drive the other's terminal: {told:?}");
            }
            let mut again = Vec::new();
            write_line(&mut again, &value).expect("a vector takes all");
            let again = parse_line::<T>(&again).expect("just written");
            assert_eq!(check(&again), checked);
        }
        Err(error) => assert!(!error.to_string().contains(char::is_control)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_corpus_is_survived() {
        for (name, target) in TARGETS {
            let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
            let entries = std::fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
            let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
            files.sort();
            assert!(files.len() >= 10, "{} holds {} files only", directory.display(), files.len());
            let begin = Instant::now();
            for file in &files {
                println!("{}", file.display()); // the last one printed is the one that failed
                target(&std::fs::read(file).unwrap());
            }
            println!("{name}: {} files in {:?}", files.len(), begin.elapsed());
        }
    }
}
