//! What carries a migration between two hosts. It is set up before a run, and gone after it.

mod carried;
mod kit;
mod mptcp;
mod network;
pub mod qemu_tls;
mod skein;
mod socat;
mod ssh;

use std::path::Path;

pub(crate) use self::carried::command_lines;
pub use self::carried::{Carried, CarryError, CarryRoute, Forward};
use self::carried::{lacks_program, tcp};
pub use self::kit::Kit;
use crate::{
    mover::{Carrier, Mover},
    site::Site,
};

/// Returns why this machine cannot run `mover` with this QEMU, as far as that is known before trying. `None`: it can.
pub fn lacks(mover: Mover, site: &Site, qemu: &Path) -> Option<String> {
    match mover.carrier() {
        Carrier::Mptcp => mptcp::lacks(site),
        Carrier::Ssh => ssh::lacks(),
        Carrier::MigrationNetwork => network::lacks(),
        Carrier::Socat => lacks_program("socat").or_else(|| takes_the_first_for_main(qemu)),
        Carrier::Agents { .. } | Carrier::Tcp | Carrier::TcpTls | Carrier::Skein { .. } => None,
    }
}

/// Returns a reason against multifd through socat if this QEMU takes the first connection for the main channel. A socat
/// forks for each connection, and any of them may be first at the target. Since 8.0, QEMU knows its channels by what
/// they send (migration/migration.c, `migration_ioc_process_incoming`).
fn takes_the_first_for_main(qemu: &Path) -> Option<String> {
    let version = skein_hypervisor::version_of(qemu).ok().filter(|version| version.major < 8)?;
    Some(format!("socat does not keep the order of connections, and QEMU {version} takes the first for its main one"))
}

/// Sets up what carries `mover`, and waits until it is ready.
///
/// # Errors
///
/// [`CarryError`] if something of it fails, or is not ready in time.
pub fn start(mover: Mover, route: &CarryRoute<'_>, kit: &Kit) -> Result<Carried, CarryError> {
    match mover.carrier() {
        Carrier::Tcp => tcp(route, ""),
        Carrier::TcpTls => {
            let mut carried = tcp(route, "")?;
            carried.tls = Some(kit.qemu_tls());
            carried.note("tls", "tls-creds-x509 on both ends, ECDSA P-256, verify-peer=on");
            Ok(carried)
        }
        Carrier::Mptcp => mptcp::start(route),
        Carrier::Ssh => ssh::start(route, kit),
        Carrier::Socat => socat::start(route),
        Carrier::Skein { tls } => skein::start(route, kit, tls),
        Carrier::MigrationNetwork => network::start(route, kit),
        // The agents' processes stay for the stage; see [`crate::agents`].
        Carrier::Agents { .. } => Ok(Carried::default()),
    }
}
