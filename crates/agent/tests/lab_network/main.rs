//! Tests the migration network between two of the lab's hosts: the kernel's rules, real sockets, and what programs see
//! of them. Needs root and nft.
// Cores: 0.6
// Timeout: 600 s
// QEMU: 10

#[path = "../noise/mod.rs"]
mod noise;
mod qemu;
mod world;

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use skein_agent::{RedirectError, install_redirect, redirect_status, remove_redirect};
use skein_inventory::HostsFile;
use socket2::SockRef;

use self::noise::noise;
use self::world::{NETWORK, PATIENCE, World, patient};

fn reset(socket: TcpStream) {
    SockRef::from(&socket).set_linger(Some(Duration::ZERO)).unwrap();
}

/// Returns what a read says.
fn next(mut socket: &TcpStream) -> Result<usize, ErrorKind> {
    socket.read(&mut [0; 100]).map_err(|error| error.kind())
}

/// Returns whether the program's connection was made, and then reset.
fn is_reset(socket: io::Result<TcpStream>) -> bool {
    match socket.as_ref().map(next) {
        Ok(seen) => seen == Err(ErrorKind::ConnectionReset),
        // The reset was there before the call was over.
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn what_a_program_connects_to_arrives_there_with_both_halves() {
    let world = World::new("nb");
    world.install();
    let addresses = ["10.9.9.2:60000", "10.9.9.2:49215", "[fd09::2]:60050"];
    for (nth, address) in addresses.into_iter().enumerate() {
        let listener = world.listen(address);
        let (near, far) = world.joined(&listener);
        assert_eq!(far.local_addr().unwrap().to_string(), address);
        assert_eq!(near.peer_addr().unwrap().to_string(), address, "that is what the program sees");
        let own: IpAddr = far.local_addr().unwrap().ip();
        assert_eq!(far.peer_addr().unwrap().ip(), own, "the agent there connects");
        // The server speaks first, as NBD does; then each direction ends by itself.
        { &far }.write_all(b"NBDMAGIC").unwrap();
        { &near }.read_exact(&mut [0; 8]).unwrap();
        let data = noise(5_000_000, nth as u64 + 1);
        thread::scope(|scope| {
            scope.spawn(|| {
                { &near }.write_all(&data).unwrap();
                near.shutdown(Shutdown::Write).unwrap();
            });
            let mut heard = Vec::new();
            { &far }.read_to_end(&mut heard).unwrap();
            assert!(heard == data, "{} of {} bytes", heard.len(), data.len());
        });
        thread::scope(|scope| {
            scope.spawn(|| {
                { &far }.write_all(&data).unwrap();
                far.shutdown(Shutdown::Write).unwrap();
            });
            let mut heard = Vec::new();
            { &near }.read_to_end(&mut heard).unwrap();
            assert!(heard == data, "{} of {} bytes", heard.len(), data.len());
        });
    }
    let status = world.lab.enter("a", redirect_status).unwrap().unwrap().unwrap();
    assert!(status.is_as(&world.network()) && !status.is_held, "{status:?}");
    assert_eq!(status.connections, 3);
    // Other ports are none of Skein's.
    let listener = world.listen("10.9.9.2:22");
    let (_near, far) = world.joined(&listener);
    assert_eq!(far.peer_addr().unwrap().ip().to_string(), "10.9.9.1");
}

#[test]
fn refusals_and_resets_arrive_as_resets() {
    let world = World::new("nr");
    world.install();
    assert!(is_reset(world.connect("10.9.9.2:60001")), "nobody listens there");
    assert!(is_reset(world.connect("10.9.9.7:60001")), "nobody is known to have that address");
    assert!(is_reset(world.connect("10.9.9.3:60001")), "no agent is there");
    // The agent of b is asked to reach an address that b does not have.
    world.write_network("a", &format!("allow = ['a']\n{}", NETWORK.replace("10.9.9.2'", "10.9.9.9'")));
    world.install();
    world.wait_for("the file to be read", || is_reset(world.connect("10.9.9.9:60001")));
    world.write_network("a", &format!("allow = ['a']\n{NETWORK}"));
    for address in ["10.9.9.2:60000", "[fd09::2]:60000"] {
        let listener = world.listen(address);
        let (near, far) = world.joined(&listener);
        { &far }.write_all(b"last words").unwrap();
        assert_eq!(next(&near), Ok(10));
        reset(far);
        assert_eq!(next(&near), Err(ErrorKind::ConnectionReset));
        let (near, far) = world.joined(&listener);
        { &near }.write_all(b"last words").unwrap();
        assert_eq!(next(&far), Ok(10));
        reset(near);
        assert_eq!(next(&far), Err(ErrorKind::ConnectionReset), "no end that nobody said");
        // The same of a connection that QEMU's bytes go over.
        let (near, far) = world.joined(&listener);
        { &near }.write_all(b"QEVM").unwrap();
        reset(near);
        let mut all = Vec::new();
        let end = { &far }.read_to_end(&mut all).map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "no end that nobody said, after {} bytes", all.len());
    }
}

#[test]
fn a_writer_that_nobody_reads_is_freed_by_a_reset() {
    let world = World::new("nw");
    world.install();
    let listener = world.listen("10.9.9.2:60000");
    let (near, far) = world.joined(&listener);
    near.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    while { &near }.write(&[7; 100_000]).is_ok() {}
    reset(near);
    // What is on the way to a program that reads nothing holds nobody up for ever.
    world.wait_for("the connection to be over", || world.streams().iter().all(|streams| *streams <= 1));
    let mut all = Vec::new();
    assert_eq!({ &far }.read_to_end(&mut all).map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
}

#[test]
fn who_may_connect_is_decided_at_the_target() {
    let world = World::with("na", "");
    world.install();
    let listener = world.listen("10.9.9.2:60000");
    listener.set_nonblocking(true).unwrap();
    assert!(is_reset(world.connect("10.9.9.2:60000")), "nobody may by default");
    world.write_network("b", &format!("allow = ['x', 'a=10.9.9.2:60001']\n{NETWORK}"));
    assert!(is_reset(world.connect("10.9.9.2:60000")));
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "nothing came");
    world.write_network("b", &format!("allow = ['x', 'a=10.9.9.2:60000']\n{NETWORK}"));
    listener.set_nonblocking(false).unwrap();
    world.joined(&listener);
}

#[test]
fn without_an_agent_connections_are_refused_and_nothing_goes_out() {
    let mut world = World::new("nn");
    world.install();
    let listeners = ["10.9.9.2:60000", "[fd09::2]:60000"].map(|address| world.listen(address));
    let (near, far) = world.joined(&listeners[0]);
    world.agents[0] = None;
    assert_eq!(next(&near), Err(ErrorKind::ConnectionReset), "the connection ends with its agent, and not in peace");
    assert_eq!(next(&far), Err(ErrorKind::ConnectionReset));
    for listener in &listeners {
        let refused = world.connect(&listener.local_addr().unwrap().to_string()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "nothing came");
        listener.set_nonblocking(false).unwrap();
    }
    world.start_agent(0);
    world.joined(&listeners[0]);
    // The other agent goes and comes back.
    world.agents[1] = None;
    assert!(is_reset(world.connect("10.9.9.2:60000")));
    world.start_agent(1);
    world.wait_for("the agents to meet again", || {
        let Ok(near) = world.connect("10.9.9.2:60000") else { return false };
        near.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        next(&near) != Err(ErrorKind::ConnectionReset)
    });
}

#[test]
fn connections_pass_without_an_agent_where_that_is_wanted() {
    let mut world = World::with("np", "allow = ['a']\nwithout_agent = 'pass'");
    let status = |world: &World| world.lab.enter("a", redirect_status).unwrap().unwrap();
    world.wait_for("the agent to have the table", || status(&world).is_some_and(|table| table.is_held));
    let listener = world.listen("10.9.9.2:60000");
    let peer = |world: &World| world.joined(&listener).1.peer_addr().unwrap().ip().to_string();
    assert_eq!(peer(&world), "10.9.9.2");
    assert!(matches!(world.lab.enter("a", remove_redirect).unwrap(), Err(RedirectError::NotPermitted)));
    world.agents[0] = None;
    world.wait_for("the table to go with the agent", || status(&world).is_none());
    assert_eq!(peer(&world), "10.9.9.1", "directly");
    // A table that stood before the file was changed is the agent's from then on; it goes if the file says so.
    world.install();
    world.start_agent(0);
    world.wait_for("the agent to have the table", || status(&world).is_some_and(|table| table.is_held));
    world.write_network("a", NETWORK);
    world.wait_for("the table to go", || status(&world).is_none());
}

#[test]
fn rules_come_and_go_whole_and_those_of_others_stay() {
    let world = World::new("nx");
    let others = "table inet filter { chain output { type filter hook output priority 0; policy accept; \
                  tcp dport 25 drop; }; }; table ip nat { chain output { type nat hook output priority -100; }; }";
    let nft = |words: &str| assert!(world.lab.command("a", "nft").unwrap().arg(words).status().unwrap().success());
    nft(others);
    let before = world.rules();
    assert!(!world.lab.enter("a", remove_redirect).unwrap().unwrap(), "there was nothing");
    world.install();
    let installed = world.rules();
    world.install();
    assert_eq!(world.rules(), installed, "again is the same");
    assert!(world.lab.enter("a", remove_redirect).unwrap().unwrap());
    assert_eq!(world.rules(), before);
    // What would catch the agents themselves is not installed.
    let hosts = HostsFile::parse("[[host]]\nname = 'b'\naddress = ['10.9.9.2:60001']", "hosts.toml").unwrap();
    let refused = world.lab.enter("a", || install_redirect(&world.network(), &hosts)).unwrap().unwrap_err();
    assert!(refused.to_string().contains("the agent of b listens on 10.9.9.2:60001"), "{refused}");
    assert_eq!(world.rules(), before);
}

/// Returns how many files and threads this process has.
fn held() -> (usize, usize) {
    let count = |dir: &str| fs::read_dir(dir).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

#[test]
fn a_flood_of_connections_loses_and_leaves_nothing() {
    let world = World::new("nf");
    world.install();
    let listener = world.listen("10.9.9.2:60000");
    let to = listener.local_addr().unwrap().to_string();
    drop(world.joined(&listener));
    thread::sleep(Duration::from_secs(1));
    let before = held();
    // All in one thread of the host: entering it takes longer than a connection.
    let open_and_say = |connections: u32| -> Vec<TcpStream> {
        let to: SocketAddr = to.parse().unwrap();
        let connect = |nth: u32| {
            let mut socket = patient(TcpStream::connect_timeout(&to, PATIENCE).unwrap()).unwrap();
            socket.write_all(&nth.to_be_bytes()).unwrap();
            socket
        };
        world.lab.enter("a", || (0..connections).map(connect).collect()).unwrap()
    };
    let echo = |connections: u32| -> Vec<TcpStream> {
        let answer = |_| {
            let mut socket = patient(listener.accept().unwrap().0).unwrap();
            let mut word = [0; 4];
            socket.read_exact(&mut word).unwrap();
            socket.write_all(&word).unwrap();
            socket
        };
        (0..connections).map(answer).collect()
    };
    for (connections, is_reset_by_us) in [(2000, false), (1000, true), (2000, true)] {
        let since = Instant::now();
        let (near, far) = thread::scope(|scope| {
            let far = scope.spawn(|| echo(connections));
            let near = open_and_say(connections);
            (near, far.join().unwrap())
        });
        eprintln!("{connections} connections stand after {:?}", since.elapsed());
        for (nth, mut socket) in near.iter().enumerate() {
            let mut word = [0; 4];
            socket.read_exact(&mut word).unwrap();
            assert_eq!(u32::from_be_bytes(word) as usize, nth);
        }
        if is_reset_by_us {
            near.into_iter().for_each(reset);
        } else {
            drop(near);
        }
        drop(far);
        world.wait_for("all to be over", || {
            let now = held();
            now.0 <= before.0 + 10 && now.1 <= before.1 + 10 && world.streams().iter().all(|streams| *streams <= 1)
        });
        eprintln!("and nothing is left after {:?}: {before:?}, {:?}", since.elapsed(), held());
    }
    // Ports are scanned, one of which answers.
    let to = listener.local_addr().unwrap();
    let scan = |port: u16| {
        let socket = TcpStream::connect_timeout(&SocketAddr::new(to.ip(), port), PATIENCE).and_then(patient);
        let socket = socket.inspect(|socket| socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap());
        is_reset(socket)
    };
    let since = Instant::now();
    let ports: Vec<u16> = (49152..=49215).chain(60000..=60050).collect();
    let open = world.lab.enter("a", || ports.iter().copied().filter(|port| !scan(*port)).collect::<Vec<_>>()).unwrap();
    eprintln!("{} ports in {:?}", ports.len(), since.elapsed());
    assert_eq!(open, [60000]);
    drop(listener.accept().unwrap());
    world.wait_for("all to be over", || world.streams().iter().all(|streams| *streams <= 1));
}
