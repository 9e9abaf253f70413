//! What is remembered of a lab from one program run to the next: `/run/skein/lab/NAME.json`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::plan::{Cut, port};
use crate::spec::{Spec, check_name};

const DIRECTORY: &str = "/run/skein/lab";
/// How long to wait for the lock. Changes take milliseconds, and so does taking a name. Building and removing a lab
/// takes no lock.
const LOCK_DEADLINE: Duration = Duration::from_secs(10);

/// The state of a lab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The spec, with the rates as they are now.
    pub spec: Spec,
    /// The cuts, by port of the switch.
    #[serde(default)]
    cuts: BTreeMap<String, Cut>,
    /// The program whose end is the lab's end. `None`: the lab was kept.
    #[serde(default)]
    pub owner: Option<Owner>,
}

/// A process that cannot be confused with a later one of the same number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pid: u32,
    /// The start time, in ticks since boot.
    started: String,
    /// The PID namespace: process numbers have a meaning only within it.
    pid_namespace: PathBuf,
}

impl Owner {
    pub fn this_process() -> io::Result<Self> {
        let pid = std::process::id();
        let pid_namespace = fs::read_link("/proc/self/ns/pid")?;
        let started = started(pid)?.ok_or_else(|| io::Error::other("no start time in /proc/self/stat"))?;
        Ok(Self { pid, started, pid_namespace })
    }

    /// Returns whether the process has certainly ended.
    pub fn ended(&self) -> bool {
        let comparable = fs::read_link("/proc/self/ns/pid").is_ok_and(|here| here == self.pid_namespace);
        let running = || match started(self.pid) {
            Ok(started) => started.as_ref() == Some(&self.started),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        };
        comparable && !running()
    }
}

/// Returns the start time of a process: the 22nd field of `/proc/PID/stat`, counted from behind the name's parenthesis.
fn started(pid: u32) -> io::Result<Option<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    Ok(stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(19)).map(str::to_owned))
}

impl State {
    pub fn new(spec: Spec, owner: Option<Owner>) -> Self {
        Self { spec, cuts: BTreeMap::new(), owner }
    }

    pub fn cut(&self, host: &str, nic: usize) -> Option<Cut> {
        self.cuts.get(&port(host, nic)).copied()
    }

    pub fn set_cut(&mut self, host: &str, nic: usize, cut: Option<Cut>) {
        match cut {
            Some(cut) => self.cuts.insert(port(host, nic), cut),
            None => self.cuts.remove(&port(host, nic)),
        };
    }
}

/// Reads the state of the lab `name`. Returns `None` if there is none.
///
/// # Errors
///
/// The error of the system if the file cannot be read, or is not a state.
pub fn load(name: &str) -> io::Result<Option<State>> {
    match fs::read(file(name)) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes the state in one step: readers see the old or the new.
///
/// # Errors
///
/// The error of the system if the file cannot be written.
pub fn save(state: &State) -> io::Result<()> {
    fs::create_dir_all(DIRECTORY)?;
    let path = file(&state.spec.name);
    let new = path.with_extension(format!("{}.new", std::process::id()));
    fs::write(&new, serde_json::to_vec_pretty(state)?)?;
    fs::rename(new, path)
}

/// Removes the state. Returns whether there was one.
///
/// # Errors
///
/// The error of the system if the file cannot be removed.
pub fn remove(name: &str) -> io::Result<bool> {
    match fs::remove_file(file(name)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the names of labs that have a state. Other files are ignored.
pub fn names() -> Vec<String> {
    let entries = fs::read_dir(DIRECTORY).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let names = files.filter_map(|file| file.strip_suffix(".json").map(str::to_owned));
    let mut names: Vec<_> = names.filter(|name| check_name(name).is_ok()).collect();
    names.sort();
    names
}

/// Takes the lock that is held while a lab is changed or a name is taken: one at a time, on the whole machine.
///
/// # Errors
///
/// The error of the system if the lock is not free in time.
pub fn lock() -> io::Result<Flock<File>> {
    fs::create_dir_all(DIRECTORY)?;
    let mut file = File::create(PathBuf::from(DIRECTORY).join("lock"))?;
    let started = Instant::now();
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((back, Errno::EAGAIN)) if started.elapsed() < LOCK_DEADLINE => file = back,
            Err((_, errno)) => return Err(errno.into()),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(DIRECTORY).join(format!("{name}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_json() {
        let mut state = State::new(Spec::pairs("demo", 2, Some(1000)), Some(Owner::this_process().unwrap()));
        state.set_cut("a", 1, Some(Cut::BlackHole));
        let json = serde_json::to_string(&state).unwrap();
        assert!(json.contains(r#""a-1":"black-hole""#) && json.contains(r#""10.77.0.1/24""#), "{json}");
        let mut back: State = serde_json::from_str(&json).unwrap();
        assert_eq!(back, state);
        assert_eq!((back.cut("a", 1), back.cut("a", 0)), (Some(Cut::BlackHole), None));
        back.set_cut("a", 1, None);
        assert_eq!(back.cut("a", 1), None);
    }

    #[test]
    fn owners_that_ended() {
        let this = Owner::this_process().unwrap();
        assert!(!this.ended());
        assert!(Owner { started: "1".into(), ..this.clone() }.ended(), "the number is another process's now");
        assert!(Owner { pid: u32::MAX, ..this.clone() }.ended());
        let elsewhere = PathBuf::from("pid:[1]");
        assert!(!Owner { pid: u32::MAX, pid_namespace: elsewhere, ..this }.ended(), "cannot be told from here");
    }
}
