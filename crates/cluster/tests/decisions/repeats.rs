//! Requests that may come again under the same key, and for how long they are remembered.

use skein_api::cluster::OptimizeRequest;
use skein_cluster::{Ask, Asked, Input};

use crate::bench::Bench;

const DAY_MS: u64 = 86_400_000;

#[test]
fn what_is_too_old_to_be_repeated_is_forgotten() {
    let mut bench = Bench::new(&["alpha"]);
    let asks = |bench: &mut Bench, key: usize| {
        let (by, from, what) = ("anna".into(), "here".into(), "POST /optimize".into());
        let ask = Ask::Optimize { request: OptimizeRequest { apply: true, aggressiveness: None } };
        let asked = Asked { id: 0, by, from, what, repeat: Some(format!("key{key}")), ask };
        bench.input(Input::Asked(Box::new(asked)));
        (bench.controller.tables().repeats.len(), bench.controller.tables().operations.len())
    };
    let begun: Vec<usize> = (0..40).map(|key| asks(&mut bench, key).1).collect();
    assert_eq!(asks(&mut bench, 39).0, 40);
    assert_eq!(asks(&mut bench, 39).1, *begun.last().unwrap(), "it is the same request");
    bench.now.wall.0 += DAY_MS + 1;
    let kept: Vec<usize> = (40..44).map(|key| asks(&mut bench, key).0).collect();
    assert_eq!(kept, [25, 10, 3, 4], "those of a day are remembered");
}
