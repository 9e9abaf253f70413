//! Remembers what the guests of this host have open. A guest that is started again gets that, whatever its QEMU was
//! started from first.
//!
//! QEMU tells nobody of a live snapshot. So each guest's images are read before the guest is stopped, when a check asks
//! what it is composed of, and every [`LOOK_TIME`](super::watch::LOOK_TIME).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use skein_inventory::command_line;
use skein_inventory::composition::{Drive, Stale, stale};
use skein_inventory::definition::Definition;
use skein_inventory::{Accel, Composition, RoomNeed};
use tracing::{info, warn};

use super::error::VmError;
use super::movable;
use super::registry::Vms;
use super::saved::SavedVm;
use super::seen::Seen;
use super::vm::{SHOW_TIME, Vm};
use crate::error_chain;
use crate::launch::Launch;
use crate::own_state::OwnState;

/// Bounds the images that are remembered after a guest left them: nobody keeps more snapshots one upon the other.
const LEFT_MAX: usize = 64;

/// A VM that is to be started, with its plan.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) name: String,
    pub(crate) launch: Launch,
    /// What the VM needs, as far as that is known before its QEMU runs.
    pub(crate) need: Option<RoomNeed>,
    /// The images that the guest left: see [`SavedVm::replaced_images`](super::saved::SavedVm::replaced_images).
    pub(super) left: BTreeMap<String, String>,
}

impl Planned {
    /// Settles which CPU model stands for `baseline` in the definition: what a controller found, else what stood for it
    /// when the VM was last started.
    pub(crate) fn settle_cpu(&mut self, found: Option<String>) -> Result<(), VmError> {
        let Launch::Definition(defined) = &mut self.launch else { return Ok(()) };
        if defined.definition.baseline_flags().is_none() {
            return Ok(());
        }
        if let Some(model) = found {
            if !Definition::is_cpu_model(&model) {
                return Err(VmError::BadCpuModel(model));
            }
            defined.cpu_model = Some(model);
        }
        defined.cpu_model.is_some().then_some(()).ok_or_else(|| VmError::NoBaseline(self.name.clone()))
    }
}

impl Vms {
    /// Returns whether a VM that is to be started would have new UEFI variables or a new TPM.
    pub(crate) fn has_new_state(&self, planned: &Planned) -> bool {
        let own = OwnState::new(&self.dirs.state, &planned.name);
        planned.launch.definition().is_some_and(|definition| own.is_new_to(definition))
    }

    /// Plans the start of a VM from a definition: a new VM, or one that is known and stopped, as it was or with what
    /// was changed. With `as_defined` the plan ignores what the VM last had open.
    pub(crate) fn plan(&self, definition: Definition, as_defined: bool) -> Result<Planned, VmError> {
        let name = definition.name.clone();
        let old = self.get(&name).ok();
        if let Some(why) = old.as_ref().and_then(|old| {
            old.wait_tidied();
            old.busy_error()
        }) {
            return Err(why);
        }
        movable::check(&definition)?;
        let launch = Launch::Definition(Box::new(self.resolve(definition)?));
        let kept = old.map(|old| old.saved.lock().clone()).filter(|_| !as_defined);
        let left = kept.as_ref().map(|kept| kept.replaced_images.clone()).unwrap_or_default();
        if let Some(kept) = kept {
            check_file(&name, &launch, &kept)?;
        }
        let need = launch.need();
        Ok(Planned { name, launch, need, left })
    }

    /// Plans the start of a VM that is known and stopped: with what it last had open, unless `as_defined`.
    pub(crate) fn plan_again(&self, name: &str, as_defined: bool) -> Result<Planned, VmError> {
        let vm = self.get(name)?;
        vm.wait_tidied();
        if let Some(why) = vm.busy_error() {
            return Err(why);
        }
        let kept = vm.saved.lock().clone();
        let seen = kept.last_seen.unwrap_or_default();
        let launch = match as_defined {
            true => kept.launch,
            false => as_last(name, &kept.launch, &seen, kept.launched.as_ref())?,
        };
        if let Some(definition) = launch.definition() {
            movable::check(definition)?;
        }
        let said = (seen.ram_bytes > 0).then(|| RoomNeed::new(seen.ram_bytes, None, seen.cpus, Accel::Auto));
        let need = launch.need().or(said);
        // A person who goes back to the old images does so for good.
        let left = if as_defined { BTreeMap::new() } else { kept.replaced_images };
        Ok(Planned { name: name.to_owned(), launch, need, left })
    }

    /// Remembers what a guest has open, if that is not known already. The call is short: one question, unless something
    /// changed. The worker of its migration does this for a guest that moves.
    pub(crate) fn look(&self, vm: &Vm) {
        let Some(running) = vm.running().filter(|_| !vm.is_incoming() && vm.migration().is_none()) else { return };
        let guest = running.guest.with_patience(SHOW_TIME);
        let Ok(images) = guest.images() else { return };
        if vm.state.lock().looked_at.as_ref() == Some(&images) {
            return;
        }
        match guest.drives() {
            Ok(drives) => self.saw(vm, Seen::of(&*guest, drives)),
            Err(error) => return warn!(vm = vm.name, "what it has open is not known: {}", error_chain(&error)),
        }
        vm.state.lock().looked_at = Some(images);
    }

    /// Remembers the composition that a guest was seen to have.
    pub(crate) fn saw_composition(&self, vm: &Vm, composition: &Composition) {
        let seen = Seen { drives: composition.drives.clone(), ..vm.saved.lock().last_seen.clone().unwrap_or_default() };
        self.saw(vm, seen);
    }

    fn saw(&self, vm: &Vm, seen: Seen) {
        let _files = vm.files.lock();
        // Everything is removed of a guest that is gone by now. For a guest that just comes, the code that takes it
        // writes this.
        if vm.running().is_none() || vm.is_incoming() || !self.file(&vm.name).exists() {
            return;
        }
        let mut kept = vm.saved.lock();
        let old = kept.last_seen.replace(seen.clone());
        if old.as_ref() == Some(&seen) {
            return;
        }
        for drive in &seen.drives {
            let was = old.iter().flat_map(|old| &old.drives).find(|was| was.device == drive.device);
            let Some(was) = was.filter(|was| filename(was) != filename(drive)) else { continue };
            let (was, is) = (filename(was), filename(drive));
            let or_nothing = |name: Option<&str>| name.unwrap_or("nothing").to_owned();
            info!(
                vm = vm.name,
                drive = drive.device,
                "it has {} open now, and had {}",
                or_nothing(is),
                or_nothing(was)
            );
            if let (Some(was), Some(is), false) = (was, is, drive.removable) {
                leave(&mut kept.replaced_images, was, is);
            }
        }
        drop(kept);
        if let Err(error) = self.write(vm) {
            warn!(vm = vm.name, "what it has open is not remembered: {}", error_chain(&error));
        }
    }
}

/// Notes that a drive has another image now.
fn leave(left: &mut BTreeMap<String, String>, was: &str, is: &str) {
    left.remove(is);
    if left.len() >= LEFT_MAX {
        left.pop_first();
    }
    left.insert(was.to_owned(), is.to_owned());
}

/// Returns the images that a guest left before it was last started, and that are named all the same, without those
/// after them.
fn long_left(left: &BTreeMap<String, String>, named: &BTreeSet<String>) -> Vec<Stale> {
    let is_named = |image: &String| named.contains(image);
    let again = left.iter().filter(|(old, new)| is_named(old) && !is_named(new));
    let stale = |(old, new): (&String, &String)| Stale {
        drive: "one of its drives".into(),
        had: Some(new.clone()),
        gets: old.clone(),
        is_below: false,
    };
    again.map(stale).collect()
}

fn filename(drive: &Drive) -> Option<&str> {
    Some(drive.medium.as_ref()?.filename())
}

/// Returns what a VM is to be started from, with the images that it last had open.
fn as_last(name: &str, launch: &Launch, seen: &Seen, launched: Option<&Composition>) -> Result<Launch, VmError> {
    if is_temporary(launch) {
        return Ok(launch.clone());
    }
    let last = Composition { drives: seen.drives.clone(), ..Composition::default() };
    let (launch, given) = launch.with_images_of(&last, launched);
    let first = launched.map(|launched| &launched.drives[..]);
    let disks = seen.drives.iter();
    // The command line may know another name for a drive that still has what its QEMU was started with.
    let changed = disks.filter(|drive| {
        let first = first.and_then(|first| first.iter().find(|first| first.device == drive.device));
        first.is_none_or(|first| filename(first) != filename(drive))
    });
    let changed: Vec<Drive> = changed.cloned().collect();
    refuse(name, &launch, &stale(&changed, first, &named(&launch)))?;
    if let Some(gone) = given.iter().find(|image| image.starts_with('/') && !Path::new(image).exists()) {
        let what = format!("'{name}' last had {gone} open, which is not there any more");
        let cure = format!("put {gone} back; or start it with what it was first started with: --as-defined");
        return Err(VmError::OtherImages { what, cure });
    }
    for image in &given {
        let image = if image.is_empty() { "an empty drive" } else { image };
        info!(vm = name, "it is started with {image}, as it last ran");
    }
    Ok(launch)
}

/// Refuses a VM file that names images which its guest left, and not those that it has in place of them.
fn check_file(name: &str, launch: &Launch, kept: &SavedVm) -> Result<(), VmError> {
    let Some(seen) = kept.last_seen.as_ref().filter(|_| !is_temporary(launch)) else { return Ok(()) };
    // The file says which medium is in a drive that has media, and that harms nobody.
    let disks: Vec<Drive> = seen.drives.iter().filter(|drive| !drive.removable).cloned().collect();
    // A file may name other disks altogether: what cannot be told from that is no old image.
    let launched = kept.launched.as_ref().map_or(&[][..], |launched| &launched.drives);
    let named = named(launch);
    refuse(name, launch, &stale(&disks, Some(launched), &named))?;
    refuse(name, launch, &long_left(&kept.replaced_images, &named))
}

/// Returns whether the guest is to begin from the same images each time (`-snapshot`).
fn is_temporary(launch: &Launch) -> bool {
    match launch {
        Launch::Definition(defined) => command_line::is_temporary(&defined.definition.qemu.args),
        Launch::CommandLine(line) => command_line::is_temporary(&line.args),
    }
}

/// Returns the files of drives that a QEMU is started with.
fn named(launch: &Launch) -> BTreeSet<String> {
    let definition = match launch {
        Launch::Definition(defined) => &defined.definition,
        Launch::CommandLine(line) => return command_line::drive_files(&line.args),
    };
    let disks = definition.disks.iter().map(|disk| &disk.path);
    let paths = disks.chain(definition.cdroms.iter().filter_map(|cdrom| cdrom.path.as_ref()));
    let mut named = command_line::drive_files(&definition.qemu.args);
    named.extend(paths.map(|path| path.display().to_string()));
    named
}

fn refuse(name: &str, launch: &Launch, stale: &[Stale]) -> Result<(), VmError> {
    let Some(Stale { drive, had, gets, is_below }) = stale.first() else { return Ok(()) };
    let is_defined = launch.definition().is_some();
    let says = if is_defined { "its definition" } else { "its command line" };
    let by_hand = match is_defined {
        true => "start it from a VM file that names it",
        false => {
            "`skein vm forget` the VM, start its QEMU by hand with that image in its command line, and `skein vm \
             adopt` it"
        }
    };
    let (what, cure) = match had {
        Some(had) if *is_below => (
            format!(
                "'{name}' last had {had} open in {drive}, and {says} names {gets}, which that is an overlay of: what \
                 the guest wrote since \
                 would be missing, and what it writes there would ruin the overlay"
            ),
            format!(
                "{by_hand}; or merge the overlay (`qemu-img commit {had}`) and repeat with --as-defined; or go back \
                 to {gets} for good: \
                 --as-defined"
            ),
        ),
        Some(had) => (
            format!("'{name}' last had {had} open in {drive}, and {says} names {gets}"),
            format!("{by_hand}; or, if it is to have {gets}, say --as-defined"),
        ),
        None => (
            format!("{drive} of '{name}' was empty at last, and {says} puts {gets} into it"),
            "say --as-defined if it is to be in there again; else start it from what leaves the drive empty".to_owned(),
        ),
    };
    Err(VmError::OtherImages { what, cure })
}

#[cfg(test)]
mod tests {
    use skein_inventory::composition::{Image, Medium};

    use super::*;
    use crate::launch::{CommandLine, Defined};

    #[test]
    fn a_controller_says_what_stands_for_baseline() {
        let planned = |cpu: &str| {
            let text = format!("name = 'a'\nmemory = '64 MiB'\naccel = 'tcg'\n{cpu}");
            let definition = Definition::parse(&text, "a.toml").unwrap();
            let launch = Launch::Definition(Box::new(Defined { definition, odd_ram: false, cpu_model: None }));
            Planned { name: "a".into(), launch, need: None, left: BTreeMap::new() }
        };
        let cpu = |planned: &Planned| match &planned.launch {
            Launch::Definition(defined) => defined.cpu(),
            Launch::CommandLine(_) => panic!("it has a definition"),
        };
        let mut named = planned("cpu = 'baselined'");
        named.settle_cpu(Some("EPYC-v4".into())).unwrap();
        assert_eq!(cpu(&named), "baselined");
        let mut baseline = planned("cpu = 'baseline,-svm'");
        assert!(matches!(baseline.settle_cpu(None), Err(VmError::NoBaseline(_))));
        for bad in ["", "EPYC,+avx512f", "a b", "baseline"] {
            assert!(matches!(baseline.settle_cpu(Some(bad.into())), Err(VmError::BadCpuModel(_))), "{bad}");
        }
        baseline.settle_cpu(Some("EPYC-v4".into())).unwrap();
        assert_eq!(cpu(&baseline), "EPYC-v4,-svm");
        // Started again without a controller, it has what it had, also when another host says so.
        baseline.settle_cpu(None).unwrap();
        let told = serde_json::to_string(&baseline.launch).unwrap();
        let heard: Launch = serde_json::from_str(&told).unwrap();
        assert_eq!(heard, baseline.launch);
        assert!(serde_json::from_str::<Launch>(&told.replace("\"EPYC-v4\"", "\"EPYC-v4,+x\"")).is_err());
    }

    fn drive(device: &str, name: &str, chain: &[&str]) -> Drive {
        let image = |name: &&str| Image { format: "qcow2".into(), filename: (*name).into(), virtual_bytes: 1 };
        let chain: Vec<Image> = chain.iter().map(image).collect();
        let (beside, tuning, bitmaps) = Default::default();
        let medium = (!chain.is_empty()).then_some(Medium { chain, beside, read_only: false, tuning, bitmaps });
        Drive { device: device.into(), name: name.into(), removable: device.starts_with("cd"), medium }
    }

    fn seen(drives: &[Drive]) -> Seen {
        Seen { drives: drives.to_vec(), ..Seen::default() }
    }

    fn line(args: &str) -> Launch {
        let args = args.split(' ').map(str::to_owned).collect();
        Launch::CommandLine(CommandLine { program: "/q".into(), args })
    }

    #[test]
    fn a_file_is_started_with_what_its_guest_last_had() {
        let dir = tempfile::tempdir().unwrap();
        let over = dir.path().join("over").display().to_string();
        std::fs::write(&over, "").unwrap();
        let text = "name = 'a'\nmemory = '64 MiB'\n[[disk]]\npath = '/s/base'\nformat = 'qcow2'\n";
        let definition = Definition::parse(text, "a.toml").unwrap();
        let launch = Launch::Definition(Box::new(Defined { definition, odd_ram: false, cpu_model: None }));
        let launched = Composition { drives: vec![drive("d", "", &["/s/base"])], ..Composition::default() };
        let last = seen(&[drive("d", "", &[&over, "/s/base"])]);
        let again = as_last("a", &launch, &last, Some(&launched)).unwrap();
        assert_eq!(again.definition().unwrap().disks[0].path, Path::new(&over));
        // Which of the disks that was is not known.
        let error = as_last("a", &launch, &last, None).unwrap_err();
        assert!(error.to_string().contains(&format!("last had {over} open")), "{error}");
        assert!(error.cure().contains("--as-defined") && error.cure().contains("qemu-img commit"), "{}", error.cure());
        std::fs::remove_file(&over).unwrap();
        let error = as_last("a", &launch, &last, Some(&launched)).unwrap_err();
        assert!(error.to_string().contains("is not there any more"), "{error}");
        assert_eq!(as_last("a", &launch, &seen(&launched.drives), Some(&launched)).unwrap(), launch);
        assert_eq!(as_last("a", &launch, &Seen::default(), None).unwrap(), launch, "nobody looked");
    }

    #[test]
    fn a_file_may_name_other_disks_and_not_what_an_overlay_lies_on() {
        let file = |path: &str, args: &str| {
            let disk = format!("[[disk]]\npath = '{path}'\nformat = 'qcow2'\n");
            let text = format!("name = 'a'\nmemory = '64 MiB'\n{disk}[qemu]\nargs = [{args}]\n");
            let definition = Definition::parse(&text, "a.toml").unwrap();
            Launch::Definition(Box::new(Defined { definition, odd_ram: false, cpu_model: None }))
        };
        let last = [drive("d", "", &["/s/over", "/s/base"]), drive("cd", "cd0", &[])];
        let kept = SavedVm {
            last_seen: Some(seen(&last)),
            replaced_images: [("/s/old".to_owned(), "/s/base".to_owned())].into(),
            ..SavedVm::new(file("/s/base", ""))
        };
        let told = check_file("a", &file("/s/base", ""), &kept).unwrap_err().to_string();
        assert!(told.contains("/s/over") && told.contains("an overlay of"), "{told}");
        assert!(check_file("a", &file("/s/old", ""), &kept).unwrap_err().to_string().contains("names /s/old"));
        for good in
            [file("/s/over", ""), file("/s/fresh", ""), file("/s/base", "'-drive', 'if=none,file=/s/x,snapshot=on'")]
        {
            check_file("a", &good, &kept).unwrap();
        }
        let temporary = line("-snapshot -drive file=/s/base,id=d0");
        assert_eq!(as_last("a", &temporary, &seen(&last), None).unwrap(), temporary);
    }

    #[test]
    fn what_was_left_long_ago_is_known() {
        let mut left = BTreeMap::new();
        let found = |left: &BTreeMap<String, String>, names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            long_left(left, &names).into_iter().map(|stale| stale.gets).collect::<Vec<_>>()
        };
        leave(&mut left, "/old", "/new");
        assert_eq!(found(&left, &["/old"]), ["/old"]);
        assert!(found(&left, &["/old", "/new"]).is_empty() && found(&left, &["/fresh"]).is_empty());
        // The image was merged into what it was an overlay of, and so the guest is back there.
        leave(&mut left, "/new", "/old");
        assert!(found(&left, &["/old"]).is_empty());
        assert_eq!(found(&left, &["/new"]), ["/new"]);
        (0..1000).for_each(|n| leave(&mut left, &n.to_string(), "/x"));
        assert_eq!(left.len(), LEFT_MAX);
    }

    #[test]
    fn a_command_line_is_changed_where_that_is_certain_and_refused_where_not() {
        let dir = tempfile::tempdir().unwrap();
        let over = dir.path().join("over").display().to_string();
        std::fs::write(&over, "").unwrap();
        let last = seen(&[drive("d", "d0", &[&over, "/s/base"]), drive("cd", "cd0", &[])]);
        let launch = line("-drive file=/s/base,if=virtio,id=d0 -drive file=/s/cd,id=cd0,media=cdrom");
        let Launch::CommandLine(again) = as_last("a", &launch, &last, None).unwrap() else { panic!() };
        let expect = format!("-drive file={over},if=virtio,id=d0,format=qcow2 -drive id=cd0,media=cdrom");
        assert_eq!(again.args.join(" "), expect);
        let nodes = line("-blockdev driver=qcow2,node-name=d0,file.driver=file,file.filename=/s/base");
        let error = as_last("a", &nodes, &last, None).unwrap_err();
        for part in [&over, "/s/base", "its command line names", "an overlay of"] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        assert!(error.cure().contains("skein vm adopt"), "{}", error.cure());
    }
}
