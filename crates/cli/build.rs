//! How the program is linked.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Places that the loader adapts to where the program lies: in 4 KB instead of 350 KB. glibc 2.36 reads them, of
    // Debian 12. A linker that does not know the option says so and goes on.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    // Functions of the same code are one: nothing here compares their addresses. LLD does that, with which Rust's
    // toolchain links on this architecture. Another linker may end at an option that it does not know.
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_ARCH", "x86_64") && is("CARGO_CFG_TARGET_OS", "linux") {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
        // libaegis begins by choosing code for each of its six ciphers, of which one is used here: it chooses for that
        // one six times, and the others are left out. Where another is used, linking fails: its names are there twice.
        for unused in ["128l", "128x4", "256", "256x2", "256x4"] {
            let choice = format!("aegis{unused}_pick_best_implementation=aegis128x2_pick_best_implementation");
            println!("cargo::rustc-link-arg-bins=-Wl,--defsym={choice}");
        }
    }
}
