//! A person's word that a host is off.

use skein_api::cluster::Contact;

use crate::bench::{Bench, is_off};

#[test]
fn before_a_host_counts_as_lost_it_is_said_how_long_that_takes() {
    let mut bench = Bench::new(&["alpha", "beta"]);
    let refused = bench.refused(is_off("alpha"));
    assert!(refused.message.contains("the agent of 'alpha' reports"), "{refused:?}");
    bench.disconnect("alpha");
    bench.wait_s(4);
    let refused = bench.refused(is_off("alpha"));
    assert!(
        refused.message.contains("nothing was heard of 'alpha' for 4 s: it counts as lost after 10 s"),
        "{refused:?}"
    );
    assert_eq!(refused.cure, "ask again in 7 s");
    bench.wait_s(7);
    assert_eq!(bench.host("alpha").contact, Contact::Lost);
    bench.ask(is_off("alpha"));
    assert_eq!(bench.host("alpha").contact, Contact::Off);
}
