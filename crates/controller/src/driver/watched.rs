//! Migrations that somebody watches, what somebody only wants to see of a host, and VMs' consoles: agents are asked
//! directly, by any controller, as nothing is decided by that. Agents send each sample once, however many watch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use skein_api::{ConsoleRequest, MigrationId, MigrationSample, Reply, Request, Role, ToAgent, WATCHED_MAX};
use tokio::sync::{broadcast, oneshot, watch};

/// How many samples a watcher may be behind: some seconds.
const BEHIND_MAX: usize = 64;
/// How long an agent may take to show something.
const SHOW_WITHIN: Duration = Duration::from_secs(8);
/// How many questions of one host are open at most.
const QUESTIONS_MAX: usize = 16;
/// How many questions about consoles of one host are open at most, which wait for what VMs write: two for each of the
/// consoles that an agent has open.
const CONSOLE_QUESTIONS_MAX: usize = 64;

/// The migrations that are watched, and the questions that are open.
#[derive(Default)]
pub(crate) struct WatchedMigrations {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    migrations: BTreeMap<MigrationId, Watched>,
    /// The connections with agents, by host.
    hosts: BTreeMap<String, Connected>,
    last: u64,
}

struct Watched {
    /// The source and the target.
    hosts: [String; 2],
    watchers: usize,
    sender: broadcast::Sender<Arc<MigrationSample>>,
}

struct Connected {
    /// Which connection it is: a host may have a new one before the old one is over.
    number: u64,
    lines: watch::Sender<Told>,
    questions: BTreeMap<u64, Question>,
    last: u64,
}

/// What an agent is asked.
#[derive(Clone)]
enum Wanted {
    Look(Request),
    Console(ConsoleRequest),
}

impl Wanted {
    /// Returns the line that asks.
    fn line(&self, look: u64) -> ToAgent {
        match self.clone() {
            Wanted::Look(request) => ToAgent::Look { look, request: Box::new(request) },
            Wanted::Console(request) => ToAgent::Console { look, request: Box::new(request) },
        }
    }

    /// Returns how many questions of this kind are open at most.
    fn most(&self) -> usize {
        match self {
            Wanted::Look(_) => QUESTIONS_MAX,
            Wanted::Console(_) => CONSOLE_QUESTIONS_MAX,
        }
    }
}

struct Question {
    wanted: Wanted,
    is_asked: bool,
    answer: oneshot::Sender<Reply>,
}

/// What an agent is to be told; the number changes when there is something new.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told(u64);

/// Why a host shows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotShown {
    /// Its agent has no connection with this controller.
    NoContact,
    /// Its agent does not answer, as one of an older release, or one that is busy.
    NoAnswer,
}

impl WatchedMigrations {
    /// Takes a connection with a host's agent in, until the answer is dropped.
    pub(crate) fn connect(self: &Arc<Self>, host: &str) -> WatchedHost {
        let (lines, told) = watch::channel(Told::default());
        let mut state = self.state.lock();
        state.last += 1;
        let number = state.last;
        let connected = Connected { number, lines, questions: BTreeMap::new(), last: 0 };
        state.hosts.insert(host.to_owned(), connected);
        WatchedHost { all: self.clone(), host: host.to_owned(), number, told, sent: BTreeSet::new() }
    }

    /// Watches a migration from now on. `None`: too many others are watched at one of the hosts.
    pub(crate) fn watch(self: &Arc<Self>, id: MigrationId, hosts: [&str; 2]) -> Option<MigrationWatch> {
        let mut state = self.state.lock();
        if !state.migrations.contains_key(&id) {
            let at = |host: &str| state.of_host(host).count();
            if hosts.iter().any(|host| at(host) >= WATCHED_MAX) {
                return None;
            }
            let hosts = hosts.map(str::to_owned);
            let sender = broadcast::Sender::new(BEHIND_MAX);
            state.migrations.insert(id, Watched { hosts: hosts.clone(), watchers: 0, sender });
            hosts.iter().for_each(|host| state.tell(host));
        }
        let watched = state.migrations.get_mut(&id)?;
        watched.watchers += 1;
        let samples = watched.sender.subscribe();
        Some(MigrationWatch { all: self.clone(), id, samples })
    }

    /// Hands a sample of a host's agent to those who watch.
    pub(crate) fn publish(&self, host: &str, sample: MigrationSample) {
        let state = self.state.lock();
        let Some(watched) = state.migrations.get(&sample.migration.id) else { return };
        let from = match sample.migration.role {
            Role::Source => &watched.hosts[0],
            Role::Target => &watched.hosts[1],
        };
        if from == host {
            // Whoever has gone meanwhile needs none.
            let _ = watched.sender.send(Arc::new(sample));
        }
    }

    /// Has a host's agent show something.
    pub(crate) async fn show(&self, host: &str, request: Request) -> Result<Reply, NotShown> {
        self.ask_within(SHOW_WITHIN, host, Wanted::Look(request)).await
    }

    /// Has a host's agent do what is asked of a console, which waits for what the VM writes for `patience` at most.
    pub(crate) async fn console(
        &self,
        host: &str,
        request: ConsoleRequest,
        patience: Duration,
    ) -> Result<Reply, NotShown> {
        self.ask_within(SHOW_WITHIN + patience, host, Wanted::Console(request)).await
    }

    async fn ask_within(&self, within: Duration, host: &str, wanted: Wanted) -> Result<Reply, NotShown> {
        let (answer, answered) = oneshot::channel();
        {
            let mut state = self.state.lock();
            let connected = state.hosts.get_mut(host).ok_or(NotShown::NoContact)?;
            if connected.open_like(&wanted) >= wanted.most() {
                // Those that nobody waits for any more make room.
                connected.questions.retain(|_, question| !question.answer.is_closed());
            }
            if connected.open_like(&wanted) >= wanted.most() {
                return Err(NotShown::NoAnswer);
            }
            connected.last += 1;
            connected.questions.insert(connected.last, Question { wanted, is_asked: false, answer });
            state.tell(host);
        }
        match tokio::time::timeout(within, answered).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_)) => Err(NotShown::NoContact),
            Err(_) => Err(NotShown::NoAnswer),
        }
    }
}

impl Connected {
    /// Returns how many questions of this kind are open.
    fn open_like(&self, wanted: &Wanted) -> usize {
        let kind = std::mem::discriminant(wanted);
        self.questions.values().filter(|question| std::mem::discriminant(&question.wanted) == kind).count()
    }
}

impl State {
    fn of_host<'a>(&'a self, host: &'a str) -> impl Iterator<Item = MigrationId> + 'a {
        self.migrations.iter().filter(move |(_, of)| of.hosts.iter().any(|at| at == host)).map(|(id, _)| *id)
    }

    /// Notes that there is something to tell a host's agent.
    fn tell(&self, host: &str) {
        if let Some(connected) = self.hosts.get(host) {
            connected.lines.send_modify(|told| told.0 += 1);
        }
    }
}

/// A connection with a host's agent, as far as it is about what is watched.
pub(crate) struct WatchedHost {
    all: Arc<WatchedMigrations>,
    host: String,
    number: u64,
    told: watch::Receiver<Told>,
    /// The migrations that the agent was told last.
    sent: BTreeSet<MigrationId>,
}

impl WatchedHost {
    /// Waits until there is something to tell the agent, and returns that.
    pub(crate) async fn next(&mut self) -> Vec<ToAgent> {
        loop {
            let lines = self.lines();
            if !lines.is_empty() {
                return lines;
            }
            if self.told.changed().await.is_err() {
                // The host has another connection.
                std::future::pending::<()>().await;
            }
        }
    }

    fn lines(&mut self) -> Vec<ToAgent> {
        self.told.borrow_and_update();
        let mut state = self.all.state.lock();
        let migrations: BTreeSet<MigrationId> = state.of_host(&self.host).collect();
        let Some(connected) = state.hosts.get_mut(&self.host).filter(|of| of.number == self.number) else {
            return Vec::new();
        };
        let unasked = connected.questions.iter_mut().filter(|(_, question)| !question.is_asked);
        let ask = |(look, question): (&u64, &mut Question)| {
            question.is_asked = true;
            question.wanted.line(*look)
        };
        let mut lines: Vec<ToAgent> = unasked.map(ask).collect();
        drop(state);
        if migrations != self.sent {
            self.sent.clone_from(&migrations);
            lines.push(ToAgent::Watch { migrations });
        }
        lines
    }

    /// Returns what takes the agent's answers.
    pub(crate) fn answers(&self) -> WatchedAnswers {
        WatchedAnswers { all: self.all.clone(), host: self.host.clone(), number: self.number }
    }
}

impl Drop for WatchedHost {
    fn drop(&mut self) {
        let mut state = self.all.state.lock();
        if state.hosts.get(&self.host).is_some_and(|of| of.number == self.number) {
            state.hosts.remove(&self.host);
        }
    }
}

/// Takes the answers of an agent.
pub(crate) struct WatchedAnswers {
    all: Arc<WatchedMigrations>,
    host: String,
    number: u64,
}

impl WatchedAnswers {
    pub(crate) fn sample(&self, sample: MigrationSample) {
        self.all.publish(&self.host, sample);
    }

    pub(crate) fn seen(&self, look: u64, reply: Reply) {
        let mut state = self.all.state.lock();
        let connected = state.hosts.get_mut(&self.host).filter(|of| of.number == self.number);
        if let Some(question) = connected.and_then(|of| of.questions.remove(&look)) {
            // Nobody may wait any more.
            let _ = question.answer.send(reply);
        }
    }
}

/// Somebody who watches a migration, until this is dropped.
pub(crate) struct MigrationWatch {
    all: Arc<WatchedMigrations>,
    id: MigrationId,
    samples: broadcast::Receiver<Arc<MigrationSample>>,
}

impl MigrationWatch {
    /// Waits for the next sample. Whoever reads slowly misses some.
    pub(crate) async fn next(&mut self) -> Arc<MigrationSample> {
        loop {
            match self.samples.recv().await {
                Ok(sample) => return sample,
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                // The sender is there as long as somebody watches.
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

impl Drop for MigrationWatch {
    fn drop(&mut self) {
        let mut state = self.all.state.lock();
        let Some(watched) = state.migrations.get_mut(&self.id) else { return };
        watched.watchers -= 1;
        if watched.watchers == 0 {
            let hosts = watched.hosts.clone();
            state.migrations.remove(&self.id);
            hosts.iter().for_each(|host| state.tell(host));
        }
    }
}

#[cfg(test)]
mod tests {
    use skein_api::{HostSample, Migration};

    use super::*;

    const ID: MigrationId = MigrationId(7);

    fn sample(role: Role) -> MigrationSample {
        let migration = Migration::new(ID, "web1", role, "a", "b");
        MigrationSample { at: 5, migration, host: HostSample::default(), forecast: None }
    }

    fn watched(migrations: &[MigrationId]) -> ToAgent {
        ToAgent::Watch { migrations: migrations.iter().copied().collect() }
    }

    #[tokio::test]
    async fn an_agent_sends_each_sample_once_however_many_watch() {
        let all = Arc::<WatchedMigrations>::default();
        let (mut a, mut b) = (all.connect("a"), all.connect("b"));
        let mut first = all.watch(ID, ["a", "b"]).unwrap();
        assert_eq!((a.next().await, b.next().await), (vec![watched(&[ID])], vec![watched(&[ID])]));
        let mut second = all.watch(ID, ["a", "b"]).unwrap();
        assert!(a.lines().is_empty(), "it knows");

        a.answers().sample(sample(Role::Source));
        // What another host says of the migration is nobody's business.
        all.publish("c", sample(Role::Source));
        b.answers().sample(sample(Role::Source));
        b.answers().sample(sample(Role::Target));
        for watch in [&mut first, &mut second] {
            let roles = [watch.next().await.migration.role, watch.next().await.migration.role];
            assert_eq!(roles, [Role::Source, Role::Target]);
        }
        drop(first);
        assert!(a.lines().is_empty());
        drop(second);
        assert_eq!(a.next().await, vec![watched(&[])]);
        // An agent that comes back is told what is watched.
        let _watch = all.watch(ID, ["a", "b"]).unwrap();
        let mut again = all.connect("a");
        assert_eq!(again.next().await, vec![watched(&[ID])]);
    }

    #[tokio::test]
    async fn a_host_is_watched_for_so_much_only() {
        let all = Arc::<WatchedMigrations>::default();
        let id = |id: usize| MigrationId(id as u64);
        let watches: Vec<_> = (0..WATCHED_MAX).map(|number| all.watch(id(number), ["a", "b"]).unwrap()).collect();
        assert!(all.watch(id(WATCHED_MAX), ["c", "b"]).is_none());
        assert!(all.watch(id(0), ["a", "b"]).is_some(), "that one is watched already");
        drop(watches);
        assert!(all.watch(id(WATCHED_MAX), ["c", "b"]).is_some());
    }

    #[tokio::test]
    async fn an_agent_shows_something_or_it_is_said_why_not() {
        let all = Arc::<WatchedMigrations>::default();
        assert_eq!(all.show("a", Request::Version).await, Err(NotShown::NoContact));
        let mut a = all.connect("a");
        let answers = a.answers();
        let agent = async {
            let lines = a.next().await;
            let [ToAgent::Look { look, request }] = &lines[..] else { panic!("{lines:?}") };
            assert_eq!(**request, Request::Version);
            answers.seen(look + 1, Reply::Done);
            answers.seen(*look, Reply::Done);
        };
        let (reply, ()) = tokio::join!(all.show("a", Request::Version), agent);
        assert_eq!(reply, Ok(Reply::Done));
        // An agent that does not answer, and one that goes.
        let soon = Duration::from_millis(50);
        assert_eq!(all.ask_within(soon, "a", Wanted::Look(Request::VmList)).await, Err(NotShown::NoAnswer));
        let going = async {
            a.next().await;
            drop(a);
        };
        let (reply, ()) = tokio::join!(all.show("a", Request::VmList), going);
        assert_eq!(reply, Err(NotShown::NoContact));
    }

    #[tokio::test]
    async fn consoles_that_wait_leave_room_for_questions() {
        let all = Arc::<WatchedMigrations>::default();
        let mut a = all.connect("a");
        let soon = Duration::from_millis(100);
        let console = || Wanted::Console(ConsoleRequest { name: "web".into(), ..ConsoleRequest::default() });
        let waiting: Vec<_> = (0..CONSOLE_QUESTIONS_MAX).map(|_| all.ask_within(soon, "a", console())).collect();
        let others = async {
            let lines = a.next().await;
            assert!(matches!(&lines[0], ToAgent::Console { look: 1, request } if request.name == "web"), "{lines:?}");
            assert_eq!(lines.len(), CONSOLE_QUESTIONS_MAX);
            assert_eq!(all.console("a", ConsoleRequest::default(), soon).await, Err(NotShown::NoAnswer));
            assert_eq!(all.ask_within(soon, "a", Wanted::Look(Request::VmList)).await, Err(NotShown::NoAnswer));
            let lines = a.lines();
            assert!(matches!(&lines[..], [ToAgent::Look { .. }]), "{lines:?}");
        };
        tokio::join!(futures_util::future::join_all(waiting), others);
        // Nobody waits for those any more, so that there is room again.
        assert_eq!(all.ask_within(soon, "a", console()).await, Err(NotShown::NoAnswer));
        assert!(matches!(&a.lines()[..], [ToAgent::Console { .. }]));
    }
}
