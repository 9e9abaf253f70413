//! Streams of real QEMUs, read to their end as they are written: a guest that rewrites its memory goes into a socket
//! that nobody is behind, with each machine type and each setting that changes the format.
//!
//! Whether versions are right is seen by rebuilding the guest's RAM from the pages with the highest ones: it must be
//! what the stopped source has in its own.
// Timeout: 300 s
// QEMU: 7.2 10
// Cores: 0.8
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a test has sockets, threads and clocks")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value;
use skein_lab_guest::{Compression, Guest, Image, MigrationStatus, Params, Rewrite, Spec, Tuning, default_cache};
use skein_qemu_stream::barrier::Barriers;
use skein_qemu_stream::main_channel::{self, Barrier, Block, Entry, ITEM_BYTES_MAX, MainItem, Opaque, Postcopy, entry};
use skein_qemu_stream::multifd::{self, Head, PAGES_MAX};
use skein_qemu_stream::{ChannelKind, PAGE_BYTES, kind};

/// For anything that a guest or a migration does; the machine may be busy with other things.
const DEADLINE: Duration = Duration::from_secs(60);

/// A source that has written nothing for so long waits for an answer.
const A_WHILE: Duration = Duration::from_secs(1);

/// What a page was sent as.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Content {
    Raw(Box<[u8]>),
    Zero,
    /// Only its version is known.
    Encoded,
}

/// Where a record was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    FirstOfPacket,
    LastOfFullPacket,
    Elsewhere,
}

/// All pages of all connections.
#[derive(Debug, Default)]
struct Pages {
    /// The newest, by block and offset.
    newest: BTreeMap<(String, u64), (u64, Content)>,
    /// Of every record: block, offset, version.
    records: BTreeMap<(String, u64, u64), Place>,
    /// Two places of one record.
    twice: Vec<[Place; 2]>,
}

impl Pages {
    fn add(&mut self, block: &str, offset: u64, version: u64, content: Content, place: Place) {
        if let Some(other) = self.records.insert((block.into(), offset, version), place) {
            self.twice.push([other, place]);
        }
        let newest = self.newest.entry((block.into(), offset)).or_insert((version, Content::Encoded));
        if newest.0 <= version {
            *newest = (version, content);
        }
    }
}

/// What came over the main channel.
#[derive(Debug, Default)]
struct Main {
    machine_type: String,
    blocks: Vec<Block>,
    by: Option<Barrier>,
    barriers: u64,
    ram_ended: bool,
    postcopy: Vec<Postcopy>,
    raw: u64,
    zero: u64,
    other: u64,
    opaque: Option<Opaque>,
    opaque_bytes: u64,
}

/// What came over a multifd channel.
#[derive(Debug, Default)]
struct Channel {
    id: u8,
    barriers: u64,
    packets: u64,
    canonical: u64,
    normal: u64,
    zero: u64,
    /// Of packets without a SYNC of their own.
    syncs_with_pages: u64,
}

#[derive(Debug)]
enum Connection {
    Main(Main),
    Multifd(Channel),
}

#[derive(Debug)]
struct Recording {
    main: Main,
    channels: Vec<Channel>,
    pages: Pages,
}

fn page(input: &mut impl Read) -> Box<[u8]> {
    let mut content = vec![0; PAGE_BYTES].into_boxed_slice();
    input.read_exact(&mut content).unwrap();
    content
}

/// Reads the main channel to its end. `answers`: tells the source that all is well, which it waits for with a return
/// path.
fn read_main(mut input: impl Read, mut peer: UnixStream, answers: bool, pages: &Mutex<Pages>) -> Main {
    let (mut parser, mut barriers, mut main) = (main_channel::Parser::new(), Barriers::new(), Main::default());
    let mut arrived = b"QEVM".to_vec();
    loop {
        let Some((item, consumed)) = parser.next(&arrived).unwrap() else {
            let missing = parser.need() - arrived.len();
            assert!(missing > 0 && parser.need() <= ITEM_BYTES_MAX);
            let begin = arrived.len();
            arrived.resize(begin + missing, 0);
            input.read_exact(&mut arrived[begin..]).unwrap();
            continue;
        };
        let version = barriers.count();
        barriers.item(&item);
        let bytes: Vec<u8> = arrived.drain(..consumed).collect();
        let name = |block: usize| &*parser.blocks()[block].name;
        let rebuilt = |kind, block, offset, named: bool| entry(kind, named.then(|| name(block)), offset).unwrap();
        match item {
            MainItem::Plain | MainItem::Barrier(_) => {}
            MainItem::Blocks => main.blocks = parser.blocks().to_vec(),
            MainItem::Page { block, offset, named } => {
                assert_eq!(rebuilt(Entry::Page, block, offset, named), bytes);
                assert!(arrived.is_empty(), "no more is read than was needed");
                main.raw += 1;
                let content = Content::Raw(page(&mut input));
                pages.lock().unwrap().add(name(block), offset, version, content, Place::Elsewhere);
            }
            MainItem::Zero { block, offset, named } => {
                assert_eq!(rebuilt(Entry::Zero, block, offset, named), bytes);
                main.zero += 1;
                pages.lock().unwrap().add(name(block), offset, version, Content::Zero, Place::Elsewhere);
            }
            MainItem::OtherPage { block, offset } => {
                main.other += 1;
                pages.lock().unwrap().add(name(block), offset, version, Content::Encoded, Place::Elsewhere);
            }
            MainItem::RamEnd => main.ram_ended = true,
            MainItem::Postcopy(command) => main.postcopy.push(command),
            MainItem::Opaque(what) => {
                main.opaque = Some(what);
                break;
            }
        }
    }
    let mut rest = arrived;
    if answers {
        // Where the devices' states end is not known. QEMU 7.2 takes an answer in their middle for the end of the
        // connection.
        peer.set_read_timeout(Some(A_WHILE)).unwrap();
        let error = input.read_to_end(&mut rest).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        // SHUT, without an error.
        peer.write_all(&[0, 1, 0, 4, 0, 0, 0, 0]).unwrap();
        peer.set_read_timeout(Some(DEADLINE)).unwrap();
    }
    input.read_to_end(&mut rest).unwrap();
    main.opaque_bytes = rest.len() as u64;
    main.machine_type = parser.machine_type().unwrap().into();
    (main.by, main.barriers) = (barriers.by(), barriers.count());
    main
}

/// Reads a multifd channel to its end.
fn read_multifd(mut input: impl Read, first: [u8; 4], pages: &Mutex<Pages>) -> Channel {
    let (mut parser, mut barriers, mut channel) = (multifd::Parser::new(), Barriers::new(), Channel::default());
    let mut input = first.chain(&mut input);
    loop {
        let mut bytes = vec![0; parser.need()];
        // It may end in front of a packet, nowhere else.
        if parser.kept().is_empty() {
            if input.read(&mut bytes[..1]).unwrap() == 0 {
                break;
            }
            input.read_exact(&mut bytes[1..]).unwrap();
        } else {
            input.read_exact(&mut bytes).unwrap();
        }
        match parser.head(&bytes).unwrap() {
            Head::More => {}
            Head::Init { id, .. } => channel.id = id,
            Head::DeviceState { .. } => panic!("no device here sends any"),
            Head::Packet(packet) => {
                channel.packets += 1;
                if let Some(canonical) = packet.canonical() {
                    assert_eq!(&*canonical.header().unwrap(), packet.header());
                    channel.canonical += 1;
                }
                channel.normal += packet.normal().len() as u64;
                channel.zero += packet.zero().len() as u64;
                channel.syncs_with_pages += u64::from(packet.is_sync() && packet.has_pages());
                let version = barriers.count();
                barriers.packet(&packet);
                let (block, normal) = (packet.block(), packet.normal());
                let contents: Vec<Content> = if packet.is_compressed() {
                    let mut payload = vec![0; packet.payload_bytes()];
                    input.read_exact(&mut payload).unwrap();
                    vec![Content::Encoded; normal.len()]
                } else {
                    normal.clone().map(|_| Content::Raw(page(&mut input))).collect()
                };
                let mut pages = pages.lock().unwrap();
                let zero = packet.zero().map(|offset| (offset, Content::Zero));
                for (at, (offset, content)) in normal.zip(contents).chain(zero).enumerate() {
                    let place = match at {
                        0 => Place::FirstOfPacket,
                        at if at + 1 == PAGES_MAX => Place::LastOfFullPacket,
                        _ => Place::Elsewhere,
                    };
                    pages.add(block, offset, version, content, place);
                }
            }
        }
    }
    channel.barriers = barriers.count();
    channel
}

fn read(stream: UnixStream, answers: bool, pages: &Mutex<Pages>) -> Connection {
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut input = BufReader::with_capacity(1 << 18, stream.try_clone().unwrap());
    let mut first = [0; 4];
    input.read_exact(&mut first).unwrap();
    match kind(first) {
        ChannelKind::Main => Connection::Main(read_main(input, stream, answers, pages)),
        ChannelKind::Multifd => Connection::Multifd(read_multifd(input, first, pages)),
        ChannelKind::Other => panic!("begins with {first:x?}"),
    }
}

/// Migrates a guest to nowhere. It stays where it is, stopped.
fn record(guest: &mut Guest, tuning: &Tuning) -> Recording {
    let socket = guest.directory().join("sink");
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    guest.qemu.qmp.tune(tuning).unwrap();
    guest.qemu.qmp.migrate(&format!("unix:{}", socket.display())).unwrap();

    let answers = tuning.return_path || has(tuning, "postcopy-ram");
    let end = Instant::now() + DEADLINE;
    let accept = || loop {
        match listener.accept() {
            Ok((stream, _)) => return stream,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let pages = Mutex::new(Pages::default());
    let connections: Vec<Connection> = std::thread::scope(|scope| {
        let pages = &pages;
        let connections = 1 + usize::from(tuning.multifd.unwrap_or(0));
        let threads: Vec<_> = (0..connections)
            .map(|_| accept())
            .map(|stream| scope.spawn(move || read(stream, answers, pages)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let info = guest.qemu.qmp.wait_migrated(DEADLINE, |_| {}).unwrap();
    assert_eq!(info.status, MigrationStatus::Completed, "{info:?}");
    // They would stay on.
    let capabilities = tuning.capabilities.iter().map(|(name, _)| (name.clone(), false)).collect();
    guest.qemu.qmp.tune(&Tuning { capabilities, ..Tuning::default() }).unwrap();

    let (mut main, mut channels) = (None, Vec::new());
    for connection in connections {
        match connection {
            Connection::Main(it) => assert!(main.replace(it).is_none(), "two main channels"),
            Connection::Multifd(channel) => channels.push(channel),
        }
    }
    Recording { main: main.unwrap(), channels, pages: pages.into_inner().unwrap() }
}

/// Reads it, and checks what must hold for every stream. Lets the guest run on.
fn check(guest: &mut Guest, machine_type: &str, tuning: &Tuning) -> Recording {
    let recording = record(guest, tuning);
    let Recording { main, channels, pages } = &recording;
    let version = guest.qemu.qmp.query("query-version").unwrap();
    let major = version["qemu"]["major"].as_u64().unwrap();
    println!(
        "{machine_type}, {} channels: {} barriers, {} records, {} twice, {} pages; main {} raw, {} zero, {} other; \
         multifd {} normal, {} zero, {} of {} packets canonical, {} SYNC with pages; then {:?}, {} bytes",
        channels.len(),
        main.barriers,
        pages.records.len(),
        pages.twice.len(),
        pages.newest.len(),
        main.raw,
        main.zero,
        main.other,
        channels.iter().map(|channel| channel.normal).sum::<u64>(),
        channels.iter().map(|channel| channel.zero).sum::<u64>(),
        channels.iter().map(|channel| channel.canonical).sum::<u64>(),
        channels.iter().map(|channel| channel.packets).sum::<u64>(),
        channels.iter().map(|channel| channel.syncs_with_pages).sum::<u64>(),
        main.opaque,
        main.opaque_bytes,
    );
    assert_eq!(main.machine_type, machine_type);
    assert!(main.ram_ended, "understood to the end of RAM");
    assert!(matches!(main.opaque, Some(Opaque::Section(_))), "{:?}", main.opaque);
    assert!(main.opaque_bytes > 1000, "devices follow");
    // See `Barriers`.
    let queued_twice =
        |places: &[Place; 2]| places.contains(&Place::FirstOfPacket) && places.contains(&Place::LastOfFullPacket);
    let late = |places: &[Place; 2]| has(tuning, "compress") && *places == [Place::Elsewhere; 2];
    assert!(pages.twice.iter().all(|places| major < 9 && (queued_twice(places) || late(places))), "{:?}", pages.twice);

    let ids: BTreeSet<u8> = channels.iter().map(|channel| channel.id).collect();
    assert_eq!(ids, (0..tuning.multifd.unwrap_or(0)).collect());
    for channel in channels {
        assert_eq!(channel.barriers, main.barriers, "{channel:?}");
        if major >= 9 {
            assert_eq!((channel.canonical, channel.syncs_with_pages), (channel.packets, 0), "{channel:?}");
        }
    }
    let multifd = tuning.multifd.is_some();
    let flushes = multifd && newer(machine_type, (8, 1));
    assert_eq!(main.by, Some(if flushes { Barrier::Flush } else { Barrier::EndOfSection }));
    assert_eq!(main.raw > 0, !multifd, "pages come one way");
    let zero_in_packets = channels.iter().any(|channel| channel.zero > 0);
    assert_eq!(zero_in_packets, multifd && newer(machine_type, (9, 0)));
    assert_eq!(main.zero > 0, !zero_in_packets);

    let known = !pages.newest.values().any(|(_, content)| *content == Content::Encoded);
    if known && !has(tuning, "x-ignore-shared") {
        check_ram(guest, &recording);
    }
    guest.qemu.qmp.query("cont").unwrap();
    recording
}

/// Whether it is this machine type or a later one.
fn newer(machine_type: &str, than: (u32, u32)) -> bool {
    let version = machine_type.rsplit('-').next().unwrap();
    let (major, minor) = version.split_once('.').unwrap();
    (major.parse::<u32>().unwrap(), minor.parse::<u32>().unwrap()) >= than
}

/// The newest records of all pages are the RAM of the source.
fn check_ram(guest: &Guest, recording: &Recording) {
    let fds = fs::read_dir(format!("/proc/{}/fd", guest.qemu.pid())).unwrap();
    let is_ram = |path: &std::path::PathBuf| {
        fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:memory-backend-memfd"))
    };
    let ram = File::open(fds.map(|fd| fd.unwrap().path()).find(is_ram).unwrap()).unwrap();
    let bytes = ram.metadata().unwrap().len();
    let block = recording.main.blocks.iter().find(|block| block.bytes == bytes).unwrap();
    let (mut has, zeros) = (vec![0; PAGE_BYTES], vec![0; PAGE_BYTES]);
    let mut wrong = Vec::new();
    for offset in (0..bytes).step_by(PAGE_BYTES) {
        ram.read_exact_at(&mut has, offset).unwrap();
        let (version, content) = &recording.pages.newest[&(block.name.clone(), offset)];
        let said = match content {
            Content::Raw(content) => content,
            _ => &zeros[..],
        };
        if has != said {
            wrong.push((offset, version));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} pages of {} are not those of the source, e.g. {:x?}",
        wrong.len(),
        block.name,
        wrong[0]
    );
}

fn spec(machine_type: &str) -> Spec {
    let params = Params { fill_mb: 40, rewrite_mb: 30, rate: 3000, ..Params::default() };
    let image = Image::prepare(&default_cache()).unwrap();
    let mut spec = Spec::new("recorded", image, Spec::memory_mb_for(params.fill_mb), params);
    spec.machine = machine_type.into();
    spec
}

/// A guest that works. The kernel gives up if it sees no timer interrupt in time, as happens on a busy machine.
fn boot(spec: &Spec) -> Guest {
    for _ in 0..3 {
        let mut guest = Guest::boot(spec, |qemu| Command::new(qemu)).unwrap();
        match guest.wait_ready(DEADLINE) {
            Ok(_) => return guest,
            Err(error) => println!("not this time: {error}"),
        }
    }
    panic!("no guest boots");
}

/// Slow enough for several rounds, fast enough to end.
fn tuning() -> Tuning {
    Tuning { return_path: false, max_bandwidth: 200 << 20, downtime_limit_ms: 30, ..Tuning::default() }
}

fn with(name: &str) -> Tuning {
    Tuning { capabilities: vec![(name.into(), true)], ..tuning() }
}

fn has(tuning: &Tuning, capability: &str) -> bool {
    tuning.capabilities.iter().any(|(name, on)| name == capability && *on)
}

/// The machine types of this QEMU.
fn machine_types(spec: &Spec) -> Vec<String> {
    let mut guest = Guest::boot(spec, |qemu| Command::new(qemu)).unwrap();
    let Value::Array(machines) = guest.qemu.qmp.query("query-machines").unwrap() else { panic!("a list") };
    guest.qemu.kill();
    machines.iter().map(|machine| machine["name"].as_str().unwrap().to_string()).collect()
}

/// The newest q35 of this QEMU.
fn newest() -> String {
    let known = machine_types(&spec("q35"));
    ["pc-q35-10.0", "pc-q35-7.2"].into_iter().find(|name| known.iter().any(|known| known == name)).unwrap().into()
}

#[test]
fn streams_of_all_machine_types_are_understood() {
    let known = machine_types(&spec("q35"));
    let names =
        ["pc-q35-7.2", "pc-q35-8.0", "pc-q35-8.2", "pc-q35-9.0", "pc-q35-10.0", "pc-i440fx-7.2", "pc-i440fx-10.0"];
    for machine_type in names.iter().filter(|name| known.iter().any(|known| known == **name)) {
        let mut guest = boot(&spec(machine_type));
        for multifd in [None, Some(1), Some(4)] {
            // A guest that had little of a busy machine wrote little: then a slower one has the rounds.
            let mut slower = [200 << 20, 100 << 20, 50 << 20, 25 << 20].into_iter();
            let enough = slower.any(|max_bandwidth| {
                check(&mut guest, machine_type, &Tuning { multifd, max_bandwidth, ..tuning() }).main.barriers > 3
            });
            assert!(enough, "so few barriers are no test of them");
        }
    }
}

#[test]
fn streams_of_all_settings_are_understood() {
    let machine_type = newest();
    let mut spec = spec(&machine_type);
    spec.extra = ["-device", "virtio-balloon-pci"].map(String::from).into();
    // Deltas are sent of pages that changed little since they were last sent, the first round not counted.
    (spec.params.rewrite, spec.params.rewrite_mb) = (Rewrite::Word, 4);
    let mut guest = boot(&spec);
    let mut read = |tuning: Tuning| check(&mut guest, &machine_type, &tuning);

    assert_eq!(read(Tuning { return_path: true, ..tuning() }).main.postcopy, []);
    let xbzrle = Tuning { xbzrle_cache: Some(64 << 20), max_bandwidth: 100 << 20, downtime_limit_ms: 3, ..tuning() };
    assert!(read(xbzrle).main.other > 0);
    assert_eq!(read(with("postcopy-ram")).main.postcopy, [Postcopy::Advise]);
    for compression in [Compression::Zlib, Compression::Zstd] {
        read(Tuning { multifd: Some(2), compression, ..tuning() });
    }
    read(with("x-ignore-shared"));
    // Removed in 9.1.
    if machine_type == "pc-q35-7.2" {
        assert!(read(with("compress")).main.other > 0);
    }
}

#[test]
fn a_device_that_comes_early_ends_it() {
    let machine_type = newest();
    let mut spec = spec(&machine_type);
    // `maxmem` takes a size with it; and where memory may be above 4 GiB, Linux sets 64 MiB aside for devices.
    spec.odd_ram = Some(false);
    spec.memory_mb += 80;
    let words = format!(
        "-m {}M,maxmem=1G -object memory-backend-ram,id=more,size=64M -device virtio-mem-pci,memdev=more",
        spec.memory_mb
    );
    spec.extra = words.split(' ').map(String::from).collect();
    let mut guest = boot(&spec);
    let main = record(&mut guest, &tuning()).main;
    let Some(Opaque::Section(name)) = &main.opaque else { panic!("{:?}", main.opaque) };
    // `x-early-migration`, from 8.0 on.
    let early = machine_type != "pc-q35-7.2";
    assert_eq!((name.contains("virtio-mem"), main.ram_ended), (early, !early), "{name}");
    println!("{machine_type}: {name:?} after {} raw pages", main.raw);
}

/// Two huge pages, given back when dropped.
struct HugePages(String);

impl HugePages {
    const COUNT: &str = "/proc/sys/vm/nr_hugepages";

    fn get() -> Option<Self> {
        let before = fs::read_to_string(Self::COUNT).ok()?.trim().to_string();
        let wanted = before.parse::<u64>().ok()? + 2;
        fs::write(Self::COUNT, wanted.to_string()).ok()?;
        let pages = Self(before);
        (fs::read_to_string(Self::COUNT).ok()?.trim() == wanted.to_string()).then_some(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(Self::COUNT, &self.0);
    }
}

#[test]
fn blocks_with_huge_pages_say_so_if_postcopy_may_come() {
    let Some(_pages) = HugePages::get() else { return println!("skipped: no huge pages can be had here") };
    let machine_type = newest();
    let mut spec = spec(&machine_type);
    let words = "-object memory-backend-memfd,id=huge,size=4M,share=on,hugetlb=on,hugetlbsize=2M \
                 -device ivshmem-plain,memdev=huge,master=on";
    spec.extra = words.split_whitespace().map(String::from).collect();
    let mut guest = boot(&spec);
    for (tuning, said) in [(tuning(), None), (with("postcopy-ram"), Some(2 << 20))] {
        let blocks = check(&mut guest, &machine_type, &tuning).main.blocks;
        let sizes: Vec<_> = blocks.iter().filter(|block| block.page_bytes.is_some()).collect();
        let huge = blocks.iter().find(|block| block.name.ends_with("huge")).unwrap();
        assert_eq!((huge.bytes, huge.page_bytes), (4 << 20, said), "{blocks:?}");
        assert!(sizes.iter().all(|block| *block == huge), "{sizes:?}");
    }
}
