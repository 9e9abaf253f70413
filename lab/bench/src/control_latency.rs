//! Measures the round trips of a small stream through the same tunnel as the bulk.

use std::{
    io::{self, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{
    results::{ControlLatency, RoundTrips},
    stats,
};

/// The size of a message, which is about that of a small RPC.
const MESSAGE_BYTES: usize = 64;

/// The time between questions.
const EVERY: Duration = Duration::from_millis(10);

/// An answer that takes longer counts as this long, and ends the stream.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// Answers every message, on the target.
#[derive(Debug)]
pub struct Echo {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    /// Listens on `path`.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub fn start(path: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("echo".into()).spawn(move || {
            let mut streams: Vec<JoinHandle<()>> = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        let stopped = stopped.clone();
                        streams.push(std::thread::spawn(move || echo(stream, &stopped)));
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
            for stream in streams {
                let _ = stream.join();
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn echo(mut stream: UnixStream, stopped: &AtomicBool) {
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_read_timeout(Some(Duration::from_millis(50)));
    let mut buffer = [0; 4096];
    while !stopped.load(Ordering::Relaxed) {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) if stream.write_all(&buffer[..count]).is_err() => return,
            Err(e) if !matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => return,
            _ => {}
        }
    }
}

/// Asks all the time, on the source.
#[derive(Debug)]
pub struct Asker {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    thread: Option<JoinHandle<Vec<(Instant, Duration)>>>,
}

impl Asker {
    /// Connects to `path` and starts to ask.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub fn start(path: &Path) -> io::Result<Self> {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
        stream.set_write_timeout(Some(ANSWER_DEADLINE))?;
        let stop = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicUsize::new(0));
        let (stopped, counter) = (stop.clone(), answered.clone());
        let thread = std::thread::Builder::new().name("asker".into()).spawn(move || {
            let mut round_trips = Vec::new();
            let mut message = [0; MESSAGE_BYTES];
            while !stopped.load(Ordering::Relaxed) {
                let asked = Instant::now();
                let result = stream.write_all(&message).and_then(|()| stream.read_exact(&mut message));
                round_trips.push((asked, asked.elapsed()));
                if result.is_err() {
                    break;
                }
                counter.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(EVERY.saturating_sub(asked.elapsed()));
            }
            round_trips
        })?;
        Ok(Self { stop, answered, thread: Some(thread) })
    }

    /// Returns how many questions were answered so far.
    pub fn answered(&self) -> usize {
        self.answered.load(Ordering::SeqCst)
    }

    /// Stops. The idle round trips are those asked and answered before `idle_until`; the loaded ones are those asked
    /// within `loaded`.
    pub fn stop(mut self, idle_until: Instant, loaded: (Instant, Instant)) -> ControlLatency {
        let all = self.end();
        let part = |wanted: &dyn Fn(&(Instant, Duration)) -> bool| {
            round_trips(&all.iter().filter(|r| wanted(r)).map(|(_, took)| *took).collect::<Vec<_>>())
        };
        ControlLatency {
            idle: part(&|(asked, took)| *asked + *took < idle_until),
            loaded: part(&|(asked, _)| (loaded.0..loaded.1).contains(asked)),
        }
    }

    fn end(&mut self) -> Vec<(Instant, Duration)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.end();
    }
}

fn round_trips(took: &[Duration]) -> RoundTrips {
    let us: Vec<f64> = took.iter().map(|d| (d.as_secs_f64() * 1e7).round() / 10.0).collect();
    RoundTrips {
        count: us.len(),
        median_us: stats::median(&us).unwrap_or(0.0),
        p99_us: stats::percentile(&us, 0.99).unwrap_or(0.0),
        max_us: us.iter().copied().fold(0.0, f64::max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_answered_and_timed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("echo");
        let echo = Echo::start(&path).unwrap();
        let asker = Asker::start(&path).unwrap();
        let wait_for = |count: usize| {
            let end = Instant::now() + Duration::from_secs(60);
            while asker.answered() < count {
                assert!(Instant::now() < end, "no answers");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        wait_for(5);
        let middle = Instant::now();
        wait_for(asker.answered() + 5);
        let latency = asker.stop(middle, (middle, Instant::now()));
        drop(echo);
        for part in [latency.idle, latency.loaded] {
            assert!(part.count >= 3, "{latency:?}");
            assert!(0.0 < part.median_us && part.median_us <= part.p99_us && part.p99_us <= part.max_us);
        }
    }

    #[test]
    fn an_asker_without_answers_ends_when_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("echo");
        let echo = Echo::start(&path).unwrap();
        let asker = Asker::start(&path).unwrap();
        drop(echo);
        let now = Instant::now();
        asker.stop(now, (now, now));
        assert!(Asker::start(&path).is_err());
    }
}
