//! Keeps the samples of one migration: as many as there is room for, the same time apart.

use skein_api::{Migration, MigrationSample, SAMPLES_MAX};

/// The samples of one migration.
#[derive(Clone, Debug)]
pub(super) struct Series {
    samples: Vec<MigrationSample>,
    /// Only each so many-th sample is kept.
    each: u64,
    /// The samples that came.
    came: u64,
}

impl Default for Series {
    fn default() -> Series {
        Series { samples: Vec::new(), each: 1, came: 0 }
    }
}

impl Series {
    /// Goes on from samples that were kept.
    pub(super) fn from_kept(samples: Vec<MigrationSample>) -> Series {
        let mut series = Series { samples, ..Series::default() };
        series.make_room();
        series
    }

    /// Adds a sample. When there is no room, every second sample goes, and every second of those to come.
    pub(super) fn add(&mut self, sample: &MigrationSample) {
        let is_kept = self.came.is_multiple_of(self.each);
        self.came += 1;
        if !is_kept {
            return;
        }
        self.samples.push(reduced(sample));
        self.make_room();
    }

    /// Lets every second sample go if there is no room: the last has room of its own.
    fn make_room(&mut self) {
        if self.samples.len() >= SAMPLES_MAX {
            let mut number = 0_usize;
            self.samples.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.each *= 2;
        }
    }

    /// Adds the sample of the migration's end.
    pub(super) fn end(&mut self, sample: &MigrationSample) {
        self.samples.push(reduced(sample));
    }

    pub(super) fn samples(&self) -> &[MigrationSample] {
        &self.samples
    }
}

/// Returns a sample with what changes in a migration; all else stands once beside the samples.
fn reduced(sample: &MigrationSample) -> MigrationSample {
    let Migration { id, role, stage, outcome, elapsed_ms, downtime_ms, copy, paths, .. } = sample.migration.clone();
    let migration =
        Migration { stage, outcome, elapsed_ms, downtime_ms, copy, paths, ..Migration::new(id, "", role, "", "") };
    MigrationSample { migration, ..sample.clone() }
}

#[cfg(test)]
mod tests {
    use skein_api::{HostSample, MigrationId, Role};

    use super::*;

    fn sample(at: u64) -> MigrationSample {
        let migration = Migration::new(MigrationId(7), "web1", Role::Source, "a", "b");
        let migration = Migration { elapsed_ms: at, detail: "as it is".into(), ..migration };
        MigrationSample { at, migration, host: HostSample::default(), forecast: None }
    }

    #[test]
    fn many_samples_are_thinned_out_evenly_and_the_end_stays() {
        let mut series = Series::default();
        for at in 0..10_000 {
            series.add(&sample(at));
            assert!(series.samples().len() < SAMPLES_MAX);
        }
        series.end(&sample(10_000));
        let times: Vec<u64> = series.samples().iter().map(|sample| sample.at).collect();
        assert!((SAMPLES_MAX / 2 - 1..=SAMPLES_MAX).contains(&times.len()), "{}", times.len());
        assert_eq!((times[0], *times.last().unwrap()), (0, 10_000));
        let apart = times[1] - times[0];
        assert!(times[..times.len() - 1].windows(2).all(|pair| pair[1] - pair[0] == apart), "{times:?}");
    }

    #[test]
    fn what_does_not_change_is_left_out() {
        let mut series = Series::default();
        series.add(&sample(5));
        let kept = &series.samples()[0].migration;
        assert_eq!((&*kept.vm, &*kept.detail, kept.elapsed_ms, kept.id), ("", "", 5, MigrationId(7)));
    }
}
