//! Says what an agent and a controller may say to each other. What passes has names that can be written into a log, and
//! numbers that can be added to a time or to each other.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use super::bounds::{check_request, host, refuse, shown, vm, within};
use super::controller_link::{ArmedWatchdog, Hello, HostReport, ToAgent, ToController, Welcome};
use super::load::{HostLoad, VmLoad};
use super::migration::Migration;
use super::reply::Refusal;
use super::sample::{MigrationSample, NicRates};

/// Bounds the milliseconds from one report to the next.
pub const REPORT_PERIOD_RANGE_MS: RangeInclusive<u64> = 100..=60_000;

/// Bounds the hosts of a cluster: four times those of the largest case (`fleet-1000`).
const HOSTS_MAX: usize = 4096;
/// Bounds the controllers of a cluster.
const CONTROLLERS_MAX: usize = 16;
/// Bounds the addresses of a host: its NICs, each with some addresses.
const ADDRESSES_MAX: usize = 64;
/// Bounds an address: a DNS name (RFC 1035, section 2.3.4) and a port.
const ADDRESS_BYTES_MAX: usize = 255 + 6;
/// Bounds the VMs of a host, and what a line says of them. As many fit into a line, but for their definitions.
const VMS_MAX: usize = 4096;
/// Bounds the migrations of a line: those that a host remembers, and those under way.
const MIGRATIONS_MAX: usize = 1024;
/// Bounds the migrations that a controller watches at a host.
pub const WATCHED_MAX: usize = 64;
/// Bounds the NICs of a host.
const NICS_MAX: usize = 1024;
/// Bounds the cores of a host: the most that Linux takes.
const CORES_MAX: usize = 8192;
/// Bounds a certificate in PEM, which has 1 to 2 KB.
const CERTIFICATE_BYTES_MAX: usize = 16 << 10;
/// Bounds the times of a watchdog, in milliseconds.
const WATCHDOG_RANGE_MS: RangeInclusive<u64> = 1..=600_000;
/// Bounds the words that say why a watchdog is not armed.
const REASON_BYTES_MAX: usize = 1024;
/// Bounds a name of a cluster, a release, or the id of a boot.
const WORD_BYTES_MAX: usize = 64;
/// Bounds a term and a count, so that what is counted on from there stays below 2^63.
const COUNT_RANGE: RangeInclusive<u64> = 0..=1 << 62;
/// Bounds the CPUs of a host and of a VM.
const CPUS_RANGE: RangeInclusive<u32> = 0..=1_000_000;
/// Bounds the thousandths of a CPU: a million CPUs.
const MILLICORES_RANGE: RangeInclusive<u64> = 0..=1_000_000_000;
/// Bounds bytes, and bytes per second: a pebibyte. Those of all hosts can be added.
const BYTES_RANGE: RangeInclusive<u64> = 0..=1 << 50;

impl ToController {
    /// Refuses malformed names, numbers beyond their range, and lists that are too long.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub fn check(&self) -> Result<(), Refusal> {
        match self {
            ToController::Hello(hello) => hello.check(),
            ToController::Report(report) => report.check(),
            ToController::AskStart { ask: _, vm: name, is_here: _ } => vm(name),
            ToController::AskMove { ask: _, vm: name, to, migration: _ } => vm(name).and_then(|()| host(to)),
            ToController::Deposed { command: _, highest } => within("highest", Some(highest.0), &COUNT_RANGE),
            ToController::Sample(sample) => sample.check(),
            ToController::Reply { command: _, reply: _ }
            | ToController::Seen { look: _, reply: _ }
            | ToController::Renew
            | ToController::Other => Ok(()),
        }
    }
}

impl Hello {
    fn check(&self) -> Result<(), Refusal> {
        host(&self.host)?;
        word("release", &self.release)?;
        self.boot_id.iter().try_for_each(|id| word("boot_id", id))?;
        addresses(&self.addresses)?;
        within("highest_term", Some(self.highest_term.0), &COUNT_RANGE)
    }
}

impl HostReport {
    fn check(&self) -> Result<(), Refusal> {
        within("sequence", Some(self.sequence), &COUNT_RANGE)?;
        self.facts.iter().try_for_each(|facts| {
            host(&facts.name)?;
            within("cpus", Some(facts.cpus), &CPUS_RANGE)?;
            let bytes = [facts.ram_bytes, facts.ram_available_bytes, facts.kept_ram_bytes];
            bytes.into_iter().try_for_each(|bytes| within("a host's RAM", Some(bytes), &BYTES_RANGE))
        })?;
        self.load.iter().try_for_each(host_load)?;
        let lists = [self.vms.len(), self.vms_gone.len(), self.vms_forgotten.len(), self.vm_loads.len()];
        lists.into_iter().try_for_each(|length| at_most("VMs", length, VMS_MAX))?;
        self.vms.iter().try_for_each(|view| {
            vm(&view.name)?;
            within("cpus", Some(view.cpus), &CPUS_RANGE)?;
            within("memory_bytes", Some(view.memory_bytes), &BYTES_RANGE)
        })?;
        self.vms_gone.iter().chain(&self.vms_forgotten).try_for_each(|name| vm(name))?;
        self.vm_loads.iter().try_for_each(|(name, load)| {
            vm(name)?;
            vm_load(load)
        })?;
        nics(&self.nics)?;
        at_most("migrations", self.migrations.len(), MIGRATIONS_MAX)?;
        self.migrations.iter().try_for_each(migration)?;
        at_most("moves_asked", self.moves_asked.len(), MIGRATIONS_MAX)?;
        let contacts = self.contacts.iter().flatten();
        at_most("contacts", contacts.clone().count(), HOSTS_MAX)?;
        contacts.map(|(name, _)| name).try_for_each(|name| host(name))?;
        self.heard.iter().try_for_each(|heard| {
            within("term", Some(heard.term.0), &COUNT_RANGE)?;
            within("number", Some(heard.number), &COUNT_RANGE)?;
            within("voters", Some(heard.voters), &COUNT_RANGE)
        })?;
        self.watchdog.iter().try_for_each(|watchdog| {
            if watchdog.why_not.len() > REASON_BYTES_MAX {
                return refuse("the reason why a watchdog is not armed is too long".into(), "tell it in fewer words");
            }
            watchdog.armed.iter().try_for_each(ArmedWatchdog::check)
        })
    }
}

impl ArmedWatchdog {
    fn check(&self) -> Result<(), Refusal> {
        word("a watchdog's identity", &self.identity)?;
        let times = [self.acknowledged_ms, self.asked_ms, self.period_ms, self.timeout_ms];
        times.into_iter().try_for_each(|ms| within("a watchdog's time", Some(ms), &WATCHDOG_RANGE_MS))
    }
}

impl ToAgent {
    /// Refuses malformed names, numbers beyond their range, lists that are too long, and what
    /// [`RequestLine::check`](super::RequestLine::check) refuses.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub fn check(&self) -> Result<(), Refusal> {
        match self {
            ToAgent::Welcome(welcome) => welcome.check(),
            ToAgent::Leads { term } => within("term", Some(term.0), &COUNT_RANGE),
            ToAgent::Command { command: _, term, request_id, request } => {
                within("term", Some(term.0), &COUNT_RANGE)?;
                check_request(request_id.as_deref(), request)
            }
            ToAgent::Hosts { addresses: hosts } => {
                at_most("hosts", hosts.len(), HOSTS_MAX)?;
                hosts.iter().try_for_each(|(name, dialled)| {
                    host(name)?;
                    addresses(dialled)
                })
            }
            ToAgent::Controllers { addresses: controllers } => {
                at_most("controllers", controllers.len(), CONTROLLERS_MAX)?;
                controllers.iter().try_for_each(|(name, dialled)| {
                    host(name)?;
                    addresses(std::slice::from_ref(dialled))
                })
            }
            ToAgent::Renewed { certificate } => {
                at_most("bytes of a certificate", certificate.len(), CERTIFICATE_BYTES_MAX)
            }
            ToAgent::Heard { term, number, sequence, voters, hosts } => {
                within("term", Some(term.0), &COUNT_RANGE)?;
                within("number", Some(*number), &COUNT_RANGE)?;
                within("sequence", Some(*sequence), &COUNT_RANGE)?;
                within("voters", Some(*voters), &COUNT_RANGE)?;
                at_most("voters", hosts.len(), HOSTS_MAX)?;
                hosts.iter().try_for_each(|name| host(name))
            }
            ToAgent::Watch { migrations } => at_most("migrations that are watched", migrations.len(), WATCHED_MAX),
            ToAgent::Look { look: _, request } if request.only_shows() => check_request(None, request),
            ToAgent::Console { look: _, request } => request.check(),
            ToAgent::Look { .. } => refuse("the request does more than show".into(), "give it as a command"),
            ToAgent::Refused(_)
            | ToAgent::NotRenewed(_)
            | ToAgent::May { .. }
            | ToAgent::MayNot { .. }
            | ToAgent::Other => Ok(()),
        }
    }
}

impl Welcome {
    fn check(&self) -> Result<(), Refusal> {
        word("cluster", &self.cluster)?;
        host(&self.controller)?;
        word("release", &self.release)?;
        within("report_period_ms", Some(self.report_period_ms), &REPORT_PERIOD_RANGE_MS)
    }
}

fn migration(migration: &Migration) -> Result<(), Refusal> {
    vm(&migration.vm)?;
    host(&migration.source)?;
    host(&migration.target)?;
    at_most("events", migration.events.len(), 0)?;
    within("elapsed_ms", Some(migration.elapsed_ms), &COUNT_RANGE)?;
    within("downtime_ms", migration.downtime_ms, &COUNT_RANGE)
}

impl MigrationSample {
    fn check(&self) -> Result<(), Refusal> {
        within("at", Some(self.at), &COUNT_RANGE)?;
        migration(&self.migration)?;
        nics(&self.host.nics)?;
        at_most("cores", self.host.cores_permille.len(), CORES_MAX)?;
        within("mover_millicores", Some(self.host.mover_millicores), &MILLICORES_RANGE)?;
        let times = self.forecast.iter().flat_map(|left| [left.left_ms, left.left_low_ms, left.left_high_ms]);
        times.into_iter().try_for_each(|ms| within("a forecast's time", Some(ms), &COUNT_RANGE))
    }
}

fn nics(nics: &[NicRates]) -> Result<(), Refusal> {
    at_most("NICs", nics.len(), NICS_MAX)?;
    nics.iter().try_for_each(|nic| {
        word("a NIC's name", &nic.name)?;
        let rates = [nic.send_bits_per_s, nic.receive_bits_per_s, nic.speed_bits_per_s.unwrap_or(0)];
        rates.into_iter().try_for_each(|rate| within("a NIC's rate", Some(rate), &BYTES_RANGE))
    })
}

fn host_load(load: &HostLoad) -> Result<(), Refusal> {
    within("cpu_millicores", Some(load.cpu_millicores), &MILLICORES_RANGE)?;
    let bytes = [
        load.ram_bytes,
        load.ram_available_bytes,
        load.disk_read_bytes_per_s,
        load.disk_write_bytes_per_s,
        load.net_receive_bytes_per_s,
        load.net_send_bytes_per_s,
    ];
    bytes.into_iter().try_for_each(|bytes| within("a load's bytes", Some(bytes), &BYTES_RANGE))
}

fn vm_load(load: &VmLoad) -> Result<(), Refusal> {
    within("cpu_millicores", Some(load.cpu_millicores), &MILLICORES_RANGE)?;
    let bytes = [
        load.ram_bytes,
        load.disk_read_bytes_per_s,
        load.disk_write_bytes_per_s,
        load.net_receive_bytes_per_s,
        load.net_send_bytes_per_s,
    ];
    bytes.into_iter().try_for_each(|bytes| within("a load's bytes", Some(bytes), &BYTES_RANGE))
}

/// Checks a short text: a release, a cluster's name, an id.
fn word(what: &str, text: &str) -> Result<(), Refusal> {
    let fits = |c: char| c.is_ascii_graphic() || c == ' ';
    if (1..=WORD_BYTES_MAX).contains(&text.len()) && text.chars().all(fits) {
        return Ok(());
    }
    refuse(format!("{} is no {what}", shown(text)), format!("it has 1 to {WORD_BYTES_MAX} printable ASCII characters"))
}

fn at_most(what: &str, length: usize, most: usize) -> Result<(), Refusal> {
    if length <= most {
        return Ok(());
    }
    refuse(format!("a line has {length} {what}"), format!("it may have {most}"))
}

fn addresses(addresses: &[String]) -> Result<(), Refusal> {
    at_most("addresses of a host", addresses.len(), ADDRESSES_MAX)?;
    addresses.iter().try_for_each(|address| {
        let (name, port) = address.rsplit_once(':').unwrap_or_default();
        let named = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        let is_port = port.parse::<u16>().is_ok_and(|port| port != 0) && !port.starts_with('+');
        let fits = address.parse::<SocketAddr>().is_ok_and(|address| address.port() != 0) || (named && is_port);
        if fits && address.len() <= ADDRESS_BYTES_MAX {
            return Ok(());
        }
        refuse(format!("{} is no address of a host", shown(address)), "give an IP address or a name, and a port")
    })
}

#[cfg(test)]
mod tests {
    use super::super::examples;
    use super::super::{API_VERSION, MigrateOptions, Request, Term, VmState};
    use super::*;

    type Change<'a> = &'a dyn Fn(&mut HostReport);

    fn refused_by_controller(line: &ToController) -> String {
        let Refusal { message, cure } = line.check().expect_err(&format!("{line:?}"));
        format!("{message}: {cure}")
    }

    fn refused_by_agent(line: &ToAgent) -> String {
        let Refusal { message, cure } = line.check().expect_err(&format!("{line:?}"));
        format!("{message}: {cure}")
    }

    #[test]
    fn what_the_examples_say_may_be_said() {
        examples::to_controller().iter().for_each(|line| assert_eq!(line.check(), Ok(())));
        examples::to_agent().iter().for_each(|line| assert_eq!(line.check(), Ok(())));
        assert_eq!(serde_json::from_str::<ToAgent>(r#"{"line":"wake"}"#).unwrap(), ToAgent::Other);
        assert_eq!(serde_json::from_str::<ToController>(r#"{"line":"sleep"}"#).unwrap(), ToController::Other);
    }

    #[test]
    fn an_agents_first_line_is_checked() {
        let good = Hello {
            host: "hosta".into(),
            release: "0.2.0".into(),
            api: API_VERSION,
            instance: u64::MAX,
            boot_id: None,
            addresses: vec!["[fd00::1]:7070".into(), "10.0.0.1:1".into(), "node_1.example.org:65535".into()],
            highest_term: Term(1 << 62),
            moves_off: true,
        };
        assert_eq!(ToController::Hello(good.clone()).check(), Ok(()));
        for (odd, says) in [
            (Hello { host: "Host A".into(), ..good.clone() }, "no name of a host"),
            (Hello { release: "1\n2".into(), ..good.clone() }, "no release"),
            (Hello { release: "1".repeat(65), ..good.clone() }, "no release"),
            (Hello { boot_id: Some(String::new()), ..good.clone() }, "no boot_id"),
            (Hello { highest_term: Term(u64::MAX), ..good.clone() }, "highest_term cannot be"),
            (Hello { addresses: vec!["10.0.0.1:7070".into(); 65], ..good.clone() }, "65 addresses"),
        ] {
            let told = refused_by_controller(&ToController::Hello(odd));
            assert!(told.contains(says), "{told}");
        }
        let long = format!("{}:1", "a".repeat(260));
        for odd in ["", "10.0.0.1", "10.0.0.1:0", "a:+1", "a:65536", ":7070", "a b:7070", "fd00::1:", "\u{1b}:1", &long]
        {
            let line = ToController::Hello(Hello { addresses: vec![odd.into()], ..good.clone() });
            assert!(refused_by_controller(&line).contains("no address of a host"), "{odd:?}");
        }
    }

    #[test]
    fn a_report_is_checked() {
        let report = |change: Change<'_>| {
            let mut all = examples::to_controller();
            let ToController::Report(report) = &mut all[2] else { panic!("the third example is a report") };
            change(report);
            all.swap_remove(2)
        };
        assert_eq!(report(&|_| ()).check(), Ok(()));
        let cases: &[(&str, Change<'_>)] = &[
            ("sequence cannot be", &|report| report.sequence = u64::MAX),
            ("no name of a host", &|report| report.facts.as_mut().unwrap().name = "A".into()),
            ("cpus cannot be", &|report| report.facts.as_mut().unwrap().cpus = u32::MAX),
            ("a host's RAM cannot be", &|report| report.facts.as_mut().unwrap().ram_bytes = u64::MAX),
            ("cpu_millicores cannot be", &|report| report.load.as_mut().unwrap().cpu_millicores = u64::MAX),
            ("a load's bytes cannot be", &|report| report.load.as_mut().unwrap().net_send_bytes_per_s = u64::MAX),
            ("no name of a VM", &|report| report.vms[0].name = "../x".into()),
            ("memory_bytes cannot be", &|report| report.vms[0].memory_bytes = u64::MAX),
            ("cpus cannot be", &|report| report.vms[0].cpus = u32::MAX),
            ("no name of a VM", &|report| report.vms_gone.push(String::new())),
            ("no name of a VM", &|report| report.vms_forgotten.push("A".into())),
            ("a line has 5000 VMs", &|report| report.vms_gone = vec!["a".into(); 5000]),
            ("a line has 5000 VMs", &|report| report.vms_forgotten = vec!["a".into(); 5000]),
            ("a line has 5000 VMs", &|report| {
                let load = report.vm_loads["web1"];
                report.vm_loads = (0..5000).map(|n| (format!("v{n}"), load)).collect();
            }),
            ("no name of a VM", &|report| {
                let load = report.vm_loads["web1"];
                report.vm_loads.insert("A".into(), load);
            }),
            ("a load's bytes cannot be", &|report| {
                report.vm_loads.values_mut().for_each(|load| load.ram_bytes = u64::MAX)
            }),
            ("no name of a VM", &|report| report.migrations[0].vm = "A".into()),
            ("no name of a host", &|report| report.migrations[0].target = "A".into()),
            ("elapsed_ms cannot be", &|report| report.migrations[0].elapsed_ms = u64::MAX),
            ("1025 migrations", &|report| report.migrations = vec![report.migrations[0].clone(); 1025]),
            ("events", &|report| {
                let event = super::super::LogEntry::Note { text: "a word".into() };
                let event = super::super::LoggedEvent { time: String::new(), event };
                report.migrations[0].events.push(event);
            }),
            ("no name of a host", &|report| report.contacts = Some([("A".into(), true)].into())),
            ("5000 contacts", &|report| {
                report.contacts = Some((0..5000).map(|n| (format!("h{n}"), true)).collect());
            }),
        ];
        for (says, change) in cases {
            let told = refused_by_controller(&report(*change));
            assert!(told.contains(says), "{told} for {says}");
        }
        // A VM that is being started is a VM.
        assert_eq!(report(&|report| report.vms[0].state = VmState::Starting).check(), Ok(()));
        let deposed = ToController::Deposed { command: u64::MAX, highest: Term(u64::MAX) };
        assert!(refused_by_controller(&deposed).contains("highest cannot be"));
        let ask =
            ToController::AskMove { ask: 1, vm: "a".into(), to: "../x".into(), migration: Some(crate::MigrationId(7)) };
        assert!(ask.check().is_err());
        let ask = ToController::AskStart { ask: u64::MAX, vm: "../x".into(), is_here: true };
        assert!(refused_by_controller(&ask).contains("no name of a VM"));
    }

    #[test]
    fn a_controllers_line_is_checked() {
        let welcome = |controller: &str, report_period_ms| {
            let (cluster, release) = ("rack 7".to_owned(), "0.2.0".to_owned());
            ToAgent::Welcome(Welcome { cluster, controller: controller.into(), release, report_period_ms })
        };
        assert_eq!(welcome("ctl1", 100).check(), Ok(()));
        assert!(refused_by_agent(&welcome("a\nb", 100)).contains("no name of a host"));
        for odd in [0, 99, 60_001, u64::MAX] {
            assert!(refused_by_agent(&welcome("ctl1", odd)).contains("it may be 100 to 60000"));
        }
        assert!(refused_by_agent(&ToAgent::Leads { term: Term(u64::MAX) }).contains("term cannot be"));
        let command = |term, request_id: Option<&str>, request| ToAgent::Command {
            command: u64::MAX,
            term: Term(term),
            request_id: request_id.map(str::to_owned),
            request: Box::new(request),
        };
        assert!(refused_by_agent(&command(u64::MAX, None, Request::VmList)).contains("term cannot be"));
        assert!(refused_by_agent(&command(1, Some("x"), Request::VmList)).contains("only a migration"));
        assert!(refused_by_agent(&command(1, None, Request::VmShow { name: "A".into() })).contains("no name of a VM"));
        let options = MigrateOptions { retries: u32::MAX, ..MigrateOptions::default() };
        let migrate = Request::Migrate { vm: "a".into(), to: "b".into(), options, detach: true };
        assert!(refused_by_agent(&command(1, Some("x"), migrate)).contains("retries cannot be"));
        let hosts = |name: &str, address: &str| ToAgent::Hosts {
            addresses: [(name.to_owned(), vec![address.to_owned()])].into(),
        };
        assert_eq!(hosts("hosta", "10.0.0.1:7070").check(), Ok(()));
        assert!(refused_by_agent(&hosts("A", "10.0.0.1:7070")).contains("no name of a host"));
        assert!(refused_by_agent(&hosts("hosta", "10.0.0.1")).contains("no address"));
        let many = ToAgent::Hosts { addresses: (0..5000).map(|n| (format!("h{n}"), vec![])).collect() };
        assert!(refused_by_agent(&many).contains("5000 hosts"));
        let controllers = |count: usize, address: &str| ToAgent::Controllers {
            addresses: (0..count).map(|n| (format!("ctl{n}"), address.to_owned())).collect(),
        };
        assert_eq!(controllers(3, "10.0.0.1:7443").check(), Ok(()));
        assert!(refused_by_agent(&controllers(1, "10.0.0.1")).contains("no address"));
        assert!(refused_by_agent(&controllers(17, "10.0.0.1:7443")).contains("17 controllers"));
    }
}
