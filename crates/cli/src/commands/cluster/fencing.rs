//! `skein host fencing`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, bail};
use skein_api::cluster::{FencingDevice, HostSettings, PowerState};
use skein_client::{ControllerClient, Settings};
use skein_terminal::files;

use crate::commands::text::{clean_line, fields, print, print_json};

/// How many bytes the certificate of a CA has at most.
const CA_BYTES_MAX: u64 = 32 << 10;

#[derive(clap::Subcommand)]
pub enum Command {
    /// Name the device that switches a host off: a management controller with Redfish, or a fence agent
    ///
    /// Passwords are not set here: write the password into a file on each controller, in
    /// /etc/skein/controller/fencing, readable by root only, and name the file with --secret.
    #[command(after_help = "\
Examples:
  openssl s_client -connect 10.1.0.5:443 </dev/null | openssl x509 -noout -fingerprint -sha256
      what --certificate-sha256 takes, if nobody is between you and the device
  skein host fencing set hosta --redfish https://10.1.0.5 --user fencing --secret bmc-hosta \\
      --certificate-sha256 3A:9C:...
  skein host fencing set hosta --agent fence_ipmilan --option ip=10.1.0.5 --option lanplus=1 \\
      --option username=fencing --secret bmc-hosta")]
    Set {
        /// The host
        name: String,
        /// Where its management controller is, as https://10.1.0.5
        #[arg(long, value_name = "URL", conflicts_with = "agent")]
        redfish: Option<String>,
        /// Which of the management controller's systems the host is [default: the only one]
        #[arg(long, value_name = "ID", requires = "redfish")]
        system: Option<String>,
        /// The account
        #[arg(long, value_name = "NAME", requires = "redfish", requires = "secret")]
        user: Option<String>,
        /// The file with the password, on each controller
        #[arg(long, value_name = "NAME")]
        secret: Option<String>,
        /// The only certificate that is trusted, by its SHA-256
        #[arg(long, value_name = "DIGITS", requires = "redfish", conflicts_with = "ca")]
        certificate_sha256: Option<String>,
        /// The only CA that is trusted
        #[arg(long, value_name = "FILE", requires = "redfish")]
        ca: Option<PathBuf>,
        /// A fence agent, which each controller has in /usr/sbin
        #[arg(long, value_name = "PROGRAM")]
        agent: Option<String>,
        /// What the fence agent is given, any number of them
        #[arg(long, value_name = "KEY=VALUE", requires = "agent")]
        option: Vec<String>,
        /// How many seconds the fence agent has for a power-off [default: 60]
        #[arg(long, value_name = "SECONDS", requires = "agent")]
        timeout: Option<u32>,
    },
    /// What is set, as JSON
    #[command(after_help = "\
Examples:
  skein host fencing show hosta")]
    Show {
        /// The host
        name: String,
        /// What is printed all the same
        #[arg(long)]
        json: bool,
    },
    /// Ask the device whether the host has power; nothing is switched
    #[command(after_help = "\
Examples:
  skein host fencing test hosta        is it the right machine, and does the account work?")]
    Test {
        /// The host
        name: String,
        /// The answer as JSON
        #[arg(long)]
        json: bool,
    },
    /// Name no device any more: the host is not switched off by itself
    #[command(after_help = "\
Examples:
  skein host fencing remove hosta")]
    Remove {
        /// The host
        name: String,
    },
}

/// Runs the command.
pub fn run(client: &ControllerClient, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Show { name, .. } => match client.host(&name)?.settings.fencing {
            Some(device) => print_json(&device),
            None => bail!("{} has no fencing device: skein host fencing set {0} --help", clean_line(&name)),
        },
        Command::Test { name, json } => {
            let reading = client.test_fencing(&name)?;
            if json {
                return print_json(&reading);
            }
            let power = match reading.power {
                PowerState::On => "on",
                PowerState::Off => "OFF",
                PowerState::Changing => "neither on nor off",
            };
            print(&(clean_line(&name) + "\n" + &fields(&[("power", power.to_owned()), ("machine", reading.detail)])))
        }
        Command::Remove { name } => put(client, &name, None),
        Command::Set { name, redfish, system, user, secret, certificate_sha256, ca, agent, option, timeout } => {
            let device = match (redfish, agent) {
                (Some(url), _) => {
                    let certificate_sha256 = certificate_sha256.map(|digits| digits.replace(':', "").to_lowercase());
                    let ca = ca.map(|ca| files::read_small(&ca, CA_BYTES_MAX)).transpose()?;
                    FencingDevice::Redfish { url, system, user, secret, certificate_sha256, ca }
                }
                (None, Some(agent)) => {
                    FencingDevice::Agent { agent, options: options(&option)?, secret, timeout_s: timeout }
                }
                (None, None) => bail!(
                    "name the device: a management controller with --redfish URL, or a fence agent with --agent \
                     PROGRAM; see skein host fencing set --help"
                ),
            };
            put(client, &name, Some(device))?;
            tell_reading(client, &name)
        }
    }
}

/// Asks the device once, so that an agent program or a file with a password that a controller lacks is told at once.
fn tell_reading(client: &ControllerClient, name: &str) -> anyhow::Result<()> {
    if let Err(error) = client.test_fencing(name) {
        let why = clean_line(&error.to_string());
        print(&format!("warning: the controller that leads gets no answer with that: {why}\n"))?;
    }
    Ok(())
}

fn put(client: &ControllerClient, name: &str, fencing: Option<FencingDevice>) -> anyhow::Result<()> {
    let host = client.host(name)?;
    let said = match &fencing {
        Some(of) => {
            format!("{} is switched off by {}: try it, skein host fencing test {0}\n", clean_line(name), device(of))
        }
        None => format!("{} has no fencing device\n", clean_line(name)),
    };
    client.set(name, Settings::Host(&HostSettings { fencing, ..host.settings }), host.version)?;
    print(&said)
}

fn options(options: &[String]) -> anyhow::Result<BTreeMap<String, String>> {
    let pair = |text: &String| {
        let wrong = || format!("'{}' is no option: write KEY=VALUE", clean_line(text));
        let (key, value) = text.split_once('=').with_context(wrong)?;
        Ok((key.to_owned(), value.to_owned()))
    };
    options.iter().map(pair).collect()
}

/// Returns a device, as `Redfish at https://10.1.0.5`.
pub fn device(device: &FencingDevice) -> String {
    match device {
        FencingDevice::Redfish { url, .. } => format!("Redfish at {}", clean_line(url)),
        FencingDevice::Agent { agent, .. } => clean_line(agent),
    }
}
