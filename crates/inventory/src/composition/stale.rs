//! Which images a QEMU that is started again would have otherwise than its guest last had them.
//!
//! A live snapshot, a mirror that was pivoted, a changed or ejected medium: what a QEMU was started from says nothing
//! of them. A guest that is started from the old image lacks all that it wrote since. What the guest writes to the old
//! image ruins the overlay.

use std::collections::BTreeSet;

use super::compare::drive_name;
use super::model::{Drive, Medium};
use super::problems::plain;

/// A drive that would not have what its guest last had in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stale {
    /// The drive, as the subject of a sentence: `the drive "d0"`.
    pub drive: String,
    /// The image that the drive had. `None`: the drive was empty.
    pub had: Option<String>,
    /// The image that the drive would get.
    pub gets: String,
    /// Whether the image that the drive had is an overlay of the image that it would get.
    pub is_below: bool,
}

/// Returns the drives that would not have what the guest last had in them. `last` are the drives as they were then.
/// `launched` are the drives as they were when that QEMU had just been started, if that is known. `named` are the files
/// of drives that are named to the QEMU that is to be started.
///
/// Drives that would be missing, as they were plugged in while the guest ran, are not among them: nothing is written to
/// another image for it.
pub fn stale(last: &[Drive], launched: Option<&[Drive]>, named: &BTreeSet<String>) -> Vec<Stale> {
    let named: BTreeSet<&str> = named.iter().map(|name| plain(name)).collect();
    let open: BTreeSet<&str> = last.iter().filter_map(|drive| drive.medium.as_ref()).flat_map(files).collect();
    // What is no plain path QEMU may call otherwise than its command line does.
    let mut unopened = named.iter().filter(|name| name.starts_with('/') && !open.contains(*name)).copied();
    let mut unopened = || unopened.next();
    let find = |drive: &Drive| {
        let had = drive.medium.as_ref().map(Medium::filename);
        if had.is_some_and(|had| named.contains(plain(had))) {
            return None;
        }
        let below = drive.medium.as_ref().and_then(|medium| files(medium).find(|file| named.contains(file)));
        let first = launched.map(|all| all.iter().find(|first| first.device == drive.device));
        let gets = match (below, first) {
            (Some(below), _) => below,
            (None, Some(first)) => {
                let first = first?.medium.as_ref().map(Medium::filename)?;
                Some(plain(first)).filter(|first| Some(*first) != had && named.contains(first))?
            }
            (None, None) if drive.removable || had.is_some_and(|had| had.starts_with('/')) => unopened()?,
            (None, None) => return None,
        };
        let (drive, had) = (drive_name(drive), had.map(str::to_owned));
        Some(Stale { drive, had, gets: gets.to_owned(), is_below: below.is_some() })
    };
    last.iter().filter_map(find).collect()
}

/// Returns all files of a medium.
fn files(medium: &Medium) -> impl Iterator<Item = &str> {
    medium.chain.iter().map(|image| &image.filename).chain(medium.beside.values()).map(|file| plain(file))
}

#[cfg(test)]
mod tests {
    use super::super::Image;
    use super::*;

    fn drive(device: &str, chain: &[&str]) -> Drive {
        let image = |name: &&str| Image { format: "qcow2".into(), filename: (*name).into(), virtual_bytes: 1 };
        let chain: Vec<Image> = chain.iter().map(image).collect();
        let medium = (!chain.is_empty()).then(|| Medium {
            chain,
            beside: Default::default(),
            read_only: false,
            tuning: Default::default(),
            bitmaps: Default::default(),
        });
        Drive { device: device.into(), name: device.into(), removable: device.starts_with("cd"), medium }
    }

    fn gets(last: &[&Drive], launched: Option<&[&Drive]>, named: &[&str]) -> Vec<String> {
        let all = |drives: &[&Drive]| drives.iter().map(|drive| (*drive).clone()).collect::<Vec<_>>();
        let named = named.iter().map(|name| (*name).to_owned()).collect();
        let told = |Stale { had, gets, is_below, .. }: Stale| {
            let below = if is_below { " below" } else { "" };
            format!("{} had {}{below}", gets, had.unwrap_or_default())
        };
        stale(&all(last), launched.map(all).as_deref(), &named).into_iter().map(told).collect()
    }

    #[test]
    fn a_snapshot_whose_base_is_named() {
        let (last, base) = (drive("d0", &["/s/over", "/s/base"]), drive("d0", &["/s/base"]));
        let found = ["/s/base had /s/over below"];
        assert_eq!(gets(&[&last], None, &["file:/s/base"]), found);
        assert_eq!(gets(&[&last], Some(&[&base]), &["/s/base"]), found);
        assert_eq!(gets(&[&last], Some(&[&last]), &["/s/base"]), found, "a file that is older than the last start");
        assert!(gets(&[&last], None, &["/s/over"]).is_empty());
        assert!(gets(&[&last], None, &["/s/over", "/s/base"]).is_empty(), "both are named");
        assert!(gets(&[&last], None, &[]).is_empty(), "nothing is: that disk is not there");
    }

    #[test]
    fn a_mirror_that_was_pivoted_and_media() {
        let (old, new) = (drive("d0", &["/s/old"]), drive("d0", &["/s/new"]));
        for launched in [None, Some(&[&old][..])] {
            assert_eq!(gets(&[&new], launched, &["/s/old"]), ["/s/old had /s/new"]);
        }
        assert!(gets(&[&new], Some(&[&old]), &["/s/fresh"]).is_empty(), "a disk of the user's choice");
        let (cd, other, empty) = (drive("cd0", &["/s/cd"]), drive("cd0", &["/s/other"]), drive("cd0", &[]));
        for launched in [None, Some(&[&cd][..])] {
            assert_eq!(gets(&[&other], launched, &["/s/cd"]), ["/s/cd had /s/other"]);
            assert_eq!(gets(&[&empty], launched, &["/s/cd"]), ["/s/cd had "], "it was ejected");
            assert!(gets(&[&cd], launched, &["/s/cd"]).is_empty());
            assert!(gets(&[&empty], launched, &[]).is_empty());
        }
    }

    #[test]
    fn what_was_plugged_in_or_has_another_name_is_not_stale() {
        let (disk, late) = (drive("d0", &["/s/disk"]), drive("late", &["/s/late"]));
        assert!(gets(&[&disk, &late], None, &["/s/disk"]).is_empty());
        assert!(gets(&[&disk, &late], Some(&[&disk]), &["/s/disk"]).is_empty());
        let server = drive("d0", &["nbd://h:10809/x"]);
        assert!(gets(&[&server], None, &["nbd:h:10809:exportname=x"]).is_empty());
        assert!(gets(&[&server], Some(&[&server]), &["/s/other"]).is_empty());
    }
}
