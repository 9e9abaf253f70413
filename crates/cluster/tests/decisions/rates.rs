//! The rate that all migrations of the cluster together may send with.

use skein_api::cluster::ClusterSettings;
use skein_api::{Request, VmState};
use skein_cluster::{Answer, Ask, RefusedKind};

use crate::bench::Bench;

fn set(rate: &str) -> Ask {
    let settings = ClusterSettings { migration_rate: Some(rate.into()), ..ClusterSettings::default() };
    Ask::SetSettings { settings: Box::new(settings), version: None }
}

/// Returns what hosts were told since this was last asked, in Mbit/s.
fn told(bench: &mut Bench) -> Vec<(String, Option<u64>)> {
    let (limits, others) =
        std::mem::take(&mut bench.sent).into_iter().partition(|sent| matches!(sent.request, Request::HostLimit { .. }));
    bench.sent = others;
    let mbit = |request| match request {
        Request::HostLimit { rate_bits_per_s, .. } => rate_bits_per_s.map(|bits: u64| bits / 1_000_000),
        other => panic!("{other:?}"),
    };
    let limits: Vec<_> = limits;
    limits.into_iter().map(|sent| (sent.host, mbit(sent.request))).collect()
}

fn all(of: &[(&str, Option<u64>)]) -> Vec<(String, Option<u64>)> {
    of.iter().map(|(host, mbit)| ((*host).to_owned(), *mbit)).collect()
}

#[test]
fn senders_share_the_clusters_rate_and_hosts_that_come_are_told() {
    let mut bench = Bench::new(&["alpha", "beta", "gamma"]);
    bench.wait_s(1);
    assert_eq!(told(&mut bench), [], "nothing is limited");
    assert_eq!(bench.ask(set("1 Gbit/s")), Answer::Done);
    bench.wait_s(1);
    let gbit = Some(1000);
    assert_eq!(told(&mut bench), all(&[("alpha", gbit), ("beta", gbit), ("gamma", gbit)]));
    bench.migrates("alpha", "beta", 1);
    bench.migrates("gamma", "beta", 2);
    bench.wait_s(1);
    assert_eq!(told(&mut bench), all(&[("alpha", Some(500)), ("gamma", Some(500))]));
    bench.wait_s(1);
    assert_eq!(told(&mut bench), [], "nothing has changed");
    // A host that connects anew may have been started anew.
    bench.disconnect("gamma");
    bench.wait_s(1);
    assert_eq!(told(&mut bench), all(&[("alpha", gbit)]), "what a host sent that is not heard of is not known");
    bench.connect("gamma");
    bench.wait_s(1);
    assert_eq!(told(&mut bench), all(&[("gamma", gbit)]), "its migration is over");
    // Hosts forget what is not repeated.
    bench.wait_s(100);
    assert_eq!(told(&mut bench).len(), 3);
    assert_eq!(bench.ask(set("")), Answer::Done);
    bench.wait_s(1);
    assert_eq!(told(&mut bench), all(&[("alpha", None), ("beta", None), ("gamma", None)]));
}

#[test]
fn a_rate_that_makes_no_sense_is_refused() {
    let mut bench = Bench::new(&["alpha"]);
    bench.set_vm("alpha", "web", VmState::Stopped);
    let refused = bench.refused(set("mon-fry 1 Gbit/s"));
    assert_eq!(refused.kind, RefusedKind::Invalid);
    assert!(refused.message.starts_with("migration_rate: \"mon-fry 1 Gbit/s\""), "{refused:?}");
}
