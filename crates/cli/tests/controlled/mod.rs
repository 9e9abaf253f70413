//! Sets the lab's hosts up with the programs that were built.

use std::path::Path;
use std::time::Duration;

use skein_lab_cluster::{Controlled, Settings};

/// The time for anything that has to happen at all.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// A fence agent that leaves the switching to the test, by files in its directory. Each power-off that is ordered is a
/// line of `orders`.
pub const FENCE_AGENT: &str = r#"#!/bin/sh
cd "$(dirname "$0")" || exit 1
case "$(cat)" in
*action=off*)
    echo $$ >>orders
    while [ ! -e is-off ]; do sleep 0.1; done
    ;;
*action=status*)
    if [ -e is-off ]; then exit 2; fi
    ;;
*)
    exit 1
    ;;
esac
"#;

/// Makes hosts, of which none has an agent or a controller. Commands are given on the host `seat`.
pub fn hosts(settings: Settings, seat: &str) -> Controlled {
    // The controller's program is built beside `skein`.
    let controller = Path::new(env!("CARGO_BIN_EXE_skein")).with_file_name("skein-controller");
    Controlled::new(settings, &controller, seat)
}
