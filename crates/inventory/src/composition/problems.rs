//! What stands against a migration in how a guest is composed now, beside what the target's QEMU will be started from.

use super::compare::{Change, Difference, Part, differences};
use super::model::{Composition, Medium};
use crate::command_line;
use crate::problem::{Problem, ProblemKind, Severity};

/// Returns the problems of a guest whose QEMU was started from a definition: what the guest has now and did not have in
/// `launched`, when that QEMU had just been started, and the other way round. `given` are the names of images that the
/// target's QEMU is started with instead.
pub(crate) fn composition_problems(
    guest: &str,
    launched: &Composition,
    now: &Composition,
    given: &[String],
) -> Vec<Problem> {
    let launched = launched.as_launched();
    let as_launched = now.as_launched();
    let differences = differences(&launched, &as_launched);
    let differences =
        differences.into_iter().filter(|difference| !is_given(difference, now, given) && !is_size(difference));
    let mut problems: Vec<Problem> = differences.map(|difference| problem(guest, &difference)).collect();
    problems.extend(own_problems(guest, now));
    problems
}

/// Returns the problems of a guest whose QEMU another program started with this command line. `hot_plugged` are the
/// devices that were plugged in later.
pub(crate) fn launch_problems(guest: &str, args: &[String], now: &Composition, hot_plugged: &[String]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut add = |kind, what: String, cure: &str| problems.push(Problem::new(kind, Severity::Blocks, what, cure));
    for device in hot_plugged {
        let what = format!("the device {device} was plugged into {guest} while it ran, and its command line lacks it");
        add(ProblemKind::Composition, what, PLUGGED);
    }
    for (id, kind) in command_line::devices(args) {
        if !now.peripherals.contains_key(&id) {
            let what = format!("the device {kind} \"{id}\" of {guest}'s command line was unplugged");
            add(ProblemKind::Composition, what, UNPLUGGED);
        }
    }
    if command_line::is_temporary(args) {
        let what = format!("{guest} runs with -snapshot: what it writes is in files that only this QEMU has");
        add(
            ProblemKind::Composition,
            what,
            "shut it down, and start it without -snapshot: what it wrote since is lost with it, as -snapshot means",
        );
    }
    for (id, kind) in &now.tpms {
        let what = format!(
            "the TPM {id} ({kind}) of {guest} belongs to another process on this host, and its state would stay behind"
        );
        add(
            ProblemKind::Composition,
            what,
            "shut the guest down, and start it from a VM file with [tpm]: that one moves with it",
        );
    }
    for option in command_line::host_directories(args) {
        let what = format!("{option} gives {guest} a directory of this host");
        add(
            ProblemKind::PassedThrough,
            what,
            "shut the guest down, and start it without: share the directory over the network",
        );
    }
    for device in command_line::devices_of_chance(args) {
        let what = format!("{device} of {guest} lets each QEMU choose another identity, which the guest would notice");
        let cure = "shut the guest down, and start it with one that is said: guid=UUID";
        add(ProblemKind::Composition, what, cure);
    }
    for option in command_line::descriptors(args) {
        let what = format!(
            "the QEMU of {guest} was started with file descriptors of its parent ({option}), which no QEMU on another \
             host can have"
        );
        let cure = "have who started it (libvirt, perhaps) move it, or start it with names (ifname=, path=, \
                    filename=) in their place";
        add(ProblemKind::Composition, what, cure);
    }
    problems.extend(media_problems(guest, args, now));
    problems.extend(own_problems(guest, now));
    problems
}

/// Returns the media that drives have open now and that the command line does not name, and the other way round.
fn media_problems(guest: &str, args: &[String], now: &Composition) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut add = |what: String| {
        problems.push(Problem::new(ProblemKind::DiskChanged, Severity::Blocks, what, CHANGED));
    };
    let reads_files = !command_line::config_files(args).is_empty();
    let named = command_line::drive_files(args);
    let is_named = |filename: &str| named.contains(filename) || named.iter().any(|name| plain(name) == plain(filename));
    // What a file of more options says of drives is seen at the target only, before anything is copied.
    for drive in now.drives.iter().filter(|_| !reads_files) {
        let Some(medium) = &drive.medium else { continue };
        // Options that a path does not say, such as an offset or an option of a filter, are in what QEMU calls the
        // image. The files below are named.
        let mut below =
            medium.beside.iter().filter(|(way, _)| !Medium::is_backing(way)).map(|(_, file)| file).peekable();
        let are_files_named =
            medium.filename().starts_with("json:") && below.peek().is_some() && below.all(|file| is_named(file));
        if !is_named(medium.filename()) && !are_files_named {
            let what = format!(
                "the drive {} of {guest} has {} open, which its command line does not name",
                if drive.name.is_empty() { &drive.device } else { &drive.name },
                medium.filename()
            );
            add(what);
        }
    }
    let open = now.filenames();
    for drive in now.drives.iter().filter(|drive| drive.medium.is_none() && drive.removable) {
        let mut unopened = named.iter().filter(|name| !open.iter().any(|filename| plain(filename) == plain(name)));
        if let Some(file) = unopened.next() {
            let what =
                format!("the drive {} of {guest} is empty, and its command line puts {file} into one", drive.device);
            add(what);
        }
    }
    problems
}

const PLUGGED: &str = "unplug it (QMP device_del) and plug it in again at the target, or shut the guest down and \
                       start it with the device";
const UNPLUGGED: &str = "plug it in again (QMP device_add, with the same id and place), or shut the guest down and \
                         start it without the device";
const CHANGED: &str = "put back what it was started with (a snapshot: QMP block-commit, then block-job-complete), or \
                       shut the guest down and \
                       start it with what it has now";

/// Returns what keeps a guest here whatever its QEMU was started from.
fn own_problems(guest: &str, now: &Composition) -> Vec<Problem> {
    let mut problems = Vec::new();
    for activity in &now.activities {
        let what = format!("the {activity} runs in the QEMU of {guest}, and would end with it");
        let cure = "wait for its end, or end it (QMP job-cancel, block-job-complete, block-export-del), and repeat";
        problems.push(Problem::new(ProblemKind::Blocker, Severity::Blocks, what, cure));
    }
    let relative = now.files.iter().map(|file| file.filename.as_str()).filter(|name| is_relative(name));
    for filename in relative {
        let what = format!("{guest} has {filename} open, a path relative to where its QEMU was started");
        let cure =
            "shut the guest down and start it with the path from the root: on another host it would mean another file";
        problems.push(Problem::new(ProblemKind::DiskChanged, Severity::Blocks, what, cure));
    }
    for file in now.files.iter().filter(|file| !file.is_open && !is_relative(&file.filename)) {
        let what = match &file.facts {
            Some(_) => {
                format!("{} is another file now than the one that {guest} has open: it was replaced", file.filename)
            }
            None => {
                format!("{guest} has {} open, which is not there any more: it was removed or renamed", file.filename)
            }
        };
        let cure = "copy the guest's disk to a file of its own (QMP blockdev-mirror, then block-job-complete), and \
                    repeat; \
                    the target would open what has that name now";
        problems.push(Problem::new(ProblemKind::DiskChanged, Severity::Blocks, what, cure));
    }
    for drive in &now.drives {
        for bitmap in drive.medium.iter().flat_map(|medium| &medium.bitmaps) {
            let what = format!("the dirty bitmap {bitmap} of {guest}'s drive {} stays behind", drive.device);
            let cure = "the next backup has to be a full one; persistent bitmaps (qcow2) come along";
            problems.push(Problem::new(ProblemKind::Tuning, Severity::Warns, what, cure));
        }
    }
    problems
}

/// Returns whether the difference is the size of an image, which every QEMU that opens the image finds there.
fn is_size(difference: &Difference) -> bool {
    matches!(&difference.change, Change::Differs { what, .. } if difference.part == Part::Drive && what == "the size \
        in bytes")
}

fn is_relative(filename: &str) -> bool {
    let has_scheme = filename.split('/').next().is_some_and(|first| first.contains(':'));
    !filename.starts_with('/') && !has_scheme
}

/// Returns the name without the protocol that QEMU lets people write before a path.
pub(super) fn plain(filename: &str) -> &str {
    filename.strip_prefix("file:").unwrap_or(filename)
}

/// Returns whether the difference is only that a drive has the image that the target is started with, too.
fn is_given(difference: &Difference, now: &Composition, given: &[String]) -> bool {
    let Change::Differs { what, .. } = &difference.change else { return false };
    let is_image = difference.part == Part::Drive
        && ["the image", "the medium", "the format", "the size in bytes"].contains(&what.as_str());
    // The words of the drive are those that `compare` made.
    let has_given = |filename: &str| given.iter().any(|given| given == filename);
    is_image
        && now.drives.iter().any(|drive| {
            difference.subject == super::compare::drive_name(drive)
                && drive.medium.as_ref().map_or(has_given(""), |medium| has_given(medium.filename()))
        })
}

fn problem(guest: &str, difference: &Difference) -> Problem {
    let what = format!("{guest} is not as its QEMU was started: {}", difference.as_event());
    let (kind, severity, cure) = match (difference.part, &difference.change) {
        (Part::Tuning, _) => (
            ProblemKind::Tuning,
            Severity::Warns,
            "QEMU does not move that: set it again at the target, once the guest runs there",
        ),
        (Part::Drive, _) => (ProblemKind::DiskChanged, Severity::Blocks, CHANGED),
        (_, Change::OnlySecond) => (ProblemKind::Composition, Severity::Blocks, PLUGGED),
        (_, Change::OnlyFirst) => (ProblemKind::Composition, Severity::Blocks, UNPLUGGED),
        (_, Change::Differs { .. }) => {
            (ProblemKind::Composition, Severity::Blocks, "set it back, or shut the guest down and start it anew")
        }
    };
    Problem::new(kind, severity, what, cure)
}

#[cfg(test)]
mod tests {
    use super::super::read::tests::answers;
    use super::*;

    fn now() -> Composition {
        let mut now = answers().composition().unwrap();
        now.activities.clear();
        now.drives[0].medium.as_mut().unwrap().bitmaps.clear();
        now.tpms.clear();
        now
    }

    fn kinds(problems: &[Problem]) -> Vec<(ProblemKind, Severity)> {
        problems.iter().map(|problem| (problem.kind, problem.severity)).collect()
    }

    const LINE: &str = "-drive file=/s/ov.qcow2,if=virtio,id=d0 -device ide-cd,id=cdrom";

    fn of_line(line: &str, now: &Composition) -> Vec<Problem> {
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        launch_problems("web1", &args, now, &[])
    }

    #[test]
    fn what_differs_from_the_start_blocks_by_name() {
        assert_eq!(composition_problems("web1", &now(), &now(), &[]), []);
        let launched = now();
        let mut changed = now();
        changed.drives[0].medium.as_mut().unwrap().chain[0].filename = "/s/new.qcow2".into();
        let problems = composition_problems("web1", &launched, &changed, &[]);
        assert_eq!(kinds(&problems), [(ProblemKind::DiskChanged, Severity::Blocks)]);
        assert!(problems[0].what.contains("/s/new.qcow2") && problems[0].what.contains("d0"), "{}", problems[0]);
        assert_eq!(
            composition_problems("web1", &launched, &changed, &["/s/new.qcow2".into()]),
            [],
            "the target gets it"
        );
        assert_eq!(composition_problems("web1", &launched, &changed, &["/s/other".into()]).len(), 1);
        let mut tuned = now();
        tuned.drives[0].medium.as_mut().unwrap().tuning.insert("iops".into(), "5".into());
        assert_eq!(
            kinds(&composition_problems("web1", &launched, &tuned, &[])),
            [(ProblemKind::Tuning, Severity::Warns)]
        );
        let mut plugged = now();
        plugged.peripherals.insert("dimm1".into(), "pc-dimm".into());
        let problems = composition_problems("web1", &launched, &plugged, &[]);
        assert!(problems[0].to_string().contains("pc-dimm \"dimm1\" was added") && problems[0].cure.contains("unplug"));
    }

    #[test]
    fn what_a_command_line_lacks_blocks_by_name() {
        let base = now();
        assert_eq!(of_line(LINE, &base), []);
        let told = |line: &str, words: &str| {
            let problems = of_line(line, &base);
            let [problem] = &problems[..] else { panic!("{line}: {problems:#?}") };
            assert!(problem.severity == Severity::Blocks && problem.what.contains(words), "{problem}");
        };
        told(
            "-drive file=/s/base.qcow2,if=virtio -device ide-cd,id=cdrom",
            "/s/ov.qcow2 open, which its command line does not name",
        );
        told(&format!("{LINE} -device virtio-rng-pci,id=r"), "virtio-rng-pci \"r\"");
        told(&format!("{LINE} -cdrom /s/cd.iso"), "puts /s/cd.iso into one");
        told(&format!("{LINE} -device vmgenid"), "another identity");
        told(&format!("{LINE} -virtfs local,path=/srv,mount_tag=t"), "a directory of this host");
        told(&format!("{LINE} -snapshot"), "-snapshot");
        told(&format!("{LINE} -netdev tap,fd=7,id=n"), "file descriptors");
        let mut with_offset = now();
        let medium = with_offset.drives[0].medium.as_mut().unwrap();
        medium.chain[0].filename =
            "json:{\"driver\": \"raw\", \"offset\": 512, \"file\": {\"filename\": \"/s/ov.qcow2\"}}".into();
        medium.beside.insert("file".into(), "/s/ov.qcow2".into());
        assert_eq!(of_line(LINE, &with_offset), []);
        with_offset.drives[0].medium.as_mut().unwrap().beside.insert("file".into(), "/s/other".into());
        assert!(of_line(LINE, &with_offset)[0].what.contains("which its command line does not name"));
        let late = launch_problems(
            "web1",
            &LINE.split(' ').map(str::to_owned).collect::<Vec<_>>(),
            &base,
            &["x \"late\"".into()],
        );
        assert!(late[0].what.contains("x \"late\" was plugged"));
        let with_tpm = Composition { tpms: answers().composition().unwrap().tpms, ..base };
        assert!(of_line(LINE, &with_tpm)[0].what.contains("the TPM tpm0"));
    }

    #[test]
    fn files_that_are_not_what_is_open_block() {
        let mut now = now();
        let file = |filename: &str, is_open| super::super::OpenFile {
            filename: filename.into(),
            facts: None,
            is_open,
            moves: false,
        };
        now.files = vec![file("/s/gone", false), file("rel.qcow2", true), file("nbd://h/x", true)];
        let problems = of_line(LINE, &now);
        let told: Vec<bool> =
            problems.iter().map(|p| p.what.contains("rel.qcow2") || p.what.contains("/s/gone")).collect();
        assert_eq!(told, [true, true]);
        now.activities.insert("block job j (mirror)".into());
        assert!(of_line(LINE, &now).iter().any(|problem| problem.kind == ProblemKind::Blocker));
    }
}
