//! Runs a fleet around a controller, and prints what happens and what was seen.
//!
//! ```text
//! cargo run --release -p skein-lab-fleet --example fleet -- target/release/skein-controller 1000 [PLANETLAB]
//! ```

use std::path::PathBuf;

use skein_lab_fleet::{FleetSettings, agents, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|first| first == "agents") {
        return Ok(agents::run()?);
    }
    let (Some(controller), Some(hosts)) = (arguments.get(1), arguments.get(2)) else {
        return Err("name the program of controllers, and how many hosts there are".into());
    };
    let own = vec![std::env::current_exe()?.display().to_string(), "agents".into()];
    let settings = FleetSettings::new(controller.into(), own);
    let settings = if hosts == "1000" { settings } else { settings.quick() };
    let settings = FleetSettings { hosts: hosts.parse()?, planetlab: arguments.get(3).map(PathBuf::from), ..settings };
    let seen = run(&settings, &|note| println!("{note}"), &|| false)?;
    println!("{}", serde_json::to_string_pretty(&seen)?);
    Ok(())
}
