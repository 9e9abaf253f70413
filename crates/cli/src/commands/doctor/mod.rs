//! `skein doctor`.

mod agent;
mod finding;
mod network;
mod system;

use std::path::PathBuf;
use std::process::ExitCode;

use finding::{Finding, Severity};

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
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (agent, pid) = agent::agent(&args.local.client());
    let mut findings = vec![agent::identity(&args.identity)];
    findings.extend(agent);
    findings.push(agent::hosts_file(&args.hosts));
    findings.extend(agent::controllers_file(&args.hosts.with_file_name("controllers.toml")));
    findings.extend(system::state(&args.state));
    findings.extend(system::hypervisor(args.qemu));
    findings.extend(network::nics());
    findings.extend(network::tcp());
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
