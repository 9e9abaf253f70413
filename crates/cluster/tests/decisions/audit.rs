//! What the audit log has, in which order, and for how long.

use skein_api::Term;
use skein_api::cluster::{AuditRecord, ClusterSettings};
use skein_cluster::{Ask, Asked, Controller, Input, Settings, Tables};

use crate::bench::Bench;

fn with_kept(audit_kept: usize) -> Bench {
    let mut bench = Bench::new(&[]);
    bench.controller = Controller::new(Settings { audit_kept, ..Settings::default() });
    bench.input(Input::Elected { term: Term(1), tables: Box::new(Tables::default()) });
    bench
}

fn asks(bench: &mut Bench, by: &str, what: &str, ask: Ask) {
    let asked = Asked { id: 0, by: by.into(), from: "here".into(), what: what.into(), repeat: None, ask };
    bench.input(Input::Asked(Box::new(asked)));
}

fn does(bench: &mut Bench, what: &str) {
    let settings = Box::new(ClusterSettings::default());
    asks(bench, "anna", what, Ask::SetSettings { settings, version: None });
}

fn is_refused(bench: &mut Bench, by: &str) {
    asks(bench, by, "POST /x", Ask::Refused { status: 403, detail: "'v' is a viewer".into() });
}

fn log(bench: &Bench) -> Vec<AuditRecord> {
    bench.controller.tables().audit.values().map(|stored| stored.value.clone()).collect()
}

#[test]
fn refusals_of_a_caller_are_limited_and_counted() {
    let mut bench = with_kept(100_000);
    (0..500).for_each(|_| is_refused(&mut bench, "viewer"));
    is_refused(&mut bench, "host:alpha");
    let of = |bench: &Bench, by: &str| log(bench).iter().filter(|record| record.by == by).count();
    assert_eq!((of(&bench, "viewer"), of(&bench, "host:alpha")), (60, 1));
    // Others' requests, and those that are carried out, are written as ever.
    (0..100).for_each(|number| does(&mut bench, &format!("PUT {number}")));
    assert_eq!(of(&bench, "anna"), 100);
    bench.wait_s(61);
    is_refused(&mut bench, "viewer");
    is_refused(&mut bench, "viewer");
    let details: Vec<String> = log(&bench).into_iter().rev().take(2).map(|record| record.detail).collect();
    assert!(details[1].contains("440 refusals of this caller"), "{details:?}");
    assert_eq!(details[0], "'v' is a viewer");
}

#[test]
fn refusals_never_push_out_what_was_done() {
    let mut bench = with_kept(50);
    (0..40).for_each(|number| does(&mut bench, &format!("PUT {number}")));
    for _ in 0..20 {
        for caller in 0..20 {
            is_refused(&mut bench, &format!("host:h{caller}"));
        }
        bench.wait_s(61);
    }
    let log = log(&bench);
    let done: Vec<&str> = log.iter().filter(|of| !of.is_refusal()).map(|of| of.what.as_str()).collect();
    assert_eq!(done, (0..40).map(|number| format!("PUT {number}")).collect::<Vec<_>>());
    assert_eq!(log.len() - done.len(), 5, "a tenth of what is kept");
    // What was done is kept to its end, too.
    (40..200).for_each(|number| does(&mut bench, &format!("PUT {number}")));
    assert_eq!(self::log(&bench).len(), 50);
}

#[test]
fn records_are_in_the_order_in_which_they_were_written() {
    let mut bench = Bench::new(&[]);
    does(&mut bench, "PUT first");
    let wall = bench.now.wall;
    bench.now.wall.0 += 10_000_000_000;
    does(&mut bench, "PUT by a clock that is ahead");
    bench.now.wall = wall;
    does(&mut bench, "PUT third");
    // Also by another leader, which has read the log.
    bench.change_leader();
    does(&mut bench, "PUT fourth");
    let log = log(&bench);
    let what: Vec<&str> = log.iter().map(|of| of.what.as_str()).collect();
    assert_eq!(what, ["PUT first", "PUT by a clock that is ahead", "PUT third", "PUT fourth"]);
    assert_eq!(log[2].at, wall, "the time is the clock's");
}
