//! The connection of an agent with the controller, dialled again and again as `skein agent` does.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use skein_api::{API_VERSION, Hello, Reply, ToAgent, ToController, parse_line};
use skein_identity::controller_name;
use skein_placement::dice::Dice;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;

use crate::host::Obeyed;
use crate::told::Told;
use crate::words::number_of;
use crate::world::World;

/// The time before the second attempt, doubled up to the longest: those of `skein agent`.
const REDIAL: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));
/// How many replies to commands wait at most.
const REPLIES_MAX: usize = 64;
/// How a line begins that says where hosts are.
const HOSTS_LINE: &[u8] = br#"{"line":"hosts""#;

/// Keeps contact for a host.
pub(crate) async fn keep(world: Arc<World>, index: usize, tls: Arc<ClientConfig>, controller: SocketAddr, seed: u64) {
    let connector = TlsConnector::from(tls);
    let mut dice = Dice::new(seed ^ index as u64);
    let mut reaches = world.agent(index).reaches.subscribe();
    let mut pause = REDIAL.0;
    // Agents of hosts that were booted together do not dial in the same moment.
    sleep(REDIAL.1.mul_f64(dice.unit())).await;
    loop {
        if reaches.wait_for(|reaches| *reaches).await.is_err() {
            return;
        }
        let begun = tokio::time::Instant::now();
        tokio::select! {
            // Whatever ends a connection, the next begins soon.
            _ = connect(&world, index, &connector, controller) => {}
            _ = reaches.wait_for(|reaches| !*reaches) => {}
        }
        if begun.elapsed() > REDIAL.1 {
            pause = REDIAL.0;
        }
        sleep(pause.mul_f64(0.5 + dice.unit())).await;
        pause = (pause * 2).min(REDIAL.1);
    }
}

type Stream = TlsStream<TcpStream>;

async fn connect(world: &Arc<World>, index: usize, tls: &TlsConnector, controller: SocketAddr) -> io::Result<()> {
    let socket = TcpStream::connect(controller).await?;
    socket.set_nodelay(true)?;
    let stream = tls.connect(controller_name(), socket).await?;
    let (reader, mut writer) = split(stream);
    let mut reader = BufReader::new(reader);
    let hello = {
        let host = world.agent(index).host.lock();
        let number = number_of(&host.name);
        Hello {
            host: host.name.clone(),
            release: env!("CARGO_PKG_VERSION").into(),
            api: API_VERSION,
            instance: host.instance,
            boot_id: Some(host.boot_id()),
            addresses: vec![format!("10.0.{}.{}:7070", number / 250, number % 250 + 1)],
            highest_term: host.highest,
            moves_off: false,
        }
    };
    send(&mut writer, &ToController::Hello(hello)).await?;
    let ToAgent::Welcome(welcome) = next(&mut reader).await? else {
        return Err(io::Error::other("the controller does not take the host"));
    };
    serve(world, index, Duration::from_millis(welcome.report_period_ms), &mut reader, &mut writer).await
}

async fn serve(
    world: &Arc<World>,
    index: usize,
    period: Duration,
    reader: &mut BufReader<ReadHalf<Stream>>,
    writer: &mut WriteHalf<Stream>,
) -> io::Result<()> {
    let (replies, mut replied) = mpsc::channel::<ToController>(REPLIES_MAX);
    let hear = async {
        loop {
            let line = next(reader).await?;
            take(world, index, &replies, line).await;
        }
    };
    let tell = async {
        let mut told = Told::default();
        let mut reports = interval(period);
        reports.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let agent = world.agent(index);
        loop {
            tokio::select! {
                biased;
                Some(reply) = replied.recv() => {
                    send(writer, &reply).await?;
                    continue;
                }
                _ = reports.tick() => {}
                () = agent.changed.notified() => {}
            }
            let report = {
                let (host, now_ms) = (agent.host.lock(), world.now_ms());
                told.report(now_ms, host.snapshot(now_ms, &world.loads), || host.facts())
            };
            send(writer, &ToController::Report(Box::new(report))).await?;
            world.reports.fetch_add(1, Ordering::Relaxed);
        }
    };
    tokio::select! {
        end = hear => end,
        end = tell => end,
    }
}

async fn take(world: &Arc<World>, index: usize, replies: &mpsc::Sender<ToController>, line: ToAgent) {
    let agent = world.agent(index);
    match line {
        // Simulated migrations have no samples, guests have no consoles, and hosts show nothing.
        ToAgent::Watch { .. } | ToAgent::Look { .. } | ToAgent::Console { .. } => {}
        ToAgent::Leads { term } => {
            let mut host = agent.host.lock();
            host.highest = host.highest.max(term);
        }
        ToAgent::Command { command, term, request_id, request } => {
            let (obeyed, highest) = {
                let mut host = agent.host.lock();
                let highest = host.highest;
                let is_led = term >= highest;
                host.highest = highest.max(term);
                (is_led.then(|| host.obey(world.now_ms(), request_id, *request, world.fresh_id())), highest)
            };
            let reply = |reply: Reply| ToController::Reply { command, reply: Box::new(reply) };
            match obeyed {
                // A connection that is over needs no reply.
                None => drop(replies.send(ToController::Deposed { command, highest }).await),
                Some(Obeyed::Reply(of)) => drop(replies.send(reply(of)).await),
                Some(Obeyed::Starts { vm, name, after_ms }) => {
                    let (world, replies) = (world.clone(), replies.clone());
                    tokio::spawn(async move {
                        sleep(Duration::from_millis(after_ms)).await;
                        let of = world.agent(index).host.lock().started(&vm, &name);
                        world.act(index);
                        drop(replies.send(ToController::Reply { command, reply: Box::new(of) }).await);
                    });
                }
            }
            world.act(index);
        }
        ToAgent::Welcome(_) | ToAgent::Refused(_) | ToAgent::Hosts { .. } | ToAgent::Controllers { .. } => {}
        // Simulated hosts ask for nothing.
        ToAgent::Renewed { .. } | ToAgent::NotRenewed(_) | ToAgent::May { .. } | ToAgent::MayNot { .. } => {}
        ToAgent::Heard { .. } | ToAgent::Other => {}
    }
}

async fn next(reader: &mut BufReader<ReadHalf<Stream>>) -> io::Result<ToAgent> {
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line).await?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    // Where a thousand hosts are is of no use to hosts that are nowhere, and long.
    if line.starts_with(HOSTS_LINE) {
        return Ok(ToAgent::Other);
    }
    parse_line(&line).map_err(io::Error::other)
}

async fn send(writer: &mut WriteHalf<Stream>, line: &ToController) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    writer.write_all(&bytes).await?;
    writer.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_hosts_is_known_by_its_beginning() {
        let line = serde_json::to_vec(&ToAgent::Hosts { addresses: Default::default() }).unwrap();
        assert!(line.starts_with(HOSTS_LINE));
    }
}
