//! A share that the NIC itself makes, by its own Enhanced Transmission Selection (IEEE 802.1Qaz): whether that can be
//! had, what is to be set, and what became of what was set.
//!
//! What was before is in an [`EtsRecord`], which is written before anything is changed. A NIC that has other settings
//! than Skein's or those of before was configured by somebody else, and is left alone.

use serde::{Deserialize, Serialize};

use crate::dcb::{self, Application, Dcb, Selector};
use crate::driver;
use crate::ieee_ets::{DcbxMode, IeeeEts, dcbx_mode};
use crate::nic::Nic;
use crate::source::{Answer, Ask, ENOENT, Source};

/// The directory of the records. It does not outlive a boot, nor do a NIC's settings.
const RECORDS: &str = "/run/skein/net-qos";
/// The drivers that lead each packet to the traffic class that ETS gives its priority (`SO_PRIORITY`), without more
/// settings than those of ETS, and whether they take the interface down and up to set that. By the drivers' source:
/// `bnxt_en` and `mlx5_core` have ETS, but go by other marks unless `mqprio` or an application's entry says so.
const DRIVERS: [(&str, bool); 3] = [("i40e", false), ("ice", true), ("ixgbe", false)];
/// What lldpad listens at: the program that takes the switch's settings and gives them to the host's NICs.
const LLDPAD: &str = "@/com/intel/lldpad";
/// Fibre Channel over Ethernet and its discovery (IEEE). Drivers have an entry for them without anybody's word.
const FCOE: [u16; 2] = [0x8906, 0x8914];

/// What was before a share was made, and what the share is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtsRecord {
    /// The interface's index. A NIC that has another is a new one, whose driver has set it anew.
    pub index: u32,
    /// The share of migrations, in per cent.
    pub percent: u8,
    /// The priority of migrations' packets.
    pub priority: u8,
    /// The NIC's settings of before.
    pub before: IeeeEts,
    /// The NIC's settings with the share.
    pub wanted: IeeeEts,
    /// How far this has come.
    pub phase: EtsPhase,
}

/// How far a change of a NIC's settings has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EtsPhase {
    /// The settings are being changed, to the wanted or back.
    Changing,
    /// The NIC had the wanted settings, read back.
    Made,
}

/// What became of a share that a NIC was to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnEts {
    /// There is no record of any.
    None,
    /// The NIC makes it.
    Share(EtsRecord),
    /// A change was not brought to its end, or the NIC was reset since.
    Incomplete(EtsRecord),
    /// Somebody else has changed the NIC's settings since.
    Foreign(EtsRecord),
    /// The NIC does not tell its settings now.
    Untold(EtsRecord),
    /// The record is there and cannot be read.
    Unreadable,
}

/// Why a NIC's own ETS is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoOwnEts {
    /// The driver has no such settings.
    #[error("its driver has no ETS (DCB)")]
    NoDcb,
    /// It is not known how the driver chooses a packet's class.
    #[error("it is not known how its driver ({0}) chooses a packet's traffic class")]
    Driver(String),
    /// The NIC's firmware has its DCB in hand.
    #[error("its firmware has DCB in hand (DCBX by LLDP), so DCB is not the host's to set")]
    Firmware,
    /// The rules of before IEEE's count.
    #[error("its DCB goes by CEE: dcb dcbx set dev {0} host ieee, if nobody needs CEE")]
    Cee(String),
    /// The driver does not tell who has DCB in hand.
    #[error("its driver does not tell who has DCB in hand")]
    Untold,
    /// lldpad gives NICs the switch's settings.
    #[error("lldpad runs, and has DCB in hand")]
    Lldpad,
    /// One traffic class cannot be shared out.
    #[error("it has {0} traffic classes")]
    Classes(u8),
    /// Somebody has configured DCB.
    #[error("somebody else configured its DCB: {0}")]
    Foreign(String),
    /// The priority is that of everything without one.
    #[error("the priority {0} is no priority of migrations alone: --priority 1 to 6")]
    Priority(u8),
    /// The driver takes the interface down.
    #[error(
        "its driver takes it down and up for that, which loses routes and IPv6 addresses: --own-ets does it anyway"
    )]
    GoesDown,
}

/// Returns where the record of a NIC is. NICs of other network namespaces have others. `None`: the namespace is not
/// told.
pub fn record_path(source: &dyn Source, nic: &Nic) -> Option<String> {
    let namespace = source.ask(&Ask::Link("/proc/thread-self/ns/net".into())).text()?;
    let number: String = namespace.chars().filter(char::is_ascii_digit).collect();
    (!number.is_empty()).then(|| format!("{RECORDS}/{number}-{}.json", nic.name))
}

/// Returns what became of the share that a NIC was to make.
pub fn own_ets(source: &dyn Source, nic: &Nic) -> OwnEts {
    let Some(path) = record_path(source, nic) else { return OwnEts::None };
    let record = match source.ask(&Ask::File(path)) {
        Answer::Refused(ENOENT) => return OwnEts::None,
        answer => answer.text().and_then(|text| serde_json::from_str::<EtsRecord>(&text).ok()),
    };
    match record {
        None => OwnEts::Unreadable,
        Some(record) if record.index != nic.index => OwnEts::None,
        Some(record) => became(record, current(source, nic), queue_classes(source, nic)),
    }
}

/// Decides what became of a share. `now` is what the NIC has, `classes` those of its queues as far as that is told.
fn became(record: EtsRecord, now: Option<IeeeEts>, classes: Option<Vec<u8>>) -> OwnEts {
    let is_whole = record.phase == EtsPhase::Made && classes.is_none_or(|classes| classes.contains(&1));
    match now {
        Some(now) if now.does_as(&record.wanted) && is_whole => OwnEts::Share(record),
        Some(now) if now.does_as(&record.wanted) => OwnEts::Incomplete(record),
        Some(now) if now.does_as(&record.before) => OwnEts::Incomplete(record),
        Some(_) => OwnEts::Foreign(record),
        None => OwnEts::Untold(record),
    }
}

/// Returns a NIC's settings of ETS.
pub fn current(source: &dyn Source, nic: &Nic) -> Option<IeeeEts> {
    IeeeEts::read(&source.ask(&Ask::Dcb(nic.name.clone())).bytes()?)
}

/// Returns the traffic class of each queue for packets that are sent. `None`: the kernel does not tell.
pub fn queue_classes(source: &dyn Source, nic: &Nic) -> Option<Vec<u8>> {
    let queues = format!("/sys/class/net/{}/queues", nic.name);
    let names = source.ask(&Ask::Directory(queues.clone())).names();
    let class = |name: &String| {
        let text = source.ask(&Ask::File(format!("{queues}/{name}/traffic_class"))).text()?;
        // Behind the class is the number of an interface on top, if the queue is that interface's: "1-2".
        text.trim().split('-').next()?.parse().ok()
    };
    let classes: Option<Vec<u8>> = names.iter().filter(|name| name.starts_with("tx-")).map(class).collect();
    classes.filter(|classes| !classes.is_empty())
}

/// Decides whether a NIC can make a share itself, and what is to be set. `may_go_down`: its interface may be taken down
/// and up for that.
pub fn plan_own_ets(
    source: &dyn Source,
    nic: &Nic,
    percent: u8,
    priority: u8,
    may_go_down: bool,
) -> Result<EtsRecord, NoOwnEts> {
    let payload = source.ask(&Ask::Dcb(nic.name.clone())).bytes().ok_or(NoOwnEts::NoDcb)?;
    let before = IeeeEts::read(&payload).ok_or(NoOwnEts::NoDcb)?;
    let driver = driver::read(source, &nic.name).name.unwrap_or_else(|| "not told".into());
    let known = DRIVERS.iter().find(|(name, _)| *name == driver);
    let (_, goes_down) = known.ok_or(NoOwnEts::Driver(driver))?;
    match dcbx_mode(&payload) {
        DcbxMode::Host => {}
        DcbxMode::HostCee => return Err(NoOwnEts::Cee(nic.name.clone())),
        DcbxMode::Firmware => return Err(NoOwnEts::Firmware),
        DcbxMode::Untold => return Err(NoOwnEts::Untold),
    }
    let sockets = source.ask(&Ask::File("/proc/net/unix".into())).text().ok_or(NoOwnEts::Untold)?;
    if sockets.lines().any(|line| line.ends_with(LLDPAD)) {
        return Err(NoOwnEts::Lldpad);
    }
    if before.classes() < 2 {
        return Err(NoOwnEts::Classes(before.classes()));
    }
    let classes = queue_classes(source, nic).ok_or(NoOwnEts::Untold)?;
    if let Some(what) = configured(&before, &dcb::parse(&payload), &classes) {
        return Err(NoOwnEts::Foreign(what));
    }
    if !(1..8).contains(&priority) {
        return Err(NoOwnEts::Priority(priority));
    }
    if *goes_down && !may_go_down {
        return Err(NoOwnEts::GoesDown);
    }
    let wanted = before.with_share(priority, percent);
    Ok(EtsRecord { index: nic.index, percent, priority, before, wanted, phase: EtsPhase::Changing })
}

/// Returns what somebody has configured. Without that a driver has one class for all priorities, and pauses none.
fn configured(ets: &IeeeEts, dcb: &Dcb, queues: &[u8]) -> Option<String> {
    if let Some(paused) = dcb.pfc.as_ref().and_then(|pfc| pfc.priorities.first()) {
        return Some(format!("the priority {paused} is paused (PFC)"));
    }
    let is_usual = |of: &&Application| of.selector == Selector::Ethertype && FCOE.contains(&of.protocol);
    if let Some(of) = dcb.applications.iter().find(|of| !is_usual(of)) {
        return Some(format!("an application's entry gives the priority {}", of.priority));
    }
    let class_of = ets.class_of();
    if class_of.iter().any(|class| *class != class_of[0]) || ets.shares().iter().filter(|share| **share > 0).count() > 1
    {
        return Some("its traffic classes have shares (ETS)".into());
    }
    queues.iter().any(|class| *class != 0).then(|| "its queues have traffic classes (mqprio)".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ets_fake::{Host, RECORD, TX1, host, nic};

    #[test]
    fn a_nic_that_nobody_configured_makes_the_share_and_is_as_before_at_the_end() {
        let mut host = host();
        let before = host.ets.clone();
        assert_eq!(host.state(), OwnEts::None);
        let mut record = host.plan().unwrap();
        assert_eq!(record.wanted.shares()[..3], [10, 90, 0]);
        assert_eq!(record.wanted.class_of(), [0, 0, 0, 0, 0, 1, 0, 0]);
        // A crash at any moment leaves something that is known: before the settings, after them, before the end.
        host.keep(&record);
        assert_eq!(host.state(), OwnEts::Incomplete(record.clone()));
        host.set(&record.wanted);
        assert_eq!(host.state(), OwnEts::Incomplete(record.clone()));
        record.phase = EtsPhase::Made;
        host.keep(&record);
        assert_eq!(host.state(), OwnEts::Share(record.clone()));
        assert!(matches!(host.plan(), Err(NoOwnEts::Foreign(_))), "a share on top of one has no settings of before");
        host.set(&record.before);
        assert_eq!(host.ets, before, "byte for byte");
        assert_eq!(host.state(), OwnEts::Incomplete(record), "the NIC was reset");
        host.files.remove(RECORD);
        assert_eq!(host.state(), OwnEts::None);
        assert!(host.plan().is_ok());
    }

    #[test]
    fn what_somebody_changed_since_is_not_ours() {
        let mut host = host();
        let record = EtsRecord { phase: EtsPhase::Made, ..host.plan().unwrap() };
        host.keep(&record);
        host.set(&record.wanted);
        host.files.insert(TX1.into(), "0\n".into());
        assert_eq!(host.state(), OwnEts::Incomplete(record.clone()), "no queue has the class of migrations");
        host.files.insert(TX1.into(), "1-2\n".into());
        assert_eq!(host.state(), OwnEts::Share(record.clone()));
        host.ets[3..5].copy_from_slice(&[60, 40]);
        assert_eq!(host.state(), OwnEts::Foreign(record.clone()));
        let changing = |of: &EtsRecord| EtsRecord { phase: EtsPhase::Changing, ..of.clone() };
        host.keep(&changing(&record));
        assert_eq!(
            host.state(),
            OwnEts::Foreign(changing(&record)),
            "a command was killed, and somebody set it after that"
        );
        let whole = std::mem::take(&mut host.ets);
        assert_eq!(host.state(), OwnEts::Untold(changing(&record)), "the driver resets the NIC and tells nothing");
        host.ets = whole;
        host.keep(&record);
        host.set(&record.wanted);
        host.ets[0] = 1;
        assert_eq!(host.state(), OwnEts::Foreign(record.clone()), "the switch's word counts now");
        host.set(&record.wanted);
        // The driver was loaded anew: the NIC is another, and has its driver's settings.
        host.keep(&EtsRecord { index: 3, ..record });
        assert_eq!(host.state(), OwnEts::None);
        for text in ["", "{}", "{\"index\":4}"] {
            host.files.insert(RECORD.into(), text.into());
            assert_eq!(host.state(), OwnEts::Unreadable, "{text}");
        }
    }

    #[test]
    fn what_is_not_skeins_to_set_is_named() {
        let refused = |change: fn(&mut Host)| {
            let mut host = host();
            change(&mut host);
            host.plan().unwrap_err().to_string()
        };
        let says = |change: fn(&mut Host), words: &str| {
            let said = refused(change);
            assert!(said.contains(words), "{said}: {words}");
        };
        says(|host| host.ets.truncate(58), "has no ETS");
        says(|host| host.driver = "mlx5_core", "its driver (mlx5_core) chooses");
        says(|host| host.driver = "", "(not told)");
        says(|host| host.driver = "ice", "takes it down and up");
        says(|host| host.dcbx = Some(0x02 | 0x08), "its firmware has DCB in hand");
        says(|host| host.dcbx = Some(0x01 | 0x02 | 0x08), "its firmware has DCB in hand");
        says(|host| host.dcbx = Some(0x01 | 0x04), "dcb dcbx set dev eth0 host ieee");
        says(|host| host.dcbx = None, "does not tell who");
        says(|host| host.dcbx = Some(0), "does not tell who");
        let lldpad = |host: &mut Host| {
            host.files.insert("/proc/net/unix".into(), "0: 2 0 0 2 1 9 @/com/intel/lldpad\n".into());
        };
        says(lldpad, "lldpad runs");
        says(|host| _ = host.files.remove("/proc/net/unix"), "does not tell");
        says(|host| _ = host.files.remove(TX1), "does not tell");
        says(|host| host.ets[1] = 1, "it has 1 traffic classes");
        says(|host| host.paused = 1 << 3, "the priority 3 is paused (PFC)");
        says(|host| host.entries.push((5, 4, 26)), "an application's entry gives the priority 4");
        says(|host| host.entries.push((1, 4, 0x0800)), "an application's entry gives the priority 4");
        says(|host| host.ets[30] = 1, "have shares (ETS)");
        says(|host| _ = host.files.insert(TX1.into(), "1\n".into()), "(mqprio)");
        for priority in [0, 8] {
            assert_eq!(plan_own_ets(&host(), &nic(), 90, priority, true), Err(NoOwnEts::Priority(priority)));
        }
        let other = Nic { name: "eth1".into(), ..nic() };
        assert_eq!(plan_own_ets(&host(), &other, 90, 5, true), Err(NoOwnEts::NoDcb));
        let goes_down = Host { driver: "ice", ..host() };
        assert!(plan_own_ets(&goes_down, &nic(), 90, 5, true).is_ok(), "who asks for it has it");
    }

    #[test]
    fn shares_that_go_by_priority_alone_are_none() {
        // As a NIC that never had settings: ixgbe tells zeros.
        let mut host = host();
        host.driver = "ixgbe";
        host.ets[0] = 0;
        host.ets[3..].fill(0);
        let record = host.plan().unwrap();
        assert_eq!(record.before.shares(), [0; 8]);
        host.set(&record.before);
        assert_eq!(host.ets[3..], [0; 56]);
    }
}
