//! What a guest is composed of, as its QEMU reports it.
//!
//! A command line says what a QEMU was started with. Snapshots, pivoted mirrors, changed media, plugged and unplugged
//! devices make that untrue while the guest runs. A [`Composition`] is read from the QEMU itself, at the source and at
//! the target alike, and [`differences`] compares the two: a guest runs at the target only in a QEMU that is composed
//! as its own was.
//!
//! | part | QEMU's answer | compared by |
//! |---|---|---|
//! | devices with their properties | `info qtree` ([`qtree`]) | bus, driver, id, address; properties |
//! | devices without a bus (CPUs, DIMMs, TPMs) | `qom-list` of `/machine/peripheral`, `peripheral-anon` | id and type |
//! | drives: media and their backing chains | `query-block` | device; format, file, size, access of each image |
//! | what else these lie on (data files, quorums) | `x-debug-query-block-graph`, `query-named-block-nodes` | the way there; the file |
//! | vCPUs, memory devices, RAM | `query-hotpluggable-cpus`, `query-memory-devices`, `query-memdev` | place; all fields; id and size |
//! | network backends | `info network` | name and type |
//! | TPMs, objects | `query-tpm`, `qom-list` of `/objects` | id and type |
//! | block jobs, exports | `query-jobs`, `query-block-exports` | stay with the source's QEMU: there must be none |
//!
//! Pure: [`Answers`] are QEMU's words; to ask for them is the agent's matter.

mod answer;
mod compare;
mod graph;
mod model;
mod problems;
pub mod qtree;
mod read;
mod stale;

pub use answer::Malformed;
pub use compare::{Change, Difference, Part, SameFile, differences, same_file};
pub use model::{Composition, Device, Drive, Image, Medium, OpenFile, RamBackend, is_numbered};
pub(crate) use problems::{composition_problems, launch_problems};
pub use read::{Answers, BlockAnswers};
pub use stale::{Stale, stale};
