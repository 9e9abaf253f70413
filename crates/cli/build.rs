//! How the program is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Places that the loader adapts to where the program lies: in 4 KB instead of 350 KB. glibc 2.36 reads them, of
    // Debian 12. A linker that does not know the option says so and goes on.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
}
