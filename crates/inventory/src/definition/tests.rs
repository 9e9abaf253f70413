//! Tests of the whole file.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;

const EXAMPLE: &str = r#"
name = "web1"
memory = "4 GiB"            # MiB, GiB or TiB
cpus = 2
cpu = "EPYC-v4,+avx2"
machine = "q35,smm=off"
accel = "kvm"
hugepages = "2 MiB"
shared_memory = true
kernel = "/boot/vmlinuz"
initrd = '/boot/initrd "1".img'
append = "console=ttyS0 root=/dev/vda"

[[disk]]
path = "/srv/images/web1.qcow2"
format = "qcow2"
readonly = false
cache = "writeback"

[[disk]]
path = "/dev/vg/data"
format = "raw"
readonly = true

[[nic]]
bridge = "br0"
mac = "52:54:00:12:34:Ef"

[[nic]]
tap = "tap7"

[qemu]
binary = "/usr/bin/qemu-system-x86_64"
args = ["-device", "virtio-rng-pci"]

[migration]
downtime_limit_ms = 500
multifd_channels = 4
priority = 10
"#;

fn example() -> Definition {
    let disk = |path: &str, format, readonly, cache| Disk {
        path: path.into(),
        format,
        readonly,
        cache,
        options: DiskOptions::default(),
    };
    Definition {
        name: "web1".into(),
        memory_bytes: 4 * GIB,
        cpus: 2,
        cpu: Some("EPYC-v4,+avx2".into()),
        machine: "q35,smm=off".into(),
        accel: Accel::Kvm,
        hugepages: Some(2 * MIB),
        shared_memory: true,
        kernel: Some("/boot/vmlinuz".into()),
        initrd: Some("/boot/initrd \"1\".img".into()),
        append: Some("console=ttyS0 root=/dev/vda".into()),
        firmware: None,
        tpm: None,
        system: System::default(),
        rtc: Rtc::default(),
        display: None,
        cdroms: Vec::new(),
        disks: vec![
            disk("/srv/images/web1.qcow2", DiskFormat::Qcow2, false, Cache::Writeback),
            disk("/dev/vg/data", DiskFormat::Raw, true, Cache::None),
        ],
        nics: vec![
            Nic {
                attachment: Attachment::Bridge("br0".into()),
                mac: MacAddress([0x52, 0x54, 0, 0x12, 0x34, 0xef]),
                options: NicOptions::default(),
            },
            Nic {
                attachment: Attachment::Tap("tap7".into()),
                mac: MacAddress::derived("web1", 1),
                options: NicOptions::default(),
            },
        ],
        qemu: Qemu {
            binary: Some("/usr/bin/qemu-system-x86_64".into()),
            args: vec!["-device".into(), "virtio-rng-pci".into()],
        },
        migration: Migration { downtime_limit_ms: 500, multifd_channels: Some(4), priority: 10, allowed: true },
    }
}

const LEAST: &str = "name = \"web1\"\nmemory = \"4 GiB\"\n";

#[test]
fn all_that_can_be_said_is_read() {
    assert_eq!(Definition::parse(EXAMPLE, "web1.toml"), Ok(example()));
    assert_eq!(Definition::parse(&EXAMPLE.replace('\n', "\r\n"), "web1.toml"), Ok(example()));
}

#[test]
fn what_is_left_out_has_a_default() {
    let least = Definition::parse(LEAST, "web1.toml").unwrap();
    assert_eq!((least.cpus, least.machine.as_str(), least.accel), (1, "q35", Accel::Auto));
    assert_eq!((least.cpu_for(Accel::Kvm), least.cpu_for(Accel::Tcg)), ("host", "max"));
    assert_eq!((least.hugepages, least.kernel, least.disks, least.nics), (None, None, vec![], vec![]));
    assert_eq!((least.qemu, least.migration), (Qemu::default(), Migration::default()));
    let disk = Definition::parse(&format!("{LEAST}[[disk]]\npath='/a'\nformat='raw'"), "web1.toml").unwrap();
    let Disk { readonly, cache, .. } = disk.disks[0];
    assert_eq!((readonly, cache), (false, Cache::None));
    assert_eq!(example().cpu_for(Accel::Tcg), "EPYC-v4,+avx2");
}

/// Checks line, column and parts of the message of everything that is wrong.
fn check(text: &str, expect: &[(usize, usize, &[&str])]) {
    let error = Definition::parse(text, "web1.toml").expect_err(text);
    let message = error.to_string();
    let places: Vec<_> = error.diagnostics.iter().map(|fault| (fault.line, fault.column)).collect();
    assert_eq!(places, expect.iter().map(|(line, column, _)| (*line, *column)).collect::<Vec<_>>(), "{message}");
    for (fault, (line, column, parts)) in error.diagnostics.iter().zip(expect) {
        let told = format!("{} {}", fault.reason, fault.cure);
        assert!(parts.iter().all(|part| told.contains(part)), "{parts:?} in {told}");
        assert!(message.contains(&format!("web1.toml:{line}:{column}: {}", fault.reason)), "{message}");
        assert!(message.contains(text.lines().nth(line - 1).unwrap_or_default().trim()), "{message}");
    }
}

#[test]
fn each_fault_is_told_with_its_place_and_cure() {
    type Case<'a> = (&'a str, usize, usize, &'a [&'a str]);
    // A case is what follows LEAST, from line 3. LEAST itself is right.
    let cases: &[Case] = &[
        ("cpuz = 2", 3, 1, &["no key \"cpuz\"", "did you mean cpu"]),
        ("xyzzy = 2", 3, 1, &["no key \"xyzzy\"", "known here: name, memory"]),
        ("cpus = \"2\"", 3, 8, &["cpus is a string and must be an integer", "without quotes"]),
        ("cpus = 0", 3, 8, &["cpus is 0", "1 to 1024"]),
        ("cpus = 1025", 3, 8, &["1 to 1024"]),
        ("cpus = -1", 3, 8, &["cpus is -1"]),
        ("cpus = 99999999999999999999999", 3, 8, &["cpus is 9999"]),
        ("cpu = 7", 3, 7, &["cpu is an integer", "cpu = \"7\""]),
        ("cpu = \"host, +avx\"", 3, 7, &["without blanks"]),
        ("cpu = \"\"", 3, 7, &["cpu is empty"]),
        ("machine = \"-q35\"", 3, 11, &["machine cannot be"]),
        ("accel = \"hvf\"", 3, 9, &["\"auto\" or \"kvm\" or \"tcg\""]),
        ("shared_memory = \"yes\"", 3, 17, &["must be a boolean", "shared_memory = true"]),
        ("hugepages = \"4 MiB\"", 3, 13, &["\"2 MiB\" and \"1 GiB\""]),
        ("initrd = \"/i\"", 3, 10, &["initrd without a kernel", "add kernel"]),
        ("append = \"quiet\"", 3, 10, &["append without a kernel"]),
        ("kernel = \"vmlinuz\"", 3, 10, &["from the root", "\"/srv/vmlinuz\""]),
        ("kernel = \"/boot/../x\"", 3, 10, &["without \"..\""]),
        ("kernel = \"/boot/\\u0007\"", 3, 10, &["control character"]),
        ("name = \"again\"", 3, 1, &["not TOML", "duplicate key", "keep one"]),
        ("cpu = host", 3, 7, &["not TOML", "double quotes"]),
        ("cpu = \"host", 3, 12, &["not TOML", "double quotes"]),
        ("[[disk]", 3, 8, &["not TOML"]),
        ("disk = \"/a\"", 3, 8, &["array of tables", "[[disk]], with two brackets"]),
        ("[disk]\npath = '/a'", 3, 1, &["array of tables", "[[disk]]"]),
        ("[[qemu]]\nargs = []", 3, 1, &["qemu is an array and must be a table", "[qemu] on a line"]),
        ("[[disk]]\nformat = 'raw'", 3, 1, &["path is missing in this [[disk]]"]),
        ("[[disk]]\npath = '/a'", 3, 1, &["format is missing", "qcow2"]),
        ("[[disk]]\npath = 'a'\nformat = 'raw'", 4, 8, &["from the root"]),
        ("[[disk]]\npath = '/a'\nformat = 'vmdk'", 5, 10, &["\"raw\" or \"qcow2\""]),
        ("[[disk]]\npath = '/a'\nformat = 'raw'\nreadonly = 1", 6, 12, &["must be a boolean"]),
        ("[[disk]]\npath = '/a'\nformat = 'raw'\ncache = 'unsafe'", 6, 9, &["\"none\" or \"writeback\""]),
        (
            "[[disk]]\npath = '/a/b'\nformat = 'raw'\n[[disk]]\npath = '/a//./b'\nformat = 'raw'",
            7,
            8,
            &["there already"],
        ),
        ("[[nic]]", 3, 1, &["plugged into nothing", "bridge = \"br0\""]),
        ("[[nic]]\nbridge = 'b'\ntap = 't'", 5, 7, &["both a bridge and a tap"]),
        ("[[nic]]\nbridge = 'a-bridge-too-long'", 4, 10, &["at most 15"]),
        ("[[nic]]\nbridge = 'br0,up'", 4, 10, &["no / : , or blanks"]),
        ("[[nic]]\nbridge = 'b'\nmac = '52:54:00:12:34'", 5, 7, &["six bytes"]),
        ("[[nic]]\nbridge = 'b'\nmac = '53:54:00:12:34:56'", 5, 7, &["no address of one card"]),
        ("[[nic]]\ntap = 't'\n[[nic]]\ntap = 't'", 6, 7, &["tap \"t\" is there already"]),
        (
            "[[nic]]\ntap = 't'\nmac = '52:54:00:00:00:01'\n[[nic]]\ntap = 'u'\nmac = '52:54:00:00:00:01'",
            8,
            7,
            &["this mac already"],
        ),
        ("[[nic]]\nbridge = 'b'\ncpus = 4", 5, 1, &["belongs to the VM", "above the first section"]),
        ("[qemu]\nbinary = 'qemu'", 4, 10, &["from the root"]),
        ("[qemu]\nargs = '-S'", 4, 8, &["must be an array"]),
        ("[qemu]\nargs = ['-a', 1]", 4, 15, &["args is an integer"]),
        ("[qemu]\nargs = ['-S']", 4, 9, &["cannot have \"-S\"", "leave it out"]),
        ("[qemu]\nargs = ['--smp', '4']", 4, 9, &["use cpus"]),
        ("[firmware]\ntype = 'efi'", 4, 8, &["\"uefi\" or \"bios\""]),
        ("[firmware]\ntype = 'bios'", 3, 1, &["without an image", "leave [firmware] out"]),
        ("[firmware]\ntype = 'bios'\nimage = '/b'\nvars = '/v'", 6, 8, &["a BIOS has no vars"]),
        ("machine = 'pc'\n[firmware]\nsecure_boot = true", 5, 15, &["q35"]),
        ("machine = 'q35,smm=off'\n[firmware]\nsecure_boot = true", 5, 15, &["system management mode"]),
        ("[tpm]\nversion = '1.2'\nmodel = 'crb'", 5, 9, &["no crb interface", "tis"]),
        ("[system]\nuuid = '1234'", 4, 8, &["uuidgen"]),
        ("[rtc]\nbase = 'local'", 4, 8, &["\"utc\" or \"localtime\""]),
        ("[display]\nvideo = 'qxl'", 4, 9, &["\"vga\" or \"virtio\""]),
        (
            "[[disk]]\npath = '/a'\nformat = 'raw'\nbus = 'nvme'",
            6,
            7,
            &["cannot move", "virtio-scsi", "allowed = false"],
        ),
        ("[[disk]]\npath = '/a'\nformat = 'raw'\nbus = 'ide'", 6, 7, &["no IDE", "sata"]),
        ("[[disk]]\npath = '/a'\nformat = 'raw'\ncontroller = 1", 6, 14, &["only virtio-scsi and sata"]),
        ("[[disk]]\npath = '/a'\nformat = 'raw'\nssd = true", 6, 7, &["ssd is of SCSI"]),
        ("[[disk]]\npath = '/a'\nformat = 'raw'\nserial = '123456789012345678901'", 6, 10, &["at most 20"]),
        ("[[disk]]\npath = '/a'\nformat = 'raw'\nserial = 'a,b'", 6, 10, &["at most 20"]),
        ("[[disk]]\npath = '/a'\nformat = 'raw'\nbus = 'sata'\nwwn = '12'", 7, 7, &["16 hexadecimal"]),
        ("[[disk]]\npath = '/a'\nformat = 'raw'\nbus = 'sata'\niothread = true", 7, 12, &["iothread is of virtio"]),
        ("[[disk]]\npath = '/a'\nformat = 'raw'\ncache = 'writeback'\nio = 'native'", 7, 6, &["needs cache"]),
        ("[[disk]]\npath = '/a'\nformat = 'raw'\n[[cdrom]]\npath = '/a'", 7, 8, &["there already"]),
        ("[[cdrom]]\nboot_index = 0\n[[cdrom]]\nboot_index = 0", 6, 14, &["boot_index already"]),
        ("[[cdrom]]\nbus = 'nvme'", 4, 7, &["\"sata\" or \"ide\" or \"virtio-scsi\""]),
        ("machine = 'pc'\n[[cdrom]]\n[[cdrom]]\n[[cdrom]]\n[[cdrom]]\n[[cdrom]]", 8, 1, &["full", "room for 4"]),
        ("[[nic]]\nbridge = 'b'\nmodel = 'e1000'\nqueues = 2", 6, 10, &["queues is of virtio"]),
        ("[[nic]]\nbridge = 'b'\nmodel = 'ne2k'", 5, 9, &["\"e1000e\""]),
        ("[migration]\ndowntime_limit = 3", 4, 1, &["no key", "did you mean downtime_limit_ms?"]),
        ("[migration]\ndowntime_limit_ms = 0", 4, 21, &["1 to 2000000"]),
        ("[migration]\nmultifd_channels = 65", 4, 20, &["1 to 64"]),
        ("[migration]\npriority = 1.5", 4, 12, &["priority is a float"]),
    ];
    for (text, line, column, parts) in cases {
        check(&format!("{LEAST}{text}\n"), &[(*line, *column, *parts)]);
    }
    // These keys are the root's: name and memory.
    for (text, line, column, parts) in [
        ("memory = '1 GiB'", 1, 1, &["name is missing", "name = \"web1\""][..]),
        ("name = 'a'", 1, 1, &["memory is missing"]),
        ("name = 'Web'\nmemory = '1 GiB'", 1, 8, &["name cannot be \"Web\"", "a-z 0-9"]),
        ("name = '.web'\nmemory = '1 GiB'", 1, 8, &["begin with a letter"]),
        ("name = 'a'\nmemory = 4096", 2, 10, &["memory is an integer", "\"4096 MiB\""]),
        ("name = 'a'\nmemory = '4096'", 2, 10, &["\"4096 MiB\" or \"4096 GiB\""]),
        ("name = 'a'\nmemory = '15 MiB'", 2, 10, &["16 MiB to 64 TiB"]),
        ("name = 'a'\nmemory = '65 TiB'", 2, 10, &["16 MiB to 64 TiB"]),
        ("name = 'a'\nmemory = '33 MiB'\nhugepages = '2 MiB'", 3, 13, &["33 MiB is no whole", "multiple of 2 MiB"]),
    ] {
        check(text, &[(line, column, parts)]);
    }
    check(&format!("name = '{}'\nmemory = '1 GiB'", "a".repeat(64)), &[(1, 8, &["1 to 63"])]);
    assert!(Definition::parse(&LEAST.replace("web1", &"a".repeat(63)), "").is_ok());
}

#[test]
fn all_faults_are_told_at_once() {
    check(
        "nane = 'a'\nmemory = '4 GB'\ncpus = 0\n\n[[disk]]\npath = 'x'\n\t[[nic]]\n\tbridge = 'ß/'\n[foo]\n",
        &[
            (1, 1, &["name is missing"][..]),
            (1, 1, &["no key \"nane\"", "did you mean name?"]),
            (2, 10, &["write \"4 GiB\""]),
            (3, 8, &["1 to 1024"]),
            (5, 1, &["format is missing"]),
            (6, 8, &["from the root"]),
            (8, 11, &["bridge cannot be \"ß/\""]),
            (9, 2, &["no key \"foo\""]),
        ],
    );
}

#[test]
fn there_is_an_upper_bound_to_everything() {
    let many = |section: &str, count: usize| format!("{LEAST}{}", section.repeat(count));
    let disks = |count| {
        let disk = |n| format!("[[disk]]\npath = '/{n}'\nformat = 'raw'\n");
        format!("{LEAST}{}", (0..count).map(disk).collect::<String>())
    };
    assert_eq!(Definition::parse(&disks(DISKS_MAX), "").unwrap().disks.len(), DISKS_MAX);
    check(&disks(DISKS_MAX + 1), &[(2 + 3 * DISKS_MAX + 1, 1, &["65 entries, 64 are the most"])]);
    assert_eq!(Definition::parse(&many("[[nic]]\nbridge = 'b'\n", NICS_MAX), "").unwrap().nics.len(), NICS_MAX);
    check(&many("[[nic]]\nbridge = 'b'\n", NICS_MAX + 1), &[(2 + 2 * NICS_MAX + 1, 1, &["33 entries"])]);
    let args =
        |count, bytes| format!("{LEAST}[qemu]\nargs = [{}]\n", format!("'{}',", "x".repeat(bytes)).repeat(count));
    assert_eq!(Definition::parse(&args(ARGS_MAX, VALUE_BYTES_MAX), "").unwrap().qemu.args.len(), ARGS_MAX);
    let beyond = Definition::parse(&args(ARGS_MAX + 1, 1), "").unwrap_err();
    assert!(beyond.diagnostics.len() == 1 && beyond.diagnostics[0].reason.contains("257 entries"), "{beyond}");
    let beyond = Definition::parse(&args(1, VALUE_BYTES_MAX + 1), "").unwrap_err();
    assert!(beyond.diagnostics[0].reason.contains("4097 bytes"), "{beyond}");
    assert!(beyond.to_string().len() < 1000, "a long line is shown in part: {beyond}");
    let beyond = Definition::parse(&"#".repeat(crate::TEXT_BYTES_MAX + 1), "").unwrap_err();
    assert!(beyond.to_string().contains("are read at most"), "{beyond}");
    // Diagnostics are bounded, too.
    let beyond = Definition::parse(&many("[[nic]]\nx = 1\ny = 2\nz = 3\n", NICS_MAX), "").unwrap_err();
    assert_eq!((beyond.diagnostics.len(), beyond.more), (100, 28));
    assert!(beyond.to_string().ends_with("and 28 more"));
    assert!(Definition::parse(&format!("a = {}", "[".repeat(100_000)), "").is_err(), "no stack overflows");
}

#[test]
fn the_place_in_a_long_line_is_shown() {
    let text = format!("{LEAST}kernel = \"{}\"; foo\u{1b}[2J", "é/".repeat(100));
    let error = Definition::parse(&text, "a\u{1b}.toml").unwrap_err();
    assert!(!error.to_string().contains('\u{1b}'), "nothing drives a terminal");
    let fault = &error.diagnostics[0];
    assert_eq!((fault.column, fault.before), (212, 50), "{error}");
    assert_eq!(fault.excerpt.chars().nth(fault.before), Some(';'), "{error}");
}

#[test]
fn a_derived_mac_stays() {
    // The addresses are written down: another version must derive the same, or guests would find a new card after a
    // move.
    assert_eq!(MacAddress::derived("web1", 0).to_string(), "52:c1:b5:11:b6:ea");
    let macs = |vm| (0..32).map(move |nic| MacAddress::derived(vm, nic));
    let all: BTreeSet<_> = ["web1", "web2", "web11", "a", "b"].into_iter().flat_map(macs).collect();
    assert_eq!(all.len(), 5 * 32);
}

#[test]
fn an_alias_is_resolved_and_options_are_kept() {
    let mut definition = example();
    assert_eq!(definition.machine_type(), "q35");
    assert!(definition.resolve_machine_type("pc-q35-10.0"));
    assert_eq!((definition.machine.as_str(), definition.machine_type()), ("pc-q35-10.0,smm=off", "pc-q35-10.0"));
    for bad in ["", "pc,foo=1", "pc q35", "-pc", &"x".repeat(VALUE_BYTES_MAX)] {
        assert!(!definition.resolve_machine_type(bad), "{bad}");
    }
    assert_eq!(Definition::parse(&definition.to_toml(), ""), Ok(definition));
}

#[test]
fn what_comes_over_a_wire_keeps_to_the_rules() {
    let json = serde_json::to_value(example()).unwrap();
    assert_eq!(json["nics"][0], serde_json::json!({ "bridge": "br0", "mac": "52:54:00:12:34:ef" }));
    assert_eq!(serde_json::from_value::<Definition>(json.clone()).unwrap(), example());
    for (key, value) in [
        ("name", serde_json::json!("../../etc/passwd")),
        ("memory_bytes", 0.into()),
        ("memory_bytes", (4 * GIB + 1).into()),
        ("memory_bytes", u64::MAX.into()),
        ("cpu", "a b".into()),
        ("kernel", "vmlinuz".into()),
        ("kernel", serde_json::Value::Null),
        ("append", "a\nname = \"b\"".into()),
        ("machine", "".into()),
        ("hugepages", 3.into()),
        ("migration", serde_json::json!({ "downtime_limit_ms": u64::MAX, "multifd_channels": 1, "priority": 0 })),
    ] {
        let mut bad = json.clone();
        bad[key] = value;
        assert!(serde_json::from_value::<Definition>(bad.clone()).is_err(), "{bad}");
    }
}

fn firmwares() -> impl Strategy<Value = Option<Firmware>> {
    let path = || "(/[a-zA-Z0-9 ,'\"ü_-]{1,9}){1,4}".prop_map(PathBuf::from);
    option::of((option::of(path()), option::of(path()), option::of(path()), any::<bool>()).prop_map(
        |(image, template, vars, bios)| match (bios, image) {
            (true, Some(image)) => {
                let kind = FirmwareKind::Bios;
                Firmware { kind, image: Some(image), template: None, vars: None, secure_boot: false }
            }
            (_, image) => Firmware { kind: FirmwareKind::Uefi, image, template, vars, secure_boot: false },
        },
    ))
}

fn tpms() -> impl Strategy<Value = Option<Tpm>> {
    option::of(prop_oneof![
        Just(Tpm { model: TpmModel::Crb, version: TpmVersion::V2_0 }),
        Just(Tpm { model: TpmModel::Tis, version: TpmVersion::V2_0 }),
        Just(Tpm { model: TpmModel::Tis, version: TpmVersion::V1_2 }),
    ])
}

fn systems() -> impl Strategy<Value = System> {
    let text = || option::of("[ -~äß漢]{1,40}");
    let uuid = option::of("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}");
    (uuid, text(), text(), text(), text(), text(), text()).prop_map(
        |(uuid, manufacturer, product, version, serial, sku, family)| System {
            uuid,
            manufacturer,
            product,
            version,
            serial,
            sku,
            family,
        },
    )
}

fn clocks_and_displays() -> impl Strategy<Value = (Rtc, Option<Display>)> {
    let base = prop_oneof![Just(RtcBase::Utc), Just(RtcBase::Localtime)];
    let video = prop_oneof![Just(Video::Vga), Just(Video::Virtio)];
    (base, any::<bool>(), option::of(video))
        .prop_map(|(base, slew, video)| (Rtc { base, slew }, video.map(|video| Display { video })))
}

/// Makes options that go together, without a boot index, which no two disks may share.
fn disk_options() -> impl Strategy<Value = DiskOptions> {
    let plain = (option::of("[A-Za-z0-9_. -]{1,20}"), any::<bool>(), any::<bool>());
    let io = option::of(prop_oneof![Just(Io::Threads), Just(Io::IoUring)]);
    (plain, io, option::of((0u8..16, option::of(1..=u64::MAX), any::<bool>()))).prop_map(
        |((serial, discard, iothread), io, scsi)| {
            let options = DiskOptions { serial, discard, iothread, io, ..DiskOptions::default() };
            match scsi {
                None => options,
                Some((controller, wwn, ssd)) => DiskOptions { bus: Bus::VirtioScsi, controller, wwn, ssd, ..options },
            }
        },
    )
}

fn cdroms() -> impl Strategy<Value = Vec<Cdrom>> {
    let cdrom = |controller: usize| {
        option::of("/cd/[a-zA-Z0-9 ,_-]{1,9}").prop_map(move |path| Cdrom {
            path: path.map(|path| format!("{path}{controller}").into()),
            bus: Bus::VirtioScsi,
            controller: controller as u8,
            boot_index: Some(controller as u8),
        })
    };
    (0usize..4).prop_flat_map(move |count| (0..count).map(cdrom).collect::<Vec<_>>())
}

fn nic_options() -> impl Strategy<Value = NicOptions> {
    let virtio = (option::of(1u8..=64), any::<bool>()).prop_map(|(queues, vhost)| NicOptions {
        model: NicModel::Virtio,
        queues,
        vhost,
    });
    let other =
        prop_oneof![Just(NicModel::E1000e), Just(NicModel::E1000), Just(NicModel::Rtl8139), Just(NicModel::Vmxnet3)];
    prop_oneof![virtio, other.prop_map(|model| NicOptions { model, ..NicOptions::default() })]
}

/// Makes everything beside what [`definitions`] has.
fn extended() -> impl Strategy<Value = Definition> {
    let options = (vec(disk_options(), 6), vec(nic_options(), 6), any::<bool>());
    (definitions(), firmwares(), tpms(), systems(), clocks_and_displays(), cdroms(), options).prop_map(
        |(mut definition, firmware, tpm, system, (rtc, display), cdroms, (disks, nics, allowed))| {
            for (disk, options) in definition.disks.iter_mut().zip(disks) {
                disk.options = options;
            }
            for (nic, options) in definition.nics.iter_mut().zip(nics) {
                nic.options = options;
            }
            definition.migration.allowed = allowed;
            Definition { firmware, tpm, system, rtc, display, cdroms, ..definition }
        },
    )
}

#[test]
fn what_older_versions_kept_is_read_and_said_as_before() {
    // A definition of version 0.1, as it is in state/vms and on the wire.
    let kept = serde_json::json!({
        "name": "a", "memory_bytes": 64 * MIB, "cpus": 1, "cpu": null, "machine": "pc-q35-7.2", "accel": "tcg",
        "hugepages": null, "kernel": null, "initrd": null, "append": null,
        "disks": [{ "path": "/d", "format": "raw", "readonly": false, "cache": "none" }],
        "nics": [{ "bridge": "br0", "mac": "52:54:00:00:00:01" }],
        "qemu": { "binary": null, "args": ["-virtfs", "local,path=x"] },
        "migration": { "downtime_limit_ms": 300, "multifd_channels": null, "priority": 0 },
    });
    let definition: Definition = serde_json::from_value(kept.clone()).unwrap();
    assert!(definition.migration.allowed && definition.firmware.is_none());
    assert_eq!(serde_json::to_value(&definition).unwrap(), kept);
    assert_eq!(definition.qemu.unmovable().len(), 1, "told when it is started, not when it is read");
}

#[test]
fn all_devices_are_read() {
    let text = "[firmware]\nsecure_boot = true\n[tpm]\n[system]\nuuid = '4DEA22B3-1d52-d8f3-2516-782e98ab3fa0'\n\
                serial = 'x, y'\n[rtc]\nbase = 'localtime'\nslew = true\n[display]\nvideo = 'virtio'\n\
                [[disk]]\npath = '/a'\nformat = 'raw'\nbus = 'virtio-scsi'\ncontroller = 1\nserial = 'A1'\n\
                wwn = '0x5000c50015ea71ac'\nssd = true\nboot_index = 1\ndiscard = true\nio = 'native'\niothread = \
                true\n\
                [[cdrom]]\n[[cdrom]]\npath = '/i.iso'\nbus = 'virtio-scsi'\nboot_index = 0\n\
                [[nic]]\nbridge = 'b'\nqueues = 4\nvhost = true\n[[nic]]\nbridge = 'b'\nmodel = 'e1000e'\n\
                [migration]\nallowed = false\n";
    let read = Definition::parse(&format!("{LEAST}{text}"), "").unwrap();
    let disk = DiskOptions {
        bus: Bus::VirtioScsi,
        controller: 1,
        serial: Some("A1".into()),
        wwn: Some(0x5000_c500_15ea_71ac),
        ssd: true,
        boot_index: Some(1),
        discard: true,
        io: Some(Io::Native),
        iothread: true,
    };
    assert_eq!(read.disks[0].options, disk);
    let cdrom =
        |path: Option<&str>, bus, boot_index| Cdrom { path: path.map(Into::into), bus, controller: 0, boot_index };
    assert_eq!(read.cdroms, [cdrom(None, Bus::Sata, None), cdrom(Some("/i.iso"), Bus::VirtioScsi, Some(0))]);
    assert_eq!(read.tpm, Some(Tpm { model: TpmModel::Crb, version: TpmVersion::V2_0 }));
    assert_eq!(read.system.uuid.as_deref(), Some("4dea22b3-1d52-d8f3-2516-782e98ab3fa0"));
    assert_eq!((read.rtc, read.migration.allowed), (Rtc { base: RtcBase::Localtime, slew: true }, false));
    assert!(read.firmware.as_ref().is_some_and(|firmware| firmware.secure_boot && firmware.vars.is_none()));
    let nics: Vec<_> = read.nics.iter().map(|nic| (nic.options.model, nic.options.queues, nic.options.vhost)).collect();
    assert_eq!(nics, [(NicModel::Virtio, Some(4), true), (NicModel::E1000e, None, false)]);
    assert_eq!(Definition::parse(&read.to_toml(), ""), Ok(read));
}

#[test]
fn what_in_args_stays_on_its_host_is_known() {
    let unmovable = |args: &[&str]| {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Qemu { binary: None, args }.unmovable()
    };
    for args in [
        ["-virtfs", "local,path=/srv,mount_tag=x,security_model=none"],
        ["--fsdev", "local,id=f,path=/srv"],
        ["-device", "vfio-pci,host=01:00.0"],
        ["-device", "{\"driver\": \"vfio-pci\", \"host\": \"01:00.0\"}"],
        ["-device", "driver=usb-host,vendorid=1"],
        ["-device", "virtio-9p-pci,fsdev=f,mount_tag=x"],
        ["-drive", "file=/a,if=virtio,snapshot=on"],
    ] {
        assert_eq!(unmovable(&args).len(), 1, "{args:?}");
    }
    for args in [
        ["-drive", "if=pflash,unit=1,format=raw,file=/vars.fd"],
        ["-device", "virtio-rng-pci"],
        ["-device", "usb-hub,id=vfio-"],
        ["-fw_cfg", "name=opt/virtfs,string=-virtfs"],
    ] {
        assert!(unmovable(&args).is_empty(), "{args:?}");
    }
    let qemu = Qemu { binary: None, args: vec!["-drive".into(), "file=/a,,b.img,format=raw".into()] };
    assert!(qemu.names(std::path::Path::new("/a,b.img")) && !qemu.names(std::path::Path::new("/c.img")));
}

fn definitions() -> impl Strategy<Value = Definition> {
    let text = || "[ -~äß漢]{1,40}";
    let path = || "(/[a-zA-Z0-9 ,'\"\\\\ü_-]{1,9}){1,4}".prop_map(PathBuf::from);
    let disks = vec((path(), any::<bool>(), any::<bool>(), any::<bool>()), 0..6).prop_map(|disks| {
        let mut seen = BTreeSet::new();
        let disk = |(path, raw, readonly, cached): (PathBuf, bool, bool, bool)| {
            let format = if raw { DiskFormat::Raw } else { DiskFormat::Qcow2 };
            let cache = if cached { Cache::Writeback } else { Cache::None };
            seen.insert(path.clone()).then_some(Disk { path, format, readonly, cache, options: DiskOptions::default() })
        };
        disks.into_iter().filter_map(disk).collect::<Vec<_>>()
    });
    let nics = vec(("[a-zA-Z0-9]{1,15}", any::<bool>(), any::<[u8; 5]>()), 0..6).prop_map(|nics| {
        let (mut names, mut macs) = (BTreeSet::new(), BTreeSet::new());
        let nic = |(name, bridge, [a, b, c, d, e]): (String, bool, [u8; 5])| {
            let mac = MacAddress([0x52, a, b, c, d, e]);
            let attachment = if bridge { Attachment::Bridge(name) } else { Attachment::Tap(name) };
            (names.insert(attachment.clone()) && macs.insert(mac)).then_some(Nic {
                attachment,
                mac,
                options: NicOptions::default(),
            })
        };
        nics.into_iter().filter_map(nic).collect::<Vec<_>>()
    });
    let accel = prop_oneof![Just(Accel::Auto), Just(Accel::Kvm), Just(Accel::Tcg)];
    let guest =
        ("[a-z0-9][a-z0-9._-]{0,62}", 8u64..1 << 20, 1u32..=1024, option::of("[a-zA-Z0-9][a-zA-Z0-9,+=._-]{0,20}"));
    let boot = option::of((path(), option::of(path()), option::of(text())));
    let qemu = (option::of(path()), vec(text(), 0..5));
    let migration = (1u64..=2_000_000, option::of(1u8..=64), 0u8..=100);
    let huge = (option::of(Just(2 * MIB)), any::<bool>());
    (guest, "[a-z][a-z0-9=,]{0,20}", accel, huge, boot, disks, nics, qemu, migration).prop_map(
        |(
            (name, memory, cpus, cpu),
            machine,
            accel,
            (hugepages, shared_memory),
            boot,
            disks,
            nics,
            qemu,
            migration,
        )| {
            let (kernel, rest) =
                boot.map_or((None, (None, None)), |(kernel, initrd, append)| (Some(kernel), (initrd, append)));
            Definition {
                name,
                memory_bytes: memory * 2 * MIB,
                cpus,
                cpu,
                machine,
                accel,
                hugepages,
                shared_memory,
                kernel,
                initrd: rest.0,
                append: rest.1,
                firmware: None,
                tpm: None,
                system: System::default(),
                rtc: Rtc::default(),
                display: None,
                cdroms: Vec::new(),
                disks,
                nics,
                qemu: Qemu { binary: qemu.0, args: qemu.1 },
                migration: Migration {
                    downtime_limit_ms: migration.0,
                    multifd_channels: migration.1,
                    priority: migration.2,
                    allowed: true,
                },
            }
        },
    )
}

#[test]
fn a_fault_in_a_line_end_points_behind_the_line() {
    let error = Definition::parse("name = \"a\r\n", "x.toml").unwrap_err();
    let fault = &error.diagnostics[0];
    assert_eq!((fault.excerpt.as_str(), fault.column, fault.before), ("name = \"a", 11, 9));
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(definition in extended()) {
        let text = definition.to_toml();
        prop_assert_eq!(Definition::parse(&text, "x.toml").map_err(|e| e.to_string()), Ok(definition.clone()));
        let json = serde_json::to_string(&definition).unwrap();
        prop_assert_eq!(serde_json::from_str::<Definition>(&json).unwrap(), definition);
    }

    /// Replaces a piece of the example: the result is read or refused, and what is read is written and read again.
    #[test]
    fn no_text_is_too_odd(at in 0..EXAMPLE.len(), cut in 0usize..40, piece in "[\\x00-\\x7fé\"\\[\\]=]{0,8}") {
        let end = (at + cut).min(EXAMPLE.len());
        let text = format!("{}{piece}{}", &EXAMPLE[..at], &EXAMPLE[end..]);
        match Definition::parse(&text, "x.toml") {
            Ok(read) => prop_assert_eq!(Definition::parse(&read.to_toml(), "x.toml"), Ok(read)),
            Err(error) => {
                prop_assert!(!error.diagnostics.is_empty());
                for fault in &error.diagnostics {
                    prop_assert!(fault.line >= 1 && fault.line <= text.matches('\n').count() + 1, "{}", error);
                    prop_assert!(!fault.cure.is_empty() && fault.before <= fault.excerpt.chars().count(), "{}", error);
                }
            }
        }
    }
}
