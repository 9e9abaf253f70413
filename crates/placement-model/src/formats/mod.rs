//! Reads the files of other programs: each format is a text that becomes a
//! [`Problem`](skein_placement::problem::Problem).

pub mod btrplace;
pub mod import;
pub mod planetlab;
pub mod roadef;
pub mod ucc15;
