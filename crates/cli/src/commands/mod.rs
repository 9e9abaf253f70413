//! One module per subcommand.

pub mod bench;
pub mod ca;
pub mod lab;
