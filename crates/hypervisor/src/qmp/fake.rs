//! Is a QEMU's end of a QMP socket, for tests.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::qmp::monitor::Monitor;

/// Bounds the wait for a fake's answers, also on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// Returns a QEMU that has `serve` answer each request after the first: command, id, where to.
pub(crate) fn fake(mut serve: impl FnMut(&str, u64, &mut UnixStream) + Send + 'static) -> Monitor {
    fake_of((10, 0), move |request, id, out| serve(request["execute"].as_str().unwrap(), id, out))
}

/// Returns such a QEMU of a version, whose `serve` gets the whole request.
pub(crate) fn fake_of(
    (major, minor): (u32, u32),
    mut serve: impl FnMut(&Value, u64, &mut UnixStream) + Send + 'static,
) -> Monitor {
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::spawn(move || {
        let mut out = theirs.try_clone().unwrap();
        let version = json!({ "qemu": { "micro": 2, "minor": minor, "major": major } });
        writeln!(out, "{}", json!({ "QMP": { "version": version, "capabilities": [] } })).unwrap();
        for line in BufReader::new(theirs).lines() {
            let Ok(request) = line.map(|line| serde_json::from_str::<Value>(&line).unwrap()) else { return };
            let id = request["id"].as_u64().unwrap();
            match request["execute"].as_str().unwrap() {
                "qmp_capabilities" => writeln!(out, "{}", json!({ "return": {}, "id": id })).unwrap(),
                _ => serve(&request, id, &mut out),
            }
        }
    });
    Monitor::negotiate(ours, SOON).unwrap()
}
