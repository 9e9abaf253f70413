//! How the program is linked.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, str};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Places that the loader adapts to where the program lies: in 4 KB instead of 350 KB. glibc 2.36 reads them, of
    // Debian 12. A linker that does not know the option says so and goes on.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    let is_small =
        is("PROFILE", "release") && is("CARGO_CFG_TARGET_ARCH", "x86_64") && is("CARGO_CFG_TARGET_OS", "linux");
    // Another linker than LLD ends at an option that it does not know. Rust's own toolchain brings LLD, those of
    // distributions do not: with them the program works as well, and is larger.
    let Some(lld) = lld().filter(|_| is_small) else { return };
    println!("cargo::rustc-link-arg-bins=-fuse-ld=lld");
    println!("cargo::rustc-link-arg-bins=-B{}", lld.display());
    // Functions of the same code are one: nothing here compares their addresses.
    println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    // libaegis begins by choosing code for each of its six ciphers, of which one is used here: it chooses for that one
    // six times, and the others are left out. Where another is used, linking fails: its names are there twice.
    for unused in ["128l", "128x4", "256", "256x2", "256x4"] {
        let choice = format!("aegis{unused}_pick_best_implementation=aegis128x2_pick_best_implementation");
        println!("cargo::rustc-link-arg-bins=-Wl,--defsym={choice}");
    }
}

/// Returns the directory of the LLD of Rust's toolchain, as `cc` takes it, if the toolchain has one.
fn lld() -> Option<PathBuf> {
    let told = Command::new(env::var_os("RUSTC")?).args(["--print", "sysroot"]).output().ok()?;
    let sysroot = Path::new(str::from_utf8(&told.stdout).ok()?.trim());
    let dir = sysroot.join("lib/rustlib").join(env::var_os("HOST")?).join("bin/gcc-ld");
    dir.join("ld.lld").is_file().then_some(dir)
}
