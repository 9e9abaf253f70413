//! Tests the loss of contact at the very moment of the handover: what can be known is decided, and the rest is left to
//! contact or to a person. Needs root.
// Timeout: 300 s
// Cores: 0.5
#![cfg(feature = "fault-points")]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use skein_api::{MigrateOptions, MigrationId, Outcome, Reply, Request, VmState};
use skein_lab_cluster::{Cluster, Settings, Start, until};
use skein_lab_guest::Params;
use skein_lab_hosts::Cut;

const VM: &str = "v";
const SOON: Duration = Duration::from_secs(60);
/// Long enough for a guest to be resumed by mistake.
const A_WHILE: Duration = Duration::from_secs(4);

/// Two hosts that lost contact while a guest was being handed over from a to b.
struct Parted {
    cluster: Cluster,
    id: MigrationId,
    since: Instant,
}

impl Parted {
    /// Halts the source's agent at a step, takes all links away, and lets the agent go on.
    fn at(label: &str) -> Parted {
        // A program that is built meanwhile may lack the feature, so a copy is used.
        static PROGRAM: LazyLock<(tempfile::TempDir, PathBuf)> = LazyLock::new(|| {
            let dir = tempfile::tempdir().unwrap();
            let program = dir.path().join("skein");
            fs::copy(env!("CARGO_BIN_EXE_skein"), &program).unwrap();
            (dir, program)
        });
        let program = PROGRAM.1.clone();
        let mut cluster = Cluster::up(Settings { nics: 2, ..Settings::new(program) });
        cluster.start_vm("a", &cluster.bare(VM));
        cluster.stop("a");
        let file = cluster.dir().join("fault");
        let env = [("SKEIN_FAULT_POINT", label), ("SKEIN_FAULT_FILE", file.to_str().unwrap())];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        cluster.start_as("a", &Start { env, ..Start::default() });
        let id = cluster.begin(VM, "a", "b", MigrateOptions::default()).id;
        cluster.wait(SOON, "the step is taken", || file.exists());
        for nic in 0..2 {
            cluster.lab().cut("b", nic, Cut::BlackHole).unwrap();
        }
        fs::remove_file(&file).unwrap();
        Parted { cluster, id, since: Instant::now() }
    }

    fn heal(&self) {
        for nic in 0..2 {
            self.cluster.lab().heal("b", nic).unwrap();
        }
    }

    fn is_in_doubt(&self, host: &str) -> bool {
        let vms = self.cluster.vms(host);
        let doubted = vms.iter().any(|vm| vm.name == VM && vm.state == VmState::InDoubt);
        doubted && self.cluster.migration(host, self.id).in_doubt
    }

    /// Ends everything on a host, as if its power had failed.
    fn power_off(&mut self, host: &str) {
        self.cluster.kill(host);
        self.cluster.kill_qemu(VM, host);
    }

    fn resolve(&self, host: &str) -> Outcome {
        let unproven = Request::MigrationResolve { id: VM.into(), other_host_is_off: false };
        assert!(self.cluster.refused(host, &unproven).contains("run twice"));
        let request = Request::MigrationResolve { id: VM.into(), other_host_is_off: true };
        let Reply::Migration(migration) = self.cluster.asked(host, &request) else { panic!("no migration") };
        migration.outcome.expect("it is decided")
    }

    fn ends_well(&self, host: &str) {
        self.cluster.wait(SOON, "it runs at one host", || self.cluster.where_runs(VM) == [host]);
        self.cluster.wait_clean(SOON);
        self.cluster.check();
        let other = if host == "a" { "b" } else { "a" };
        self.cluster.moved(VM, host, other);
        self.cluster.wait_clean(SOON);
        self.cluster.check();
    }
}

#[test]
fn before_the_grant_the_guest_goes_on_at_the_source() {
    let parted = Parted::at("source-before-order-continue");
    parted.cluster.wait(SOON, "it runs", || parted.cluster.where_runs(VM) == ["a"]);
    let stood_still = parted.since.elapsed();
    println!("the guest ran again {} ms after all links were lost", stood_still.as_millis());
    assert!(stood_still < Duration::from_secs(5), "{stood_still:?}");
    parted.heal();
    parted.ends_well("a");
    assert_eq!(parted.cluster.migration("a", parted.id).outcome, Some(Outcome::CalledOff));
}

/// Tests a QEMU that writes the rest of a guest into links that are gone: it notices nothing, and holds the guest.
#[test]
fn a_guest_whose_rest_cannot_be_sent_goes_on_at_the_source() {
    let program = env!("CARGO_BIN_EXE_skein").into();
    let mut cluster = Cluster::up(Settings { nics: 2, ..Settings::new(program) });
    let params = Params { fill_mb: 96, rewrite_mb: 96, rate: 12_000, ..Params::default() };
    let definition = cluster.working(VM, &params);
    cluster.start_vm("a", &definition);
    cluster.wait_working(VM);
    for nic in 0..2 {
        cluster.lab().rate("a", nic, Some(200)).unwrap();
    }
    // This leaves enough to send when the guest is stopped.
    let options = MigrateOptions { downtime_limit_ms: Some(4000), ..MigrateOptions::default() };
    let id = cluster.begin(VM, "a", "b", options).id;
    cluster.wait(SOON, "it is stopped", || cluster.where_runs(VM).is_empty());
    for nic in 0..2 {
        cluster.lab().cut("b", nic, Cut::BlackHole).unwrap();
    }
    let since = Instant::now();
    cluster.wait(SOON, "it runs", || cluster.where_runs(VM) == ["a"]);
    let stood_still = since.elapsed();
    println!("the guest ran again {} ms after all links were lost", stood_still.as_millis());
    assert!(stood_still < Duration::from_secs(6), "{stood_still:?}");
    for nic in 0..2 {
        cluster.lab().heal("b", nic).unwrap();
        cluster.lab().rate("a", nic, None).unwrap();
    }
    cluster.wait_clean(SOON);
    assert_eq!(cluster.migration("a", id).outcome, Some(Outcome::CalledOff));
    cluster.moved(VM, "a", "b");
    cluster.wait_clean(SOON);
    cluster.verify(VM);
    cluster.check();
}

#[test]
fn a_grant_on_its_way_leaves_both_in_doubt_until_they_are_in_contact() {
    let parted = Parted::at("source-before-send-grant");
    parted.cluster.wait(SOON, "both are in doubt", || parted.is_in_doubt("a") && parted.is_in_doubt("b"));
    println!("the alarm came {} ms after all links were lost", parted.since.elapsed().as_millis());
    assert!(parted.since.elapsed() < SOON);
    thread::sleep(A_WHILE);
    assert!(parted.cluster.where_runs(VM).is_empty(), "nobody may know");
    parted.heal();
    let healed = Instant::now();
    parted.cluster.wait(SOON, "it runs", || parted.cluster.where_runs(VM) == ["b"]);
    println!("the guest ran {} ms after the links were back", healed.elapsed().as_millis());
    assert!(healed.elapsed() < SOON);
    parted.ends_well("b");
    assert_eq!(parted.cluster.migration("a", parted.id).outcome, Some(Outcome::Moved));
}

#[test]
fn a_source_in_doubt_runs_the_guest_when_the_target_is_proven_off() {
    let mut parted = Parted::at("source-before-send-grant");
    parted.cluster.wait(SOON, "it is in doubt", || parted.is_in_doubt("a"));
    parted.power_off("b");
    assert_eq!(parted.resolve("a"), Outcome::CalledOff);
    parted.cluster.wait(SOON, "it runs", || parted.cluster.where_runs(VM) == ["a"]);
    parted.heal();
    parted.cluster.start("b");
    parted.ends_well("a");
}

#[test]
fn a_target_in_doubt_runs_the_guest_when_the_source_is_proven_off() {
    let mut parted = Parted::at("source-before-send-grant");
    parted.cluster.wait(SOON, "it is in doubt", || parted.is_in_doubt("b"));
    parted.power_off("a");
    assert_eq!(parted.resolve("b"), Outcome::Moved);
    parted.cluster.wait(SOON, "it runs", || parted.cluster.where_runs(VM) == ["b"]);
    parted.heal();
    parted.cluster.start("a");
    parted.ends_well("b");
}

#[test]
fn agents_that_die_in_doubt_are_in_doubt_again() {
    let mut parted = Parted::at("source-before-send-grant");
    parted.cluster.wait(SOON, "both are in doubt", || parted.is_in_doubt("a") && parted.is_in_doubt("b"));
    for host in ["a", "b"] {
        parted.cluster.kill(host);
        parted.cluster.start(host);
    }
    let again = until(SOON, || parted.is_in_doubt("a") && parted.is_in_doubt("b"));
    assert!(again, "{}", parted.cluster.report());
    assert!(parted.cluster.where_runs(VM).is_empty(), "nobody may know");
    parted.heal();
    parted.ends_well("b");
}
