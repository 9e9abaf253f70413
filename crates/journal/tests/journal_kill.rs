//! Kills a program that appends, at any moment. Every record that was acknowledged is there afterwards.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use skein_journal::{Journal, JournalLimits};

const PATH: &str = "SKEIN_JOURNAL_KILL_TEST";
const LIMITS: JournalLimits = JournalLimits { records: 20 };

/// Is the program that is killed: appends numbers, prints each acknowledged number, and rewrites when the journal is
/// full.
fn append_until_killed(path: &Path) -> ! {
    let (mut journal, mut numbers) = Journal::<u64>::open(path, LIMITS).unwrap();
    let mut out = std::io::stdout().lock();
    loop {
        let number = numbers.last().map_or(0, |last| last + 1);
        if journal.free_slots() == 0 {
            numbers.drain(..17);
            journal.rewrite(&numbers).unwrap();
        }
        journal.append(&number).unwrap();
        // One write, so the output never has half a line.
        out.write_all(format!("acknowledged {number}\n").as_bytes()).unwrap();
        numbers.push(number);
    }
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill() {
    if let Some(path) = std::env::var_os(PATH) {
        append_until_killed(path.as_ref());
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let (mut last, mut reappeared, mut rewrites) = (None::<u64>, 0, 0);
    for round in 0u64.. {
        if round >= 30 && last > Some(100) && rewrites > 5 {
            break;
        }
        assert!(round < 600, "the kills came too early to show anything: {last:?}");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "what_was_acknowledged_is_there_after_a_kill", "--nocapture"])
            .env(PATH, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = child.stdout.take().unwrap();
        let reader = thread::spawn(move || {
            let lines = BufReader::new(out).lines().map(Result::unwrap);
            // The harness may have begun the first line.
            lines.filter_map(|line| line.split_once("acknowledged ")?.1.parse::<u64>().ok()).last()
        });
        // The times reach from before the program has opened the journal to many rewrites later. A busy machine takes
        // longer to start the program, so the times grow until enough was seen.
        let longest = 60_000 * (1 + round / 30);
        thread::sleep(Duration::from_micros(round * round * 331 % longest));
        child.kill().unwrap();
        child.wait().unwrap();
        let known = reader.join().unwrap().or(last);

        let (_, numbers) = Journal::<u64>::open(&path, LIMITS).unwrap();
        if let (Some(first), Some(end)) = (numbers.first(), numbers.last()) {
            assert_eq!(numbers, (*first..=*end).collect::<Vec<_>>(), "round {round}");
            rewrites += u64::from(*first > 0);
        }
        let found = numbers.last().copied();
        // The record that was under way may be there, or be acknowledged and not printed yet.
        assert!(found == known || found == Some(known.map_or(0, |known| known + 1)), "{round}: {known:?}, {found:?}");
        reappeared += u64::from(found != known);
        last = found;
    }
    println!("{last:?} appended, {reappeared} found that were not heard of, rewritten before {rewrites} rounds' ends");
}
