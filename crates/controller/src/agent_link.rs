//! A connection with an agent: lines of JSON both ways, each within its bounds.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use skein_api::{
    LINE_BYTES_MAX, LineError, MigrationId, Refusal, ToAgent, ToController, Welcome, check_version, parse_line,
};
use skein_cluster::{Answer, Ask, Asked, Input, Refused, RefusedKind, SessionId, ShownCertificate, error_chain};
use skein_identity::{CaFingerprint, CertificateDer, CertificateInfo, certificate_pem};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, split};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::driver::{AgentLink, Driver, HangUp, Shared, WatchedAnswers, bytes};
use crate::handshakes::validity;
use crate::signer::Signer;

/// How long an agent may take for its first line.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// How many bytes the first line has at most: 64 addresses, and some words.
const HELLO_BYTES_MAX: u64 = 64 << 10;
/// How long an agent may take to read a line.
const WRITE_WITHIN: Duration = Duration::from_secs(10);
/// How many periods without a report an agent is waited for.
const SILENT_PERIODS: u32 = 3;
/// How long an agent is waited for at least, as its host may be busy.
const SILENT_MIN: Duration = Duration::from_secs(5);
/// How long a VM's definition is at most that is kept: what is stored of a VM has to fit into a value.
const DEFINITION_BYTES_MAX: usize = 128 << 10;
/// How many questions of an agent about what a person wants wait for their answer. The agent asks again what was
/// dropped.
const HAND_QUESTIONS_MAX: usize = 16;

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
enum LinkEnd {
    #[error("it did not say hello in time")]
    NoHello,
    #[error("it said something else than hello")]
    OtherHello,
    #[error("it calls itself {said}, and its certificate is {certified}'s")]
    OtherHost { said: String, certified: String },
    #[error("it says what cannot be: {0}")]
    Refused(String),
    #[error("it does not report any more")]
    Silent,
    #[error("it does not read")]
    DoesNotRead,
    #[error("{0}")]
    HungUp(String),
    #[error("{}: {}", .0.message, .0.cure)]
    NotTaken(Refusal),
    #[error("what it sends cannot be read")]
    Line(#[source] LineError),
    #[error("the connection broke")]
    Io(#[source] std::io::Error),
}

impl LinkEnd {
    /// Returns what the agent is told before the end.
    fn refusal(&self) -> Option<Refusal> {
        match self {
            LinkEnd::NotTaken(refusal) => Some(refusal.clone()),
            LinkEnd::NoHello | LinkEnd::OtherHello | LinkEnd::OtherHost { .. } | LinkEnd::Refused(_) => {
                let cure = "see that both ends are of a release that knows the other".to_owned();
                Some(Refusal { message: error_chain(self), cure })
            }
            _ => None,
        }
    }
}

/// Who is at the other end of a connection.
pub(crate) struct AgentPeer {
    /// The name in the certificate.
    pub host: String,
    /// The certificate, whose key the other end has.
    pub certificate: CertificateDer<'static>,
    /// Its SHA-256.
    pub sha256: String,
    /// Where the other end is.
    pub address: IpAddr,
}

/// How agents are served.
#[derive(Clone, Debug)]
pub(crate) struct LinkSettings {
    /// What signs certificates.
    pub signer: Arc<Signer>,
    /// How often agents report.
    pub report_period: Duration,
}

/// Serves an agent until its connection ends.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Send>(
    driver: &Arc<Driver>,
    settings: &LinkSettings,
    peer: &AgentPeer,
    stream: S,
) {
    let host = peer.host.as_str();
    let (reader, mut writer) = split(stream);
    let mut reader = BufReader::new(reader);
    let taken = hello(&mut reader, host).await.and_then(|hello| {
        let Some(refusal) = driver.read(|core| core.host_refusal(host, &shown(peer))) else { return Ok(hello) };
        // The core tells people of a host that is refused.
        drop(Up::new(driver.shared().clone(), hello, shown(peer)));
        Err(LinkEnd::NotTaken(refusal))
    });
    let end = match taken {
        Ok(hello) => {
            let release = hello.release.clone();
            // Not known before the store was read.
            let cluster = driver.read(|core| core.tables().cluster.as_ref().map(|of| of.id.clone()));
            let welcome = ToAgent::Welcome(Welcome {
                cluster: cluster.unwrap_or_else(|| "-".into()),
                controller: driver.member().name.clone(),
                release: env!("CARGO_PKG_VERSION").to_owned(),
                report_period_ms: u64::try_from(settings.report_period.as_millis()).unwrap_or(u64::MAX),
            });
            match write(&mut writer, &bytes(&welcome)).await {
                Ok(()) => {
                    let up = Up::new(driver.shared().clone(), hello, shown(peer));
                    info!("the agent of {host} is here, of release {release}");
                    let questions = Questions { driver, settings, peer };
                    lines(&questions, up, &mut reader, &mut writer).await
                }
                Err(end) => end,
            }
        }
        Err(end) => end,
    };
    if let Some(refusal) = end.refusal() {
        // Whoever is refused need not read why.
        let _ = write(&mut writer, &bytes(&ToAgent::Refused(refusal))).await;
    }
    let _ = timeout(WRITE_WITHIN, writer.shutdown()).await;
    match end {
        LinkEnd::Line(LineError::Closed) => info!("the agent of {host} has hung up"),
        end => warn!("the connection of {host}'s agent is over: {}", error_chain(&end)),
    }
}

/// A connection that the core knows, until this is dropped.
struct Up {
    shared: Arc<Shared>,
    session: SessionId,
    link: Option<AgentLink>,
}

impl Up {
    fn new(shared: Arc<Shared>, hello: skein_api::Hello, certificate: ShownCertificate) -> Up {
        let link = shared.agent_up(hello, certificate);
        Up { shared, session: link.session, link: Some(link) }
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.shared.agent_down(self.session);
    }
}

/// Returns what the core gets of a certificate.
fn shown(peer: &AgentPeer) -> ShownCertificate {
    let info = CertificateInfo::parse(&peer.certificate).ok();
    ShownCertificate { sha256: peer.sha256.clone(), validity: info.as_ref().map(validity) }
}

/// A question about what a person wants done on the host.
struct HandQuestion {
    ask: u64,
    what: String,
    of_core: Ask,
}

impl HandQuestion {
    fn of_start(host: &str, ask: u64, vm: String, is_here: bool) -> HandQuestion {
        let what = format!("start {vm} by hand on {host}");
        HandQuestion { ask, what, of_core: Ask::StartByHand { host: host.to_owned(), vm, is_here } }
    }

    fn of_move(host: &str, ask: u64, vm: String, to: String, migration: Option<MigrationId>) -> HandQuestion {
        let what = format!("move {vm} by hand from {host} to {to}");
        HandQuestion { ask, what, of_core: Ask::MoveByHand { host: host.to_owned(), vm, to, migration } }
    }
}

/// Answers what an agent asks: for another certificate than the one that the agent shows, and whether a person may
/// start or move a VM.
struct Questions<'a> {
    driver: &'a Arc<Driver>,
    settings: &'a LinkSettings,
    peer: &'a AgentPeer,
}

impl Questions<'_> {
    async fn ask(&self, what: String, ask: Ask) -> Answer {
        let (by, from) = (format!("host:{}", self.peer.host), self.peer.address.to_string());
        self.driver.ask(|id| Asked { id, by, from, what, repeat: None, ask }).await
    }

    /// Returns the leader's answer to what a person wants. `None`: this controller does not lead any more, or cannot
    /// answer, and the agent asks again.
    async fn may(&self, HandQuestion { ask, what, of_core }: HandQuestion) -> Option<ToAgent> {
        match self.ask(what, of_core).await {
            Answer::Done => Some(ToAgent::May { ask }),
            Answer::Refused(Refused { kind: RefusedKind::Unavailable, .. }) => None,
            Answer::Refused(Refused { kind, message, cure }) => {
                let again = kind == RefusedKind::Changed;
                Some(ToAgent::MayNot { ask, again, refusal: Refusal { message, cure } })
            }
            answer => {
                warn!("an unexpected answer about a VM on {}: {}", self.peer.host, answer.status());
                None
            }
        }
    }

    async fn renewed(&self) -> ToAgent {
        let host = &self.peer.host;
        match self.renew().await {
            Ok(certificate) => {
                info!("the certificate of {host} was renewed");
                ToAgent::Renewed { certificate: certificate_pem(&certificate) }
            }
            Err(refusal) => {
                warn!("the certificate of {host} is not renewed: {}", refusal.message);
                ToAgent::NotRenewed(refusal)
            }
        }
    }

    /// Signs a certificate, and returns it once it is written down that it is the host's.
    async fn renew(&self) -> Result<CertificateDer<'static>, Refusal> {
        let AgentPeer { host, certificate, sha256, .. } = self.peer;
        let new = self.settings.signer.renew(certificate)?;
        let signed_sha256 = CaFingerprint::of(&new).to_hex();
        let ask = Ask::RenewCertificate { host: host.clone(), shown_sha256: sha256.clone(), signed_sha256 };
        match self.ask("renew its certificate".to_owned(), ask).await {
            Answer::Done => Ok(new),
            Answer::Refused(Refused { message, cure, .. }) => Err(Refusal { message, cure }),
            answer => {
                Err(Refusal { message: format!("an unexpected answer: {}", answer.status()), cure: String::new() })
            }
        }
    }
}

async fn hello(reader: &mut (impl AsyncBufReadExt + Unpin), host: &str) -> Result<skein_api::Hello, LinkEnd> {
    let line = timeout(HELLO_WITHIN, read(reader, HELLO_BYTES_MAX)).await.map_err(|_| LinkEnd::NoHello)??;
    let ToController::Hello(hello) = parse(&line)? else { return Err(LinkEnd::OtherHello) };
    if hello.host != host {
        return Err(LinkEnd::OtherHost { said: hello.host, certified: host.to_owned() });
    }
    check_version(Some(hello.api.min(skein_api::API_VERSION))).map_err(|refusal| LinkEnd::Refused(refusal.message))?;
    Ok(hello)
}

/// Hands lines both ways until one end has enough.
async fn lines(
    questions: &Questions<'_>,
    mut up: Up,
    reader: &mut (impl AsyncBufReadExt + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
) -> LinkEnd {
    let Some(AgentLink { mut lines, hang_up, .. }) = up.link.take() else { return LinkEnd::Silent };
    let mut watched = up.shared.watched.connect(&questions.peer.host);
    let answers = watched.answers();
    let silent = (questions.settings.report_period * SILENT_PERIODS).max(SILENT_MIN);
    let (shared, session, host) = (&up.shared, up.session, questions.peer.host.as_str());
    // One is signed at a time, while lines go on.
    let (renew, mut asked) = mpsc::channel(1);
    let (ask_hand, mut asked_by_hand) = mpsc::channel(HAND_QUESTIONS_MAX);
    let inbox = Inbox { shared, session, host, renew, ask_hand, answers };
    let reading = async {
        loop {
            match timeout(silent, read(reader, LINE_BYTES_MAX)).await {
                Ok(Ok(line)) => match parse(&line) {
                    Ok(line) => inbox.take(line).await,
                    Err(end) => return end,
                },
                Ok(Err(end)) => return end,
                Err(_) => return LinkEnd::Silent,
            }
        }
    };
    let writing = async {
        while let Some(line) = lines.recv().await {
            if let Err(end) = write(writer, &line).await {
                return end;
            }
        }
        // Then the connection's end is on its way.
        std::future::pending().await
    };
    let signing = async {
        while asked.recv().await.is_some() {
            let answer = questions.renewed().await;
            shared.tell_agent(session, &answer);
        }
        std::future::pending().await
    };
    let allowing = async {
        while let Some(question) = asked_by_hand.recv().await {
            if let Some(answer) = questions.may(question).await {
                shared.tell_agent(session, &answer);
            }
        }
        std::future::pending().await
    };
    let watching = async {
        loop {
            for line in watched.next().await {
                shared.tell_agent(session, &line);
            }
        }
    };
    tokio::select! {
        end = reading => end,
        () = watching => LinkEnd::Silent,
        end = writing => end,
        end = signing => end,
        end = allowing => end,
        hang_up = hang_up => match hang_up {
            Ok(HangUp { last: Some(refusal), .. }) => LinkEnd::NotTaken(refusal),
            Ok(HangUp { why, last: None }) => LinkEnd::HungUp(why),
            Err(_) => LinkEnd::HungUp("the controller ends".into()),
        },
    }
}

/// Where an agent's lines go.
struct Inbox<'a> {
    shared: &'a Arc<Shared>,
    session: SessionId,
    host: &'a str,
    renew: mpsc::Sender<()>,
    ask_hand: mpsc::Sender<HandQuestion>,
    answers: WatchedAnswers,
}

impl Inbox<'_> {
    async fn take(&self, line: ToController) {
        match line {
            // Whoever asks again before there is an answer gets that answer.
            ToController::Renew => drop(self.renew.try_send(())),
            ToController::AskStart { ask, vm, is_here } => {
                drop(self.ask_hand.try_send(HandQuestion::of_start(self.host, ask, vm, is_here)));
            }
            ToController::AskMove { ask, vm, to, migration } => {
                drop(self.ask_hand.try_send(HandQuestion::of_move(self.host, ask, vm, to, migration)));
            }
            ToController::Sample(sample) => self.answers.sample(*sample),
            ToController::Seen { look, reply } => self.answers.seen(look, *reply),
            line => {
                self.shared.free().await;
                take(self.shared, self.session, line);
            }
        }
    }
}

fn take(shared: &Shared, session: SessionId, line: ToController) {
    match line {
        ToController::Report(mut report) => {
            for vm in &mut report.vms {
                if vm.definition.as_ref().is_some_and(|text| text.len() > DEFINITION_BYTES_MAX) {
                    vm.definition = None;
                }
            }
            shared.input(Input::AgentReport { session, report });
        }
        ToController::Reply { command, reply } => shared.input(Input::AgentReply { session, command, reply }),
        ToController::Deposed { command: _, highest } => shared.input(Input::AgentDeposed { session, highest }),
        // A second hello says nothing new, questions are answered elsewhere, and other lines are of a newer release.
        ToController::Hello(_)
        | ToController::Renew
        | ToController::AskStart { .. }
        | ToController::AskMove { .. }
        | ToController::Sample(_)
        | ToController::Seen { .. }
        | ToController::Other => {}
    }
}

async fn read(reader: &mut (impl AsyncBufReadExt + Unpin), bytes_max: u64) -> Result<Vec<u8>, LinkEnd> {
    let mut line = Vec::new();
    reader.take(bytes_max).read_until(b'\n', &mut line).await.map_err(LinkEnd::Io)?;
    match line.last() {
        Some(b'\n') => Ok(line),
        _ if line.len() as u64 == bytes_max => Err(LinkEnd::Line(LineError::TooLong)),
        _ => Err(LinkEnd::Line(LineError::Closed)),
    }
}

fn parse(line: &[u8]) -> Result<ToController, LinkEnd> {
    let line: ToController = parse_line(line).map_err(LinkEnd::Line)?;
    line.check().map_err(|refusal| LinkEnd::Refused(refusal.message))?;
    Ok(line)
}

async fn write(writer: &mut (impl AsyncWrite + Unpin), line: &[u8]) -> Result<(), LinkEnd> {
    let writing = async {
        writer.write_all(line).await?;
        writer.flush().await
    };
    timeout(WRITE_WITHIN, writing).await.map_err(|_| LinkEnd::DoesNotRead)?.map_err(LinkEnd::Io)
}
