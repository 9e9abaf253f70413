//! `skein net tune`.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use nix::fcntl::{Flock, FlockArg};
use serde::Serialize;
use skein_host::Kernel;
use skein_network::{
    Interface, Source, TuneAction, TunePlan, TuneRecord, TuneStep, nic_interrupts, plan_apply, plan_remove, read,
    recorded_interrupts, usual_nics,
};

use crate::commands::text::{clean_line, print, print_json};

/// What was changed, below the root of the host's files. It does not outlive a boot, nor does what was changed.
const RECORD: &str = "run/skein/net-tune.json";
const LOCK: &str = "run/skein/net-tune.lock";

/// Send the interrupts of NICs to cores near them, each queue's to another core
///
/// Without an option nothing is changed: it says what --apply would do. The cores are those of the NIC's NUMA node, or
/// all on a host with one node. What was before is kept in /run/skein/net-tune.json until --remove or the next boot.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein net tune                           # what would be done
  skein net tune --apply                   # for all hardware that is up and carries an address
  skein net tune --apply eth2 eth3
  skein net tune --remove                  # as it was before

An interrupt that somebody else has sent elsewhere since is left alone, by --apply and --remove, and that is said. So is
an interrupt that the kernel itself manages. irqbalance undoes what is done here: stop it, or have it pass over these
interrupts (--banirq). It takes root. It was not run on hardware with several NUMA nodes: compare skein net probe before
and after.")]
pub struct Args {
    /// The NICs; without any, all hardware that is up and carries an address, itself or below a bond, bridge or VLAN
    #[arg(value_name = "NIC", conflicts_with = "remove")]
    nics: Vec<String>,
    /// Do it
    #[arg(long, conflicts_with = "remove")]
    apply: bool,
    /// Undo it
    #[arg(long)]
    remove: bool,
    /// A JSON object
    #[arg(long)]
    json: bool,
}

/// What is printed.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Tuned {
    /// Whether the steps were done.
    done: bool,
    steps: Vec<TuneStep>,
    left_out: Vec<LeftOut>,
    failed: Vec<Failed>,
    /// Whether irqbalance runs.
    irqbalance: bool,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct LeftOut {
    nic: String,
    why: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Failed {
    number: u32,
    error: String,
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let kernel = Kernel::new();
    let host = Host { source: &kernel, root: Path::new("/") };
    let tuned = match args.remove {
        true => host.remove()?,
        false => host.tune(&read(&kernel)?, &args.nics, args.apply)?,
    };
    match args.json {
        true => print_json(&tuned)?,
        false => print(&text(&tuned, args.remove))?,
    }
    let failed = tuned.failed.len();
    ensure!(failed == 0, "{failed} interrupts are not where they should be");
    Ok(())
}

/// The host whose interrupts are sent elsewhere.
struct Host<'a> {
    source: &'a dyn Source,
    /// The root of its files.
    root: &'a Path,
}

impl Host<'_> {
    /// Finds what to do for the NICs, or for the usual ones, and does it if `apply`.
    fn tune(&self, all: &[Interface], names: &[String], apply: bool) -> anyhow::Result<Tuned> {
        let chosen = choose(all, names)?;
        let nics = nic_interrupts(self.source, &chosen);
        if !apply {
            return Ok(self.tuned(plan_apply(&nics, &self.record()?), false, Vec::new()));
        }
        let _lock = self.lock()?;
        let before = self.record()?;
        let plan = plan_apply(&nics, &before);
        // First the record: what is changed can be undone whatever happens meanwhile.
        self.keep(&plan.record)?;
        let failed = self.send(&plan.steps);
        if !failed.is_empty() {
            self.keep(&without(&plan.record, &before, &failed))?;
        }
        Ok(self.tuned(plan, true, failed))
    }

    fn remove(&self) -> anyhow::Result<Tuned> {
        // Nothing was changed where there is no record.
        if !self.root.join(RECORD).exists() {
            return Ok(self.tuned(TunePlan::default(), true, Vec::new()));
        }
        let _lock = self.lock()?;
        let mut record = self.record()?;
        let plan = plan_remove(&record, &recorded_interrupts(self.source, &record));
        let failed = self.send(&plan.steps);
        record.pinned.retain(|pinned| failed.iter().any(|failed| failed.number == pinned.number));
        match record.pinned.is_empty() {
            true => fs::remove_file(self.root.join(RECORD)).with_context(|| format!("cannot remove /{RECORD}"))?,
            false => self.keep(&record)?,
        }
        Ok(self.tuned(plan, true, failed))
    }

    fn tuned(&self, plan: TunePlan, done: bool, failed: Vec<Failed>) -> Tuned {
        let left_out = plan.left_out.into_iter().map(|(nic, why)| LeftOut { nic, why }).collect();
        Tuned { done, steps: plan.steps, left_out, failed, irqbalance: self.runs("irqbalance") }
    }

    /// Sends interrupts where the steps say. Returns those that the kernel did not send there.
    fn send(&self, steps: &[TuneStep]) -> Vec<Failed> {
        let mut failed = Vec::new();
        for TuneStep { number, action, .. } in steps {
            let TuneAction::Send { to } = action else { continue };
            let file = self.root.join(format!("proc/irq/{number}/smp_affinity_list"));
            if let Err(error) = fs::write(file, to) {
                failed.push(Failed { number: *number, error: words(&error) });
            }
        }
        failed
    }

    fn record(&self) -> anyhow::Result<TuneRecord> {
        match fs::read(self.root.join(RECORD)) {
            Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| {
                format!(
                    "/{RECORD} cannot be read: what was before is not known; send the interrupts by hand \
                     (/proc/irq/N/smp_affinity_list), and remove the file"
                )
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(TuneRecord::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read /{RECORD}")),
        }
    }

    /// Writes the record, whole or not at all.
    fn keep(&self, record: &TuneRecord) -> anyhow::Result<()> {
        let (file, new) = (self.root.join(RECORD), self.root.join(format!("{RECORD}.new")));
        let write = || -> io::Result<()> {
            let mut into = File::create(&new)?;
            into.write_all(&serde_json::to_vec(record).expect("plain data always serialises"))?;
            into.sync_all()?;
            fs::rename(&new, file)
        };
        write().with_context(|| format!("cannot write /{RECORD}, so nothing more was changed"))
    }

    /// Keeps others from changing the same meanwhile.
    fn lock(&self) -> anyhow::Result<Flock<File>> {
        let path = self.root.join(LOCK);
        let folder = path.parent().expect("it has one");
        fs::create_dir_all(folder).context("cannot make /run/skein: it takes root")?;
        let file = File::create(&path).with_context(|| format!("cannot make /{LOCK}: it takes root"))?;
        Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, _)| anyhow::anyhow!("another skein net tune is at work"))
    }

    /// Returns whether a program of this name runs.
    fn runs(&self, name: &str) -> bool {
        let processes = fs::read_dir(self.root.join("proc")).into_iter().flatten().flatten();
        let is_process = |path: &PathBuf| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()))
        };
        let mut processes = processes.map(|entry| entry.path()).filter(is_process);
        processes.any(|process| fs::read_to_string(process.join("comm")).is_ok_and(|comm| comm.trim() == name))
    }
}

/// Returns the named interfaces, or the usual ones.
fn choose<'a>(all: &'a [Interface], names: &[String]) -> anyhow::Result<Vec<&'a Interface>> {
    let find = |name: &str| {
        all.iter().find(|of| of.nic.name == name).with_context(|| format!("there is no NIC {name}: skein net show"))
    };
    if !names.is_empty() {
        return names.iter().map(|name| find(name)).collect();
    }
    let nics: Vec<_> = all.iter().map(|of| of.nic.clone()).collect();
    let usual = usual_nics(&nics);
    ensure!(!usual.is_empty(), "no NIC is hardware that is up and carries an address: name the NICs (skein net show)");
    usual.into_iter().map(|nic| find(&nic.name)).collect()
}

/// Returns the record without what failed, of which what was recorded before stays.
fn without(record: &TuneRecord, before: &TuneRecord, failed: &[Failed]) -> TuneRecord {
    let has_failed = |number: u32| failed.iter().any(|failed| failed.number == number);
    let done = record.pinned.iter().filter(|pinned| !has_failed(pinned.number));
    let earlier = before.pinned.iter().filter(|pinned| has_failed(pinned.number));
    TuneRecord { pinned: done.chain(earlier).cloned().collect() }
}

fn words(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => "it takes root, or the kernel manages this interrupt itself".into(),
        _ if error.raw_os_error() == Some(nix::libc::EIO) => "the kernel manages this interrupt itself".into(),
        _ => error.to_string(),
    }
}

fn text(tuned: &Tuned, is_removal: bool) -> String {
    let mut text = String::new();
    let (mut sent, mut kept) = (0, 0);
    for TuneStep { nic, number, name, now, action } in &tuned.steps {
        let what = format!("{nic}: interrupt {number} ({})", clean_line(name));
        let _ = match action {
            TuneAction::Send { to } => {
                sent += 1;
                let verb = if tuned.done { "from" } else { "would go from" };
                writeln!(text, "{what} {verb} core {now} to {to}")
            }
            TuneAction::Keep => {
                kept += 1;
                Ok(())
            }
            TuneAction::LeaveAlone { why } => writeln!(text, "{what} is left alone: {}", clean_line(why)),
        };
    }
    for LeftOut { nic, why } in &tuned.left_out {
        let _ = writeln!(text, "{nic} is left out: {why}");
    }
    for Failed { number, error } in &tuned.failed {
        let _ = writeln!(text, "interrupt {number} was NOT sent: {error}");
    }
    if tuned.irqbalance && sent > 0 && !is_removal {
        text += "irqbalance runs, and would undo that: systemctl disable --now irqbalance, or give it --banirq N for \
                 each of these\n";
    }
    text += &match (sent, is_removal, tuned.done) {
        (0, true, _) if tuned.steps.is_empty() => "nothing was changed before\n".to_owned(),
        (0, ..) => format!("nothing to do: {kept} are where they should be\n"),
        (_, _, false) => "nothing was changed: --apply does it\n".to_owned(),
        (_, _, true) => String::new(),
    };
    text
}

#[cfg(test)]
mod tests {
    use skein_network::{Answer, Ask, Recording};

    use super::*;

    /// The name of a file in a directory of a file's name: what is read there, and cannot be written.
    const READ_ONLY: &str = "read-only";

    /// A host whose files are below a directory, and whose NICs are those of a recording.
    struct Fake {
        root: tempfile::TempDir,
        recording: Recording,
    }

    impl Source for Fake {
        fn ask(&self, ask: &Ask) -> Answer {
            match ask {
                Ask::File(path) => {
                    let path = self.root.path().join(&path[1..]);
                    let text = fs::read_to_string(&path).or_else(|_| fs::read_to_string(path.join(READ_ONLY)));
                    text.map_or_else(|_| self.recording.ask(ask), Answer::Text)
                }
                _ => self.recording.ask(ask),
            }
        }
    }

    impl Fake {
        /// A host of two NUMA nodes, whose eth0 is at the second.
        fn new() -> Fake {
            let recording = include_str!("../../../../network/tests/recordings/bond-vlan-bridge.json");
            let fake = Fake { root: tempfile::tempdir().unwrap(), recording: serde_json::from_str(recording).unwrap() };
            fake.write("sys/devices/system/node/online", "0-1\n");
            fake.write("sys/devices/system/node/node1/cpulist", "8-11\n");
            fake.write("sys/bus/pci/devices/0000:01:00.0/numa_node", "1\n");
            for number in fake.numbers() {
                fake.write(&format!("proc/irq/{number}/smp_affinity_list"), "0-15\n");
            }
            fake
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn host(&self) -> Host<'_> {
            Host { source: self, root: self.root.path() }
        }

        fn interfaces(&self) -> Vec<Interface> {
            read(self).unwrap()
        }

        /// The numbers of eth0's interrupts.
        fn numbers(&self) -> Vec<u32> {
            let interfaces = self.interfaces();
            let eth0 = interfaces.iter().find(|of| of.nic.name == "eth0").unwrap();
            eth0.device.as_ref().unwrap().interrupts.iter().map(|interrupt| interrupt.number).collect()
        }

        fn cores(&self) -> Vec<String> {
            let path = |number| self.root.path().join(format!("proc/irq/{number}/smp_affinity_list"));
            self.numbers().into_iter().map(|number| fs::read_to_string(path(number)).unwrap().trim().into()).collect()
        }

        fn apply(&self) -> Tuned {
            self.host().tune(&self.interfaces(), &["eth0".into()], true).unwrap()
        }
    }

    #[test]
    fn interrupts_go_near_their_nic_and_back_exactly() {
        let fake = Fake::new();
        let shown = fake.host().tune(&fake.interfaces(), &[], false).unwrap();
        assert!(shown.steps.iter().all(|step| step.nic == "eth0") && !shown.done, "{shown:?}");
        assert!(text(&shown, false).ends_with("nothing was changed: --apply does it\n"));
        assert_eq!(fake.cores(), ["0-15"; 5]);
        assert!(!fake.root.path().join(RECORD).exists());
        let tuned = fake.apply();
        assert!(fake.cores().iter().all(|core| ["8", "9", "10", "11"].contains(&core.as_str())), "{:?}", fake.cores());
        assert_eq!((tuned.failed.len(), tuned.steps.len()), (0, 5));
        // Once more, as after a crash: what was before is still known.
        assert_eq!(text(&fake.apply(), false), "nothing to do: 5 are where they should be\n");
        fake.host().remove().unwrap();
        assert_eq!(fake.cores(), ["0-15"; 5]);
        assert!(!fake.root.path().join(RECORD).exists());
        assert_eq!(text(&fake.host().remove().unwrap(), true), "nothing was changed before\n");
    }

    #[test]
    fn what_others_changed_and_what_fails_is_told_and_left() {
        let fake = Fake::new();
        fake.apply();
        let numbers = fake.numbers();
        fake.write(&format!("proc/irq/{}/smp_affinity_list", numbers[0]), "3\n");
        fake.write("proc/77/comm", "irqbalance\n");
        let tuned = fake.apply();
        assert!(tuned.irqbalance && matches!(tuned.steps[0].action, TuneAction::LeaveAlone { .. }), "{tuned:?}");
        // An interrupt that cannot be sent back stays in the record, and is sent back later.
        let file = fake.root.path().join(format!("proc/irq/{}/smp_affinity_list", numbers[1]));
        let set = fs::read_to_string(&file).unwrap();
        fs::remove_file(&file).unwrap();
        fake.write(&format!("proc/irq/{}/smp_affinity_list/{READ_ONLY}", numbers[1]), &set);
        let removed = fake.host().remove().unwrap();
        let told = text(&removed, true);
        assert!(told.contains("is left alone: somebody changed it"), "{told}");
        assert!(told.contains(&format!("interrupt {} was NOT sent", numbers[1])), "{told}");
        let left: Vec<u32> = fake.host().record().unwrap().pinned.iter().map(|pinned| pinned.number).collect();
        assert_eq!(left, [numbers[1]]);
        fs::remove_dir_all(&file).unwrap();
        fake.write(&format!("proc/irq/{}/smp_affinity_list", numbers[1]), &set);
        assert_eq!(fake.host().remove().unwrap().failed, []);
        assert_eq!(fake.cores(), ["3", "0-15", "0-15", "0-15", "0-15"]);
    }

    #[test]
    fn a_record_that_cannot_be_read_stops_everything() {
        let fake = Fake::new();
        fake.write(RECORD, "{\"pinned\":");
        let error = fake.host().tune(&fake.interfaces(), &["eth0".into()], true).unwrap_err();
        assert!(format!("{error:#}").starts_with("/run/skein/net-tune.json cannot be read"), "{error:#}");
        assert!(fake.host().remove().is_err());
        assert_eq!(fake.cores(), ["0-15"; 5]);
    }

    #[test]
    fn what_failed_is_recorded_as_it_was_before() {
        let pinned = |number, set: &str| skein_network::PinnedInterrupt {
            nic: "eth0".into(),
            number,
            name: "x".into(),
            before: "0".into(),
            set: set.into(),
        };
        let before = TuneRecord { pinned: vec![pinned(1, "4")] };
        let record = TuneRecord { pinned: vec![pinned(1, "5"), pinned(2, "6"), pinned(3, "7")] };
        let failed = [1, 2].map(|number| Failed { number, error: String::new() });
        let mut kept = without(&record, &before, &failed).pinned;
        kept.sort_by_key(|pinned| pinned.number);
        assert_eq!(kept, [pinned(1, "4"), pinned(3, "7")]);
        let managed = io::Error::from_raw_os_error(nix::libc::EIO);
        assert_eq!(words(&managed), "the kernel manages this interrupt itself");
    }
}
