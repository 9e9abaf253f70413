//! `skein-controller ticket`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use hyper::Method;
use skein_api::cluster::{JoinTicket, NewJoinTicket};
use skein_controller::config::DEFAULT_CONFIG;

use super::local;

/// Make a token with which one host joins the cluster, once.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein-controller ticket
      for any host, within an hour
  skein-controller ticket --host node3 --expires 1d

The controller on this machine has to run.")]
pub struct Args {
    /// The only host that may join by it
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// How long it is valid: 30m, 1h, 7d
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = time)]
    expires: Duration,
    /// Print the ticket as JSON
    #[arg(long)]
    json: bool,
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let config = local::config(&args.config)?;
    let new = NewJoinTicket { host: args.host, expires_s: Some(args.expires.as_secs()) };
    let body = serde_json::to_vec(&new).context("the request cannot be written")?;
    let answer = local::ask(&config, Method::POST, "/api/v1/tickets", Some(&body))?;
    let ticket: JoinTicket = answer.json()?;
    match args.json {
        true => skein_terminal::print(&format!("{}\n", String::from_utf8_lossy(&answer.body))),
        false => skein_terminal::print(&format!("{}\n", ticket.command)),
    }
}

/// Reads a time as `90s`, `30m`, `1h`, `7d`.
fn time(text: &str) -> Result<Duration, String> {
    let unit = text.chars().last().unwrap_or_default();
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => 0,
    };
    let number = text.strip_suffix(unit).and_then(|number| number.parse::<u64>().ok());
    match number.and_then(|number| number.checked_mul(seconds)) {
        Some(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds)),
        _ => Err("write a number and s, m, h or d: 30m".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let seconds = |text| time(text).map(|time| time.as_secs()).ok();
        assert_eq!(["90s", "30m", "1h", "7d"].map(seconds), [Some(90), Some(1800), Some(3600), Some(604_800)]);
        assert_eq!(["", "h", "0h", "1", "1w", "-1h", "1h1m", "99999999999999999999d"].map(seconds), [None; 8]);
    }
}
