//! What files of others say: each format as text in, and a [`Problem`](crate::problem::Problem) out.

pub mod btrplace;
pub mod import;
pub mod planetlab;
pub mod roadef;
pub mod ucc15;
