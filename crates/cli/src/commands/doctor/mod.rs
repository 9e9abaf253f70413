//! `skein doctor`.

mod agent;
mod arguments;
mod excluded;
mod finding;
mod network;
mod rdma;
mod system;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use arguments::Arguments;
use finding::{Finding, Severity};
use skein_host::Kernel;
use skein_network::Recorder;

use super::local::LocalAgent;
use super::text::{clean_line, count, print, print_json};

/// Say what is missing or slow on this host, and how to mend it.
///
/// Changes nothing, and works without an agent. To see that it works, a small file is written where the agent keeps its
/// state, and removed again, and a QEMU with a guest of its own is started under KVM for a moment.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein doctor
  skein doctor --json | jq '.[] | select(.severity != \"ok\")'
  skein doctor --evidence hosta.json      # what hosta's NICs are, to be looked at elsewhere

Exit codes:
  0  nothing is bad (warnings are told)
  1  something has to be mended before guests can be moved")]
pub struct Args {
    #[command(flatten)]
    local: LocalAgent,
    /// This host's identity
    #[arg(long, value_name = "DIR", default_value = skein_identity::DEFAULT_IDENTITY_DIR)]
    identity: PathBuf,
    /// Where the agent keeps its state
    #[arg(long, value_name = "DIR", default_value = "/var/lib/skein")]
    state: PathBuf,
    /// The other hosts; the controllers are in controllers.toml beside it
    #[arg(long, value_name = "FILE", default_value = "/etc/skein/hosts.toml")]
    hosts: PathBuf,
    /// The QEMU that is to run guests [default: $SKEIN_QEMU or qemu-system-x86_64]
    #[arg(long, value_name = "PROGRAM")]
    qemu: Option<PathBuf>,
    /// A JSON array with an object a finding: severity (ok, warn, bad), topic, what, cure
    #[arg(long)]
    json: bool,
    /// Only write what this host's kernel says of its network to a file, with names and addresses, for those who are to
    /// look at it elsewhere: skein net show --evidence FILE
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    evidence: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(file) = args.evidence {
        write_evidence(&file)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (agent, pid) = agent::agent(&args.local.client());
    let mut findings = vec![agent::identity(&args.identity)];
    findings.extend(agent);
    findings.push(agent::hosts_file(&args.hosts));
    findings.extend(agent::controllers_file(&args.hosts.with_file_name("controllers.toml")));
    findings.extend(system::state(&args.state));
    findings.extend(system::hypervisor(args.qemu));
    findings.extend(network::nics());
    findings.extend(network::interfaces());
    let arguments = Arguments::of_process(pid);
    findings.extend(excluded::networks_of(&arguments));
    findings.extend(network::tcp());
    findings.extend(rdma::rdma(pid, &arguments));
    findings.extend(system::memory());
    findings.extend(system::cpu());
    findings.push(system::ciphers());
    findings.extend(system::limits(pid));
    findings.extend(system::clock());
    if args.json {
        print_json(&findings)?
    } else {
        print(&text(&findings))?
    }
    let is_bad = findings.iter().any(|finding| finding.severity == Severity::Bad);
    Ok(if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Writes what the kernel says of the network.
fn write_evidence(file: &Path) -> anyhow::Result<()> {
    let kernel = Kernel::new();
    let recorder = Recorder::new(&kernel);
    let interfaces = skein_network::read(&recorder)?;
    // What is asked besides to decide about cores is recorded, too.
    let _ = skein_network::nic_interrupts(&recorder, &interfaces.iter().collect::<Vec<_>>());
    let text = serde_json::to_string(&recorder.into_recording())?;
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    let names: Vec<String> = interfaces.iter().map(|of| clean_line(&of.nic.name)).collect();
    print(&format!("wrote {}: what the kernel says of {}\n", file.display(), names.join(", ")))
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { severity, topic, what, cure } in findings {
        let severity = match severity {
            Severity::Ok => "ok",
            Severity::Warn => "warn",
            Severity::Bad => "BAD",
        };
        text += &format!("{severity:4}  {topic:8}  {}\n", clean_line(what));
        if !cure.is_empty() {
            text += &format!("{:16}help: {}\n", "", clean_line(cure));
        }
    }
    let number = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (warnings, bad) = (count(number(Severity::Warn), "warning"), number(Severity::Bad));
    text + &match bad {
        0 => format!("\nNothing is bad; {warnings}.\n"),
        1 => format!("\n1 thing is bad; {warnings}.\n"),
        _ => format!("\n{bad} things are bad; {warnings}.\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::finding::{bad, ok, warn};
    use super::*;

    #[test]
    fn findings_are_lines() {
        let findings = [ok("kvm", "works"), warn("cpu", "slow\nvery", "mend it"), bad("agent", "none", "start it")];
        assert_eq!(
            text(&findings),
            "ok    kvm       works\n\
             warn  cpu       slow; very\n                help: mend it\n\
             BAD   agent     none\n                help: start it\n\n\
             1 thing is bad; 1 warning.\n"
        );
        assert!(text(&findings[..1]).ends_with("\nNothing is bad; 0 warnings.\n"));
    }
}
