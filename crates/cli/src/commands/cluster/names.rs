//! Names for a shell's completion, from the controllers.

use std::collections::BTreeSet;
use std::time::Duration;

use skein_client::ControllerClient;

use super::access::ControllerArgs;
use crate::commands::text::{clean_line, print};

/// How long somebody who pressed a key waits. A busy controller took more than 0.8 s at times, and there were no names.
const WITHIN: Duration = Duration::from_millis(2500);
/// The most names that are of use.
const NAMES_MAX: usize = 500;

/// What is named.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Named {
    /// Hosts of the cluster
    Hosts,
    /// VMs of the cluster
    Vms,
    /// Operations, the newest first
    Operations,
    /// Rules of the cluster
    Rules,
    /// Groups of hosts
    Groups,
    /// Tokens, for who may list them
    Tokens,
    /// VMs that are being moved, or held
    Migrations,
}

/// Prints names, one a line. Whatever is wrong, there are none: a shell that completes has no use for a reason.
pub fn run(named: Named) -> anyhow::Result<()> {
    let names = names(named).unwrap_or_default();
    print(&names.iter().map(|name| clean_line(name) + "\n").collect::<String>())
}

fn names(named: Named) -> anyhow::Result<Vec<String>> {
    let Some(access) = (ControllerArgs { controller: None }).access()? else { return Ok(Vec::new()) };
    let client = ControllerClient::hasty(access.urls, &access.credentials, WITHIN)?;
    let names: Result<Vec<String>, _> = match named {
        Named::Hosts => client.hosts().take(NAMES_MAX).map(|host| host.map(|host| host.name)).collect(),
        Named::Vms => client.vms(None).take(NAMES_MAX).map(|vm| vm.map(|vm| vm.name)).collect(),
        Named::Groups => {
            let hosts = client.hosts().take(NAMES_MAX).collect::<Result<Vec<_>, _>>()?;
            let groups: BTreeSet<String> = hosts.into_iter().filter_map(|host| host.settings.group).collect();
            Ok(groups.into_iter().collect())
        }
        Named::Tokens => client.tokens().take(NAMES_MAX).map(|token| token.map(|token| token.name)).collect(),
        Named::Migrations => {
            let vms = client.vms(None).take(NAMES_MAX).collect::<Result<Vec<_>, _>>()?;
            Ok(vms.into_iter().filter(|vm| vm.migration.is_some()).map(|vm| vm.name).collect())
        }
        Named::Rules => client.rules().take(NAMES_MAX).map(|rule| rule.map(|rule| rule.name)).collect(),
        Named::Operations => client.operations(50).take(50).map(|of| of.map(|of| of.id)).collect(),
    };
    Ok(names?)
}
