//! `skein placement import`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::json;
use skein_placement_command::success_if;
use skein_placement_model::import::{Imported, hbal, proxmox};
use skein_terminal::files;

use crate::commands::text::{clean, clean_line, print, print_json};

/// Make a cluster file of what another program has: Proxmox VE (with HA rules and ProxLB's tags), or Ganeti's htools
///
/// What has no counterpart in the cluster file is told, a line each, on standard error: what it was, and what was made
/// of it. What may always hold where it is from and is not in the cluster file comes last, as `left out`, and the exit
/// code is 3. What was made is read as `check` would before it is written.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  skein placement import --format proxmox resources.json --ha-rules /etc/pve/ha/rules.cfg --out cluster.yaml
  skein placement import --format proxmox resources.json --ha-rules rules.json --out cluster.yaml
  skein placement import --format proxmox resources.json --ha-groups groups.cfg --ha-resources resources.cfg
  skein placement import --format hbal cluster.data | tee cluster.yaml
  (resources.json: pvesh get /cluster/resources --output-format json;
   rules.json:     pvesh get /cluster/ha/rules --output-format json)

Exit codes:
  0  a cluster file was made
  1  an error; what it was is said
  2  wrong arguments
  3  a cluster file was made without something that may always hold; it is told")]
pub struct Args {
    /// What the file is
    #[arg(long, value_enum)]
    format: Format,
    /// JSON of Proxmox VE's /cluster/resources, or a text file of htools
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Proxmox VE's ha/rules.cfg (from 9 on), or JSON of its /cluster/ha/rules
    #[arg(long, value_name = "FILE")]
    ha_rules: Option<PathBuf>,
    /// Its ha/groups.cfg (before 9), or JSON of its /cluster/ha/groups
    #[arg(long, value_name = "FILE", requires = "ha_resources")]
    ha_groups: Option<PathBuf>,
    /// Its ha/resources.cfg, which says who is in which group, or JSON of its /cluster/ha/resources
    #[arg(long, value_name = "FILE")]
    ha_resources: Option<PathBuf>,
    /// Write the cluster file here, and not on standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// An object: cluster (the file's text), hard_left_out and without_counterpart (lists of lines)
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    /// `pvesh get /cluster/resources --output-format json`
    Proxmox,
    /// What `hbal -t` reads and `hscan` writes
    Hbal,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let others = [&args.ha_rules, &args.ha_groups, &args.ha_resources];
    let inputs: Vec<&Path> = others.into_iter().flatten().chain([&args.file]).map(PathBuf::as_path).collect();
    let out = files::output(args.out.as_deref(), &inputs)?;
    let imported = import(&args)?;
    if let Some(out) = out {
        files::write(out, &imported.cluster)?;
    }
    let Imported { cluster, hard_left_out, words } = imported;
    let code = success_if(hard_left_out.is_empty());
    if args.json {
        print_json(&json!({ "cluster": cluster, "hard_left_out": hard_left_out, "without_counterpart": words }))?;
        return Ok(code);
    }
    words.iter().for_each(|word| eprintln!("skein: {}", clean_line(word)));
    hard_left_out.iter().for_each(|what| eprintln!("skein: left out, and may be hard: {}", clean_line(what)));
    if out.is_none() {
        print(&clean(&cluster))?;
    }
    Ok(code)
}

fn import(args: &Args) -> anyhow::Result<Imported> {
    let name = |path: &Path| path.display().to_string();
    let text = files::read(&args.file)?;
    match args.format {
        Format::Hbal => {
            if args.ha_rules.is_some() || args.ha_groups.is_some() || args.ha_resources.is_some() {
                bail!("HA rules, groups and resources are of --format proxmox: leave them out");
            }
            hbal::read(&text).with_context(|| name(&args.file))
        }
        Format::Proxmox => {
            let read = |path: &Option<PathBuf>| path.as_deref().map(files::read).transpose();
            let (rules, groups, of) = (read(&args.ha_rules)?, read(&args.ha_groups)?, read(&args.ha_resources)?);
            let files = proxmox::Files {
                resources: &text,
                ha_rules: rules.as_deref(),
                ha_groups: groups.as_deref(),
                ha_resources: of.as_deref(),
            };
            proxmox::read(files).map_err(|(which, error)| {
                let path = match which {
                    "HA rules" => args.ha_rules.as_deref(),
                    "HA groups" => args.ha_groups.as_deref(),
                    "HA resources" => args.ha_resources.as_deref(),
                    _ => None,
                };
                anyhow::Error::new(error).context(name(path.unwrap_or(&args.file)))
            })
        }
    }
}
