//! Is the process of a rail: does what the agent asks for, until the agent is gone. Each endpoint has a thread.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::poll::PollTimeout;
use nix::sys::prctl::set_name;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::words::{COMPLETIONS_MAX, Channel, Operation, Reply, Request, Word};
use crate::fabric::{Begun, Completion, FabricError};
use crate::library::Library;
use crate::memory::SharedMemory;
use crate::rail::{OPERATIONS_MAX, RailEndpoint, RailRegion, RailSlice};

/// The providers that know no IP addresses: shared memory has names, which two endpoints cannot have both, and EFA
/// takes an address for a device's own.
const WITHOUT_ADDRESSES: [&str; 2] = ["shm", "efa"];
/// How many requests are taken before completions are.
const REQUESTS_AT_ONCE: usize = 64;
/// How much may wait for the agent to take it before no completions are taken: a peer writes as often as it likes.
const UNTOLD_MAX: usize = 256;
/// How long a wait lasts at most: briefly where something is to be tried again.
const RETRY_WAIT: Duration = Duration::from_millis(1);
const IDLE_WAIT: Duration = Duration::from_secs(1);
/// How long the library has to close what it opened when the agent is gone.
const END_TIME: Duration = Duration::from_secs(2);

/// Serves a rail until the agent ends the connection that is standard input: all that the process does.
///
/// # Errors
/// Standard input is no such connection, or the agent says what makes no sense.
pub fn serve_rail() -> io::Result<()> {
    set_name(c"skein-rail")?;
    // A dump would hold guests' memory.
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    let channel = Channel::of(io::stdin().as_fd().try_clone_to_owned()?);
    let mut endpoints = Vec::<JoinHandle<()>>::new();
    loop {
        match channel.receive() {
            Ok(Some((Request::Serve, Some(socket)))) => {
                endpoints.retain(|endpoint| !endpoint.is_finished());
                let serve = || drop(Service::open(Channel::of(socket)).map(|service| service.map(Service::run)));
                endpoints.push(thread::Builder::new().name("endpoint".into()).spawn(serve)?);
            }
            Ok(Some(_)) => return Err(io::ErrorKind::InvalidData.into()),
            Ok(None) => channel.wait(PollTimeout::NONE),
            // The agent is gone, or needs the rail no more.
            Err(_) => break,
        }
    }
    // Whatever the library does, the process ends.
    thread::spawn(|| {
        thread::sleep(END_TIME);
        // What libraries do at an exit may hang as well.
        let _ = kill(Pid::this(), Signal::SIGKILL);
    });
    endpoints.into_iter().for_each(|endpoint| drop(endpoint.join()));
    Ok(())
}

/// Operations that could not be begun yet: receives, and the others.
#[derive(Default)]
struct ToBegin {
    receives: VecDeque<(RailSlice, u64)>,
    others: VecDeque<(Operation, RailSlice, u64)>,
}

/// An endpoint, and what its agent asks of that.
struct Service {
    /// `None`: closed.
    endpoint: Option<RailEndpoint>,
    regions: BTreeMap<u32, Rc<RailRegion>>,
    to_begin: ToBegin,
    /// What the agent has not been told.
    untold: VecDeque<Word>,
    /// Whether no completions are taken any more.
    is_resting: bool,
    /// Ends after all else: the agent takes that for the end of the endpoint.
    channel: Channel,
}

impl Service {
    /// Opens what the agent asks for first. `None`: there is no such rail, and the agent was told.
    fn open(channel: Channel) -> io::Result<Option<Service>> {
        let (providers, at) = loop {
            match channel.receive()? {
                Some((Request::Open { providers, at }, _)) => break (providers, at),
                Some(_) => return Err(io::ErrorKind::InvalidData.into()),
                None => channel.wait(PollTimeout::NONE),
            }
        };
        let (endpoint, reply) = match open(&providers, at) {
            Ok(Some(endpoint)) => {
                let (abilities, name) = (endpoint.abilities().clone(), endpoint.name().to_vec());
                (Some(endpoint), Ok(Reply::Opened { abilities, name }))
            }
            Ok(None) => (None, Ok(Reply::NoRail)),
            Err(error) => (None, Err(error)),
        };
        channel.send(&Word::Reply(reply), None)?;
        let service = |endpoint| Service {
            endpoint: Some(endpoint),
            regions: BTreeMap::new(),
            to_begin: ToBegin::default(),
            untold: VecDeque::new(),
            is_resting: false,
            channel,
        };
        Ok(endpoint.map(service))
    }

    fn run(mut self) -> io::Result<()> {
        let mut happened = Vec::new();
        loop {
            let mut is_idle = true;
            for _ in 0..REQUESTS_AT_ONCE {
                match self.channel.receive() {
                    Ok(Some((request, file))) => self.take(request, file)?,
                    Ok(None) => break,
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(error),
                    // The agent is gone, or needs the rail no more.
                    Err(_) => return Ok(()),
                }
                is_idle = false;
            }
            if !self.is_resting && self.untold.len() < UNTOLD_MAX {
                is_idle &= !self.step(&mut happened);
            }
            while let Some(word) = self.untold.front() {
                match self.channel.send(word, None) {
                    Ok(true) => drop(self.untold.pop_front()),
                    Ok(false) => break,
                    Err(_) => return Ok(()),
                }
            }
            let has_begun_all = self.to_begin.count() == 0 && self.untold.is_empty();
            match &self.endpoint {
                _ if !is_idle => {}
                Some(endpoint) if !self.is_resting => {
                    endpoint.wait(self.channel.as_fd(), if has_begun_all { IDLE_WAIT } else { RETRY_WAIT });
                }
                _ if self.untold.is_empty() => self.channel.wait(PollTimeout::NONE),
                _ => self.channel.wait(PollTimeout::try_from(RETRY_WAIT).unwrap_or(PollTimeout::ZERO)),
            }
        }
    }

    /// Begins what the endpoint takes, and takes what is done. Returns whether anything is.
    fn step(&mut self, happened: &mut Vec<Completion>) -> bool {
        let Some(endpoint) = &self.endpoint else { return false };
        self.to_begin.begin(endpoint, happened);
        if let Err(why) = endpoint.poll(happened) {
            self.untold.push_back(Word::Over(why));
            self.is_resting = true;
        }
        let has_happened = !happened.is_empty();
        self.tell(happened);
        has_happened
    }

    /// Does what the agent asks for.
    ///
    /// # Errors
    /// The agent has no such region, or asks for more than there may be.
    fn take(&mut self, request: Request, file: Option<OwnedFd>) -> io::Result<()> {
        let nonsense = || io::Error::from(io::ErrorKind::InvalidData);
        let reply = match request {
            Request::Open { .. } | Request::Serve => return Err(nonsense()),
            Request::Forget { region } => {
                self.regions.remove(&region);
                return Ok(());
            }
            Request::Begin { operation, region, offset, bytes, token } => {
                let region = self.regions.get(&region).cloned().ok_or_else(nonsense)?;
                let slice = RailSlice::new(region, offset as usize, bytes as usize).ok_or_else(nonsense)?;
                if self.to_begin.count() >= 2 * OPERATIONS_MAX {
                    return Err(nonsense());
                }
                match operation {
                    Operation::Receive => self.to_begin.receives.push_back((slice, token)),
                    _ => self.to_begin.others.push_back((operation, slice, token)),
                }
                return Ok(());
            }
            Request::Ping => {
                self.untold.push_back(Word::Alive);
                return Ok(());
            }
            Request::Connect { name } => self.open_endpoint().and_then(|of| of.connect(&name)).map(|()| Reply::Done),
            Request::Register { region, offset, bytes, access, key } => {
                let file = Arc::new(File::from(file.ok_or_else(nonsense)?));
                let end = offset.checked_add(bytes).ok_or_else(nonsense)?;
                let memory = SharedMemory::new(file, offset..end).ok_or_else(nonsense)?;
                self.open_endpoint().and_then(|of| of.register(&memory, access, key)).map(|registered| {
                    let remote = registered.remote();
                    self.regions.insert(region, registered);
                    Reply::Registered(remote)
                })
            }
            Request::Rest => {
                self.is_resting = true;
                Ok(Reply::Done)
            }
            Request::Close => {
                self.is_resting = true;
                self.endpoint.take().map_or(Ok(()), RailEndpoint::close).map(|()| Reply::Done)
            }
        };
        self.untold.push_back(Word::Reply(reply));
        Ok(())
    }

    fn open_endpoint(&self) -> Result<&RailEndpoint, FabricError> {
        self.endpoint.as_ref().ok_or_else(|| FabricError::Process("has closed the endpoint".into()))
    }

    fn tell(&mut self, happened: &mut Vec<Completion>) {
        while !happened.is_empty() {
            let rest = happened.split_off(happened.len().min(COMPLETIONS_MAX));
            self.untold.push_back(Word::Happened(std::mem::replace(happened, rest)));
        }
    }
}

impl ToBegin {
    fn count(&self) -> usize {
        self.receives.len() + self.others.len()
    }

    /// Begins what the endpoint takes. What cannot be begun has failed.
    fn begin(&mut self, endpoint: &RailEndpoint, happened: &mut Vec<Completion>) {
        let mut is_taken = |token, begun| match begun {
            Ok(Begun::Busy) => false,
            Ok(Begun::Yes) => true,
            Err(why) => {
                happened.push(Completion::Failed { token: Some(token), why });
                true
            }
        };
        while let Some((slice, token)) = self.receives.front() {
            if !is_taken(*token, endpoint.receive(slice, *token)) {
                break;
            }
            self.receives.pop_front();
        }
        while let Some((operation, slice, token)) = self.others.front() {
            let begun = match *operation {
                Operation::Receive => endpoint.receive(slice, *token),
                Operation::Send => endpoint.send(slice, *token),
                Operation::Write { to, immediate } => endpoint.write(slice, to, immediate, *token),
                Operation::Read { from } => endpoint.read(slice, from, *token),
            };
            if !is_taken(*token, begun) {
                break;
            }
            self.others.pop_front();
        }
    }
}

/// Opens the rail at an address, of the first provider that has one there.
fn open(providers: &[String], at: IpAddr) -> Result<Option<RailEndpoint>, FabricError> {
    let library = Library::get()?;
    for provider in providers {
        let has_addresses = !WITHOUT_ADDRESSES.contains(&&provider[..]);
        let mut offers = library.offers(Some(provider), has_addresses.then_some(at))?;
        if !has_addresses && let Some(why) = several(offers.iter().map(|offer| &offer.abilities().device[..])) {
            return Err(FabricError::Refused(format!("{provider}: {why}")));
        }
        if !offers.is_empty() {
            return RailEndpoint::open(offers.swap_remove(0)).map(Some);
        }
    }
    Ok(None)
}

/// Returns why none of these devices is used: it is not known which of several belongs to a NIC.
fn several<'a>(devices: impl Iterator<Item = &'a str>) -> Option<String> {
    let devices: BTreeSet<&str> = devices.collect();
    let names = devices.into_iter().collect::<Vec<_>>();
    (names.len() > 1).then(|| format!("which of the devices {} is this NIC's is not known", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_has_no_address_is_used_if_it_is_the_only_one() {
        assert_eq!(several(["efa_0-rdm", "efa_0-rdm"].into_iter()), None);
        assert_eq!(several([].into_iter()), None);
        let why = several(["efa_1-rdm", "efa_0-rdm"].into_iter()).unwrap();
        assert_eq!(why, "which of the devices efa_0-rdm, efa_1-rdm is this NIC's is not known");
    }
}
