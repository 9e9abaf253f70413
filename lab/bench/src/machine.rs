//! Describes the machine and the moment, which a bench cannot choose.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use skein_identity::{CipherPolicy, CipherSpeeds};

use crate::{process, results::Machine};

/// Returns the QEMU program that is used if `qemu` is asked for.
pub fn qemu_program(qemu: Option<&Path>) -> PathBuf {
    let mut config = skein_hypervisor::Config::new("", 1, "");
    config.binary = qemu.map(Into::into);
    config.program()
}

/// Describes the machine that everything runs on. `qemu` is the program, if it is not the usual one.
pub fn describe(qemu: Option<&Path>) -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let after = |text: &str, name: &str, separator: char| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(separator)?.1.trim().trim_matches('"').to_string())
    };
    let unknown = || "unknown".to_string();
    let memory_kb = after(&read("/proc/meminfo"), "MemTotal", ':');
    let memory_kb: Option<u64> = memory_kb.and_then(|text| text.split(' ').next()?.parse().ok());
    let mut command = Command::new(qemu_program(qemu));
    command.arg("--version");
    let version = process::run(command).ok().and_then(|text| text.lines().next().map(str::to_string));
    let flags = after(&read("/proc/cpuinfo"), "flags", ':').unwrap_or_default();
    let speeds = CipherSpeeds::of_this_cpu();
    Machine {
        cpu: after(&read("/proc/cpuinfo"), "model name", ':').unwrap_or_else(unknown),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_bytes: memory_kb.unwrap_or(0) * 1024,
        kernel: read("/proc/sys/kernel/osrelease").trim().to_string(),
        os: after(&read("/etc/os-release"), "PRETTY_NAME", '=').unwrap_or_else(unknown),
        qemu: version.unwrap_or_else(unknown),
        huge_pages: huge_pages(),
        cipher: format!("{}; Skein's auto: {}", cipher_kernel(&flags), CipherPolicy::Auto.allowed(speeds).first()),
        cipher_speeds: speeds.to_string(),
    }
}

/// Returns how AWS-LC computes AES-GCM on a CPU with these flags (of `/proc/cpuinfo`), chosen as in
/// `crypto/fipsmodule/modes/gcm.c`, `crypto_gcm_avx512_enabled` and `CRYPTO_ghash_init`.
pub fn cipher_kernel(flags: &str) -> &'static str {
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let has = |wanted: &[&str]| wanted.iter().all(|flag| flags.contains(flag));
    if has(&["vaes", "vpclmulqdq", "avx512f", "avx512dq", "avx512bw", "avx512vl"]) {
        "AES-GCM with AVX-512 VAES"
    } else if has(&["aes", "pclmulqdq", "avx", "movbe"]) {
        "AES-GCM with AES-NI and AVX"
    } else if has(&["aes", "pclmulqdq"]) {
        "AES-GCM with AES-NI"
    } else {
        "AES-GCM without AES-NI"
    }
}

/// Returns which transparent huge pages the kernel gives: `madvise; in shared memory never`.
fn huge_pages() -> String {
    let chosen = |file: &str| {
        let text = fs::read_to_string(Path::new("/sys/kernel/mm/transparent_hugepage").join(file)).ok()?;
        let word = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))?;
        Some(word.to_owned())
    };
    match (chosen("enabled"), chosen("shmem_enabled")) {
        (Some(private), Some(shared)) => format!("{private}; in shared memory {shared}"),
        _ => "none".into(),
    }
}

/// Returns the current time (RFC 3339, UTC).
pub fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns `git describe` of the tree that this program lies in, or `unknown` outside one.
pub fn commit() -> String {
    let described = || {
        let program = std::env::current_exe().ok()?;
        let mut command = Command::new("git");
        command.arg("-C").arg(program.parent()?).args(["describe", "--always", "--dirty", "--tags"]);
        // This lets root look at a tree that belongs to another user.
        command.args(["--abbrev=10"]).env("GIT_CONFIG_COUNT", "1");
        command.env("GIT_CONFIG_KEY_0", "safe.directory").env("GIT_CONFIG_VALUE_0", "*");
        Some(process::run(command).ok()?.trim().to_string())
    };
    described().filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".into())
}

/// Returns the name of this process's lab number `n`, which no other bench uses.
pub fn lab_name(n: u32) -> String {
    format!("bench-{}-{n}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cipher_kernel_follows_the_flags() {
        let wide = "aes pclmulqdq avx movbe vaes vpclmulqdq avx512f avx512dq avx512bw avx512vl";
        assert_eq!(cipher_kernel(wide), "AES-GCM with AVX-512 VAES");
        assert_eq!(cipher_kernel(&wide.replace("avx512vl", "")), "AES-GCM with AES-NI and AVX");
        assert_eq!(cipher_kernel("fpu aes pclmulqdq"), "AES-GCM with AES-NI");
        assert_eq!(cipher_kernel("fpu aesx"), "AES-GCM without AES-NI");
    }

    #[test]
    fn this_machine() {
        let machine = describe(None);
        assert!(machine.cores >= 1 && machine.memory_bytes > 1 << 28 && !machine.kernel.is_empty(), "{machine:?}");
        let ciphers = ["AES-128-GCM", "ChaCha20-Poly1305", "AEGIS-128X2"];
        assert!(ciphers.iter().all(|name| machine.cipher_speeds.contains(name)), "{machine:?}");
        assert!(ciphers.iter().any(|name| machine.cipher.ends_with(&format!("; Skein's auto: {name}"))), "{machine:?}");
        assert!(now().ends_with('Z') && now().len() == 20);
        assert!(!commit().is_empty());
    }
}
