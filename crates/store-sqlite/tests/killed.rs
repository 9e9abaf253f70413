//! A process that writes is killed at any moment, or has a disk that fails: what was acknowledged is there, whole.
//!
//! The processes are this test's own program, told by its environment what to do.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use skein_store::{Key, Operation, Prefix, Range, Store, StoreError, Transaction, Value, read_one};
use skein_store_sqlite::{OpenError, SqliteStore};

const WITHIN: Duration = Duration::from_secs(20);
const ROLE: &str = "SKEIN_STORE_TEST_ROLE";
const FILE: &str = "SKEIN_STORE_TEST_FILE";

/// How many keys a transaction writes.
const KEYS: usize = 5;

fn key(path: &str) -> Key {
    Key::new(path).expect("it is a key")
}

fn value(text: &str) -> Value {
    Value::new(text.as_bytes()).expect("it is within the bound")
}

/// The transaction of a number: some keys with it, and a value of some length.
fn numbered(number: u64) -> Transaction {
    let text = format!("{number} {}", "x".repeat(usize::try_from(number % 40).expect("it is small") * 100));
    let mut transaction = Transaction::new().then(Operation::put(key("last"), value(&number.to_string())));
    for n in 0..KEYS {
        transaction = transaction.then(Operation::put(key(&format!("k/{n}")), value(&text)));
    }
    transaction
}

/// The number of the last transaction, all of which is there.
fn last(store: &dyn Store) -> u64 {
    let page = store.read(&Range::below(Prefix::all()), WITHIN).expect("it can be read");
    let Some(last) = page.entries.iter().find(|entry| entry.key == key("last")) else {
        assert!(page.entries.is_empty(), "{page:?}");
        return 0;
    };
    let number: u64 = std::str::from_utf8(last.value.as_bytes()).expect("it is text").parse().expect("a number");
    let whole = numbered(number);
    for operation in &whole.operations {
        let Operation::Put { key, value, .. } = operation else { unreachable!("they are all puts") };
        let found = page.entries.iter().find(|entry| entry.key == *key).expect("it was put");
        assert_eq!((&found.value, found.modified), (value, last.modified), "a transaction is there in part");
    }
    number
}

fn open(path: &Path) -> SqliteStore {
    let begun = Instant::now();
    loop {
        match SqliteStore::open(path) {
            // A child of another test has this process's files until the child runs its own program.
            Err(OpenError::Held { .. }) if begun.elapsed() < WITHIN => std::thread::sleep(Duration::from_millis(10)),
            opened => return opened.unwrap_or_else(|error| panic!("{error}: {error:?}")),
        }
    }
}

struct Process {
    child: Child,
    _input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(role: &str, path: &Path) -> Process {
        let mut child = Command::new(std::env::current_exe().expect("a test has a program"))
            .args(["--exact", "a_process_of_these_tests", "--ignored", "--nocapture"])
            .env(ROLE, role)
            .env(FILE, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let (input, output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let mut process = Process { child, _input: input, output: BufReader::new(output) };
        // Before that come the lines of the test's own.
        while process.line().expect("it says that it is ready") != "ready" {}
        process
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it is text");
        // The last line may be cut when the process is killed.
        line.ends_with('\n').then(|| line.trim_end().to_string())
    }

    fn kill(&mut self) {
        self.child.kill().expect("it is this test's own");
        self.child.wait().expect("it is this test's own");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the processes of the other tests do.
#[test]
#[ignore = "runs only as a process of the other tests"]
fn a_process_of_these_tests() {
    let role = std::env::var(ROLE).expect("another test says what is to be done");
    let path = std::env::var(FILE).expect("another test says with which file");
    let store = open(path.as_ref());
    let mut output = std::io::stdout();
    let mut say = |line: &str| {
        output.write_all(format!("{line}\n").as_bytes()).expect("the other test reads it");
        output.flush().expect("the other test reads it");
    };
    say("\nready");
    match role.as_str() {
        "hold" => {
            // Ends with the pipe.
            let _ = std::io::stdin().read(&mut [0]);
        }
        "write" => {
            for number in last(&store) + 1.. {
                store.commit(&numbered(number), WITHIN).expect("it is done");
                say(&number.to_string());
            }
        }
        "fail" => {
            // The kernel lets no file grow beyond this. SIGXFSZ would end the process.
            let bounded = std::fs::metadata(format!("{path}-wal")).map_or(0, |file| file.len()) + 200_000;
            // SAFETY: no handler is run, the signal is ignored.
            unsafe { nix::sys::signal::signal(nix::sys::signal::SIGXFSZ, nix::sys::signal::SigHandler::SigIgn) }
                .expect("the signal is one that can be ignored");
            let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).expect("there is a limit");
            setrlimit(Resource::RLIMIT_FSIZE, bounded, hard).expect("it can be lowered");
            for number in last(&store) + 1.. {
                match store.commit(&numbered(number), WITHIN) {
                    Ok(_) => say(&number.to_string()),
                    Err(error) => {
                        assert!(matches!(error, StoreError::Unknown(_)), "{error:?}");
                        break;
                    }
                }
            }
            let read = read_one(&store, &key("last"), WITHIN).expect_err("what is on the disk is not known");
            assert!(matches!(read, StoreError::Unavailable(_)), "{read:?}");
            let written = store.commit(&numbered(1), WITHIN).expect_err("what is on the disk is not known");
            assert!(matches!(written, StoreError::Unavailable(_)), "{written:?}");
            say("ended");
        }
        other => panic!("there is no role {other}"),
    }
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill() {
    const KILLS: u32 = 25;
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path().join("store.sqlite");
    let (mut acknowledged, mut before, mut beyond) = (0, 0, 0);
    for kill in 0..KILLS {
        let mut process = Process::start("write", &path);
        let mut number: u64 = process.line().expect("it writes").parse().expect("a number");
        // Different times after a start: with a log that is new, grown, and moved into the file.
        let until = Instant::now() + Duration::from_micros(u64::from(kill * 7919 % 90_000));
        while Instant::now() < until {
            number = process.line().expect("it writes").parse().expect("a number");
        }
        process.kill();
        while let Some(line) = process.line() {
            number = line.parse().expect("a number");
        }
        let found = last(&open(&path));
        assert!(found == number || found == number + 1, "{number} was acknowledged, {found} is there");
        assert!(found > before);
        acknowledged += found - before;
        beyond += u32::from(found > number);
        before = found;
    }
    println!("{acknowledged} transactions, {KILLS} kills, {beyond} of them before the last one was acknowledged");
    assert!(acknowledged > u64::from(KILLS));
}

#[test]
fn a_commit_that_fails_on_the_disk_ends_the_store() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path().join("store.sqlite");
    let mut process = Process::start("fail", &path);
    let mut number = 0;
    loop {
        match process.line().expect("it says how it ends").as_str() {
            "ended" => break,
            line => number = line.parse().expect("a number"),
        }
    }
    process.kill();
    assert!(number > 5, "some were written before the disk failed: {number}");
    let found = last(&open(&path));
    assert!(found == number || found == number + 1, "{number} was acknowledged, {found} is there");
}

#[test]
fn a_second_process_is_refused() {
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let path = folder.path().join("store.sqlite");
    let mut process = Process::start("hold", &path);
    match SqliteStore::open(&path).map(drop) {
        Err(error @ OpenError::Held { .. }) => {
            let words = error.to_string();
            assert!(words.contains(&format!("with process id {}", process.child.id())), "{words}");
            assert!(words.contains("in use by killed-"), "{words}");
        }
        other => panic!("{other:?}"),
    }
    process.kill();
    assert_eq!(last(&open(&path)), 0);
}
