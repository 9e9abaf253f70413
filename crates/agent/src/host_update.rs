//! Brings this host up to date, as a controller asks for, with the commands that its administrator gave the agent.
//!
//! ```text
//! state/update/order.json   the last order: written before anything is done, so that nothing is done twice
//! state/update/outcome      what became of its commands, written by the shell that runs them
//! state/update/log          what they wrote: its first 64 KiB and its last
//! state/update/out          the pipe by which they write, while they run
//! ```
//!
//! The commands go on when the agent ends: they may replace it, and do boot the host. Whoever looks afterwards reads
//! the files. What was under way when the host was booted, and was not to boot it, counts as failed.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use skein_api::{HostUpdateView, UpdateHow, UpdateRunState};
use tracing::warn;

use crate::host_files;

/// How many bytes of the end of a log are read: an older release kept all that commands wrote.
const LOG_READ_BYTES: u64 = 64 << 10;
/// How many bytes of the end of a log are told.
const LOG_TOLD_BYTES: usize = 300;
/// How long a host that was told to boot may take to go down: a service that does not stop holds that up for minutes.
const DOWN_TIME: Duration = Duration::from_secs(300);
/// Where systemd keeps that the host goes down at a time.
const SCHEDULED: &str = "/run/systemd/shutdown/scheduled";

/// Runs `$2`, and then `$3`; either may be empty. `$1` is the directory. What they write is always read, so that they
/// never wait, and little of that is kept. What they leave running may hold the pipe open and write on: it is waited
/// for only a while.
const SCRIPT: &str = r#"
tell() { echo "$1" >"$dir/outcome.new" && sync "$dir/outcome.new" && mv "$dir/outcome.new" "$dir/outcome"; }
run() {
    rm -f "$dir/out"
    if ! mkfifo "$dir/out"; then sh -c "$1"; return; fi
    { head -c 65536; tail -c 65536; rm -f "$dir/out"; } <"$dir/out" >"$dir/log" &
    sh -c "$1" >"$dir/out" 2>&1
    code=$?
    tries=0
    while [ -p "$dir/out" ] && [ $tries -lt 25 ]; do sleep 0.2; tries=$((tries + 1)); done
    return $code
}
dir=$1
if [ -n "$2" ]; then
    run "$2"
    code=$?
    if [ $code -ne 0 ]; then tell "failed $code"; exit; fi
fi
if [ -z "$3" ]; then tell done; exit; fi
tell booting || exit
run "$3"
code=$?
if [ $code -ne 0 ]; then tell "not-booted $code"; else tell booting; fi
"#;

/// The commands that bring a host up to date, for a shell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateCommands {
    /// Updates the host. Empty: there is none.
    pub update: String,
    /// Boots the host anew. Empty: there is none.
    pub reboot: String,
}

/// What is kept of the last order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Order {
    id: String,
    how: UpdateHow,
    /// The kernel's id of the boot in which it came.
    boot_id: Option<String>,
    /// The process that runs the commands, once it runs.
    pid: Option<u32>,
    /// Whether a person has said since that the host is not booted any more by this order. The order stays known, so
    /// that nothing is done twice.
    #[serde(default)]
    is_dropped: bool,
}

impl Order {
    fn boots(&self) -> bool {
        matches!(self.how, UpdateHow::UpdateReboot | UpdateHow::Reboot)
    }
}

/// How far an order is that boots the host and has not.
enum BootAhead {
    /// Its commands run, as this process.
    Commands(u32),
    /// The host was told to boot.
    Told,
    /// It is not known whether its commands run.
    Unknown,
}

/// The updates of this host.
pub(crate) struct HostUpdates {
    dir: PathBuf,
    commands: UpdateCommands,
    /// Held while an order is taken: of two only one is begun.
    taking: Mutex<()>,
}

impl HostUpdates {
    pub(crate) fn new(state: &Path, commands: UpdateCommands) -> HostUpdates {
        HostUpdates { dir: state.join("update"), commands, taking: Mutex::default() }
    }

    /// Returns how far an update is.
    pub(crate) fn look(&self, id: &str) -> HostUpdateView {
        self.look_in(id, host_files::boot_id())
    }

    /// Takes an order, unless it is known. `close` has the host take no guests, or says why that cannot be.
    ///
    /// # Errors
    /// What is in the way, and what to do. Nothing was begun.
    pub(crate) fn order(
        &self,
        id: &str,
        how: UpdateHow,
        close: impl FnOnce() -> Result<(), String>,
    ) -> Result<HostUpdateView, (String, String)> {
        let _one = self.taking.lock();
        if self.known().is_some_and(|known| known.id == id) {
            return Ok(self.look(id));
        }
        let (update, reboot) = self.commands_for(how)?;
        if let Some(pid) = self.runs_still() {
            // Two updates at once may break the host, and the outcome would be of either.
            let why = format!("the commands of an earlier update run still, as process {pid}");
            return Err((why, format!("wait until they end, or end them: kill -- -{pid}")));
        }
        close().map_err(|why| (why, "nothing was begun: empty the host first".into()))?;
        let failed = |error: io::Error| (format!("the order cannot be kept: {error}"), "see the agent's disk".into());
        let mut order = Order { id: id.to_owned(), how, boot_id: host_files::boot_id(), pid: None, is_dropped: false };
        let _ = fs::remove_file(self.dir.join("outcome"));
        self.keep(&order).map_err(failed)?;
        if how != UpdateHow::Manual {
            warn!("this host is updated, as a controller asks for: {id}, {how:?}");
            let pid = self.run(update, reboot).map_err(|error| (format!("sh: {error}"), String::new()))?;
            order.pid = Some(pid);
            self.keep(&order).map_err(failed)?;
        }
        Ok(self.look(id))
    }

    /// Returns why the host may be booted at any moment: an update is under way that boots it. `None`: none is.
    pub(crate) fn boots(&self) -> Option<String> {
        let (order, stage) = self.boot_ahead()?;
        let id = order.id;
        Some(match stage {
            BootAhead::Commands(_) => format!("the update {id} runs, and boots it"),
            BootAhead::Told => format!("the update {id} has told it to boot, and it was not booted since"),
            BootAhead::Unknown => format!("whether the commands of the update {id} run is not known"),
        })
    }

    /// Has the last order boot the host no more, as a person says.
    ///
    /// # Errors
    /// The host may go down all the same: why, and what to do.
    pub(crate) fn forget_boot(&self) -> Result<(), (String, String)> {
        let _one = self.taking.lock();
        let Some((order, stage)) = self.boot_ahead() else { return Ok(()) };
        let id = &order.id;
        match stage {
            BootAhead::Commands(pid) => {
                let why = format!("the commands of the update {id} run still, as process {pid}, and boot the host");
                return Err((why, format!("wait until they end, or end them on the host: kill -- -{pid}")));
            }
            BootAhead::Unknown => {
                let why = format!("whether the commands of the update {id} run is not known");
                return Err((why, "boot the host".into()));
            }
            BootAhead::Told => {}
        }
        if Path::new(SCHEDULED).exists() {
            return Err(("the host goes down at a time that is set".into(), "call that off there: shutdown -c".into()));
        }
        let told = fs::metadata(self.dir.join("outcome")).and_then(|outcome| outcome.modified());
        let since = told.ok().and_then(|told| told.elapsed().ok()).unwrap_or_default();
        if let Some(left) = DOWN_TIME.checked_sub(since).filter(|left| !left.is_zero()) {
            let why =
                format!("the update {id} told the host to boot {} s ago, and it may be going down", since.as_secs());
            return Err((why, format!("ask again in {} s, or boot it", left.as_secs() + 1)));
        }
        warn!("the update {id} boots this host no more, as a person says");
        let failed = |error: io::Error| (format!("that cannot be kept: {error}"), "see the agent's disk".into());
        self.keep(&Order { is_dropped: true, ..order }).map_err(failed)
    }

    /// Returns the last order, if it boots the host and has not, and how far it is.
    fn boot_ahead(&self) -> Option<(Order, BootAhead)> {
        let order = self.known().filter(Order::boots)?;
        if self.look(&order.id).state != UpdateRunState::Running {
            return None;
        }
        let stage = match order.pid {
            Some(pid) if is_alive(pid) => BootAhead::Commands(pid),
            _ if self.outcome().starts_with("booting") => BootAhead::Told,
            _ => BootAhead::Unknown,
        };
        Some((order, stage))
    }

    fn outcome(&self) -> String {
        fs::read_to_string(self.dir.join("outcome")).unwrap_or_default()
    }

    /// Returns the process of the last order's commands, if they run.
    fn runs_still(&self) -> Option<u32> {
        let known = self.known().filter(|known| self.look(&known.id).state == UpdateRunState::Running)?;
        known.pid.filter(|pid| is_alive(*pid))
    }

    /// Returns the commands of an order: to update, and to boot.
    fn commands_for(&self, how: UpdateHow) -> Result<(&str, &str), (String, String)> {
        let (update, reboot) = (self.commands.update.as_str(), self.commands.reboot.as_str());
        let (update, reboot) = match how {
            UpdateHow::Manual => return Ok(("", "")),
            UpdateHow::UpdateReboot => (Some(update), Some(reboot)),
            UpdateHow::Update => (Some(update), None),
            UpdateHow::Reboot => (None, Some(reboot)),
        };
        let lacks =
            |what: &str, cure: &str| Err((format!("this host's agent has no command that {what}"), cure.into()));
        if update == Some("") {
            return lacks("updates the host", "start it with --update COMMAND; or ask for --only-reboot, or --manual");
        }
        if reboot == Some("") {
            return lacks("boots the host", "start it with --reboot 'systemctl reboot'; or ask for --manual");
        }
        Ok((update.unwrap_or_default(), reboot.unwrap_or_default()))
    }

    fn known(&self) -> Option<Order> {
        serde_json::from_slice(&fs::read(self.dir.join("order.json")).ok()?).ok()
    }

    fn keep(&self, order: &Order) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let (new, path) = (self.dir.join("order.new"), self.dir.join("order.json"));
        let mut file = fs::File::create(&new)?;
        file.write_all(&serde_json::to_vec(order)?)?;
        file.sync_all()?;
        fs::rename(new, path)?;
        fs::File::open(&self.dir)?.sync_all()
    }

    /// Runs the commands in a session of their own, and returns the process.
    fn run(&self, update: &str, reboot: &str) -> io::Result<u32> {
        fs::File::create(self.dir.join("log"))?;
        let mut command = Command::new("sh");
        command.arg("-c").arg(SCRIPT).arg("skein-update").arg(&self.dir).arg(update).arg(reboot);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn()?;
        let pid = child.id();
        // Somebody has to wait for it; if there is no thread, that is at the agent's end.
        let _ = std::thread::Builder::new().name("update".into()).spawn(move || child.wait());
        Ok(pid)
    }

    fn look_in(&self, id: &str, boot_id: Option<String>) -> HostUpdateView {
        let view = |state, message: &str| HostUpdateView { state, message: message.to_owned() };
        let Some(order) = self.known().filter(|known| known.id == id) else {
            return view(UpdateRunState::Unknown, "");
        };
        let is_booted = boot_id.is_some() && order.boot_id.is_some() && order.boot_id != boot_id;
        // It writes the outcome before it ends, so it is asked first whether it runs.
        let is_running = !is_booted && order.pid.is_some_and(is_alive);
        if order.is_dropped {
            return view(UpdateRunState::Failed, "it was not booted, and a person has it take guests again");
        }
        let outcome = self.outcome();
        let (word, code) = outcome.trim().split_once(' ').unwrap_or((outcome.trim(), ""));
        match (word, order.how) {
            (_, UpdateHow::Manual) if is_booted => view(UpdateRunState::Done, "it was booted"),
            (_, UpdateHow::Manual) => view(UpdateRunState::Running, "a person updates it"),
            ("booting" | "not-booted", _) if is_booted => view(UpdateRunState::Done, "it was booted"),
            ("booting", _) => view(UpdateRunState::Running, "it is being booted"),
            ("done", _) => view(UpdateRunState::Done, "its command has succeeded"),
            ("failed", _) => view(UpdateRunState::Failed, &self.with_log(&format!("its update failed (exit {code})"))),
            ("not-booted", _) => {
                view(UpdateRunState::Failed, &self.with_log(&format!("its reboot failed (exit {code})")))
            }
            (_, UpdateHow::Reboot) if is_running => view(UpdateRunState::Running, "its reboot is begun"),
            _ if is_running => view(UpdateRunState::Running, "its update runs"),
            // The agent ended just when it began them: they may run.
            _ if order.pid.is_none() && !is_booted => {
                view(UpdateRunState::Running, "whether its commands run is not known: boot it")
            }
            _ if is_booted => view(UpdateRunState::Failed, "it was booted before its update was done"),
            _ => view(UpdateRunState::Failed, "its update ended, and did not say how"),
        }
    }

    /// Adds the end of what the commands wrote.
    fn with_log(&self, what: &str) -> String {
        let log = end_of(&self.dir.join("log")).unwrap_or_default();
        let end = String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_TOLD_BYTES)..]).into_owned();
        let plain = end.split_whitespace().collect::<Vec<_>>().join(" ");
        let plain: String = plain.chars().filter(|char| !char.is_control()).collect();
        if plain.is_empty() { what.to_owned() } else { format!("{what}: {plain}") }
    }
}

/// Reads the end of a file.
fn end_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = fs::File::open(path)?;
    file.seek(SeekFrom::Start(file.metadata()?.len().saturating_sub(LOG_READ_BYTES)))?;
    let mut end = Vec::new();
    file.take(LOG_READ_BYTES).read_to_end(&mut end)?;
    Ok(end)
}

/// Returns whether a process is there, and has not ended.
fn is_alive(pid: u32) -> bool {
    let stat = host_files::text(format!("/proc/{pid}/stat"));
    // The state is behind the name, which is in brackets and may have any characters.
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn updates(dir: &Path, update: &str, reboot: &str) -> HostUpdates {
        HostUpdates::new(dir, UpdateCommands { update: update.into(), reboot: reboot.into() })
    }

    fn over(updates: &HostUpdates, id: &str) -> HostUpdateView {
        // A busy machine needs long for the script's 25 looks. What a test leaves running lasts longer still.
        let end = Instant::now() + Duration::from_secs(240);
        loop {
            let view = updates.look(id);
            if view.state != UpdateRunState::Running || Instant::now() > end {
                return view;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn an_order_of_an_update_is_carried_out_once() {
        let dir = tempfile::tempdir().unwrap();
        let counted = dir.path().join("count");
        let updates = updates(dir.path(), &format!("echo one >>{}", counted.display()), "");
        assert_eq!(updates.look("1.a").state, UpdateRunState::Unknown);
        updates.order("1.a", UpdateHow::Update, || Ok(())).unwrap();
        assert_eq!(over(&updates, "1.a").state, UpdateRunState::Done);
        // Also by an agent that was started again, which need not close the host for it.
        let again = super::tests::updates(dir.path(), "false", "");
        let view = again.order("1.a", UpdateHow::Update, || Err("it has a guest".into())).unwrap();
        assert_eq!(view.state, UpdateRunState::Done);
        assert_eq!(fs::read_to_string(counted).unwrap(), "one\n");
        assert_eq!(again.look("2.a").state, UpdateRunState::Unknown);
    }

    #[test]
    fn a_host_with_a_guest_or_without_commands_is_not_updated() {
        let dir = tempfile::tempdir().unwrap();
        let marked = dir.path().join("mark");
        let ours = updates(dir.path(), &format!("touch {}", marked.display()), "");
        let (why, _) = ours.order("1.a", UpdateHow::Update, || Err("v1 runs on a".into())).unwrap_err();
        assert!(why.contains("v1 runs"), "{why}");
        let (why, cure) = ours.order("1.a", UpdateHow::UpdateReboot, || Ok(())).unwrap_err();
        assert!(why.contains("boots the host") && cure.contains("--reboot"), "{why}: {cure}");
        let none = updates(dir.path(), "", "true");
        assert!(none.order("1.a", UpdateHow::Update, || Ok(())).unwrap_err().1.contains("--update"));
        assert_eq!(ours.look("1.a").state, UpdateRunState::Unknown);
        assert!(!marked.exists());
    }

    #[test]
    fn what_became_of_an_update_is_told_also_after_a_boot() {
        let dir = tempfile::tempdir().unwrap();
        let other = Some("another boot".to_owned());
        let failing = updates(dir.path(), "echo no space >&2; exit 7", "true");
        failing.order("1.a", UpdateHow::UpdateReboot, || Ok(())).unwrap();
        let view = over(&failing, "1.a");
        assert_eq!(view.state, UpdateRunState::Failed);
        assert!(view.message.contains("exit 7") && view.message.contains("no space"), "{view:?}");
        // A reboot that was ordered is done once there is another boot.
        let boots = updates(dir.path(), "true", "true");
        boots.order("2.a", UpdateHow::UpdateReboot, || Ok(())).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while boots.look("2.a").message != "it is being booted" && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(boots.look("2.a").state, UpdateRunState::Running);
        assert_eq!(boots.look_in("2.a", other.clone()).state, UpdateRunState::Done);
        while boots.runs_still().is_some() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        // A command that was cut off by a boot has failed; a person's update is over with the boot.
        let slow = updates(dir.path(), "sleep 60", "");
        slow.order("3.a", UpdateHow::Update, || Ok(())).unwrap();
        assert_eq!(slow.look("3.a").state, UpdateRunState::Running);
        assert_eq!(slow.look_in("3.a", other.clone()).state, UpdateRunState::Failed);
        // An agent that ended when it began the commands does not know whether they run.
        let (id, how, boot_id) = ("5.a".into(), UpdateHow::Reboot, host_files::boot_id());
        let order = Order { id, how, boot_id, pid: None, is_dropped: false };
        fs::remove_file(dir.path().join("update/outcome")).unwrap_or_default();
        slow.keep(&order).unwrap();
        assert!(slow.boots().unwrap().contains("is not known"));
        assert_eq!(slow.forget_boot().unwrap_err().1, "boot the host");
        assert_eq!(slow.look_in("5.a", other.clone()).state, UpdateRunState::Failed);
        slow.order("4.a", UpdateHow::Manual, || Ok(())).unwrap();
        assert_eq!(slow.look("4.a").state, UpdateRunState::Running);
        assert_eq!(slow.look_in("4.a", other).state, UpdateRunState::Done);
    }

    #[test]
    fn a_person_may_say_that_a_host_is_booted_no_more_once_it_surely_does_not_go_down() {
        let dir = tempfile::tempdir().unwrap();
        let ours = updates(dir.path(), "", "sleep 300");
        ours.order("1.a", UpdateHow::Reboot, || Ok(())).unwrap();
        assert!(ours.boots().unwrap().contains("the update 1.a runs"), "{:?}", ours.boots());
        let (why, cure) = ours.forget_boot().unwrap_err();
        assert!(why.contains("run still") && cure.contains("kill -- -"), "{why}: {cure}");
        let end = Instant::now() + Duration::from_secs(60);
        while ours.outcome().trim() != "booting" && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        end_group(&ours);
        assert!(over_boot(&ours).unwrap().contains("the update 1.a has told it to boot"), "{:?}", ours.boots());

        let ours = updates(dir.path(), "", "true");
        ours.order("2.a", UpdateHow::Reboot, || Ok(())).unwrap();
        let why = over_boot(&ours).unwrap();
        assert!(why.contains("the update 2.a has told it to boot"), "{why}");
        // It may be stopping its services.
        let (why, cure) = ours.forget_boot().unwrap_err();
        assert!(why.contains("may be going down") && cure.contains("ask again in"), "{why}: {cure}");
        assert!(ours.boots().is_some());
        let outcome = fs::File::options().write(true).open(dir.path().join("update/outcome")).unwrap();
        outcome.set_modified(std::time::SystemTime::now() - DOWN_TIME).unwrap();
        ours.forget_boot().unwrap();
        assert_eq!(ours.boots(), None);
        // Also an agent that was started again knows, and does nothing twice.
        let again = updates(dir.path(), "", "true");
        assert_eq!(again.boots(), None);
        let view = again.order("2.a", UpdateHow::Reboot, || Err("it has a guest".into())).unwrap();
        assert!(view.state == UpdateRunState::Failed && view.message.contains("a person"), "{view:?}");
        again.forget_boot().unwrap();
    }

    /// Waits until the last order's commands have ended, and returns why the host may be booted then.
    fn over_boot(updates: &HostUpdates) -> Option<String> {
        let end = Instant::now() + Duration::from_secs(60);
        while updates.runs_still().is_some() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        updates.boots()
    }

    #[test]
    fn what_an_update_writes_is_bounded_and_its_end_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let loud = updates(dir.path(), "echo begun; head -c 20000000 /dev/zero; echo no space; exit 7", "");
        loud.order("1.a", UpdateHow::Update, || Ok(())).unwrap();
        let view = over(&loud, "1.a");
        assert!(view.state == UpdateRunState::Failed && view.message.contains("no space"), "{view:?}");
        let log = fs::read(dir.path().join("update/log")).unwrap();
        assert!(log.len() <= 128 << 10 && log.starts_with(b"begun"), "{} bytes", log.len());
        // A log of an older release has no bound: only its end is read.
        let path = dir.path().join("large");
        let mut file = fs::File::create(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(b"the end").unwrap();
        let end = end_of(&path).unwrap();
        assert!(end.len() as u64 == LOG_READ_BYTES && end.ends_with(b"the end"), "{}", end.len());
    }

    #[test]
    fn what_an_update_leaves_running_does_not_keep_it_from_being_done() {
        let dir = tempfile::tempdir().unwrap();
        let leaves = updates(dir.path(), "sleep 300 & echo left", "");
        leaves.order("1.a", UpdateHow::Update, || Ok(())).unwrap();
        let view = over(&leaves, "1.a");
        end_group(&leaves);
        assert_eq!(view.state, UpdateRunState::Done, "{view:?}");
    }

    #[test]
    fn no_update_is_begun_while_another_runs() {
        let dir = tempfile::tempdir().unwrap();
        let slow = updates(dir.path(), "sleep 300", "");
        slow.order("1.a", UpdateHow::Update, || Ok(())).unwrap();
        let (why, cure) = slow.order("2.a", UpdateHow::Update, || Ok(())).unwrap_err();
        assert!(why.contains("run still") && cure.contains("kill -- -"), "{why}: {cure}");
        assert_eq!(slow.look("1.a").state, UpdateRunState::Running);
        end_group(&slow);
        assert_eq!(over(&slow, "1.a").state, UpdateRunState::Failed);
        assert!(slow.order("2.a", UpdateHow::Update, || Ok(())).is_ok());
        end_group(&slow);
    }

    /// Ends the commands of the last order, as the refusal of another says.
    fn end_group(updates: &HostUpdates) {
        let pid = updates.known().unwrap().pid.unwrap();
        let kill = format!("kill -- -{pid}");
        // Those of an order that is over may have ended.
        let _ = Command::new("sh").arg("-c").arg(kill).stderr(Stdio::null()).status();
    }
}
