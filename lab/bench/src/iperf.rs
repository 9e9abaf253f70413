//! The yardstick: iperf3 on all links together.

use std::{path::Path, time::Duration};

use serde_json::Value;

use crate::{
    process::{Process, ProcessError},
    results::Yardstick,
    site::{HOSTS, Site, SiteError},
};

const PORT: u16 = 5201;

/// How many seconds count. One more is measured before them and ignored.
const MEASURED_S: u32 = 4;

/// Why iperf3 did not measure.
#[derive(Debug, thiserror::Error)]
pub enum IperfError {
    /// The hosts failed.
    #[error(transparent)]
    Site(#[from] SiteError),
    /// The program failed.
    #[error("iperf3 as a yardstick")]
    Process(#[from] ProcessError),
    /// The program's output has no rate.
    #[error("iperf3 gave no rate: {0}")]
    Answer(String),
}

/// Measures one TCP connection on each link, bound to address and NIC, all at once, from the first host to the second.
///
/// # Errors
///
/// [`IperfError`] if iperf3 does not measure.
pub fn measure(site: &Site, stage: &str, directory: &Path) -> Result<Yardstick, IperfError> {
    let [source, target] = HOSTS;
    let mut servers = Vec::new();
    for link in 0..site.links() {
        let mut command = site.command(target, "iperf3")?;
        command.args(["-s", "-1", "--forceflush", "-p", &(PORT + link as u16).to_string(), "-B"]);
        command.arg(format!("{}%nic{link}", site.ip(target, link)?));
        let mut server = Process::start(command, &directory.join(format!("iperf3-server{link}.log")))?;
        server.wait_until("listening server", Duration::from_secs(5), |p| p.output().contains("listening"))?;
        servers.push(server);
    }
    let mut clients = Vec::new();
    for link in 0..site.links() {
        let mut command = site.command(source, "iperf3")?;
        command.args(["-J", "-O", "1", "-t", &MEASURED_S.to_string(), "-p", &(PORT + link as u16).to_string()]);
        command.arg("-c").arg(site.ip(target, link)?.to_string());
        command.arg("-B").arg(format!("{}%nic{link}", site.ip(source, link)?));
        clients.push(Process::start(command, &directory.join(format!("iperf3-client{link}.log")))?);
    }
    // Measures what the wire carries, in the middle of the measurement.
    std::thread::sleep(Duration::from_millis(1500));
    let before = (site.counters(target)?, std::time::Instant::now());
    std::thread::sleep(Duration::from_secs(u64::from(MEASURED_S) - 1));
    let after = (site.counters(target)?, std::time::Instant::now());
    let seconds = (after.1 - before.1).as_secs_f64();
    let wire_bps = (0..site.links())
        .map(|link| {
            let bytes = |counters: &std::collections::BTreeMap<String, skein_host::Counters>| {
                counters.get(&format!("nic{link}")).map_or(0, |c| c.rx_bytes)
            };
            (bytes(&after.0) - bytes(&before.0)) as f64 * 8.0 / seconds
        })
        .collect();
    let mut iperf3_bps = Vec::new();
    for client in clients {
        iperf3_bps.push(received_bps(&client.wait(Duration::from_secs(20))?)?);
    }
    Ok(Yardstick { stage: stage.into(), iperf3_bps, wire_bps })
}

fn received_bps(answer: &str) -> Result<f64, IperfError> {
    let json: Value = serde_json::from_str(answer).map_err(|e| IperfError::Answer(e.to_string()))?;
    let rate = json["end"]["sum_received"]["bits_per_second"].as_f64().filter(|bps| *bps > 0.0);
    rate.ok_or_else(|| IperfError::Answer(json["error"].as_str().unwrap_or("it ended early").into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        let good = r#"{"end": {"sum_sent": {"bits_per_second": 9.5e8}, "sum_received": {"bits_per_second": 9.4e8}}}"#;
        assert_eq!(received_bps(good).unwrap(), 9.4e8);
        let bad = received_bps(r#"{"error": "unable to connect to server"}"#).unwrap_err();
        assert_eq!(bad.to_string(), "iperf3 gave no rate: unable to connect to server");
        assert!(received_bps("").is_err());
    }
}
