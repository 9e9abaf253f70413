//! Has a NIC make a share itself, and undoes that, step by step: the record before each change, and what was changed is
//! read back.

use std::io;

use crate::ieee_ets::IeeeEts;
use crate::nic::Nic;
use crate::own_ets::{EtsPhase, EtsRecord, OwnEts, current, own_ets, plan_own_ets, record_path};
use crate::source::Source;

/// What changes a host for a share by the NIC itself.
pub trait EtsHost: Source {
    /// Gives a NIC settings of ETS. What the driver made of them is to be read back: a driver that cannot set ETS does
    /// not say so.
    ///
    /// # Errors
    /// The kernel or the driver refuses, or there was no answer in time: the settings are not known then.
    fn set_ets(&self, nic: &str, ets: &IeeeEts) -> io::Result<()>;

    /// Writes a file, whole or not at all.
    ///
    /// # Errors
    /// The file is as before.
    fn keep(&self, path: &str, text: &str) -> io::Result<()>;

    /// Removes a file, if there is one.
    ///
    /// # Errors
    /// The file is there.
    fn forget(&self, path: &str) -> io::Result<()>;
}

/// Why a NIC does not make a share, or does not undo one.
#[derive(Debug, thiserror::Error)]
pub enum EtsError {
    /// The NIC is as before.
    #[error("{0}")]
    NotUsed(String),
    /// Nothing more was changed.
    #[error("{nic}: /proc does not tell the network namespace, so nothing was changed")]
    NoNamespace {
        /// The NIC.
        nic: String,
    },
    /// Nothing more was changed.
    #[error("cannot write {path}, so nothing more was changed")]
    Record {
        /// The record.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// The NIC does not tell its settings, and nothing was changed.
    #[error("{nic} does not tell its ETS (DCB) now, so nothing was changed: try again")]
    Untold {
        /// The NIC.
        nic: String,
    },
    /// The NIC has other settings than before, and the record of those is still there.
    #[error("{nic} does NOT have its ETS of before: {why}; {path} has the settings (before)")]
    NotAsBefore {
        /// The NIC.
        nic: String,
        /// Why not.
        why: String,
        /// The record.
        path: String,
    },
}

/// What was undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtsUndone {
    /// There was nothing to undo.
    Nothing,
    /// The NIC is as before.
    Share,
    /// Somebody else has set the NIC since. The settings stay, and the share is forgotten.
    LeftAlone,
}

/// Has a NIC without a share make one. `may_go_down`: its interface may be taken down and up for that.
///
/// # Errors
/// With [`EtsError::NotUsed`] the NIC is as before.
pub fn make_ets(host: &dyn EtsHost, nic: &Nic, percent: u8, priority: u8, may_go_down: bool) -> Result<(), EtsError> {
    let plan = plan_own_ets(host, nic, percent, priority, may_go_down);
    let record = plan.map_err(|why| EtsError::NotUsed(why.to_string()))?;
    // First the record: what is changed can be undone whatever happens meanwhile.
    keep(host, nic, &record)?;
    let why = match host.set_ets(&nic.name, &record.wanted) {
        Ok(()) => {
            keep(host, nic, &EtsRecord { phase: EtsPhase::Made, ..record.clone() })?;
            if matches!(own_ets(host, nic), OwnEts::Share(_)) {
                return Ok(());
            }
            OTHER.to_owned()
        }
        Err(error) => format!("its driver refuses the settings: {error}"),
    };
    put_back(host, nic, record)?;
    Err(EtsError::NotUsed(why))
}

const OTHER: &str = "its driver has made something else of the settings";

/// Undoes a share that a NIC makes, or was to make.
///
/// # Errors
/// The NIC is not as before, and the record is still there: this can be tried again.
pub fn undo_ets(host: &dyn EtsHost, nic: &Nic) -> Result<EtsUndone, EtsError> {
    match own_ets(host, nic) {
        OwnEts::None => Ok(EtsUndone::Nothing),
        OwnEts::Share(record) | OwnEts::Incomplete(record) => put_back(host, nic, record).map(|()| EtsUndone::Share),
        OwnEts::Foreign(_) | OwnEts::Unreadable => forget(host, nic).map(|()| EtsUndone::LeftAlone),
        OwnEts::Untold(_) => Err(EtsError::Untold { nic: nic.name.clone() }),
    }
}

/// Gives a NIC its settings of before, and forgets the record when the NIC has them.
fn put_back(host: &dyn EtsHost, nic: &Nic, record: EtsRecord) -> Result<(), EtsError> {
    let record = EtsRecord { phase: EtsPhase::Changing, ..record };
    let is_as_before = || current(host, nic).is_some_and(|now| now.does_as(&record.before));
    if !is_as_before() {
        keep(host, nic, &record)?;
        let set = host.set_ets(&nic.name, &record.before);
        if !is_as_before() {
            let why = set.err().map_or_else(|| OTHER.to_owned(), |error| error.to_string());
            return Err(EtsError::NotAsBefore { nic: nic.name.clone(), why, path: path(host, nic)? });
        }
    }
    forget(host, nic)
}

fn path(host: &dyn EtsHost, nic: &Nic) -> Result<String, EtsError> {
    record_path(host, nic).ok_or_else(|| EtsError::NoNamespace { nic: nic.name.clone() })
}

fn keep(host: &dyn EtsHost, nic: &Nic, record: &EtsRecord) -> Result<(), EtsError> {
    let path = path(host, nic)?;
    let text = serde_json::to_string(record).expect("plain data always serialises");
    host.keep(&path, &text).map_err(|source| EtsError::Record { path, source })
}

fn forget(host: &dyn EtsHost, nic: &Nic) -> Result<(), EtsError> {
    let path = path(host, nic)?;
    host.forget(&path).map_err(|source| EtsError::Record { path, source })
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::ets_fake::{Host, RECORD, host, nic};
    use crate::source::{Answer, Ask};

    /// What a driver does with settings.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Driver {
        Obeys,
        Refuses,
        Ignores,
        /// Makes something else of a share, and takes others as they are.
        Alters,
        /// Takes the settings, and its answer is lost.
        IsSilent,
    }

    /// A host whose changes end at some moment, as if the command were killed.
    struct Edge {
        host: RefCell<Host>,
        driver: Driver,
        changes_left: Cell<usize>,
    }

    impl Edge {
        fn change(&self, change: impl FnOnce(&mut Host)) -> io::Result<()> {
            let left = self.changes_left.get().checked_sub(1).ok_or(io::ErrorKind::Interrupted)?;
            self.changes_left.set(left);
            change(&mut self.host.borrow_mut());
            Ok(())
        }

        /// Returns whether the command came to its end.
        fn is_whole(&self) -> bool {
            self.changes_left.get() > 0
        }
    }

    impl Source for Edge {
        fn ask(&self, ask: &Ask) -> Answer {
            self.host.borrow().ask(ask)
        }
    }

    impl EtsHost for Edge {
        fn set_ets(&self, name: &str, ets: &IeeeEts) -> io::Result<()> {
            assert_eq!(name, "eth0");
            let refusal = Err(io::Error::from_raw_os_error(22));
            match self.driver {
                Driver::Obeys => self.change(|host| host.set(ets)),
                Driver::IsSilent => self.change(|host| host.set(ets)).and(Err(io::ErrorKind::TimedOut.into())),
                Driver::Refuses => self.change(|_| {}).and(refusal),
                Driver::Ignores => self.change(|_| {}),
                Driver::Alters => self.change(|host| {
                    host.set(ets);
                    if ets.class_of().contains(&1) {
                        host.ets[3] ^= 1;
                    }
                }),
            }
        }

        fn keep(&self, path: &str, text: &str) -> io::Result<()> {
            self.change(|host| _ = host.files.insert(path.into(), text.into()))
        }

        fn forget(&self, path: &str) -> io::Result<()> {
            self.change(|host| _ = host.files.remove(path))
        }
    }

    fn edge(host: Host, driver: Driver, changes_left: usize) -> Edge {
        Edge { host: host.into(), driver, changes_left: changes_left.into() }
    }

    /// More changes than any command makes.
    const MANY: usize = 100;

    #[test]
    fn a_command_that_is_killed_leaves_what_the_next_undoes_exactly() {
        let before = host();
        for changes in 0.. {
            let first = edge(before.clone(), Driver::Obeys, changes);
            let made = make_ets(&first, &nic(), 90, 5, false);
            assert!(made.is_ok() || !first.is_whole(), "{made:?}");
            let left = first.host.into_inner();
            match left.state() {
                OwnEts::Share(record) => assert_eq!((record.percent, record.priority), (90, 5)),
                OwnEts::None => assert_eq!(left.ets, before.ets, "{changes}"),
                OwnEts::Incomplete(_) => assert!(left.files.contains_key(RECORD)),
                other => panic!("{changes}: {other:?}"),
            }
            // The next is killed, too, at each of its moments.
            for more in 0.. {
                let second = edge(left.clone(), Driver::Obeys, more);
                let _ = undo_ets(&second, &nic());
                let was_whole = second.is_whole();
                let third = edge(second.host.into_inner(), Driver::Obeys, MANY);
                undo_ets(&third, &nic()).unwrap();
                let end = third.host.into_inner();
                assert_eq!((&end.ets, &end.files), (&before.ets, &before.files), "{changes}, {more}");
                if was_whole {
                    break;
                }
            }
            if made.is_ok() {
                assert!(changes >= 3, "the record, the settings, the record");
                return;
            }
        }
    }

    #[test]
    fn a_driver_that_does_not_do_as_it_is_told_leaves_the_nic_as_before() {
        for (driver, words) in [
            (Driver::Refuses, "its driver refuses the settings: Invalid argument"),
            (Driver::Ignores, "made something else"),
            (Driver::Alters, "made something else"),
            (Driver::IsSilent, "timed out"),
        ] {
            let edge = edge(host(), driver, MANY);
            let made = make_ets(&edge, &nic(), 90, 5, false);
            assert!(matches!(&made, Err(EtsError::NotUsed(why)) if why.contains(words)), "{driver:?}: {made:?}");
            let end = edge.host.into_inner();
            assert_eq!((end.ets, end.files), (host().ets, host().files), "{driver:?}");
        }
    }

    #[test]
    fn a_nic_that_does_not_go_back_is_named_and_can_be_undone_later() {
        let first = edge(host(), Driver::Obeys, MANY);
        make_ets(&first, &nic(), 90, 5, false).unwrap();
        for driver in [Driver::Refuses, Driver::Ignores] {
            let stuck = edge(first.host.borrow().clone(), driver, MANY);
            let error = undo_ets(&stuck, &nic()).unwrap_err();
            assert!(matches!(error, EtsError::NotAsBefore { .. }), "{error}");
            assert!(error.to_string().contains(RECORD), "{error}");
            let later = edge(stuck.host.into_inner(), Driver::Obeys, MANY);
            assert_eq!(undo_ets(&later, &nic()).unwrap(), EtsUndone::Share);
            let end = later.host.into_inner();
            assert_eq!((end.ets, end.files), (host().ets, host().files), "{driver:?}");
        }
    }

    #[test]
    fn what_somebody_else_has_set_stays() {
        let edge = edge(host(), Driver::Obeys, MANY);
        assert_eq!(undo_ets(&edge, &nic()).unwrap(), EtsUndone::Nothing);
        make_ets(&edge, &nic(), 90, 5, false).unwrap();
        assert!(matches!(make_ets(&edge, &nic(), 70, 5, false), Err(EtsError::NotUsed(_))), "there is one");
        let shared = std::mem::take(&mut edge.host.borrow_mut().ets);
        assert!(matches!(undo_ets(&edge, &nic()), Err(EtsError::Untold { .. })), "the NIC tells nothing");
        assert!(edge.host.borrow().files.contains_key(RECORD));
        edge.host.borrow_mut().ets = shared;
        edge.host.borrow_mut().ets[3..5].copy_from_slice(&[60, 40]);
        let theirs = edge.host.borrow().ets.clone();
        assert_eq!(undo_ets(&edge, &nic()).unwrap(), EtsUndone::LeftAlone);
        let end = edge.host.into_inner();
        assert_eq!((end.state(), end.ets), (OwnEts::None, theirs));
    }
}
