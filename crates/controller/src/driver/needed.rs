//! Where controllers and the store's members are: no host with one of these addresses sleeps.

use std::collections::BTreeSet;
use std::net::{IpAddr, ToSocketAddrs};

use skein_api::cluster::StoreKind;
use skein_cluster::Input;

use super::core::Shared;
use super::members::Member;

/// Looks where controllers and the store's members are, and tells the core. A name is looked up, so this may take a
/// while.
pub(crate) fn look(shared: &Shared, own: &Member, kind: StoreKind) {
    let controllers = {
        let members = shared.members.lock();
        let gone = members.gone.values().map(|(member, _)| member);
        members.all.values().chain(gone).chain([own]).map(|member| member.address.clone()).collect::<BTreeSet<String>>()
    };
    let store: Vec<String> = shared.store_members.lock().iter().map(|member| member.address.clone()).collect();
    // Members of etcd that are not known may be anywhere.
    let is_known = kind != StoreKind::Etcd || !store.is_empty();
    let each = controllers.iter().chain(&store).map(|address| addresses(address));
    let found: Option<Vec<Vec<IpAddr>>> = each.collect();
    let addresses = found.filter(|_| is_known).map(|found| found.into_iter().flatten().collect());
    shared.tell_needed(Input::NeededAt { addresses });
}

/// Returns the addresses of `10.0.0.1:7443`, `https://etcd1.example:2379`. `None`: the name cannot be looked up.
fn addresses(text: &str) -> Option<Vec<IpAddr>> {
    let text = text.rsplit("://").next()?.trim_end_matches('/');
    let found = text.to_socket_addrs().ok()?.map(|address| address.ip().to_canonical());
    Some(found.collect::<Vec<_>>()).filter(|found| !found.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_from_what_members_are_reached_by() {
        let one = |text: &str| addresses(text).map(|found| found[0].to_string());
        assert_eq!(one("10.0.0.1:7443").as_deref(), Some("10.0.0.1"));
        assert_eq!(one("https://10.0.0.2:2379/").as_deref(), Some("10.0.0.2"));
        assert_eq!(one("[fd00::2]:7443").as_deref(), Some("fd00::2"));
        assert_eq!(one("[::ffff:10.0.0.3]:7443").as_deref(), Some("10.0.0.3"));
        assert_eq!((one("10.0.0.1"), one("")), (None, None));
    }
}
