//! Runs `scripts/rdma.sh`: two emulated machines whose NICs do RDMA in software (soft-RoCE), over two rails. Real agents
//! in them move a guest's RAM, rails are cut in the middle, and what arrives is compared. The tier is about what holds,
//! and not about speed.
// Cores: 2
// Timeout: 1200 s

use std::path::Path;
use std::process::{Command, Stdio};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// What the script ends with where no emulated machine with RDMA can be had.
const NONE_HERE: i32 = 3;

#[test]
fn agents_move_a_guest_over_the_kernels_rdma_and_rails_may_be_cut() {
    let skein = env!("CARGO_BIN_EXE_skein");
    let mut script = Command::new(Path::new(REPOSITORY).join("scripts/rdma.sh"));
    let status = script.arg(skein).stdin(Stdio::null()).status().expect("the script can be run");
    if status.code() == Some(NONE_HERE) {
        println!("skipped: no emulated machine with RDMA, as said above");
        return;
    }
    assert!(status.success(), "the script ended with {status}; logs are in target/rdma");
}
