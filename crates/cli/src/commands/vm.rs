//! `skein vm`.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use skein_api::cluster::StopVmRequest;
use skein_api::{Drive, Reply, Request, STOP_TIMEOUT_RANGE_S, StartOptions, VmOrigin, VmView, is_vm_name};
use skein_client::{CallError, ControllerClient};
use skein_inventory::definition::Definition;
use skein_units::about_bytes;

use super::cluster::access::{ControllerArgs, ViewArgs, agent_asks_controllers};
use super::cluster::life;
use super::cluster::moves::Then;
use super::cluster::output::Output;
use super::local::{AGENT_ANSWER_TIME, LocalAgent, SAID_AFTER, unexpected, vm_state};
use super::text::{clean, clean_line, fields, print, print_json, table};

/// Start, stop and look at the VMs of this host.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    local: LocalAgent,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Start a VM from its file, or a stopped one by its name
    ///
    /// The file is checked here first: everything that is wrong with it is told at once, with its line. The VM is then
    /// known on this host by the name in the file; it outlives the agent. With --cluster a controller picks the host,
    /// and says why: by rules, room, bridges and KVM; of a VM that is off, its own host if that can.
    ///
    /// A VM that ran here before gets the images that it last had open: after a live snapshot the overlay, and not what
    /// its file or command line names. Where the host has no room for its RAM, it is not started.
    ///
    /// On a host of a cluster the agent first asks the controller that leads, as the cluster may have started the VM
    /// elsewhere while this host was off. Where no controller answers, it is not started.
    #[command(after_help = "\
Examples:
  skein vm start web1.toml
  skein vm start web1             one that was stopped, as it was last defined
  skein vm start - <web1.toml     from standard input
  skein vm start web1.toml --cluster --check     where a controller would start it, and why
  skein vm start web1.toml --cluster             there, or on another host if that refuses
  skein vm start web1 --cluster --on hostb

The smallest file:
  name = \"web1\"
  memory = \"2 GiB\"
  [[disk]]
  path = \"/srv/images/web1.qcow2\"
  format = \"qcow2\"")]
    Start {
        /// A TOML file (with a '/' or ending in .toml; - is standard input), or a name
        #[arg(value_name = "FILE|NAME")]
        from: String,
        #[command(flatten)]
        view: ViewArgs,
        /// With --cluster: the host [default: the controller picks it, and says why]
        #[arg(long, value_name = "HOST")]
        on: Option<String>,
        /// With --cluster: only say where it would start, why, and why not elsewhere; exit code 3 if nowhere
        #[arg(long, visible_alias = "dry-run", conflicts_with = "detach")]
        check: bool,
        /// With --cluster: return as soon as the start is begun
        #[arg(long)]
        detach: bool,
        /// Start it though the host has no room for all of its RAM: the kernel may kill it for that, or another guest
        #[arg(long)]
        overcommit: bool,
        /// Start it with the images that its file or command line names, though it last had others open
        #[arg(long)]
        as_defined: bool,
        /// Start it with new UEFI variables and a new TPM, though another host has a VM of that name
        #[arg(long)]
        new_state: bool,
        /// On a host of a cluster: start it though no controller answers whether it runs elsewhere. Make sure of that
        /// yourself. What a controller refuses stays refused
        #[arg(long)]
        without_controller: bool,
        /// The VM as JSON
        #[arg(long)]
        json: bool,
    },
    /// Have the cluster know a VM by its file, without starting it
    #[command(after_help = "\
Examples:
  skein vm create web1.toml
  skein vm start web1 --cluster")]
    Create {
        #[command(flatten)]
        controllers: ControllerArgs,
        /// A TOML file; - is standard input
        #[arg(value_name = "FILE")]
        from: String,
        /// The cluster's VM as JSON
        #[arg(long)]
        json: bool,
    },
    /// Have a VM that is off forgotten by its host and the cluster; its disks stay
    #[command(after_help = "\
Examples:
  skein vm delete web1
  skein vm delete web1 --yes      in a script: nobody can be asked there")]
    Delete {
        #[command(flatten)]
        controllers: ControllerArgs,
        /// Its name
        name: String,
        /// Do not ask; needed where nobody can be asked
        #[arg(long)]
        yes: bool,
        /// A line of JSON for each step
        #[arg(long)]
        json: bool,
    },
    /// Take over a QEMU that somebody else started
    ///
    /// It goes on as it is. Its QMP socket becomes the agent's alone: libvirt's or another manager's is not for this.
    #[command(after_help = "\
Examples:
  skein vm adopt --qmp /run/vm7.qmp
  skein vm adopt --qmp /run/vm7.qmp web7    under another name than QEMU's -name")]
    Adopt {
        /// Its QMP socket (-qmp unix:PATH,server=on,wait=off), which nobody else may have open
        #[arg(long, value_name = "PATH")]
        qmp: PathBuf,
        /// The VM's name [default: QEMU's own, from -name]
        name: Option<String>,
        /// The VM as JSON
        #[arg(long)]
        json: bool,
    },
    /// The VMs: of the cluster where a controller is known, else of this host
    #[command(after_help = "\
Examples:
  skein vm list
  skein vm list --local                     those of this host, as its agent sees them
  skein vm list --cluster --json | jq -r '.[] | select(.state == \"lost\") | .name'

--json is of this host's agent unless --cluster asks for the cluster's.")]
    List {
        #[command(flatten)]
        view: ViewArgs,
        /// A JSON array
        #[arg(long)]
        json: bool,
    },
    /// One VM: its state, process, sockets and definition; what the cluster knows of a VM of another host
    #[command(after_help = "\
Examples:
  skein vm show web1
  skein vm show web1 --cluster    its settings, its operation, and why it is where it is
  skein vm show web1 --json | jq -r .qmp

--json is of this host's agent unless --cluster asks for the cluster's.")]
    Show {
        #[command(flatten)]
        view: ViewArgs,
        /// Its name
        name: String,
        /// The VM as JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop a VM: press its power button and wait
    #[command(after_help = "\
Examples:
  skein vm stop web1
  skein vm stop web1 --timeout 10 --force     after ten seconds, pull the plug
  skein vm stop web1 --cluster                wherever it runs")]
    Stop {
        #[command(flatten)]
        view: ViewArgs,
        /// Its name
        name: String,
        /// With --cluster: return as soon as the stop is begun
        #[arg(long)]
        detach: bool,
        /// How long the guest has to shut down, in seconds
        #[arg(long, value_name = "S", default_value_t = 60)]
        #[arg(value_parser = clap::value_parser!(u64).range(STOP_TIMEOUT_RANGE_S))]
        timeout: u64,
        /// Kill its QEMU if it still runs then: what the guest did not write to its disks is lost
        #[arg(long)]
        force: bool,
        /// The VM as JSON
        #[arg(long)]
        json: bool,
    },
    /// Run a guest that was paused: by somebody's word, or by QEMU for a failing disk
    #[command(after_help = "\
Examples:
  skein vm resume web1")]
    Resume {
        /// Its name
        name: String,
        /// The VM as JSON
        #[arg(long)]
        json: bool,
    },
    /// Forget a stopped VM; its disks stay
    #[command(after_help = "\
Examples:
  skein vm forget web1
  skein vm delete web1        in a cluster: by its host and the cluster")]
    Forget {
        /// Its name
        name: String,
        /// The VM that was forgotten as JSON
        #[arg(long)]
        json: bool,
    },
    /// Connect this terminal to a VM's serial console; Ctrl-] leaves it
    ///
    /// With a pipe as standard input, what comes in is typed, and what the guest prints is printed until it has been
    /// silent for a while.
    ///
    /// A VM that this host does not have is reached by way of the cluster's controller; so is any with --cluster. The
    /// console then goes on where the VM moves. One person has a console at a time.
    #[command(after_help = "\
Examples:
  skein vm console web1
  printf 'uptime\\n' | skein vm console web1 --linger 2
  skein vm console web1 --cluster --take-over     whoever else has it by a controller loses it")]
    Console {
        #[command(flatten)]
        view: ViewArgs,
        /// Its name
        name: String,
        /// After the end of a pipe as standard input: leave once the guest was silent for so long, in seconds
        #[arg(long, value_name = "S", default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=86_400))]
        linger: u64,
        /// Take the console from who has it by way of a controller
        #[arg(long, conflicts_with = "local")]
        take_over: bool,
    },
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    run_command(args).map_err(with_hint)
}

fn run_command(args: Args) -> anyhow::Result<ExitCode> {
    let local = &args.local;
    match args.command {
        Command::Start {
            from,
            view,
            on,
            check,
            detach,
            overcommit,
            as_defined,
            new_state,
            without_controller,
            json,
        } => {
            let options = StartOptions { overcommit, as_defined, new_state, without_controller, cpu_model: None };
            if view.asks_cluster(local)? {
                let then = Then::of(check, detach);
                return start_in_cluster(&view, &from, options, on, then, Output::of(json));
            }
            if on.is_some() || check || detach {
                bail!("--on, --check and --detach are for a start by the cluster's controller: add --cluster");
            }
            let from = vm_origin(&from)?;
            let vm = start_asking(local, &Request::VmStart { from, options })?;
            if json { print_json(&vm)? } else { print(&sentence(&vm))? }
        }
        Command::Create { controllers, from, json } => {
            let VmOrigin::Definition { file, text } = vm_origin(&from)? else { bail!("'{from}' is no file") };
            let name = Definition::parse(&text, &file)?.name;
            life::create(&controllers.client()?, &name, text, Output::of(json))?;
        }
        Command::Delete { controllers, name, yes, json } => {
            return life::delete(&controllers.client()?, &name, yes, Output::of(json));
        }
        Command::Adopt { qmp, name, json } => {
            // The agent's working directory is another one.
            let qmp = std::path::absolute(&qmp).with_context(|| format!("no such path: {}", qmp.display()))?;
            started(local, &Request::VmAdopt { qmp, name }, json)?;
        }
        Command::List { view, json } => {
            let cluster = |client: &ControllerClient| super::cluster::vms::list(client, Output::of(json));
            view.show(local, Output::of(json), cluster, || list(local, json))?;
        }
        Command::Show { view, name, json } if view.names_cluster() || !json && view.asks_cluster(local)? => {
            super::cluster::vms::show(&view.controllers.client()?, &name, Output::of(json))?;
        }
        Command::Show { view, name, json } => show(local, &view, name, json)?,
        Command::Stop { view, name, detach, timeout, force, json } => {
            let request = StopVmRequest { timeout_s: timeout, force };
            return stop(local, &view, name, request, detach, Output::of(json));
        }
        Command::Resume { name, json } => {
            let vm = ask(local, &Request::VmResume { name })?;
            if json { print_json(&vm)? } else { print(&sentence(&vm))? }
        }
        Command::Forget { name, json } => forget(local, name, json)?,
        Command::Console { view, name, linger, take_over } => {
            console(local, &view, name, Duration::from_secs(linger), take_over)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows a VM of this host, or what the cluster knows of a VM of another.
fn show(local: &LocalAgent, view: &ViewArgs, name: String, json: bool) -> anyhow::Result<()> {
    match ask(local, &Request::VmShow { name: name.clone() }) {
        Ok(vm) if json => print_json(&vm),
        Ok(vm) => print(&shown(&vm)),
        Err(error) if !json && !view.local && is_missing(&error) => match view.controllers.access()? {
            Some(_) => super::cluster::vms::show(&view.controllers.client()?, &name, Output::Text),
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// Joins standard input and output to the console of a VM of this host, or by a controller to that of any VM.
fn console(
    local: &LocalAgent,
    view: &ViewArgs,
    name: String,
    linger: Duration,
    takes_over: bool,
) -> anyhow::Result<()> {
    if takes_over || view.asks_cluster(local)? {
        return super::console::run_by_controller(view.client()?, &name, takes_over, linger);
    }
    let vm = match ask(local, &Request::VmShow { name: name.clone() }) {
        Ok(vm) => vm,
        Err(error) if !view.local && is_missing(&error) && view.controllers.access()?.is_some() => {
            return super::console::run_by_controller(view.client()?, &name, takes_over, linger);
        }
        Err(error) => return Err(error),
    };
    let name = clean_line(&vm.name);
    let Some(socket) = vm.console else {
        if vm.adopted {
            bail!("{name} was adopted: its console is where the command line of its QEMU put it (-serial, -chardev)");
        }
        bail!("{name} has no console here: it is {}, or was started without one", vm_state(vm.state));
    };
    super::console::run(&name, &socket, linger)
}

fn forget(local: &LocalAgent, name: String, json: bool) -> anyhow::Result<()> {
    let vm = json.then(|| ask(local, &Request::VmShow { name: name.clone() })).transpose()?;
    match (local.call(&Request::VmForget { name: name.clone() })?, vm) {
        (Reply::Done, Some(vm)) => print_json(&vm),
        (Reply::Done, None) => print(&format!("{} is forgotten; its disks are where they were\n", clean_line(&name))),
        (reply, _) => Err(unexpected(&reply).into()),
    }
}

/// Returns whether this host's agent does not have the VM.
pub fn is_missing(error: &anyhow::Error) -> bool {
    let is_missing = |error: &CallError| matches!(error, CallError::Refused(of) if of.message.contains("no VM '"));
    error.downcast_ref::<CallError>().is_some_and(is_missing)
}

/// Says where else a VM may be that this host does not have.
fn with_hint(error: anyhow::Error) -> anyhow::Error {
    let is_known = || matches!((ControllerArgs { controller: None }).access(), Ok(Some(_)));
    match is_missing(&error) && is_known() {
        true => anyhow::anyhow!("{error}; which host of the cluster has it: skein vm list --cluster"),
        false => error,
    }
}

/// Starts a VM where a controller picks.
fn start_in_cluster(
    view: &ViewArgs,
    from: &str,
    options: StartOptions,
    on: Option<String>,
    then: Then,
    output: Output,
) -> anyhow::Result<ExitCode> {
    if options != StartOptions::default() {
        bail!(
            "a controller's start has no --overcommit, --as-defined, --new-state or --without-controller: start it on \
             its host"
        );
    }
    life::start(&view.controllers.client()?, vm_origin(from)?, on, then, output)
}

/// Stops a VM of this host, or of the cluster.
fn stop(
    local: &LocalAgent,
    view: &ViewArgs,
    name: String,
    request: StopVmRequest,
    detach: bool,
    output: Output,
) -> anyhow::Result<ExitCode> {
    if view.asks_cluster(local)? {
        return life::stop(&view.controllers.client()?, &name, &request, Then::of(false, detach), output);
    }
    if detach {
        bail!("--detach is for a stop by the cluster's controller: add --cluster");
    }
    let StopVmRequest { timeout_s, force } = request;
    let request = Request::VmStop { name, timeout_s, force };
    let vm = match local.client().call(&request, Duration::from_secs(timeout_s) + AGENT_ANSWER_TIME)? {
        Reply::Vm(vm) => vm,
        reply => return Err(unexpected(&reply).into()),
    };
    if output == Output::Json {
        print_json(&vm)?
    } else {
        print(&sentence(&vm))?
    }
    Ok(ExitCode::SUCCESS)
}

fn ask(local: &LocalAgent, request: &Request) -> anyhow::Result<Box<VmView>> {
    match local.call(request)? {
        Reply::Vm(vm) => Ok(vm),
        reply => Err(unexpected(&reply).into()),
    }
}

/// Asks for a start, and says what the agent waits for if that takes a while.
fn start_asking(local: &LocalAgent, request: &Request) -> anyhow::Result<Box<VmView>> {
    let mut asked = local.client().ask(request)?;
    let reply = match asked.next(SAID_AFTER)? {
        Some(reply) => reply,
        None => {
            if agent_asks_controllers() {
                eprintln!("the agent asks the cluster's controllers whether it may start here, and starts it then");
            }
            asked.reply(AGENT_ANSWER_TIME)?
        }
    };
    match reply {
        Reply::Vm(vm) => Ok(vm),
        reply => Err(unexpected(&reply).into()),
    }
}

fn started(local: &LocalAgent, request: &Request, json: bool) -> anyhow::Result<()> {
    let vm = ask(local, request)?;
    if json { print_json(&vm) } else { print(&sentence(&vm)) }
}

/// Returns a valid definition, or a name.
fn vm_origin(from: &str) -> anyhow::Result<VmOrigin> {
    let path = Path::new(from);
    let is_file = from == "-" || from.contains('/') || from.ends_with(".toml") || path.is_file();
    if !is_file {
        if !is_vm_name(from) {
            bail!("'{from}' is neither a file nor a VM's name (a-z 0-9 . _ -)");
        }
        return Ok(VmOrigin::Name(from.to_owned()));
    }
    let (file, text) = match from {
        "-" => ("standard input".to_owned(), read_text(std::io::stdin().lock())),
        _ => (from.to_owned(), std::fs::File::open(path).and_then(read_text)),
    };
    let text = text.with_context(|| format!("cannot read {file}"))?;
    Definition::parse(&text, &file)?;
    Ok(VmOrigin::Definition { file, text })
}

/// Reads a text up to a length that is worth reading. The parser reports a longer one.
fn read_text(from: impl Read) -> std::io::Result<String> {
    let mut text = String::new();
    from.take(skein_inventory::TEXT_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

fn list(local: &LocalAgent, json: bool) -> anyhow::Result<()> {
    let vms = match local.call(&Request::VmList)? {
        Reply::Vms { vms } => vms,
        reply => return Err(unexpected(&reply).into()),
    };
    if json {
        return print_json(&vms);
    }
    if vms.is_empty() {
        return print("there is no VM on this host; `skein vm start FILE` starts one\n");
    }
    let rows: Vec<_> = vms
        .into_iter()
        .map(|vm| {
            [
                vm.name,
                vm_state(vm.state).to_owned(),
                about_bytes(vm.memory_bytes),
                vm.cpus.to_string(),
                vm.qemu.unwrap_or_default(),
                vm.migration.map(|id| id.to_string()).unwrap_or_default(),
                vm.note,
            ]
        })
        .collect();
    print(&table(["NAME", "STATE", "MEMORY", "CPUS", "QEMU", "MIGRATION", "NOTE"], &rows))
}

/// Returns what a command made of a VM, as a sentence.
fn sentence(vm: &VmView) -> String {
    let name = clean_line(&vm.name);
    let about = [
        vm.qemu.as_ref().map(|version| format!("QEMU {}", clean_line(version))),
        vm.pid.map(|pid| format!("pid {pid}")),
        Some(clean_line(&vm.note)).filter(|note| !note.is_empty()),
    ];
    let about: Vec<String> = about.into_iter().flatten().collect();
    let about = if about.is_empty() { String::new() } else { format!(" ({})", about.join(", ")) };
    format!("{name} is {}{about}\n", vm_state(vm.state))
}

fn shown(vm: &VmView) -> String {
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let mut shown = clean_line(&vm.name) + "\n";
    let mut rows = vec![
        ("state", vm_state(vm.state).into()),
        ("note", vm.note.clone()),
        ("memory", about_bytes(vm.memory_bytes)),
        ("cpus", vm.cpus.to_string()),
        ("machine", text(&vm.machine)),
        ("qemu", text(&vm.qemu)),
        ("pid", vm.pid.map(|pid| pid.to_string()).unwrap_or_default()),
        ("started by", if vm.adopted { "somebody else, adopted" } else { "skein" }.into()),
        ("qmp", path(&vm.qmp)),
        ("console", path(&vm.console)),
        ("migration", vm.migration.map(|id| format!("{id} (skein migration show {id})")).unwrap_or_default()),
    ];
    rows.extend(vm.drives.iter().map(|drive| ("drive", shown_drive(drive))));
    shown += &fields(&rows);
    if let Some(definition) = &vm.definition {
        shown += "definition:\n";
        shown.extend(clean(definition).lines().map(|line| format!("  {line}").trim_end().to_owned() + "\n"));
    }
    shown
}

/// Describes a drive with its image, and what that is an overlay of.
fn shown_drive(Drive { name, image, backing }: &Drive) -> String {
    let image = image.as_deref().unwrap_or("empty");
    let images = [image].into_iter().chain(backing.iter().map(String::as_str)).collect::<Vec<_>>();
    format!("{name}: {}", images.join(" over "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_names_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("web1.toml");
        std::fs::write(&file, "name = 'web1'\nmemory = '64 MiB'\n").unwrap();
        let file = file.to_str().unwrap();
        let definition = VmOrigin::Definition { file: file.into(), text: "name = 'web1'\nmemory = '64 MiB'\n".into() };
        assert_eq!(vm_origin(file).unwrap(), definition);
        assert_eq!(vm_origin("web1").unwrap(), VmOrigin::Name("web1".into()));
        for (odd, says) in [("none.toml", "cannot read none.toml"), ("./x", "cannot read ./x"), ("Web 1", "neither")] {
            let error = vm_origin(odd).unwrap_err().to_string();
            assert!(error.contains(says), "{odd}: {error}");
        }
        std::fs::write(file, "name = 'web1'\nmemory = 64\n").unwrap();
        let error = vm_origin(file).unwrap_err().to_string();
        assert!(error.contains("web1.toml:2:10: ") && error.contains("help: "), "{error}");
    }
}
