//! `skein cluster settings`.

use anyhow::{Context, bail};
use serde_json::Value;
use skein_api::cluster::ClusterSettings;
use skein_client::ControllerClient;

use crate::commands::text::print_json;

/// Sets what is named, and prints all that is set of the cluster.
pub fn run(client: &ControllerClient, set: &[String]) -> anyhow::Result<()> {
    let (settings, etag) = client.cluster_settings()?;
    if set.is_empty() {
        return print_json(&settings);
    }
    let settings = changed(&settings, set)?;
    client.set_cluster(&settings, etag)?;
    print_json(&settings)
}

/// Returns the settings with each `KEY=VALUE` in place.
fn changed(settings: &ClusterSettings, set: &[String]) -> anyhow::Result<ClusterSettings> {
    let mut all = serde_json::to_value(settings)?;
    for pair in set {
        let (key, text) = pair.split_once('=').with_context(|| format!("'{pair}' sets nothing: write KEY=VALUE"))?;
        let mut place = Some(&mut all);
        for part in key.split('.') {
            place = place.and_then(|place| place.get_mut(part));
        }
        match place {
            Some(place) if !place.is_object() => *place = value(text),
            _ => bail!("a cluster has no setting '{key}': see `skein cluster settings`"),
        }
    }
    serde_json::from_value(all).with_context(|| format!("this cannot be set: {}", set.join(" ")))
}

/// Returns what a text means: a number, yes or no, or JSON; else the text itself.
fn value(text: &str) -> Value {
    match text {
        "yes" => true.into(),
        "no" => false.into(),
        // As a controller has what is taken away.
        "" => Value::Null,
        _ => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pairs: &[&str]) -> anyhow::Result<ClusterSettings> {
        changed(&ClusterSettings::default(), &pairs.iter().map(|pair| (*pair).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_named_is_set_and_the_rest_stays() {
        let found = set(&["migrations_max=16", "optimize.automatic=yes", "failover.grace_s=30"]).unwrap();
        let mut expected = ClusterSettings { migrations_max: 16, ..ClusterSettings::default() };
        expected.optimize.automatic = true;
        expected.failover.grace_s = 30;
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_empty_is_taken_away() {
        let with = set(&["migration_rate=10 Gbit/s"]).unwrap();
        assert_eq!(with.migration_rate.as_deref(), Some("10 Gbit/s"));
        assert_eq!(changed(&with, &["migration_rate=".to_owned()]).unwrap().migration_rate, None);
        assert!(set(&["migrations_max="]).is_err());
    }

    #[test]
    fn what_is_no_setting_is_told() {
        for (pair, says) in [
            ("colour=red", "no setting 'colour'"),
            ("optimize=yes", "no setting 'optimize'"),
            ("optimize.automatic.x=1", "no setting 'optimize.automatic.x'"),
            ("migrations_max", "write KEY=VALUE"),
            ("migrations_max=many", "this cannot be set"),
            ("migrations_max=-1", "this cannot be set"),
            ("optimize.automatic=maybe", "this cannot be set"),
        ] {
            let error = set(&[pair]).unwrap_err().to_string();
            assert!(error.contains(says), "{pair}: {error}");
        }
    }
}
