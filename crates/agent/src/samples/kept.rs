//! Keeps the samples of migrations that are over, in a file for each beside the migration's log. They are for people
//! who look back: what cannot be written or read is left out.

use std::fs;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use skein_api::{MigrationId, MigrationSample};

/// Bounds the migrations whose samples are kept: some 300 KB each.
const KEPT_MAX: usize = 100;
const ENDING: &str = "samples.json";

fn file(dir: &Path, id: MigrationId) -> PathBuf {
    dir.join(format!("{id}.{ENDING}"))
}

/// Writes the samples of a migration, and removes those of the oldest if there are too many.
pub(super) fn write(dir: &Path, id: MigrationId, samples: &[MigrationSample]) -> io::Result<()> {
    let (file, new) = (file(dir, id), dir.join(format!("{id}.{ENDING}.new")));
    fs::write(&new, serde_json::to_vec(samples)?)?;
    fs::rename(&new, &file)?;
    let entry = |entry: io::Result<fs::DirEntry>| {
        let entry = entry.ok()?;
        let is_kept = entry.file_name().to_str()?.ends_with(ENDING);
        let changed = entry.metadata().and_then(|of| of.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        is_kept.then(|| (changed, entry.path()))
    };
    let mut kept: Vec<(SystemTime, PathBuf)> = fs::read_dir(dir)?.filter_map(entry).collect();
    kept.sort();
    let surplus = kept.len().saturating_sub(KEPT_MAX);
    kept[..surplus].iter().for_each(|(_, path)| drop(fs::remove_file(path)));
    Ok(())
}

/// Returns the samples of a migration that is over; none: they are not kept, or cannot be read.
pub(super) fn read(dir: &Path, id: MigrationId) -> Vec<MigrationSample> {
    let Ok(file) = fs::File::open(file(dir, id)) else { return Vec::new() };
    serde_json::from_reader(BufReader::new(file)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use skein_api::{HostSample, Migration, Role};

    use super::*;

    #[test]
    fn samples_are_read_back_and_the_oldest_go() {
        let dir = tempfile::tempdir().unwrap();
        let sample = |id| {
            let migration = Migration::new(id, "", Role::Target, "", "");
            MigrationSample { at: id.0, migration, host: HostSample::default(), forecast: None }
        };
        for id in 0..KEPT_MAX as u64 + 3 {
            write(dir.path(), MigrationId(id), &[sample(MigrationId(id))]).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(id);
            fs::File::open(file(dir.path(), MigrationId(id))).unwrap().set_modified(time).unwrap();
        }
        write(dir.path(), MigrationId(1000), &[sample(MigrationId(1000))]).unwrap();
        let kept = |id| read(dir.path(), MigrationId(id));
        assert_eq!((kept(0), kept(3)), (vec![], vec![]));
        assert_eq!((kept(4)[0].at, kept(1000)[0].at), (4, 1000));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), KEPT_MAX);
        fs::write(file(dir.path(), MigrationId(4)), "[{").unwrap();
        assert_eq!(kept(4), []);
    }
}
