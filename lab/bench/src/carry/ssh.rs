//! `ssh -L` between unix sockets, with a daemon of its own. Its keys are temporary, and no file of the user's is
//! touched.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use super::carried::{
    Carried, CarryError, CarryRoute, READY_DEADLINE, command_lines, find, forwards, lacks_program, unix_uris,
    wait_for_sockets, write,
};
use super::kit::Kit;
use crate::process::{self, Process};

const PORT: u16 = 2222;

/// A directory on which sshd insists, though it keeps nothing there.
const PRIVILEGE_SEPARATION: &str = "/run/sshd";

pub fn lacks() -> Option<String> {
    lacks_program("ssh").or_else(|| lacks_program("sshd")).or_else(|| lacks_program("ssh-keygen"))
}

pub fn start(route: &CarryRoute<'_>, kit: &Kit) -> Result<Carried, CarryError> {
    let (guests, control) = forwards(route);
    let keys = kit.ssh();
    prepare(&keys)?;
    let file = |name: &str| keys.join(name).display().to_string();
    let ip = route.site.ip(route.target, 0)?;

    // sshd re-executes itself, and must be called by its whole path.
    let sshd = find("sshd").unwrap_or_else(|| "/usr/sbin/sshd".into());
    let mut command = route.site.command(route.target, sshd)?;
    command.args(["-D", "-e", "-f", &file("sshd_config"), "-o", &format!("ListenAddress={ip}:{PORT}")]);
    let mut daemon = Process::start(command, &route.directory.join("sshd.log"))?;
    daemon.wait_until("listening", READY_DEADLINE, |p| p.output().contains("listening"))?;

    let mut command = route.site.command(route.source, "ssh")?;
    command.args(["-F", "none", "-N", "-i", &file("client"), "-p", &PORT.to_string()]);
    for option in [
        "BatchMode=yes",
        "ExitOnForwardFailure=yes",
        "StrictHostKeyChecking=no",
        "GlobalKnownHostsFile=/dev/null",
        "UserKnownHostsFile=/dev/null",
    ] {
        command.args(["-o", option]);
    }
    for forward in guests.iter().chain(&control) {
        command.arg("-L").arg(format!("{}:{}", forward.listen.display(), forward.connect.display()));
    }
    command.arg(format!("root@{ip}"));
    let mut client = Process::start(command, &route.directory.join("ssh.log"))?;
    wait_for_sockets(&mut client, guests.iter().chain(&control))?;

    let mut carried =
        Carried { uris: unix_uris(&guests), control, source: vec![client], target: vec![daemon], ..Carried::default() };
    carried.note("ssh", command_lines(&carried.source));
    carried.note("sshd", command_lines(&carried.target));
    carried.note("cipher", "the default of this OpenSSH");
    Ok(carried)
}

/// Makes keys and the daemon's configuration, once a bench.
fn prepare(keys: &Path) -> Result<(), CarryError> {
    if keys.join("sshd_config").exists() {
        return Ok(());
    }
    let wrong = |source| CarryError::File { path: keys.into(), source };
    fs::create_dir_all(keys).map_err(wrong)?;
    fs::create_dir_all(PRIVILEGE_SEPARATION)
        .map_err(|source| CarryError::File { path: PRIVILEGE_SEPARATION.into(), source })?;
    for name in ["host", "client"] {
        let mut command = Command::new("ssh-keygen");
        command.args(["-q", "-t", "ed25519", "-N", "", "-C", "skein bench", "-f"]).arg(keys.join(name));
        process::run(command)?;
    }
    fs::copy(keys.join("client.pub"), keys.join("authorized")).map_err(wrong)?;
    fs::set_permissions(keys.join("authorized"), fs::Permissions::from_mode(0o600)).map_err(wrong)?;
    // Without PAM sshd refuses a root whose password is locked ('!'). With PAM, modules that are not needed here may
    // delay the login.
    let locked =
        fs::read_to_string("/etc/shadow").is_ok_and(|text| text.lines().any(|line| line.starts_with("root:!")));
    let file = |name: &str| keys.join(name).display().to_string();
    write(
        &keys.join("sshd_config"),
        &format!(
            "HostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM {}\nPermitRootLogin prohibit-password\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nAllowStreamLocalForwarding yes\n\
             MaxSessions 64\nPidFile none\nLogLevel INFO\n",
            file("host"),
            file("authorized"),
            if locked { "yes" } else { "no" },
        ),
    )
}
