//! Hosts with a systemd of their own, as pid 1.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use skein_client::Client;
use skein_lab_cluster::until;
use skein_lab_hosts::Lab;

/// The time for a systemd to boot. It takes half a second on an idle machine.
const BOOT_TIME: Duration = Duration::from_secs(60);
/// The time for a systemd to end, which is shorter.
const END_TIME: Duration = Duration::from_secs(20);
/// The seconds after which a command is ended. No command that ends by itself takes as long.
const COMMAND_TIME: &str = "60";

/// A host of a lab in which systemd is pid 1, by systemd-nspawn(1). It has its own `/etc`, `/var` and `/run`, and this
/// machine's `/usr`, on which it keeps its own changes. Dropping it ends all that runs in it.
pub struct Host {
    pub name: String,
    nspawn: Child,
    /// The number of its pid 1, as seen from outside.
    init: u32,
    cgroups: Vec<PathBuf>,
    /// The directory, which is removed after all else has ended.
    _dir: tempfile::TempDir,
}

/// Returns why there can be no such host here.
pub fn why_not() -> Option<String> {
    for program in ["systemd-nspawn", "nsenter"] {
        let found = Command::new(program).arg("--version").stdout(Stdio::null()).status();
        if let Err(error) = found {
            return Some(format!("{program}: {error}"));
        }
    }
    let systemd = ["/usr/lib/systemd/systemd", "/lib/systemd/systemd"].iter().any(|path| Path::new(path).exists());
    if !systemd {
        return Some("this machine has no systemd".into());
    }
    let filesystems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    (!filesystems.contains("overlay")).then(|| "the kernel has no overlayfs".into())
}

impl Host {
    /// Boots the host. `binds` are this machine's paths that it has at the same place. `etc` writes its files in
    /// `/etc`.
    pub fn boot(lab: &Lab, name: &str, binds: &[PathBuf], etc: impl FnOnce(&Path)) -> Host {
        let dir = tempfile::Builder::new().prefix("sks").tempdir().expect("a directory can be made");
        let (root, usr) = (dir.path().join("root"), dir.path().join("usr"));
        // Some of its users are not root.
        for dir in [&root, &usr] {
            fs::DirBuilder::new().mode(0o755).create(dir).expect("a directory can be made");
        }
        for made in ["usr", "etc", "etc/default", "var", "run", "tmp", "root", "dev", "proc", "sys"] {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(root.join(made)).expect("a directory can be made");
        }
        for link in ["bin", "sbin", "lib", "lib64"] {
            symlink(Path::new("usr").join(link), root.join(link)).expect("a link can be made");
        }
        for file in ["os-release", "passwd", "group", "nsswitch.conf", "ld.so.cache"] {
            let copied = fs::copy(Path::new("/etc").join(file), root.join("etc").join(file));
            copied.unwrap_or_else(|error| panic!("/etc/{file}: {error}"));
        }
        // With a machine-id it is no first boot, which would enable all units of /usr.
        let id: String = fs::read_to_string("/proc/sys/kernel/random/uuid").expect("it is there").replace('-', "");
        fs::write(root.join("etc/machine-id"), id).expect("a file can be written");
        etc(&root.join("etc"));

        let unique = format!("skein-lab-{}-{name}", std::process::id());
        // The shell moves itself into control groups, and then becomes the program.
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "for procs in $CGROUPS; do echo 0 >$procs/cgroup.procs; done; exec systemd-nspawn \"$@\"",
            "sh",
        ]);
        command.arg(format!("--machine={unique}")).arg("--directory").arg(&root);
        command.arg("--network-namespace-path").arg(lab.netns(name).expect("the host is there"));
        // The same capabilities as on a real host; the agent's are limited by its unit.
        command.args(["--capability=all", "--quiet", "--console=pipe"]);
        command.arg(format!("--overlay=/usr:{}:/usr", usr.display()));
        for path in binds {
            command.arg(format!("--bind={}", path.display()));
        }
        if Path::new("/dev/net/tun").exists() {
            command.arg("--bind=/dev/net/tun");
        }
        let mut cgroups = Vec::new();
        if !Path::new("/run/systemd/system").exists() {
            // This machine has no systemd that would give it control groups, so the host takes them itself, below some
            // of its own.
            command.args(["--keep-unit", "--register=no"]);
            cgroups = [Path::new("/sys/fs/cgroup/systemd"), Path::new("/sys/fs/cgroup/unified")]
                .iter()
                .filter(|hierarchy| hierarchy.join("cgroup.procs").exists())
                .map(|hierarchy| hierarchy.join(&unique))
                .collect();
            let mut words = String::new();
            for cgroup in &cgroups {
                words += &format!("{} ", cgroup.display());
                fs::create_dir(cgroup).unwrap_or_else(|error| panic!("{}: {error}", cgroup.display()));
            }
            command.env("CGROUPS", words);
            // The unified hierarchy, which systemd expects, even if this machine has the old ones as well.
            command.env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1");
        }
        command.args(["--boot", "--", "systemd.unit=basic.target", "systemd.log_target=journal"]);
        let log = fs::File::create(dir.path().join("boot.log")).expect("a file can be written");
        let errors = log.try_clone().expect("a descriptor can be had twice");
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let nspawn = command.spawn().unwrap_or_else(|error| panic!("systemd-nspawn: {error}"));
        let mut host = Host { name: name.to_owned(), nspawn, init: 0, cgroups, _dir: dir };
        host.wait_booted();
        host
    }

    fn wait_booted(&mut self) {
        let end = Instant::now() + BOOT_TIME;
        let nspawn = self.nspawn.id();
        let children = format!("/proc/{nspawn}/task/{nspawn}/children");
        let is_init = |pid: &u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
            let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            pids.split_ascii_whitespace().next_back() == Some("1") && comm.trim() == "systemd"
        };
        loop {
            let words = fs::read_to_string(&children).unwrap_or_default();
            let init = words.split_ascii_whitespace().filter_map(|word| word.parse().ok()).find(is_init);
            if let Some(init) = init {
                self.init = init;
                let state = self.command("systemctl", &["is-system-running"]).output().expect("nsenter runs");
                let state = String::from_utf8_lossy(&state.stdout).trim().to_owned();
                if ["running", "degraded"].contains(&state.as_str()) {
                    return;
                }
            }
            let ended = self.nspawn.try_wait().expect("an own child can be waited for");
            if ended.is_some() || Instant::now() > end {
                let log = fs::read_to_string(self._dir.path().join("boot.log")).unwrap_or_default();
                panic!("{} does not boot: {ended:?}\n{log}", self.name);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the command of a program in the host.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--all", "--target", &self.init.to_string(), "timeout", COMMAND_TIME, program]).args(args);
        // The environment is that of a host that was just booted, not of whoever runs this.
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
        command
    }

    /// Runs a program in the host, which has to succeed. Returns its output.
    #[track_caller]
    pub fn run(&self, program: &str, args: &[&str]) -> String {
        let done = self.command(program, args).output().expect("nsenter runs");
        let said = String::from_utf8_lossy(&done.stdout).trim().to_owned();
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{}: {program} {args:?}: {}\n{said}\n{errors}", self.name, done.status);
        said
    }

    /// Returns a property of the agent's unit.
    #[track_caller]
    pub fn property(&self, name: &str) -> String {
        self.run("systemctl", &["show", "--value", "--property", name, "skein-agent"])
    }

    /// Returns the path outside of a path in the host.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.init))
    }

    /// Returns a client of its agent.
    pub fn client(&self) -> Client {
        Client::new(&self.path("/run/skein/agent.sock"))
    }

    /// Runs `make install` of a program into the host.
    #[track_caller]
    pub fn make(&self, goal: &str, binary: &Path) {
        let mut make = Command::new("make");
        make.args(["-s", "-C", concat!(env!("CARGO_MANIFEST_DIR"), "/../.."), goal]);
        make.arg(format!("BINARY={}", binary.display())).arg(format!("DESTDIR={}", self.path("").display()));
        let made = make.stdout(Stdio::null()).status().expect("make runs");
        assert!(made.success(), "make {goal}: {made}");
    }

    /// Returns the log of its agent, and what systemd logged about it.
    pub fn journal(&self) -> String {
        let args = ["--no-pager", "--quiet", "--output=short-precise", "--unit=skein-agent", "--lines=200"];
        let said = self.command("journalctl", &args).output().map(|done| done.stdout).unwrap_or_default();
        String::from_utf8_lossy(&said).into_owned()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() && self.init != 0 {
            eprintln!("---- journal of {}\n{}", self.name, self.journal());
        }
        // When its pid 1 ends, all in its pid namespace ends, and systemd-nspawn tidies up.
        if self.init != 0 {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.init as i32), nix::sys::signal::SIGKILL);
        } else {
            let _ = self.nspawn.kill();
        }
        if !until(END_TIME, || self.nspawn.try_wait().is_ok_and(|ended| ended.is_some())) {
            let _ = self.nspawn.kill();
            let _ = self.nspawn.wait();
        }
        for cgroup in &self.cgroups {
            if !until(END_TIME, || remove(cgroup).is_ok()) {
                eprintln!("{} is left", cgroup.display());
            }
        }
    }
}

/// Removes a control group and all below it.
fn remove(cgroup: &Path) -> io::Result<()> {
    for entry in fs::read_dir(cgroup)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(cgroup)
}
