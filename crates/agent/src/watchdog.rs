//! Feeds the host's watchdog, which resets the host once its agent has had no leader for a while (docs/failover.md).
//!
//! `skein_watchdog::Feeder` decides when; here is the device, the thread that feeds it, and whom that asks. Opening a
//! device starts it, and there is no way back after that. So the device is looked at before, and whatever is not
//! understood is refused.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use parking_lot::Mutex;
use skein_api::{ArmedWatchdog, WatchdogState};
use skein_host::{OpenWatchdog, WatchdogFacts, watchdog_facts};
use skein_inventory::printable;
use skein_watchdog::Times;
use thiserror::Error;
use tracing::{info, warn};

use crate::controllers::{Acknowledged, now_ms};
use crate::host_files::boot_id;
use crate::migrations::Migrations;

/// How long after the last feed a watchdog resets its host, in seconds: an agent that ends may be started again 10 s
/// later. Real devices take less, too, but the sooner proof would be bought by resets of hosts that are only slow.
const RESET_S: u32 = 10;
/// The longest that a device takes for that, in milliseconds: i6300esb counts twice 5120 ticks of 2^15 PCI clocks
/// (`esb_timer_set_heartbeat` of drivers/watchdog/i6300esb.c), 10,066 ms; the others count whole ticks, not more.
const RESET_MS_MAX: u64 = 10_100;
/// Bounds the time of a round of questions to other agents: the next round comes after that.
const ROUND_TIME: Duration = Duration::from_secs(1);
/// Bounds how many agents are asked at once: more than half of the voters that there may be, so that those that do not
/// answer do not keep the others from being asked.
const ASKING_MAX: usize = VOTERS_MAX / 2 + 1;
/// Bounds the hosts of a cluster whose agents open watchdogs: without a leader, each asks each.
const VOTERS_MAX: usize = 64;
/// Bounds the words that a leader is told.
const WORDS_BYTES_MAX: usize = 1000;

/// Returns the timeout with which a device resets its host within [`RESET_S`], in seconds.
///
/// Intel's TCO resets when its timer has run out twice. Of chipsets since 2004 the driver's timeout is one of the two,
/// and only firmware that acts at the first one makes that the whole: 10 s were seen to be 19.2. `wdat_wdt` sets the
/// same timer.
fn timeout_s(identity: &str) -> u32 {
    match identity {
        "iTCO_wdt" | "wdat_wdt" => RESET_S / 2,
        _ => RESET_S,
    }
}

/// A host's watchdog, as the thread that feeds it uses it.
trait Device: Send {
    /// Returns what the kernel says of it, and starts nothing.
    fn facts(&self) -> io::Result<WatchdogFacts>;

    /// Opens it, which starts and feeds it.
    fn open(&self) -> io::Result<Box<dyn Feed>>;
}

/// A watchdog that is open.
trait Feed: Send {
    /// Sets the timeout, feeds, and returns the timeout that was taken, in seconds.
    fn set_timeout_s(&self, timeout_s: u32) -> io::Result<u32>;

    /// Feeds the watchdog.
    fn feed(&self) -> io::Result<()>;
}

struct KernelDevice(PathBuf);

impl Device for KernelDevice {
    fn facts(&self) -> io::Result<WatchdogFacts> {
        watchdog_facts(&self.0)
    }

    fn open(&self) -> io::Result<Box<dyn Feed>> {
        Ok(Box::new(OpenWatchdog::open(&self.0)?))
    }
}

impl Feed for OpenWatchdog {
    fn set_timeout_s(&self, timeout_s: u32) -> io::Result<u32> {
        OpenWatchdog::set_timeout_s(self, timeout_s)
    }

    fn feed(&self) -> io::Result<()> {
        OpenWatchdog::feed(self)
    }
}

/// Asks other agents. The call does not wait.
trait Ask: Send {
    /// Asks these hosts whether they have a leader, and gives their answers of this round to the feeder.
    fn ask(&self, round: u64, hosts: Vec<String>, acknowledged: &Arc<Acknowledged>);
}

/// Asks by sessions with the other agents, once there may be any.
struct AskPeers(Arc<OnceLock<Arc<Migrations>>>);

impl Ask for AskPeers {
    fn ask(&self, round: u64, hosts: Vec<String>, acknowledged: &Arc<Acknowledged>) {
        let Some(migrations) = self.0.get() else { return };
        let deadline = Instant::now() + ROUND_TIME;
        let askers = hosts.len().min(ASKING_MAX);
        let left = Arc::new(Mutex::new(VecDeque::from(hosts)));
        for _ in 0..askers {
            let (migrations, left, acknowledged) = (migrations.clone(), left.clone(), acknowledged.clone());
            let work = move || {
                while Instant::now() < deadline
                    && let Some(host) = { left.lock().pop_front() }
                {
                    // Whatever is no answer counts nothing.
                    if let Ok(has_leader) = migrations.peers().ask_leader(&host, deadline) {
                        acknowledged.with_feeder(|feeder| feeder.answered(round, &host, has_leader));
                    }
                }
            };
            if let Err(error) = thread::Builder::new().name("ask-leader".into()).spawn(work) {
                return warn!("other agents are not asked whether they have a leader: {error}");
            }
        }
    }
}

/// The reason why a watchdog is not armed, and what to do about it.
#[derive(Debug, Error)]
enum NotArmed {
    #[error("what it is cannot be read: {0}: name a hardware watchdog's device, as /dev/watchdog0")]
    Facts(io::Error),
    #[error(
        "whether a '{0}' resets the host whatever the kernel does is not known: use one of iTCO_wdt, wdat_wdt, \
         sp5100_tco, hpwdt, i6300esb"
    )]
    Unknown(String),
    #[error("its driver may stop it: load the driver's module with the option nowayout=1")]
    MayStop,
    #[error("it acts {0} s before its timeout already: load its driver's module with the option pretimeout=0")]
    Pretimeout(u32),
    #[error("its timeout may be {0} to {1} s, and has to be {2} s: use another watchdog")]
    Timeout(u32, u32, u32),
    #[error("the kernel does not say which timeouts it takes: it needs Linux 6.0")]
    OldKernel,
    #[error("the cluster has {0} hosts, and watchdogs are for {VOTERS_MAX} at most")]
    Voters(usize),
    #[error(
        "another program has it open: if that is systemd, set RuntimeWatchdogSec=off and RebootWatchdogSec=off in \
         /etc/systemd/system.conf"
    )]
    Busy,
    #[error("it cannot be opened: {0}")]
    Open(io::Error),
    #[error(
        "it was asked for a timeout of {0} s and {1}: it is fed as long as this agent runs, and proves \
         nothing; use another watchdog, and reboot"
    )]
    Odd(u32, String),
}

/// What hpwdt calls its watchdog.
const HPWDT: &str = "HPE iLO2+ HW Watchdog Timer";

/// Checks what the kernel says of a watchdog.
fn check(facts: &WatchdogFacts) -> Result<(), NotArmed> {
    match &*facts.identity {
        // These were read in drivers/watchdog of Linux: they reset the machine by their own clock, and take each feed
        // at once. Others do not: softdog needs the kernel, iamt_wdt (mei_wdt) only sends an alert.
        "iTCO_wdt" | "SP5100 TCO timer" | "i6300ESB timer" | HPWDT => {}
        // Before Linux 6.0 the driver put feeds off, for a time that it does not say, and said no timeout either.
        "wdat_wdt" if facts.max_timeout_s == 0 => return Err(NotArmed::OldKernel),
        "wdat_wdt" => {}
        other => return Err(NotArmed::Unknown(other.to_owned())),
    }
    if !facts.nowayout {
        return Err(NotArmed::MayStop);
    }
    if facts.pretimeout_s != 0 {
        return Err(NotArmed::Pretimeout(facts.pretimeout_s));
    }
    // 0 is none that the kernel knows: then the driver's word counts, once it is asked to set the timeout.
    let max = if facts.max_timeout_s == 0 { u32::MAX } else { facts.max_timeout_s };
    let wanted = timeout_s(&facts.identity);
    if !(facts.min_timeout_s..=max).contains(&wanted) {
        return Err(NotArmed::Timeout(facts.min_timeout_s, max, wanted));
    }
    Ok(())
}

/// What became of the device.
enum Stand {
    Closed,
    Armed(Box<dyn Feed>),
    /// It is started, and does not do what it was asked to.
    Odd(Box<dyn Feed>),
}

/// The thread's share.
struct Keeper {
    path: PathBuf,
    device: Box<dyn Device>,
    ask: Box<dyn Ask>,
    acknowledged: Arc<Acknowledged>,
    host: String,
    stand: Stand,
    /// The reason that was logged last.
    logged: String,
    last: LastSent,
}

/// The file that says when the last report was sent that was acknowledged, for the next agent.
struct LastSent {
    path: PathBuf,
    boot_id: Option<String>,
    written: Option<u64>,
}

impl LastSent {
    fn new(path: PathBuf) -> LastSent {
        LastSent { path, boot_id: boot_id(), written: None }
    }

    /// Returns what the agent before wrote, in this boot.
    fn read(&self) -> Option<u64> {
        let text = std::fs::read_to_string(&self.path).ok()?;
        let (boot_id, sent_ms) = text.trim().split_once(' ')?;
        if self.boot_id.as_deref() == Some(boot_id) { sent_ms.parse().ok() } else { None }
    }

    /// Writes what is new. What cannot be written is no news to the next agent, which then waits for a leader.
    fn write(&mut self, sent_ms: Option<u64>) {
        if sent_ms == self.written {
            return;
        }
        // The directory is a tmpfs: nothing waits for a disk here.
        let new = self.path.with_extension("new");
        if let (Some(boot_id), Some(sent_ms)) = (&self.boot_id, sent_ms)
            && std::fs::write(&new, format!("{boot_id} {sent_ms}\n")).is_ok()
            && std::fs::rename(&new, &self.path).is_ok()
        {
            self.written = Some(sent_ms);
        }
    }
}

impl Keeper {
    /// Goes on from the agent before, which had ended at this time, if what was acknowledged to it is not long ago.
    fn go_on(&mut self, ended_ms: u64) {
        if let Some(sent_ms) = self.last.read() {
            self.acknowledged.with_feeder(|feeder| feeder.go_on(ended_ms, sent_ms, RESET_MS_MAX));
        }
    }

    /// Feeds the watchdog if it may be fed at this time, and asks the other agents if that is due.
    fn step(&mut self, now_ms: u64) {
        let (feeds, round) = self.acknowledged.with_feeder(|feeder| (feeder.feeds(now_ms), feeder.ask(now_ms)));
        match &self.stand {
            Stand::Closed if feeds => self.open(),
            Stand::Armed(open) if feeds => self.fed(open.feed()),
            // Nobody takes it for a proof, so that a reset would only harm.
            Stand::Odd(open) => self.fed(open.feed()),
            _ => {}
        }
        if matches!(self.stand, Stand::Armed(_)) {
            self.last.write(self.acknowledged.with_feeder(|feeder| feeder.sent_ms()));
        }
        if let Some(round) = round {
            let others = |name: &&str| **name != *self.host;
            let hosts = self
                .acknowledged
                .with_feeder(|feeder| feeder.voter_names().filter(others).map(str::to_owned).collect::<Vec<_>>());
            self.ask.ask(round, hosts, &self.acknowledged);
        }
    }

    /// Opens the watchdog if it is one that proves anything, and tells what came of it.
    fn open(&mut self) {
        match self.arm() {
            Ok(armed) => {
                let device = self.path.display();
                info!("the watchdog {device} ({}) is armed", armed.identity);
                warn!(
                    "this host is reset by {device} when its agent ends and is not back within {} s, and when no \
                     leader acknowledges its reports (docs/failover.md)",
                    timeout_s(&armed.identity)
                );
                self.acknowledged.tell_watchdog(WatchdogState { armed: Some(armed), why_not: String::new() });
            }
            Err(error) => self.not_armed(error.to_string()),
        }
    }

    fn arm(&mut self) -> Result<ArmedWatchdog, NotArmed> {
        let voters = self.acknowledged.with_feeder(|feeder| feeder.voter_names().count());
        if voters > VOTERS_MAX {
            return Err(NotArmed::Voters(voters));
        }
        let facts = self.device.facts().map_err(NotArmed::Facts)?;
        check(&facts)?;
        let open = self.device.open().map_err(|error| match error.raw_os_error() {
            Some(code) if code == Errno::EBUSY as i32 => NotArmed::Busy,
            _ => NotArmed::Open(error),
        })?;
        // From here on the host is reset if nothing feeds.
        let wanted = timeout_s(&facts.identity);
        let odd = match open.set_timeout_s(wanted) {
            Ok(taken) if taken == wanted => None,
            Ok(taken) => Some(format!("took {taken} s")),
            Err(error) => Some(format!("took none ({error})")),
        };
        if let Some(odd) = odd {
            self.stand = Stand::Odd(open);
            return Err(NotArmed::Odd(wanted, odd));
        }
        self.stand = Stand::Armed(open);
        let Times { acknowledged_ms, asked_ms, period_ms } = Times::ALL;
        let identity = facts.identity;
        Ok(ArmedWatchdog { identity, acknowledged_ms, asked_ms, period_ms, timeout_ms: RESET_MS_MAX })
    }

    /// Tells why the watchdog is not armed; the log once.
    fn not_armed(&mut self, why: String) {
        let why_not = printable(format!("{}: {why}", self.path.display()), WORDS_BYTES_MAX);
        if self.logged != why_not {
            warn!("no watchdog is armed: {why_not}");
            self.logged.clone_from(&why_not);
        }
        self.acknowledged.tell_watchdog(WatchdogState { armed: None, why_not });
    }

    /// Logs that feeding failed, once.
    fn fed(&self, fed: io::Result<()>) {
        if let Err(error) = fed {
            warn!("the watchdog {} cannot be fed, so that it resets this host: {error}", self.path.display());
        }
    }
}

/// The thread that feeds the host's watchdog. Dropping it ends the thread and closes the device, which resets the host
/// unless another agent feeds the watchdog in time.
pub(crate) struct WatchdogKeeper {
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    peers: Arc<OnceLock<Arc<Migrations>>>,
}

impl WatchdogKeeper {
    /// Begins to look after a watchdog: nothing is opened before a leader has acknowledged a report of this agent, or
    /// has of the one before in the last seconds. When that was is kept in `last_sent`; by `ended_ms`, of
    /// [`now_ms`]'s clock, that agent had ended.
    ///
    /// The rest of the agent may start later: QEMUs that do not answer hold that up.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub(crate) fn start(
        device: &Path,
        host: &str,
        acknowledged: Arc<Acknowledged>,
        (last_sent, ended_ms): (PathBuf, u64),
    ) -> io::Result<WatchdogKeeper> {
        let why_not = "no leader has acknowledged a report of this start of the agent yet".to_owned();
        acknowledged.tell_watchdog(WatchdogState { armed: None, why_not });
        let peers = Arc::default();
        let mut keeper = Keeper {
            path: device.to_owned(),
            device: Box::new(KernelDevice(device.to_owned())),
            ask: Box::new(AskPeers(Arc::clone(&peers))),
            acknowledged,
            host: host.to_owned(),
            stand: Stand::Closed,
            logged: String::new(),
            last: LastSent::new(last_sent),
        };
        keeper.go_on(ended_ms);
        let stopping = Arc::new(AtomicBool::new(false));
        let told = stopping.clone();
        let thread = thread::Builder::new().name("watchdog".into()).spawn(move || keep(keeper, &told))?;
        Ok(WatchdogKeeper { stopping, thread: Some(thread), peers })
    }

    /// Has the other agents asked by these sessions. No question comes before a leader has named the hosts.
    pub(crate) fn ask_by(&self, migrations: &Arc<Migrations>) {
        let _ = self.peers.set(migrations.clone());
    }
}

impl Drop for WatchdogKeeper {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn keep(mut keeper: Keeper, stopping: &AtomicBool) {
    skein_host::raise_thread_priority();
    while !stopping.load(Ordering::SeqCst) {
        keeper.step(now_ms());
        thread::park_timeout(Duration::from_millis(Times::ALL.period_ms));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A device that does what a test says, and what was done to it.
    #[derive(Default)]
    struct Fake {
        facts: WatchdogFacts,
        /// The error that opening gives.
        error: Option<Errno>,
        /// The timeout that is taken in place of what was asked for.
        takes: Option<u32>,
        /// Opened, timeouts, and feeds, in their order.
        done: Vec<String>,
    }

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Fake>>);

    impl Shared {
        fn new() -> Shared {
            let shared = Shared::default();
            shared.0.lock().facts = facts();
            shared
        }

        fn take(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().done)
        }
    }

    impl Device for Shared {
        fn facts(&self) -> io::Result<WatchdogFacts> {
            Ok(self.0.lock().facts.clone())
        }

        fn open(&self) -> io::Result<Box<dyn Feed>> {
            let mut fake = self.0.lock();
            if let Some(error) = fake.error {
                return Err(error.into());
            }
            fake.done.push("open".into());
            Ok(Box::new(self.clone()))
        }
    }

    impl Feed for Shared {
        fn set_timeout_s(&self, timeout_s: u32) -> io::Result<u32> {
            let mut fake = self.0.lock();
            fake.done.push(format!("{timeout_s} s"));
            Ok(fake.takes.unwrap_or(timeout_s))
        }

        fn feed(&self) -> io::Result<()> {
            self.0.lock().done.push("feed".into());
            Ok(())
        }
    }

    /// Other agents, all of which say the same: `None` is no answer.
    #[derive(Clone, Default)]
    struct Others(Arc<Mutex<(Option<bool>, Vec<String>)>>);

    impl Ask for Others {
        fn ask(&self, round: u64, hosts: Vec<String>, acknowledged: &Arc<Acknowledged>) {
            let mut others = self.0.lock();
            if let Some(has_leader) = others.0 {
                let answered = |host| acknowledged.with_feeder(|feeder| feeder.answered(round, host, has_leader));
                hosts.iter().for_each(|host| answered(host));
            }
            others.1 = hosts;
        }
    }

    fn facts() -> WatchdogFacts {
        WatchdogFacts { identity: "i6300ESB timer".into(), nowayout: true, ..WatchdogFacts::default() }
    }

    struct World {
        keeper: Keeper,
        device: Shared,
        others: Others,
        /// When the agent started.
        start_ms: u64,
        dir: tempfile::TempDir,
    }

    impl World {
        fn new() -> World {
            let dir = tempfile::tempdir().unwrap();
            let (device, others) = (Shared::new(), Others::default());
            let acknowledged = Arc::new(Acknowledged::new("hosta"));
            let keeper = Keeper {
                path: "/dev/watchdog0".into(),
                device: Box::new(device.clone()),
                ask: Box::new(others.clone()),
                acknowledged,
                host: "hosta".into(),
                stand: Stand::Closed,
                logged: String::new(),
                last: LastSent::new(dir.path().join("watchdog")),
            };
            World { keeper, device, others, start_ms: now_ms(), dir }
        }

        /// Has another agent start so many milliseconds after the first, which has ended.
        fn start_again(&mut self, ms: u64) {
            let keeper = &mut self.keeper;
            keeper.acknowledged = Arc::new(Acknowledged::new("hosta"));
            keeper.stand = Stand::Closed;
            keeper.last = LastSent::new(self.dir.path().join("watchdog"));
            keeper.go_on(self.start_ms + ms);
        }

        /// Takes a step so many milliseconds after the start. Returns what was done to the device.
        fn step(&mut self, ms: u64) -> Vec<String> {
            self.keeper.step(self.start_ms + ms);
            self.device.take()
        }

        /// A leader acknowledges a report that was sent so many milliseconds after the start.
        fn acknowledge(&self, ms: u64, voters: usize) {
            let named: BTreeSet<String> = (0..voters).map(|n| format!("host{}", (b'a' + n as u8) as char)).collect();
            let at = self.start_ms + ms;
            self.keeper.acknowledged.with_feeder(|feeder| feeder.acknowledged(at, at, voters as u64, Some(named)));
        }

        fn told(&self) -> WatchdogState {
            self.keeper.acknowledged.watchdog().unwrap_or_default()
        }
    }

    #[test]
    fn a_watchdog_is_opened_once_a_report_was_acknowledged_and_fed_as_long_as_the_feeder_says() {
        let mut world = World::new();
        assert!(world.step(1_000).is_empty() && world.step(60_000).is_empty(), "nothing was acknowledged");
        world.acknowledge(61_000, 3);
        assert_eq!(world.step(62_000), ["open", "10 s"]);
        let armed = world.told().armed.unwrap();
        assert_eq!((&*armed.identity, armed.timeout_ms, armed.acknowledged_ms), ("i6300ESB timer", 10_100, 15_000));
        assert_eq!(world.step(63_000), ["feed"]);
        world.acknowledge(63_500, 3);
        assert_eq!(world.step(78_400), ["feed"]);
        assert!(world.step(78_500).is_empty(), "15 s after the report was sent that was acknowledged last");
        assert!(world.told().armed.is_some(), "the leader's proof goes on");
        world.acknowledge(79_000, 3);
        assert_eq!(world.step(79_100), ["feed"]);
    }

    #[test]
    fn intels_timers_run_out_twice_before_they_reset_the_host() {
        for identity in ["iTCO_wdt", "wdat_wdt"] {
            let mut world = World::new();
            let facts = WatchdogFacts { identity: identity.into(), max_timeout_s: 613, ..facts() };
            world.device.0.lock().facts = facts;
            world.acknowledge(1_000, 3);
            assert_eq!(world.step(1_000), ["open", "5 s"]);
            assert_eq!(world.told().armed.unwrap().timeout_ms, 10_100);
        }
    }

    #[test]
    fn an_agent_that_is_started_again_soon_goes_on_and_feeds_no_longer_than_the_one_before() {
        let mut world = World::new();
        world.start_again(500);
        assert!(world.step(500).is_empty(), "nothing was acknowledged to anybody");
        world.acknowledge(1_000, 3);
        assert_eq!(world.step(1_000), ["open", "10 s"]);
        world.start_again(5_900);
        assert_eq!(world.step(5_900), ["open", "10 s"]);
        assert_eq!((world.step(15_900), world.step(16_000)), (vec!["feed".to_owned()], vec![]));
        world.acknowledge(17_000, 3);
        world.step(17_000);
        world.start_again(22_001);
        assert!(world.step(22_001).is_empty(), "that is too long ago");
        // The file is of another boot.
        let written = std::fs::read_to_string(world.dir.path().join("watchdog")).unwrap();
        std::fs::write(world.dir.path().join("watchdog"), format!("x{written}")).unwrap();
        world.start_again(17_001);
        assert!(world.step(17_001).is_empty());
    }

    #[test]
    fn without_a_leader_it_is_fed_if_more_than_half_have_none_and_what_is_no_answer_counts_nothing() {
        let mut world = World::new();
        world.acknowledge(1_000, 4);
        world.step(1_000);
        assert!(world.step(16_000).is_empty(), "nobody answers, as older agents do not");
        assert_eq!(world.others.0.lock().1, ["hostb", "hostc", "hostd"], "not itself");
        world.others.0.lock().0 = Some(true);
        world.step(17_000);
        assert!(world.step(18_000).is_empty(), "the others have a leader");
        world.others.0.lock().0 = Some(false);
        world.step(19_000);
        assert_eq!(world.step(19_500), ["feed"]);
    }

    #[test]
    fn what_proves_nothing_is_not_opened_and_said_until_it_is_mended() {
        let mut world = World::new();
        world.acknowledge(1_000, 3);
        let mut at = 1_000;
        let mut refused = |change: &dyn Fn(&mut Fake), word: &str| {
            let mut fake = Fake { facts: facts(), ..Fake::default() };
            change(&mut fake);
            *world.device.0.lock() = fake;
            at += 10;
            assert!(world.step(at).is_empty(), "{word}");
            let told = world.told();
            assert!(told.armed.is_none() && told.why_not.contains(word), "{word}: {}", told.why_not);
        };
        refused(&|fake| fake.facts.identity = "Software Watchdog".into(), "'Software Watchdog'");
        refused(&|fake| fake.facts.identity = "iamt_wdt".into(), "not known");
        refused(&|fake| fake.facts.nowayout = false, "nowayout=1");
        refused(&|fake| fake.facts.pretimeout_s = 9, "pretimeout=0");
        refused(&|fake| fake.facts.min_timeout_s = 11, "11 to");
        refused(&|fake| fake.facts.max_timeout_s = 9, "0 to 9 s");
        refused(&|fake| fake.facts.identity = "wdat_wdt".into(), "Linux 6.0");
        refused(&|fake| fake.error = Some(Errno::EBUSY), "RuntimeWatchdogSec=off");
        refused(&|fake| fake.error = Some(Errno::EIO), "cannot be opened");
        *world.device.0.lock() = Fake { facts: facts(), ..Fake::default() };
        assert_eq!(world.step(2_000), ["open", "10 s"]);
        assert!(world.told().armed.is_some() && world.told().why_not.is_empty());
    }

    #[test]
    fn a_watchdog_that_took_another_timeout_is_fed_for_ever_and_no_leader_counts_on_it() {
        let mut world = World::new();
        world.device.0.lock().takes = Some(12);
        world.acknowledge(1_000, 3);
        assert_eq!(world.step(1_000), ["open", "10 s"]);
        assert!(world.told().armed.is_none() && world.told().why_not.contains("took 12 s"), "{}", world.told().why_not);
        assert_eq!((world.step(2_000), world.step(600_000)), (vec!["feed".to_owned()], vec!["feed".to_owned()]));
        assert!(world.told().armed.is_none());
    }

    #[test]
    fn in_a_cluster_of_too_many_hosts_none_is_opened() {
        let mut world = World::new();
        world.acknowledge(1_000, VOTERS_MAX + 1);
        assert!(world.step(1_000).is_empty());
        assert!(world.told().why_not.contains("65 hosts"), "{}", world.told().why_not);
    }
}
