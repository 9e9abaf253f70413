//! What of the cluster, its store and its controllers needs a person.

use std::time::SystemTime;

use skein_identity::ControllerIdentity;
use skein_store::StoreMember;

use crate::driver::Driver;
use crate::signer::Signer;

/// Returns what needs a person, one sentence each.
pub(crate) fn attention(driver: &Driver, signer: &Signer, identity: &ControllerIdentity) -> Vec<String> {
    let (mut found, releases) =
        driver.read(|core| (core.attention(), core.release_attention(env!("CARGO_PKG_VERSION"))));
    found.extend(releases);
    found.extend(store_attention(&driver.store_members()));
    found.extend(driver.gone_members().into_iter().map(|(of, _)| {
        format!("the controller '{}' is not there any more: see that skein-controller runs and reaches etcd", of.name)
    }));
    found.extend(signer.attention(identity, SystemTime::now()));
    found
}

/// Returns what is wrong with the store's members, one sentence each.
fn store_attention(members: &[StoreMember]) -> Vec<String> {
    let well = members.iter().filter(|member| member.problem.is_none()).count();
    let needed = members.len() / 2 + 1;
    let ill = members.iter().filter_map(|member| Some((&member.address, member.problem.as_ref()?)));
    ill.map(|(address, problem)| {
        let all = members.len();
        format!("etcd's member at {address}: {problem}; {well} of {all} are well, and {needed} have to be")
    })
    .collect()
}
