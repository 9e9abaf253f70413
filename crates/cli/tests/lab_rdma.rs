//! Runs `scripts/rdma.sh`: two emulated machines whose NICs do RDMA in software (soft-RoCE), over two rails. Real
//! agents in them move a guest's RAM, rails are cut in the middle, and what arrives is compared. The tier is about what
//! holds, and not about speed.
// Cores: 2
// Timeout: 1500 s

use std::path::Path;
use std::process::{Command, Stdio};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// What the script ends with where no emulated machine with RDMA can be had.
const NONE_HERE: i32 = 3;
/// What the script ends with where in some try RDMA did not begin in time, as the machine is busy.
const TOO_SLOW: i32 = 4;
/// What is tried: a tunnel, both of whose rails are cut; a guest's RAM, sealed; and as NICs write it, while one rail is
/// cut, and both.
const TRIES: &str = "both-are-cut guest-sealed guest-one-rail-cut guest-both-rails-cut";

#[test]
fn agents_move_a_guest_over_the_kernels_rdma_and_rails_may_be_cut() {
    let skein = env!("CARGO_BIN_EXE_skein");
    let mut script = Command::new(Path::new(REPOSITORY).join("scripts/rdma.sh"));
    script.arg(skein).env("TRIES", TRIES).env("ATTEMPTS", "2").stdin(Stdio::null());
    let status = script.status().expect("the script can be run");
    match status.code() {
        Some(NONE_HERE) => return println!("skipped: no emulated machine with RDMA, as said above"),
        Some(TOO_SLOW) => return println!("skipped: some tries, in which RDMA did not begin in time: see above"),
        _ => {}
    }
    assert!(status.success(), "the script ended with {status}; logs are in target/rdma");
}
