//! The configuration of a controller: what `skein-controller init` writes and the other commands read.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use skein_api::cluster::StoreKind;
use skein_identity::DEFAULT_VALIDITY_DAYS;
use skein_metrics::ScrapeAddress;
use skein_store::Store;
use skein_store_sqlite::SqliteStore;

use crate::fencing::FencingConfig;

/// Where the configuration is unless another file is named.
pub const DEFAULT_CONFIG: &str = "/etc/skein/controller.toml";
/// Where the store is unless another is named.
pub const DEFAULT_STORE: &str = "sqlite:/var/lib/skein-controller/controller.db";
/// How many bytes a configuration has at most.
const BYTES_MAX: u64 = 64 << 10;

/// A controller's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The controller's name, as in its certificate.
    pub name: String,
    /// Where it listens, for agents and for HTTPS.
    pub listen: SocketAddr,
    /// The names and IP addresses at which others reach it, the usual one first.
    pub addresses: Vec<String>,
    /// The store: `sqlite:FILE`, or `etcd:` with the addresses of all members for clients and commas between them.
    pub store: String,
    /// The directory of the controller's identity.
    pub identity: PathBuf,
    /// The directory of the cluster's CA; without it no host joins by this controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// For how long certificates are valid that this controller signs, in days. They are renewed by themselves when a
    /// third is left.
    #[serde(default = "default_certificate_days", skip_serializing_if = "is_default_days")]
    pub certificate_days: NonZeroU32,
    /// The file with the admin's token.
    pub admin_token: PathBuf,
    /// Where metrics are served, without encryption: `IP:PORT`, or the path of a unix socket. `None`: nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<ScrapeAddress>,
    /// What fencing devices need.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fencing: FencingConfig,
    /// Certificates for etcd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdConfig>,
}

/// Returns for how many days certificates are valid unless the file says otherwise.
pub fn default_certificate_days() -> NonZeroU32 {
    NonZeroU32::new(DEFAULT_VALIDITY_DAYS).unwrap_or(NonZeroU32::MIN)
}

fn is_default_days(days: &NonZeroU32) -> bool {
    *days == default_certificate_days()
}

fn is_default(fencing: &FencingConfig) -> bool {
    *fencing == FencingConfig::default()
}

/// How etcd is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdConfig {
    /// The CA of etcd's certificates.
    pub ca: PathBuf,
    /// The controller's certificate for etcd.
    pub certificate: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

/// Why a configuration or its store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: 'skein-controller init' makes it")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is none.
    #[error("{path} cannot be understood")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and what.
        source: Box<toml::de::Error>,
    },
    /// A part of it is missing.
    #[error("{path} names no address at which others reach the controller")]
    NoAddress {
        /// The file.
        path: PathBuf,
    },
    /// The store's address is none.
    #[error("'{0}' is no store: write sqlite:FILE, or etcd:https://HOST:2379,https://HOST:2379")]
    Store(String),
    /// SQLite's store cannot be opened.
    #[error("the store cannot be opened")]
    Sqlite(#[from] skein_store_sqlite::OpenError),
    /// etcd's store cannot be opened.
    #[cfg(feature = "etcd")]
    #[error("the store cannot be opened")]
    Etcd(#[from] skein_store_etcd::OpenError),
    /// The program has no etcd in it.
    #[cfg(not(feature = "etcd"))]
    #[error("this skein-controller was built without etcd: build it with '--features etcd'")]
    NoEtcd,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// It cannot be read or understood.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let read = || {
            let mut text = String::new();
            io::Read::read_to_string(&mut io::Read::take(std::fs::File::open(path)?, BYTES_MAX), &mut text)?;
            Ok(text)
        };
        let text: String = read().map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let parse = |source| ConfigError::Parse { path: path.to_owned(), source: Box::new(source) };
        let config: Config = toml::from_str(&text).map_err(parse)?;
        match config.addresses.is_empty() {
            true => Err(ConfigError::NoAddress { path: path.to_owned() }),
            false => Ok(config),
        }
    }

    /// Returns for how long certificates are valid that this controller signs: a century at most, which no CA outlives.
    pub fn certificate_time(&self) -> Duration {
        Duration::from_secs(86_400) * self.certificate_days.get().min(36_500)
    }

    /// Returns the address for others, as `10.0.0.1:7443`.
    pub fn address(&self) -> String {
        let first = self.addresses.first().map_or("localhost", String::as_str);
        match first.parse::<Ipv6Addr>() {
            Ok(address) => format!("[{address}]:{}", self.listen.port()),
            Err(_) => format!("{first}:{}", self.listen.port()),
        }
    }

    /// Returns the URL for others.
    pub fn url(&self) -> String {
        format!("https://{}", self.address())
    }

    /// Returns the address on this machine.
    pub fn local_address(&self) -> SocketAddr {
        let local = match self.listen.ip() {
            IpAddr::V4(address) if address.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            // A socket for all addresses of version 6 takes those of version 4, too.
            IpAddr::V6(address) if address.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            address => address,
        };
        SocketAddr::new(local, self.listen.port())
    }

    /// Returns what keeps the cluster's state.
    ///
    /// # Errors
    ///
    /// The store's address is none.
    pub fn store_kind(&self) -> Result<StoreKind, ConfigError> {
        match self.store.split_once(':') {
            Some(("sqlite", path)) if !path.is_empty() => Ok(StoreKind::Sqlite),
            Some(("etcd", endpoints)) if !endpoints.is_empty() => Ok(StoreKind::Etcd),
            _ => Err(ConfigError::Store(self.store.clone())),
        }
    }

    /// Opens the store.
    ///
    /// # Errors
    ///
    /// There is no such store, or it cannot be opened.
    pub fn open_store(&self) -> Result<Arc<dyn Store>, ConfigError> {
        match (self.store_kind()?, self.store.split_once(':')) {
            (StoreKind::Sqlite, Some((_, path))) => Ok(Arc::new(SqliteStore::open(Path::new(path))?)),
            (StoreKind::Etcd, Some((_, endpoints))) => self.open_etcd(endpoints),
            _ => Err(ConfigError::Store(self.store.clone())),
        }
    }

    /// Returns etcd's addresses. The member on this host comes first, so that controllers need no other host as long as
    /// theirs is well.
    #[cfg(feature = "etcd")]
    fn nearest_first(&self, endpoints: &str) -> Vec<String> {
        let mut endpoints: Vec<String> = endpoints.split(',').map(|endpoint| endpoint.trim().to_owned()).collect();
        let host = |endpoint: &str| {
            let address = endpoint.split_once("://").map_or(endpoint, |(_, address)| address);
            let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
            host.trim_start_matches('[').trim_end_matches(']').to_owned()
        };
        let own = endpoints.iter().position(|endpoint| self.addresses.contains(&host(endpoint)));
        endpoints.rotate_left(own.unwrap_or_default());
        endpoints
    }

    #[cfg(feature = "etcd")]
    fn open_etcd(&self, endpoints: &str) -> Result<Arc<dyn Store>, ConfigError> {
        use skein_store_etcd::{EtcdOptions, EtcdStore, EtcdTls};
        let mut options = EtcdOptions::new(self.nearest_first(endpoints));
        options.tls = self
            .etcd
            .as_ref()
            .map(|etcd| EtcdTls { ca: etcd.ca.clone(), identity: etcd.certificate.clone().zip(etcd.key.clone()) });
        Ok(Arc::new(EtcdStore::open(&options)?))
    }

    #[cfg(not(feature = "etcd"))]
    fn open_etcd(&self, _: &str) -> Result<Arc<dyn Store>, ConfigError> {
        Err(ConfigError::NoEtcd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(listen: &str, address: &str, store: &str) -> Config {
        Config {
            name: "c1".into(),
            listen: listen.parse().unwrap(),
            addresses: vec![address.into()],
            store: store.into(),
            identity: "/etc/skein/controller".into(),
            ca: None,
            certificate_days: default_certificate_days(),
            admin_token: "/etc/skein/controller/admin.token".into(),
            metrics: Some("127.0.0.1:9844".parse().unwrap()),
            fencing: FencingConfig::default(),
            etcd: None,
        }
    }

    #[test]
    fn a_configuration_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("controller.toml");
        let own = config("[::]:7443", "ctl.example", DEFAULT_STORE);
        std::fs::write(&path, toml::to_string(&own).unwrap()).unwrap();
        assert_eq!(Config::load(&path).unwrap(), own);
        std::fs::write(&path, toml::to_string(&own).unwrap().replace("127.0.0.1:9844", "localhost")).unwrap();
        let said = Config::load(&path).map_err(|error| skein_cluster::error_chain(&error)).unwrap_err();
        assert!(said.contains("'localhost' is no address"), "{said}");
        std::fs::write(&path, format!("{}x = 1\n", toml::to_string(&own).unwrap())).unwrap();
        assert!(matches!(Config::load(&path), Err(ConfigError::Parse { .. })));
        assert!(matches!(Config::load(&dir.path().join("no")), Err(ConfigError::Read { .. })));
    }

    #[test]
    fn addresses_are_written_as_in_urls() {
        let url = |listen, address| config(listen, address, DEFAULT_STORE).url();
        assert_eq!(url("0.0.0.0:7443", "10.0.0.1"), "https://10.0.0.1:7443");
        assert_eq!(url("[::]:8443", "fd00::1"), "https://[fd00::1]:8443");
        assert_eq!(url("[::]:7443", "ctl.example"), "https://ctl.example:7443");
        let local = |listen| config(listen, "a", DEFAULT_STORE).local_address().to_string();
        assert_eq!(
            [local("[::]:1"), local("0.0.0.0:1"), local("10.0.0.1:1")],
            ["127.0.0.1:1", "127.0.0.1:1", "10.0.0.1:1"]
        );
    }

    #[cfg(feature = "etcd")]
    #[test]
    fn the_own_member_of_etcd_comes_first() {
        let first = |address: &str, endpoints| config("[::]:1", address, "-").nearest_first(endpoints)[0].clone();
        let all = "https://10.0.0.1:2379, https://10.0.0.2:2379,https://[fd00::3]:2379";
        assert_eq!(first("10.0.0.2", all), "https://10.0.0.2:2379");
        assert_eq!(first("fd00::3", all), "https://[fd00::3]:2379");
        assert_eq!(first("ctl.example", all), "https://10.0.0.1:2379");
        let order = config("[::]:1", "10.0.0.2", "-").nearest_first(all);
        assert_eq!(order[1..], ["https://[fd00::3]:2379", "https://10.0.0.1:2379"]);
    }

    #[test]
    fn stores_are_known_by_their_addresses() {
        let kind = |store| config("[::]:1", "a", store).store_kind().ok();
        assert_eq!(kind("sqlite:/var/lib/x.db"), Some(StoreKind::Sqlite));
        assert_eq!(kind("etcd:http://a:2379,http://b:2379"), Some(StoreKind::Etcd));
        assert_eq!(["", "sqlite:", "/x.db", "redis:a"].map(kind), [None; 4]);
    }
}
