//! Finds a CPU model for guests that are to run on each of several hosts.

use std::collections::BTreeMap;

use crate::facts::AccelFacts;

/// The CPU models that a host can give a guest whole under one accelerator, and how many features each has. Their names
/// mean the same to every QEMU.
pub type CpuModels = BTreeMap<String, u32>;

impl AccelFacts {
    /// Returns the CPU models that can be given whole here, as far as their features were counted.
    pub fn whole_models(&self) -> CpuModels {
        let whole = self.cpu_models.iter().filter(|model| model.missing.is_empty());
        whole.filter_map(|model| Some((model.name.clone(), model.feature_count?))).collect()
    }
}

/// Returns the CPU model with the most features of those that each host has. `None`: there is no such model, or no
/// host.
pub fn cpu_baseline<'a>(hosts: impl IntoIterator<Item = &'a CpuModels>) -> Option<&'a str> {
    let mut hosts = hosts.into_iter();
    let mut common: BTreeMap<&str, u32> =
        hosts.next()?.iter().map(|(name, features)| (name.as_str(), *features)).collect();
    for models in hosts {
        // A later QEMU may know more of a model's features.
        common.retain(|name, features| {
            models.get(*name).is_some_and(|here| {
                *features = (*features).max(*here);
                true
            })
        });
    }
    common.into_iter().max_by_key(|(name, features)| (*features, *name)).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn models(of: &[(&str, u32)]) -> CpuModels {
        of.iter().map(|(name, features)| ((*name).to_owned(), *features)).collect()
    }

    #[test]
    fn the_best_that_all_have() {
        let old = models(&[("Nehalem-v1", 40), ("Haswell-v4", 70), ("qemu64-v1", 28)]);
        let new = models(&[("Nehalem-v1", 40), ("Haswell-v4", 71), ("Skylake-Server-v4", 90), ("qemu64-v1", 28)]);
        let other = models(&[("EPYC-v4", 80), ("qemu64-v1", 28), ("Nehalem-v1", 40)]);
        assert_eq!(cpu_baseline([&new]), Some("Skylake-Server-v4"));
        assert_eq!(cpu_baseline([&new, &old]), Some("Haswell-v4"));
        assert_eq!(cpu_baseline([&new, &old, &other]), Some("Nehalem-v1"));
        assert_eq!(cpu_baseline([&new, &CpuModels::new()]), None);
        assert_eq!(cpu_baseline([]), None);
    }

    proptest! {
        #[test]
        fn the_order_of_hosts_does_not_matter(
            mut hosts in proptest::collection::vec(proptest::collection::btree_map("[a-e]", 1_u32..5, 0..5), 1..5)
        ) {
            let found = cpu_baseline(&hosts).map(str::to_owned);
            if let Some(found) = &found {
                prop_assert!(hosts.iter().all(|models| models.contains_key(found)));
            } else {
                let mut names = hosts[0].keys();
                prop_assert!(!names.any(|name| hosts.iter().all(|models| models.contains_key(name))));
            }
            hosts.reverse();
            prop_assert_eq!(cpu_baseline(&hosts), found.as_deref());
        }
    }
}
