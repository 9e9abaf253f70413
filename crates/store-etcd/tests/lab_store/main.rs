//! The store in a real cluster of etcd: what all stores must do; what is left when its members die or stand still; who
//! is let in.

// Timeout: 300 s
// Cores: 1.5

mod cluster;
mod load;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cluster::{Cluster, wait_for};
use load::Load;
use nix::sys::signal::Signal;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use skein_store::election::{Term, TermBase, campaign, guarded, is_deposed};
use skein_store::{Change, Key, Lease, Operation, Outcome, Prefix, Store, StoreError, Transaction, Value, read_one};
use skein_store_etcd::{EtcdOptions, EtcdStore, EtcdTls};
use skein_store_suite::{Subject, run, side_by_side};

/// What is promised: after this time a cluster goes on that has lost a member.
const GOES_ON: Duration = Duration::from_secs(10);

/// Makes stores in one cluster, each below a namespace of its own.
fn stores(cluster: &Cluster) -> impl Fn() -> Box<dyn Store> {
    let last = AtomicUsize::new(0);
    move || Box::new(cluster.store(&format!("/test/{}/", last.fetch_add(1, Ordering::SeqCst))))
}

fn key(path: &str) -> Key {
    Key::new(path).expect("it is a key")
}

fn value(text: &str) -> Value {
    Value::new(text.as_bytes()).expect("it is within the bound")
}

#[test]
fn a_store_in_etcd_does_what_all_must() {
    let Some(cluster) = Cluster::start() else { return };
    run(&Subject { open: &stores(&cluster), pass: &|_| {} });
}

#[test]
fn it_does_what_a_store_in_plain_memory_does() {
    let Some(cluster) = Cluster::start() else { return };
    let begin = Instant::now();
    side_by_side::run(&side_by_side::Plan {
        subject: Subject { open: &stores(&cluster), pass: &|_| {} },
        reopen: None,
        virtual_time: false,
        cases: 40,
        steps: 60,
    });
    println!("  side by side: {:.1?}", begin.elapsed());
}

#[test]
fn the_leaders_death_loses_nothing_and_does_nothing_twice() {
    let Some(mut cluster) = Cluster::start() else { return };
    let store = cluster.store("/skein/");
    let load = Load::start(&store);
    std::thread::scope(|scope| {
        load.run(scope);
        load.wait_for_more(50);
        for round in 0..2 {
            let leader = cluster.leader();
            cluster.kill(leader);
            let took = load.wait_for_more(20);
            println!("  the leader was killed ({round}): the first commits after {took:.2?}");
            cluster.revive(leader);
            load.wait_for_more(100);
        }
        let leader = cluster.leader();
        cluster.pause(leader, Signal::SIGSTOP);
        let took = load.wait_for_more(20);
        println!("  the leader stood still: the first commits after {took:.2?}");
        cluster.pause(leader, Signal::SIGCONT);
        load.wait_for_more(100);
        load.end();
    });
    let report = load.judge();
    println!("  {report}");
    assert!(report.longest_gap < GOES_ON, "it went on after {:?}", report.longest_gap);
}

#[test]
fn a_deposed_leaders_writes_are_refused_while_etcd_loses_its_own() {
    let Some(mut cluster) = Cluster::start() else { return };
    let (first, second) = (cluster.store("/skein/"), cluster.store("/skein/"));
    let begin = read_one(&first, &key("owner"), GOES_ON).expect("it can be read").0;
    let deadline = Instant::now() + Duration::from_secs(60);
    // Neither looks at its lease: the first never keeps it alive, and writes on until it is refused.
    let old = lead(&first, "first", deadline);
    let (refused, later) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until_deposed(&first, old, deadline));
        let successor = scope.spawn(|| {
            let term = lead(&second, "second", deadline);
            for _ in 0..20 {
                let written = write(&second, term);
                assert!(!matches!(written, Ok(Outcome::Conflict { .. })), "it leads");
            }
            term
        });
        std::thread::sleep(Duration::from_millis(500));
        let leader = cluster.leader();
        cluster.kill(leader);
        (writer.join().expect("it ends"), successor.join().expect("it ends"))
    });
    println!("  the deposed leader had written {refused} times");
    assert!(refused > 0 && later.number() > old.number());
    // All that was ever written, in its order: the terms never go back.
    let mut watch = first.watch(&Prefix::all(), begin, GOES_ON).expect("nothing is forgotten");
    let (mut terms, mut last) = (Vec::new(), None);
    while let Some(batch) = watch.next(Duration::from_secs(2)).expect("nothing is forgotten") {
        for event in batch.events.iter().filter(|event| event.key == key("owner")) {
            let Change::Put(entry) = &event.change else { panic!("nobody deletes it") };
            let term: u64 = std::str::from_utf8(entry.value.as_bytes()).expect("text").parse().expect("a number");
            if last.replace(term) != Some(term) {
                terms.push(term);
            }
        }
    }
    assert_eq!(terms, [old.number(), later.number()]);
}

/// Leads, as soon as nobody else does, with a lease of two seconds that is never kept alive by the first.
fn lead(store: &EtcdStore, name: &str, deadline: Instant) -> Term {
    let ttl = if name == "first" { 2 } else { 60 };
    loop {
        assert!(Instant::now() < deadline, "{name} does not come to lead");
        let lease = store.grant(Duration::from_secs(ttl), Duration::from_secs(3));
        let Ok(Lease { id, .. }) = lease else { continue };
        match store.commit(&campaign(value(name), id), Duration::from_secs(3)) {
            Ok(Outcome::Committed { revision }) => return Term { base: TermBase(0), created: revision },
            // A lease of which nobody knows whether it leads would keep the next candidate waiting.
            Ok(Outcome::Conflict { .. }) | Err(_) => drop(store.revoke(id, Duration::from_secs(3))),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn write(store: &EtcdStore, term: Term) -> Result<Outcome, StoreError> {
    let put = Operation::put(key("owner"), value(&term.number().to_string()));
    store.commit(&guarded(Transaction::new().then(put), term), Duration::from_secs(3))
}

/// Writes until it is refused, and returns how often it was done.
fn write_until_deposed(store: &EtcdStore, term: Term, deadline: Instant) -> u32 {
    let mut done = 0;
    while Instant::now() < deadline {
        match write(store, term) {
            Ok(Outcome::Committed { .. }) => done += 1,
            Ok(Outcome::Conflict { failed }) if is_deposed(&failed) => return done,
            Ok(other) => panic!("{other:?}"),
            Err(StoreError::Unknown(_) | StoreError::Unavailable(_)) => {}
            Err(error) => panic!("{error}: {error:?}"),
        }
    }
    panic!("it is never refused");
}

#[test]
fn a_member_that_stands_still_is_left_and_an_etcd_that_is_away_takes_nothing() {
    let Some(mut cluster) = Cluster::start() else { return };
    let store = cluster.store("/skein/");
    let put = |text: &str| Transaction::new().then(Operation::put(key("a"), value(text)));
    store.commit(&put("1"), GOES_ON).expect("it is there");
    // The first endpoint is the one that is asked.
    cluster.pause(0, Signal::SIGSTOP);
    let begin = Instant::now();
    let read = read_one(&store, &key("a"), GOES_ON).expect("another member answers");
    assert!(read.1.is_some() && begin.elapsed() < GOES_ON, "{:?}", begin.elapsed());
    cluster.pause(0, Signal::SIGCONT);
    store.commit(&put("2"), GOES_ON).expect("two members are enough, and three are there");

    (0..3).for_each(|member| cluster.kill(member));
    let begin = Instant::now();
    let short = Duration::from_secs(2);
    // Whatever connection there was has ended; at the latest the second call finds none.
    let _ = store.commit(&put("3"), short);
    let away = store.commit(&put("4"), short).expect_err("nobody is there");
    assert!(matches!(away, StoreError::Unavailable(_)), "{away:?}");
    let away = store.read(&skein_store::Range::one(key("a")), short).expect_err("nobody is there");
    assert!(matches!(away, StoreError::Unavailable(_)), "{away:?}");
    assert!(begin.elapsed() < 4 * short, "{:?}", begin.elapsed());
    (0..3).for_each(|member| cluster.revive(member));
    wait_for(&store);
    let found = read_one(&store, &key("a"), GOES_ON).expect("it is there again").1.expect("it was put");
    assert!(found.value == value("2") || found.value == value("3"), "{found:?}");
}

#[test]
fn only_who_has_a_certificate_is_let_in() {
    let folder = |folder: &Path| {
        certificates(folder);
        let path = |name: &str| folder.join(name).display().to_string();
        let files =
            ["--trusted-ca-file", "--cert-file", "--key-file"].into_iter().zip(["ca.pem", "server.pem", "server.key"]);
        let mut options: Vec<String> = files.flat_map(|(option, name)| [option.to_string(), path(name)]).collect();
        options.push("--client-cert-auth".into());
        options
    };
    let Some(cluster) = Cluster::start_with(1, "https", folder) else { return };
    let file = |name: &str| cluster.folder().join(name);
    let open = |ca: &str, identity: Option<(&str, &str)>| {
        let identity = identity.map(|(certificate, key)| (file(certificate), file(key)));
        let tls = Some(EtcdTls { ca: file(ca), identity });
        EtcdStore::open(&EtcdOptions { tls, ..EtcdOptions::new(cluster.endpoints()) }).expect("the files are there")
    };
    let welcome = open("ca.pem", Some(("client.pem", "client.key")));
    wait_for(&welcome);
    let put = Transaction::new().then(Operation::put(key("a"), value("1")));
    welcome.commit(&put, GOES_ON).expect("it is let in");
    let short = Duration::from_secs(2);
    for (what, stranger) in [
        ("no certificate", open("ca.pem", None)),
        ("another CA's certificate", open("ca.pem", Some(("stranger.pem", "stranger.key")))),
        ("another CA for etcd's", open("other.pem", Some(("client.pem", "client.key")))),
    ] {
        let again = Transaction::new().then(Operation::put(key("a"), value("2")));
        assert!(stranger.commit(&again, short).is_err(), "{what}");
    }
    let found = read_one(&welcome, &key("a"), GOES_ON).expect("it is let in").1.expect("it was put");
    assert_eq!(found.value, value("1"));
}

/// Writes a CA, and certificates of it for a server and a client; and another CA, and a client's of that.
fn certificates(folder: &Path) {
    let ca = |name: &str| {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a certificate");
        std::fs::write(folder.join(format!("{name}.pem")), ca.pem()).expect("it is written");
        ca
    };
    let (own, other) = (ca("ca"), ca("other"));
    for (name, issuer) in [("server", &own), ("client", &own), ("stranger", &other)] {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_string()]).expect("it is an address");
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, issuer).expect("a certificate");
        std::fs::write(folder.join(format!("{name}.pem")), certificate.pem()).expect("it is written");
        std::fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).expect("it is written");
    }
}
