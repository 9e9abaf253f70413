use proptest::prelude::*;

use super::*;

/// Items with the bytes that they consume and, for a page, its content; plain ones that follow each other are one.
type Items = Vec<(MainItem, Vec<u8>)>;

/// A stream as QEMU writes it, and what its parts are.
#[derive(Debug, Clone, Default)]
struct Stream {
    bytes: Vec<u8>,
    items: Items,
    blocks: Vec<Block>,
}

impl Stream {
    fn new() -> Self {
        let mut stream = Self::default();
        stream.put(MainItem::Plain, b"QEVM\0\0\0\x03");
        stream
    }

    fn put(&mut self, item: MainItem, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        push(&mut self.items, item, bytes);
    }

    fn configuration(&mut self, machine_type: &str, subsections: &[(&str, Vec<u8>)]) {
        let mut bytes = vec![7];
        bytes.extend((machine_type.len() as u32).to_be_bytes());
        bytes.extend(machine_type.as_bytes());
        for (name, body) in subsections {
            bytes.extend([&[5], &str8(name)[..], &1_u32.to_be_bytes(), body].concat());
        }
        self.put(MainItem::Plain, &bytes);
    }

    fn command(&mut self, item: MainItem, number: u16, payload: &[u8], package: &[u8]) {
        let head = [&[8][..], &number.to_be_bytes(), &(payload.len() as u16).to_be_bytes()].concat();
        // What the parser needs to see of it is in the item, the rest is plain.
        let seen = if [3, 7].contains(&number) { payload.len() } else { 0 };
        self.put(item, &[&head, &payload[..seen]].concat());
        let rest = [&payload[seen..], package].concat();
        if !rest.is_empty() {
            self.put(MainItem::Plain, &rest);
        }
    }

    fn ram_start(&mut self, id: u32, blocks: &[Block], ignores_shared: bool) {
        self.put(MainItem::Plain, &[&[1], &id.to_be_bytes()[..], &str8("ram"), &[0, 0, 0, 0, 0, 0, 0, 4]].concat());
        self.blocks = blocks.to_vec();
        let total: u64 = blocks.iter().map(|block| block.bytes).sum();
        let mut item = (total | flag::MEM_SIZE).to_be_bytes().to_vec();
        for block in blocks {
            // The word, or the entry before, is an item of its own.
            self.put(MainItem::Plain, &item);
            item = [&str8(&block.name), &block.bytes.to_be_bytes()[..]].concat();
            item.extend(block.page_bytes.map(u64::to_be_bytes).into_iter().flatten());
            item.extend(ignores_shared.then_some([0, 0, 0, 1, 0, 0, 0, 0]).into_iter().flatten());
        }
        self.put(MainItem::Blocks, &item);
    }

    fn section(&mut self, kind: u8, id: u32) {
        self.put(MainItem::Plain, &[&[kind], &id.to_be_bytes()[..]].concat());
    }

    fn word(&mut self, item: MainItem, word: u64) {
        self.put(item, &word.to_be_bytes());
    }

    fn entry(&mut self, flags: u64, block: usize, offset: u64, named: bool, body: &[u8]) {
        let continued = if named { 0 } else { flag::CONTINUE };
        let mut bytes = (offset | flags | continued).to_be_bytes().to_vec();
        if named {
            bytes.extend(str8(&self.blocks[block].name));
        }
        let item = match flags {
            flag::PAGE => MainItem::Page { block, offset, named },
            flag::ZERO => MainItem::Zero { block, offset, named },
            _ => MainItem::OtherPage { block, offset },
        };
        bytes.extend(body);
        self.put(item, &bytes);
    }

    fn end_of_section(&mut self, item: MainItem, id: u32, footer: bool) {
        self.word(item, flag::END_OF_SECTION);
        if footer {
            self.put(MainItem::Plain, &[&[section_type::FOOTER], &id.to_be_bytes()[..]].concat());
        }
    }
}

fn str8(text: &str) -> Vec<u8> {
    [&[text.len() as u8], text.as_bytes()].concat()
}

/// How a payload is cut is not the stream's, so plain items are joined.
fn push(items: &mut Items, item: MainItem, bytes: &[u8]) {
    match items.last_mut() {
        Some((MainItem::Plain, last)) if item == MainItem::Plain => last.extend_from_slice(bytes),
        _ => items.push((item, bytes.to_vec())),
    }
}

/// Reads a stream that arrives in pieces of these sizes, over and over, and checks what must hold for any bytes.
fn parse(mut stream: &[u8], sizes: &[usize]) -> (Items, Parser, Option<NotUnderstood>) {
    let (mut parser, mut items, mut arrived) = (Parser::new(), Vec::new(), Vec::new());
    let mut sizes = sizes.iter().copied().cycle();
    let mut arrive = |arrived: &mut Vec<u8>| {
        let (piece, rest) = stream.split_at(sizes.next().unwrap().min(stream.len()));
        arrived.extend_from_slice(piece);
        stream = rest;
        !piece.is_empty()
    };
    loop {
        match parser.next(&arrived) {
            Ok(Some((MainItem::Opaque(what), consumed))) => {
                assert_eq!(consumed, 0);
                items.push((MainItem::Opaque(what), Vec::new()));
                return (items, parser, None);
            }
            Ok(Some((item, consumed))) => {
                let mut end = consumed;
                if let MainItem::Page { block, offset, named } | MainItem::Zero { block, offset, named } = item {
                    let kind = if matches!(item, MainItem::Page { .. }) { Entry::Page } else { Entry::Zero };
                    let name = named.then_some(&*parser.blocks()[block].name);
                    assert_eq!(entry(kind, name, offset).unwrap(), arrived[..consumed]);
                    if kind == Entry::Page {
                        end += PAGE_BYTES;
                        while arrived.len() < end && arrive(&mut arrived) {}
                    }
                }
                assert!(consumed > 0 && consumed <= arrived.len());
                let bytes: Vec<u8> = arrived.drain(..end.min(arrived.len())).collect();
                push(&mut items, item, &bytes);
            }
            Ok(None) => {
                assert!((arrived.len() + 1..=ITEM_BYTES_MAX).contains(&parser.need()), "{}", parser.need());
                if !arrive(&mut arrived) {
                    return (items, parser, None);
                }
            }
            Err(error) => {
                assert_eq!(parser.next(&[]), Err(error.clone()));
                return (items, parser, Some(error));
            }
        }
    }
}

fn block(name: &str, pages: u64) -> Block {
    Block { name: name.into(), bytes: pages * PAGE, page_bytes: None }
}

/// With everything that is known in it.
fn sample() -> Stream {
    let mut stream = Stream::new();
    stream.configuration("pc-q35-10.0", &[("configuration/uuid", vec![7; 16])]);
    stream.command(MainItem::Plain, 1, &[], &[]);
    stream.command(MainItem::Plain, 2, &[0, 0, 0, 1], &[]);
    let page_sizes = [(PAGE | 2 << 20).to_be_bytes(), PAGE.to_be_bytes()].concat();
    stream.command(MainItem::Postcopy(Postcopy::Advise), 3, &page_sizes, &[]);
    let ram = Block { page_bytes: Some(2 << 20), ..block("pc.ram", 1024) };
    stream.ram_start(
        1,
        &[ram.clone(), block("0000:00:02.0/vga.vram", 16), Block { name: "huge".into(), ..ram }],
        false,
    );
    stream.word(MainItem::Barrier(Barrier::Flush), flag::MULTIFD_FLUSH);
    stream.end_of_section(MainItem::Barrier(Barrier::EndOfSection), 1, true);
    stream.section(section_type::PART, 1);
    stream.entry(flag::PAGE, 0, 0x1000, true, &[0x7e; PAGE_BYTES]);
    stream.entry(flag::ZERO, 0, 0x2000, false, &[0]);
    stream.entry(flag::XBZRLE, 0, 0x3000, false, &[1, 0, 3, 9, 9, 9]);
    stream.entry(flag::COMPRESSED, 2, 0x4000, true, &[0, 0, 0, 2, 8, 8]);
    stream.word(MainItem::Barrier(Barrier::Flush), flag::MULTIFD_FLUSH);
    stream.end_of_section(MainItem::Barrier(Barrier::EndOfSection), 1, false);
    stream.section(section_type::PART, 1);
    // The block of the section before.
    stream.entry(flag::PAGE, 2, 0x5000, false, &[0; PAGE_BYTES]);
    stream.end_of_section(MainItem::Barrier(Barrier::EndOfSection), 1, true);
    stream.command(MainItem::Plain, 11, &[], &[]);
    stream.command(MainItem::Postcopy(Postcopy::Discard), 6, &[3; 30], &[]);
    stream.command(MainItem::Postcopy(Postcopy::Packaged), 7, &[0, 0, 0x20, 0], &[4; 0x2000]);
    stream.section(section_type::END, 1);
    stream.entry(flag::ZERO, 1, 0, true, &[0]);
    stream.end_of_section(MainItem::RamEnd, 1, true);
    stream.items.push((MainItem::Opaque(Opaque::Section("timer".into())), Vec::new()));
    stream.bytes.extend(b"\x04\0\0\0\x02\x05timer\0\0\0\0\0\0\0\x02 and what not");
    stream
}

#[test]
fn a_stream_is_told_apart_to_the_last_byte_of_ram() {
    let stream = sample();
    let (items, parser, error) = parse(&stream.bytes, &[usize::MAX]);
    assert_eq!((items, error), (stream.items, None));
    assert_eq!(parser.machine_type(), Some("pc-q35-10.0"));
    assert_eq!(parser.blocks(), stream.blocks);
}

#[test]
fn one_byte_at_a_time_is_enough() {
    let stream = sample();
    assert_eq!(parse(&stream.bytes, &[1]).0, stream.items);
}

#[test]
fn a_stream_that_ends_early_is_understood_up_to_there() {
    let stream = sample();
    for end in (0..stream.bytes.len()).step_by(3) {
        let (items, _, error) = parse(&stream.bytes[..end], &[usize::MAX]);
        assert_eq!(error, None, "{end}");
        assert!(items.len() <= stream.items.len());
        let whole = items.len().saturating_sub(1);
        assert_eq!(items[..whole], stream.items[..whole], "{end}");
    }
}

/// What the parser makes of a stream that goes on like this.
fn first_item(change: impl FnOnce(&mut Stream)) -> Result<MainItem, NotUnderstood> {
    let mut stream = Stream::new();
    change(&mut stream);
    let (mut items, _, error) = parse(&stream.bytes, &[usize::MAX]);
    error.map_or_else(|| Ok(items.pop().unwrap().0), Err)
}

/// In a PART of `ram` with one block.
fn in_ram(change: impl FnOnce(&mut Stream)) -> Result<MainItem, NotUnderstood> {
    first_item(|stream| {
        stream.ram_start(9, &[block("a", 4)], false);
        stream.end_of_section(MainItem::Barrier(Barrier::EndOfSection), 9, false);
        stream.section(section_type::PART, 9);
        change(stream);
    })
}

#[test]
fn what_is_not_known_is_opaque() {
    let full = |name: &str| [&[4, 0, 0, 0, 1], &str8(name)[..], &[0; 8]].concat();
    let is = |what| Ok(MainItem::Opaque(what));
    assert_eq!(first_item(|s| s.bytes.extend(full("cpu"))), is(Opaque::Section("cpu".into())));
    assert_eq!(first_item(|s| s.bytes.extend(full("vir\x1btio"))), is(Opaque::Section("vir\x1btio".into())));
    assert_eq!(first_item(|s| s.section(section_type::PART, 3)), is(Opaque::Unnamed(3)));
    assert_eq!(first_item(|s| s.bytes.push(0)), is(Opaque::End));
    assert_eq!(first_item(|s| s.command(MainItem::Plain, 8, &[], &[])), is(Opaque::Command(8)));
    assert_eq!(first_item(|s| s.command(MainItem::Plain, 12, &[1], &[])), is(Opaque::Command(12)));
    let mapped = [&[0, 0, 0, 1], &str8("mapped-ram")[..]].concat();
    assert_eq!(first_item(|s| s.configuration("pc", &[("configuration/capabilities", mapped)])), is(Opaque::MappedRam));
    assert!(!Opaque::Section("vir\x1btio".into()).to_string().contains('\x1b'), "a peer must not drive a terminal");
    // Whatever follows.
    let mut parser = Parser::new();
    assert_eq!(parser.next(b"QEVM\0\0\0\x03\0"), Ok(Some((MainItem::Plain, 8))));
    for input in [&[0][..], b"QEVM", &[]] {
        assert_eq!(parser.next(input), Ok(Some((MainItem::Opaque(Opaque::End), 0))));
    }
}

#[test]
fn what_contradicts_itself_is_an_error() {
    assert!(matches!(Parser::new().next(b"QEVM\0\0\0\x02"), Err(NotUnderstood::Format { version: 2, .. })));
    assert!(matches!(Parser::new().next(&[0x16; 8]), Err(NotUnderstood::Format { .. })));
    assert_eq!(first_item(|s| s.bytes.push(0x7e)), Err(NotUnderstood::Record(0x7e)));
    assert_eq!(first_item(|s| s.bytes.push(6)), Err(NotUnderstood::Record(6)));
    let twice = first_item(|s| {
        s.configuration("pc", &[]);
        s.configuration("pc", &[]);
    });
    assert_eq!(twice, Err(NotUnderstood::Record(7)));
    assert_eq!(first_item(|s| s.bytes.extend([8, 0, 2, 0, 5])), Err(NotUnderstood::Command { command: 2, bytes: 5 }));
    let bits = ("configuration/target-page-bits", vec![0, 0, 0, 16]);
    assert!(matches!(first_item(|s| s.configuration("pc", &[bits])), Err(NotUnderstood::Configuration(_))));
    assert!(matches!(first_item(|s| s.bytes.extend([7, 0xff, 0, 0, 0])), Err(NotUnderstood::Configuration(_))));
    let many = ("configuration/capabilities", vec![0xff; 4]);
    assert!(matches!(first_item(|s| s.configuration("pc", &[many])), Err(NotUnderstood::Configuration(_))));
    let ram = |version| [b"\x01\0\0\0\x05\x03ram\0\0\0\0\0\0\0", &[version][..]].concat();
    assert_eq!(first_item(|s| s.bytes.extend(ram(3))), Err(NotUnderstood::RamSection(5)));
    assert_eq!(first_item(|s| s.bytes.extend([&ram(4)[..], &[0; 8]].concat())), Err(NotUnderstood::Word(0)));
}

#[test]
fn a_list_of_blocks_must_make_sense() {
    let is_bad =
        |blocks: &[Block]| matches!(first_item(|s| s.ram_start(1, blocks, false)), Err(NotUnderstood::Block { .. }));
    assert!(!is_bad(&[block("a", 1), block("b", 0), block("c", 1)]));
    assert!(is_bad(&[block("a", 1), block("a", 1)]));
    assert!(is_bad(&[block("", 1)]));
    assert!(is_bad(&[block("a\0", 1)]));
    assert!(is_bad(&[Block { bytes: 4097, ..block("a", 1) }, Block { bytes: 4095, ..block("b", 1) }]));
    let many: Vec<_> = (0..=BLOCKS_MAX).map(|n| block(&n.to_string(), 1)).collect();
    assert!(is_bad(&many) && !is_bad(&many[1..]));
    let larger = first_item(|s| {
        s.bytes.extend(
            [b"\x01\0\0\0\x05\x03ram\0\0\0\0\0\0\0\x04", &[0, 0, 0, 0, 0, 0, 0x10, 4][..], &str8("a"), &[1; 8]]
                .concat(),
        )
    });
    assert!(matches!(larger, Err(NotUnderstood::Block { .. })));
}

#[test]
fn a_guests_addresses_are_skipped_with_ignore_shared() {
    let capabilities = [&[0, 0, 0, 1], &str8("x-ignore-shared")[..]].concat();
    let is_end = first_item(|stream| {
        stream.configuration("pc", &[("configuration/capabilities", capabilities)]);
        stream.ram_start(1, &[block("a", 4), block("b", 1)], true);
        stream.end_of_section(MainItem::Barrier(Barrier::EndOfSection), 1, true);
        stream.section(section_type::END, 1);
        stream.end_of_section(MainItem::RamEnd, 1, false);
    });
    assert_eq!(is_end, Ok(MainItem::RamEnd));
}

#[test]
fn the_pages_of_the_last_block_may_be_huge_or_not() {
    for page_bytes in [None, Some(2 << 20)] {
        let blocks = [block("a", 4), Block { page_bytes, ..block("b", 512) }];
        let mut stream = Stream::new();
        let page_sizes = [(PAGE | 2 << 20).to_be_bytes(), PAGE.to_be_bytes()].concat();
        stream.command(MainItem::Postcopy(Postcopy::Advise), 3, &page_sizes, &[]);
        stream.ram_start(1, &blocks, false);
        stream.end_of_section(MainItem::Barrier(Barrier::EndOfSection), 1, true);
        let (items, parser, error) = parse(&stream.bytes, &[usize::MAX]);
        assert_eq!((items, error), (stream.items, None));
        assert_eq!(parser.blocks(), blocks);
    }
}

#[test]
fn entries_must_be_of_known_kinds_and_blocks() {
    for word in [0, 1, 0x80, 0x18, 0x210, 0x4008 | flag::ZERO, 0x1004, 0x1010, 0x1200, flag::CONTINUE] {
        assert_eq!(in_ram(|s| s.word(MainItem::Plain, word)), Err(NotUnderstood::Word(word)), "{word:#x}");
    }
    let page = |bytes: &[u8]| in_ram(|s| s.bytes.extend_from_slice(bytes));
    assert_eq!(page(&[0, 0, 0, 0, 0, 0, 0, 0x28]), Err(NotUnderstood::Page), "the same block as none");
    assert_eq!(page(&[0, 0, 0, 0, 0, 0, 0, 8, 1, b'b']), Err(NotUnderstood::Page));
    assert_eq!(page(&[0, 0, 0, 0, 0, 0, 0x40, 8, 1, b'a']), Err(NotUnderstood::Page), "past the end");
    assert!(matches!(
        page(&[0, 0, 0, 0, 0, 0, 0x30, 8, 1, b'a']),
        Ok(MainItem::Page { offset: 0x3000, named: true, .. })
    ));
    let body = |flags: u64, rest: &[u8]| page(&[&flags.to_be_bytes(), &[1, b'a'][..], rest].concat());
    let encodings: [(u64, &[u8]); 4] = [
        (flag::ZERO, &[1]),
        (flag::XBZRLE, &[2, 0, 0]),
        (flag::XBZRLE, &[1, 0x10, 1]),
        (flag::COMPRESSED, &[0, 0, 0x10, 0x0f]),
    ];
    for (flags, rest) in encodings {
        assert!(matches!(body(flags, rest), Err(NotUnderstood::Encoding(_))), "{flags:#x} {rest:?}");
    }
    let wrong_footer = in_ram(|s| {
        s.end_of_section(MainItem::Barrier(Barrier::EndOfSection), 10, true);
    });
    assert_eq!(wrong_footer, Err(NotUnderstood::RamSection(10)));
    let after_end = in_ram(|s| {
        s.end_of_section(MainItem::Barrier(Barrier::EndOfSection), 9, true);
        s.section(section_type::END, 9);
        s.end_of_section(MainItem::RamEnd, 9, true);
        s.section(section_type::PART, 9);
    });
    assert_eq!(after_end, Ok(MainItem::Opaque(Opaque::Unnamed(9))), "nothing more of RAM after its end");
}

#[test]
fn no_entry_is_made_that_is_none() {
    assert_eq!(entry(Entry::Page, Some(""), 0), None);
    assert_eq!(entry(Entry::Page, Some(&"x".repeat(256)), 0), None);
    assert_eq!(entry(Entry::Zero, Some("a\0"), 0), None);
    assert_eq!(entry(Entry::Zero, None, 0x1001), None);
    assert_eq!(entry(Entry::Page, None, u64::MAX - 0xfff), None);
    assert_eq!(entry(Entry::Zero, None, 0x1000).unwrap(), [0, 0, 0, 0, 0, 0, 0x10, 0x22, 0]);
}

/// What may be in a section: which kind, block, page, and whether it is named.
fn entries() -> impl Strategy<Value = Vec<(u8, usize, u64, bool)>> {
    prop::collection::vec((0_u8..6, 0_usize..3, 0_u64..16, any::<bool>()), 0..12)
}

prop_compose! {
    fn streams()(
        sections in prop::collection::vec((entries(), any::<bool>()), 1..5),
        names in ("[a-z:/.]{1,40}", "[A-Z]{1,40}", "[0-9]{1,255}"),
        huge in any::<[bool; 3]>(),
        advised in any::<bool>(),
        length in 0_usize..100,
    ) -> Stream {
        let mut stream = Stream::new();
        if length % 2 == 0 {
            stream.configuration(&"m".repeat(length), &[]);
        }
        if advised {
            let page_sizes = [(PAGE | 1 << 30).to_be_bytes(), PAGE.to_be_bytes()].concat();
            stream.command(MainItem::Postcopy(Postcopy::Advise), 3, &page_sizes, &[]);
        }
        let blocks: Vec<_> = [names.0, names.1, names.2].into_iter().zip(huge).map(|(name, huge)| {
            Block { page_bytes: (advised && huge).then_some(1 << 30), ..block(&name, 16) }
        }).collect();
        let id = length as u32;
        stream.ram_start(id, &blocks, false);
        stream.end_of_section(MainItem::Barrier(Barrier::EndOfSection), id, true);
        let (mut last_block, last_section) = (None, sections.len() - 1);
        for (number, (entries, footer)) in sections.into_iter().enumerate() {
            stream.section(if number == last_section { section_type::END } else { section_type::PART }, id);
            for (kind, block, page, named) in entries {
                let named = named || last_block != Some(block);
                let body = vec![0x10; length];
                let (flags, body) = match kind {
                    0 => (flag::PAGE, vec![0x7e; PAGE_BYTES]),
                    1 => (flag::ZERO, vec![0]),
                    2 => (flag::XBZRLE, [&[1, 0, length as u8], &body[..]].concat()),
                    3 => (flag::COMPRESSED, [&[0, 0, 0, length as u8], &body[..]].concat()),
                    _ => {
                        stream.word(MainItem::Barrier(Barrier::Flush), flag::MULTIFD_FLUSH);
                        continue;
                    }
                };
                stream.entry(flags, block, page * PAGE, named, &body);
                last_block = Some(block);
            }
            let item = if number == last_section { MainItem::RamEnd } else { MainItem::Barrier(Barrier::EndOfSection) };
            stream.end_of_section(item, id, footer);
            stream.command(MainItem::Postcopy(Postcopy::Packaged), 7, &(length as u32).to_be_bytes(), &vec![2; length]);
        }
        stream
    }
}

proptest! {
    #[test]
    fn streams_are_read_as_they_were_written(
        stream in streams(),
        sizes in prop::collection::vec(1_usize..6000, 1..20),
    ) {
        let (items, parser, error) = parse(&stream.bytes, &sizes);
        prop_assert_eq!(error, None);
        prop_assert_eq!(parser.blocks(), &stream.blocks[..]);
        prop_assert!(items == stream.items);
    }

    #[test]
    fn a_damaged_stream_is_read_the_same_however_it_arrives(
        stream in streams(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        sizes in prop::collection::vec(1_usize..300, 1..20),
    ) {
        let mut bytes = stream.bytes;
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let (items, _, error) = parse(&bytes, &sizes);
        let whole = parse(&bytes, &[usize::MAX]);
        prop_assert!(items == whole.0);
        prop_assert_eq!(error, whole.2);
    }

    #[test]
    fn anything_is_survived(bytes in prop::collection::vec(any::<u8>(), 0..300), in_ram in any::<bool>()) {
        let mut stream = Stream::new();
        if in_ram {
            stream.ram_start(1, &[block("a", 4)], false);
        }
        stream.bytes.extend(bytes);
        let (_, parser, _) = parse(&stream.bytes, &[7]);
        prop_assert!(parser.blocks().len() <= BLOCKS_MAX);
    }
}
