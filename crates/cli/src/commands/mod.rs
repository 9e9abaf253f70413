//! One module per subcommand.

pub mod agent;
pub mod bench;
pub mod ca;
pub mod completions;
pub mod dataplane;
pub mod demo;
pub mod lab;
pub mod tunnel;
