//! Decides what the event log says of the paths that carry a copy. Pure.

use super::links::PathSample;

/// Bounds the notes of a copy whose paths change again and again.
const NOTES_MAX: u32 = 8;
/// Bounds the paths that a note names.
const PATHS_NAMED: usize = 16;

/// Remembers what was noted of the paths.
#[derive(Debug, Default)]
pub(super) struct PathNotes {
    said: String,
    /// What was seen last. A path's connections come one after the other, so what is seen twice is noted.
    seen: String,
    notes: u32,
}

impl PathNotes {
    /// Returns a line for the event log if the paths that carry the copy, or the reasons for their connections, are
    /// others than those of the last line.
    pub(super) fn note(&mut self, paths: &[PathSample]) -> Option<String> {
        let told = paths.iter().filter(|path| path.is_usable && !path.connections.is_empty()).take(PATHS_NAMED);
        let words: Vec<String> =
            told.map(|path| format!("{} > {}, connections {}", path.nic, path.remote, path.connections)).collect();
        let words = words.join("; ");
        let is_new = !words.is_empty() && words != self.said && words == self.seen;
        self.seen = words;
        if !is_new || self.notes >= NOTES_MAX {
            return None;
        }
        self.notes += 1;
        self.said.clone_from(&self.seen);
        Some(format!("paths: {}", self.said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(nic: &str, connections: &str) -> PathSample {
        let (remote, connections) = ("10.0.0.2".into(), connections.into());
        PathSample { nic: nic.into(), remote, connections, is_usable: true, ..PathSample::default() }
    }

    #[test]
    fn paths_are_noted_once_they_stay_and_again_when_they_change() {
        let mut notes = PathNotes::default();
        let first = [path("eth0", "2: a NIC has one queue"), path("eth1", "")];
        assert_eq!(notes.note(&[]), None);
        assert_eq!(notes.note(&first), None, "more may come");
        let said = "paths: eth0 > 10.0.0.2, connections 2: a NIC has one queue";
        assert_eq!(notes.note(&first).as_deref(), Some(said), "a path of which nothing is known is left out");
        assert_eq!(notes.note(&first), None);
        let both = [first[0].clone(), path("eth1", "7: as configured")];
        assert_eq!((notes.note(&both), notes.note(&first)), (None, None), "it was gone at once");
        assert_eq!(notes.note(&both), None);
        let said = "paths: eth0 > 10.0.0.2, connections 2: a NIC has one queue; eth1 > 10.0.0.2, connections 7: as \
                    configured";
        assert_eq!(notes.note(&both).as_deref(), Some(said));
        let down = [PathSample { is_usable: false, ..both[0].clone() }];
        assert_eq!((notes.note(&down), notes.note(&down)), (None, None));
    }

    #[test]
    fn paths_that_change_all_the_time_do_not_fill_the_log() {
        let mut notes = PathNotes::default();
        let looks = (0..200).map(|look| [path("eth0", &format!("{}: x", look / 2))]);
        assert_eq!(looks.filter_map(|paths| notes.note(&paths)).count(), NOTES_MAX as usize);
    }
}
