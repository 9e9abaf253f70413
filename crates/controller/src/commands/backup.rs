//! `skein-controller backup`, `restore` and `raise-terms`.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use hyper::Method;
use skein_cluster::{RestoredRecord, TokenRecord};
use skein_controller::config::{Config, DEFAULT_CONFIG};
use skein_controller::driver::{MIGRATIONS, wall};
use skein_store::backup::{BackupError, Restore, restore as restore_store};
use skein_store::election::TermBase;
use skein_store::schema::{SchemaError, raise_terms as raise_store_terms};
use skein_store::{Key, Operation, Prefix, Range, Store, Value};

use super::local;

/// How long each step of the store may take.
const WITHIN: Duration = Duration::from_secs(10);
/// After how long the lease of a controller that was killed is over.
const LEASES_OVER: Duration = Duration::from_secs(8);

/// Write all that the controllers know into a file.
///
/// The controller on this machine has to run. What is known of tokens and tickets is in it, but no secret.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein-controller backup /var/backups/skein-$(date +%F).jsonl")]
pub struct BackupArgs {
    /// The file, which must not be there yet
    file: PathBuf,
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
}

/// Fill an empty store from a backup.
///
/// No controller of the cluster may run. Agents obey the controller that comes back. What the backup says of hosts that
/// are off does not count: each has to report, or to be proven to be off anew, before what it may have is started.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  systemctl stop skein-controller
  mkdir /var/lib/skein-controller/damaged
  mv /var/lib/skein-controller/controller.db* /var/lib/skein-controller/damaged/
      all of its files: what was written last may be in controller.db-wal only
  skein-controller restore /var/backups/skein-2026-11-26.jsonl
  systemctl start skein-controller")]
pub struct RestoreArgs {
    /// The backup
    file: PathBuf,
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
}

/// Have agents obey this store's controllers that obeyed another store's.
///
/// Agents obey only the leader of the latest term that they have heard of. A store that was made or restored on a
/// machine whose clock was behind has lower terms than the one before, and 'skein cluster status' says above which
/// they have to be. First make sure that no controllers with another store lead the cluster: agents would refuse these
/// from then on. All controllers that use this store have to be stopped.
///
/// What the store says of hosts is taken to be old, as after a restore: each has to report, or to be proven to be off
/// anew, before what it may have is started.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  systemctl stop skein-controller
  skein-controller raise-terms --above 1764145004711
  systemctl start skein-controller")]
pub struct RaiseTermsArgs {
    /// The term that agents have heard of
    #[arg(long, value_name = "TERM")]
    above: u64,
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
}

/// Raises the terms of a store.
pub fn raise_terms(args: RaiseTermsArgs) -> anyhow::Result<()> {
    let config = Config::load(&args.config)?;
    let store = config.open_store()?;
    let (key, value) = RestoredRecord::entry(wall());
    let mark = Operation::put(Key::new(&key)?, Value::new(value)?);
    let begin = Instant::now();
    let schema = loop {
        match raise_store_terms(&*store, args.above, mark.clone(), WITHIN) {
            // The lease of a controller that was killed is over in a moment.
            Err(SchemaError::Led) if begin.elapsed() < LEASES_OVER => std::thread::sleep(Duration::from_millis(200)),
            raised => break raised?,
        }
    };
    skein_terminal::print(&format!(
        "terms are above {}\nwhat hosts do now is not known before each has reported or is proven to be off (skein \
         host list)\n",
        schema.term_base.0
    ))
}

/// Writes a backup.
pub fn backup(args: BackupArgs) -> anyhow::Result<()> {
    let config = local::config(&args.config)?;
    let answer = local::ask(&config, Method::GET, "/api/v1/backup", None)?;
    let written = write_new(&args.file, &answer.body);
    if let Err(error) = &written
        && error.kind() == std::io::ErrorKind::AlreadyExists
    {
        bail!("{} is there already, and is left as it is: name another file", args.file.display());
    }
    written.with_context(|| format!("cannot write {}", args.file.display()))?;
    skein_terminal::print(&format!("wrote {} bytes to {}\n", answer.body.len(), args.file.display()))
}

fn write_new(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Restores a backup.
pub fn restore(args: RestoreArgs) -> anyhow::Result<()> {
    let config = Config::load(&args.config)?;
    let file = File::open(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    let store = config.open_store()?;
    let Ok(schema_known) = u32::try_from(MIGRATIONS.len() + 1) else { bail!("too many migrations") };
    let (key, value) = RestoredRecord::entry(wall());
    let mark = Some((Key::new(&key)?, Value::new(value)?));
    let wanted = Restore { cluster: None, schema_known, term_base: TermBase(wall().0), mark };
    let restored = restore_store(&*store, &mut BufReader::new(file), &wanted, WITHIN);
    let restored = restored.map_err(|error| match error {
        BackupError::NotEmpty => anyhow!(not_empty(&config.store)),
        error => error.into(),
    })?;
    let mut text = format!(
        "restored {} entries of the cluster {}, as of revision {}\n",
        restored.entries, restored.header.cluster, restored.header.revision
    );
    if restored.term_base > wanted.term_base {
        text += "this machine's clock is behind: set it, and see whether agents obey (skein cluster status)\n";
    }
    text += "what hosts do now is not known before each has reported or is proven to be off (skein host list)\n";
    text += "operations that were under way are ended, and tickets are gone\n";
    text += "these tokens are valid again; remove those that were taken away since (skein token remove NAME):\n";
    for (_, token) in below(&*store, "token/")? {
        let token = serde_json::from_slice::<TokenRecord>(&token)?.token;
        if token.expires.is_some_and(|end| end <= wall()) {
            continue;
        }
        let _ = writeln!(text, "  {} ({})", token.name, token.role.name());
    }
    text += "these hosts are members again; remove those that were removed since (skein host remove NAME):\n";
    for (host, _) in below(&*store, "host/")? {
        let _ = writeln!(text, "  {host}");
    }
    skein_terminal::print(&text)
}

/// Says of a store that is not empty where it is, and what makes room for what is restored.
fn not_empty(store: &str) -> String {
    let cure = match store.split_once(':') {
        Some(("sqlite", file)) => format!(
            "stop the controller, and move the store away, which is all of {file}*, as skein-controller restore --help \
             shows"
        ),
        _ => "restore into an etcd that has nothing in it".to_owned(),
    };
    format!(
        "the store {store} is not empty, and a backup is restored into an empty one only; nothing was written: {cure}"
    )
}

/// Returns the names and values of a store's entries below a prefix.
fn below(store: &dyn Store, prefix: &str) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut found = Vec::new();
    let mut range = Some(Range::below(Prefix::new(prefix)?));
    while let Some(of) = range.take() {
        let page = store.read(&of, WITHIN)?;
        let names = page.entries.iter().filter_map(|entry| Some((entry.key.as_str().strip_prefix(prefix)?, entry)));
        found.extend(names.map(|(name, entry)| (name.to_owned(), entry.value.as_bytes().to_vec())));
        range = of.next(&page);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_not_empty_is_named_with_what_makes_room() {
        let told = not_empty("sqlite:/var/lib/skein-controller/controller.db");
        assert!(told.contains("which is all of /var/lib/skein-controller/controller.db*"), "{told}");
        assert!(not_empty("etcd:https://a:2379").contains("an etcd that has nothing in it"));
    }
}
