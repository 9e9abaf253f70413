//! The controller's process: made as people make it, started, killed; and what it uses.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use skein_client::{ControllerClient, Credentials};
use skein_identity::ClusterCa;

use crate::error::FleetError;

/// How long a controller may take to answer once it is started.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// A controller, which may run.
pub(crate) struct ControllerProcess {
    program: PathBuf,
    dir: PathBuf,
    pub(crate) address: SocketAddr,
    child: Option<Child>,
    /// The most memory of lives that are over.
    ram_max_bytes: u64,
}

impl ControllerProcess {
    /// Makes a cluster with its CA, and a controller with its store in SQLite, in a directory.
    pub(crate) fn init(program: &Path, dir: &Path) -> Result<ControllerProcess, FleetError> {
        let failed = || FleetError::io("no port is free");
        let address = TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).map_err(failed())?;
        let path = |name: &str| dir.join(name).display().to_string();
        let mut init = Command::new(program);
        init.args(["init", "--name", "fleet", "--controller", "ctl", "--address", "127.0.0.1"]);
        init.args(["--listen", &address.to_string(), "--store", &format!("sqlite:{}", path("store/c.db"))]);
        init.args(["--ca", &path("ca"), "--identity", &path("identity"), "--config", &path("controller.toml")]);
        let said = init.output().map_err(FleetError::io(format!("cannot run {}", program.display())))?;
        if !said.status.success() {
            let said = String::from_utf8_lossy(&said.stderr).into_owned();
            return Err(FleetError::Controller { command: "init", said });
        }
        allow_files();
        Ok(ControllerProcess {
            program: program.to_owned(),
            dir: dir.to_owned(),
            address,
            child: None,
            ram_max_bytes: 0,
        })
    }

    /// Returns the directory of the cluster's CA.
    pub(crate) fn ca(&self) -> PathBuf {
        self.dir.join("ca")
    }

    /// Starts the controller. The call does not wait.
    pub(crate) fn start(&mut self) -> Result<(), FleetError> {
        let log = File::options().create(true).append(true).open(self.dir.join("log"));
        let log = log.map_err(FleetError::io("cannot write the controller's log"))?;
        let also = log.try_clone().map_err(FleetError::io("cannot write the controller's log"))?;
        let mut run = Command::new(&self.program);
        run.args(["run", "--config"]).arg(self.dir.join("controller.toml"));
        run.stdin(Stdio::null()).stdout(also).stderr(log);
        self.child = Some(run.spawn().map_err(FleetError::io("cannot run the controller"))?);
        Ok(())
    }

    /// Kills the controller (SIGKILL).
    pub(crate) fn kill(&mut self) -> Result<(), FleetError> {
        self.ram_max_bytes = self.ram_max_bytes();
        let Some(mut child) = self.child.take() else { return Ok(()) };
        child.kill().and_then(|()| child.wait()).map_err(FleetError::io("cannot kill the controller"))?;
        Ok(())
    }

    /// Makes a client with the admin's token.
    pub(crate) fn client(&self) -> Result<ControllerClient, FleetError> {
        let secret = fs::read_to_string(self.token_file()).map_err(FleetError::io("cannot read the admin's token"))?;
        let credentials =
            Credentials::Token { ca: ClusterCa::load(&self.ca())?.fingerprint(), secret: secret.trim().to_owned() };
        Ok(ControllerClient::new(vec![format!("https://{}", self.address).parse()?], &credentials)?)
    }

    /// Waits until the controller leads.
    pub(crate) fn wait_ready(&self) -> Result<(), FleetError> {
        let (client, end) = (self.client()?, Instant::now() + READY_WITHIN);
        loop {
            match client.cluster() {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > end => return Err(error.into()),
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Returns the file of the admin's token.
    pub(crate) fn token_file(&self) -> PathBuf {
        self.dir.join("identity/admin.token")
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Returns the CPU time that this life of the controller has used, in seconds.
    pub(crate) fn cpu_s(&self) -> Result<f64, FleetError> {
        Ok(match self.pid() {
            Some(pid) => skein_host::process_time(pid)?.own_s(),
            None => 0.0,
        })
    }

    /// Returns the most memory that the controller ever had in RAM (`VmHWM`).
    pub(crate) fn ram_max_bytes(&self) -> u64 {
        let status = self.pid().and_then(|pid| fs::read_to_string(format!("/proc/{pid}/status")).ok());
        self.ram_max_bytes.max(high_water(&status.unwrap_or_default()))
    }

    /// Returns the end of the controller's log, for errors.
    pub(crate) fn log_end(&self) -> String {
        let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for ControllerProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.kill();
    }
}

/// Lets this process, and those that it starts, have as many files open as the system allows: a connection is one.
fn allow_files() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // With fewer, connections are refused, which is seen.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

/// Returns `VmHWM` of a process' status, in bytes.
fn high_water(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kb| kb.parse::<u64>().ok()).map_or(0, |kb| kb * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_water_mark_is_read() {
        assert_eq!(high_water("VmPeak:\t  9000 kB\nVmHWM:\t  5044 kB\n"), 5044 * 1024);
        assert_eq!(high_water(""), 0);
        assert!(high_water(&fs::read_to_string("/proc/self/status").unwrap()) > 1 << 20);
    }
}
