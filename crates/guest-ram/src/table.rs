//! QEMU's RAM blocks, parsed from what its human monitor prints.

use std::collections::HashSet;

/// Longest name of a block: QEMU has 256 bytes for it, the last one a NUL (`include/exec/ramblock.h`), and one byte for
/// its length on the wire.
pub const NAME_BYTES_MAX: usize = 255;
/// Most blocks. QEMU has ten blocks for a small machine, and one more for each DIMM (256) and each PCI device with a
/// ROM.
const BLOCKS_MAX: usize = 4096;
/// Longest table: a line has 100 bytes and its name.
const TEXT_BYTES_MAX: usize = BLOCKS_MAX * (100 + NAME_BYTES_MAX);

/// A RAM block, as QEMU reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RamBlock {
    /// The block's name, also in a migration: `pc.ram`, a memory backend's id, `0000:00:01.0/vga.vram`.
    pub name: String,
    /// Size in bytes of the pages in which QEMU has the block: 4096, or that of huge pages.
    pub page_bytes: u64,
    /// The block's size in bytes: this much migrates. Only firmware tables can grow.
    pub used_bytes: u64,
    /// The size in bytes to which the block can grow.
    pub max_bytes: u64,
    /// The address in QEMU's address space at which the block begins. `None`: this QEMU's table does not have it (7.2);
    /// see [`seen_at`].
    pub host_address: Option<u64>,
}

/// Why QEMU's table of RAM blocks cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The text is longer than the table of any machine.
    #[error("{0} bytes about RAM blocks: more than any machine has")]
    TooLong(usize),
    /// The first line does not name the known columns.
    #[error("the table of RAM blocks has columns that are not known: {0:?}")]
    Columns(String),
    /// There are more lines than any machine has blocks.
    #[error("more than {BLOCKS_MAX} RAM blocks")]
    TooMany,
    /// A line is not a block.
    #[error("not a line about a RAM block ({reason}): {line:?}")]
    Line {
        /// What is wrong with the line.
        reason: &'static str,
        /// The line.
        line: String,
    },
}

/// The columns of QEMU's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Columns {
    /// Up to `Total`: QEMU 7.2.
    UpToTotal,
    /// `HVA` and `RO` as well: QEMU 10.
    WithAddress,
}

/// Parses what `info ramblock` prints (`ram_block_format` in QEMU). QEMU 10 has two more columns than 7.2: HVA and RO.
///
/// # Errors
/// A [`ParseError`] if the text is not such a table.
pub fn parse_ramblocks(text: &str) -> Result<Vec<RamBlock>, ParseError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(ParseError::TooLong(text.len()));
    }
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let titles = lines.next().unwrap_or_default();
    let columns = match titles.split_whitespace().collect::<Vec<_>>()[..] {
        ["Block", "Name", "PSize", "Offset", "Used", "Total"] => Columns::UpToTotal,
        ["Block", "Name", "PSize", "Offset", "Used", "Total", "HVA", "RO"] => Columns::WithAddress,
        _ => return Err(ParseError::Columns(titles.into())),
    };
    let mut blocks = Vec::new();
    let mut names = HashSet::new();
    for line in lines {
        if blocks.len() == BLOCKS_MAX {
            return Err(ParseError::TooMany);
        }
        let refused = |reason| ParseError::Line { reason, line: line.into() };
        let block = parse_line(line, columns).map_err(refused)?;
        if !names.insert(block.name.clone()) {
            return Err(refused("its name is taken"));
        }
        blocks.push(block);
    }
    Ok(blocks)
}

/// Parses a line from right to left, because a name may contain spaces (the name of a ROM is a file's).
fn parse_line(line: &str, columns: Columns) -> Result<RamBlock, &'static str> {
    let mut rest = line;
    let mut column = || {
        let (before, word) = rest.rsplit_once(char::is_whitespace).ok_or("a column is missing")?;
        rest = before.trim_end();
        Ok::<_, &str>(word)
    };
    let host_address = match columns {
        Columns::WithAddress => {
            column()?;
            Some(hex(column()?).filter(|&address| address > 0).ok_or("no HVA")?)
        }
        Columns::UpToTotal => None,
    };
    let max_bytes = hex(column()?).ok_or("no Total")?;
    let used_bytes = hex(column()?).ok_or("no Used")?;
    hex(column()?).ok_or("no Offset")?;
    let (unit, number) = (column()?, column()?);
    let page_bytes = page_bytes(number, unit).ok_or("no PSize")?;
    if used_bytes > max_bytes {
        return Err("Used is more than Total");
    }
    if host_address.unwrap_or(0).checked_add(max_bytes).is_none() {
        return Err("it ends beyond all memory");
    }
    if rest.is_empty() || rest.len() > NAME_BYTES_MAX {
        return Err("no name");
    }
    Ok(RamBlock { name: rest.into(), page_bytes, used_bytes, max_bytes, host_address })
}

/// Parses `0x` and hexadecimal digits.
fn hex(word: &str) -> Option<u64> {
    let digits = word.strip_prefix("0x").filter(|digits| !digits.starts_with('+'))?;
    u64::from_str_radix(digits, 16).ok()
}

/// Parses a page's size as QEMU's `size_to_str` writes it: `4 KiB`, `2 MiB`, `1 GiB`.
fn page_bytes(number: &str, unit: &str) -> Option<u64> {
    let shift = match unit {
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    let number = number.parse::<u16>().ok()?;
    number.is_power_of_two().then_some(u64::from(number) << shift)
}

/// Returns where the guest sees a part of block `name`, from what `info mtree -f` prints: the guest-physical address of
/// the part, and the part's offset in the block. `None`: the guest does not see the block as RAM, or the text has
/// another form.
///
/// With `gpa2hva` and [`host_address`] this leads to a block's address if the table does not have it. This works only
/// for memory backends: of a device's block QEMU prints only the last part of the name.
pub fn seen_at(mtree: &str, name: &str) -> Option<(u64, u64)> {
    let mut views = mtree.split("FlatView #");
    let memory = views.find(|view| view.lines().any(|line| line.trim() == r#"AS "memory", root: system"#))?;
    memory.lines().find_map(|line| {
        let (range, region) = line.trim().split_once(" (prio ")?;
        let region = region.split_once(", ram): ")?.1.strip_prefix(name)?;
        let region = region.strip_suffix(" KVM").unwrap_or(region);
        let offset = match region {
            "" => 0,
            _ => u64::from_str_radix(region.strip_prefix(" @")?, 16).ok()?,
        };
        Some((u64::from_str_radix(range.split_once('-')?.0, 16).ok()?, offset))
    })
}

/// Returns the address in QEMU's address space that `gpa2hva` prints. `None`: it is not an address in block `name`.
pub fn host_address(text: &str, name: &str) -> Option<u64> {
    let (_, answer) = text.trim().strip_prefix("Host virtual address for 0x")?.split_once(" (")?;
    hex(answer.strip_prefix(name)?.strip_prefix(") is ")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OF_7_2: &str = "              Block Name    PSize              Offset               Used              Total\r
                       a    4 KiB  0x0000000000000000 0x0000000004000000 0x0000000004000000\r
   0000:00:01.0/vga.vram    4 KiB  0x000000000c080000 0x0000000001000000 0x0000000001000000\r
    /rom@etc/acpi/tables    4 KiB  0x000000000d0c0000 0x0000000000020000 0x0000000000200000\r
0000:00:02.0/virtio-net-pci.rom    4 KiB  0x00000000110c0000 0x0000000000040000 0x0000000000040000\r\n";
    const OF_10: &str = "\
              Block Name    PSize              Offset               Used              Total                HVA  RO\r
                    ram0    2 MiB  0x0000000000000000 0x0000000010000000 0x0000000010000000 0x00007f8c83fff000  rw\r
                 pc.bios    4 KiB  0x0000000010000000 0x0000000000040000 0x0000000000040000 0x00007f8cdaa00000  ro\r\n";

    #[test]
    fn tables_of_real_qemus() {
        let blocks = parse_ramblocks(OF_7_2).unwrap();
        let names: Vec<_> = blocks.iter().map(|block| block.name.as_str()).collect();
        assert_eq!(names, ["a", "0000:00:01.0/vga.vram", "/rom@etc/acpi/tables", "0000:00:02.0/virtio-net-pci.rom"]);
        assert_eq!((blocks[2].used_bytes, blocks[2].max_bytes), (0x20000, 0x200000));
        assert_eq!(blocks[0].host_address, None);
        let ram0 = RamBlock {
            name: "ram0".into(),
            page_bytes: 2 << 20,
            used_bytes: 1 << 28,
            max_bytes: 1 << 28,
            host_address: Some(0x7f8c_83ff_f000),
        };
        assert_eq!(parse_ramblocks(OF_10).unwrap()[0], ram0);
        assert_eq!(parse_ramblocks(OF_10).unwrap().len(), 2);
    }

    #[test]
    fn what_is_not_a_table_is_refused() {
        assert_eq!(parse_ramblocks(""), Err(ParseError::Columns(String::new())));
        assert!(matches!(parse_ramblocks("unknown command: 'info ramblock'"), Err(ParseError::Columns(_))));
        assert_eq!(parse_ramblocks(&" ".repeat(TEXT_BYTES_MAX + 1)), Err(ParseError::TooLong(TEXT_BYTES_MAX + 1)));
        for (from, to, reason) in [
            ("0x0000000010000000 0x00007f8c83fff000", "0x0000000010000000 7f8c83fff000", "no HVA"),
            ("0x00007f8c83fff000", "0xfffffffffffff000", "it ends beyond all memory"),
            (
                "0x0000000010000000 0x0000000010000000",
                "0x0000000010000001 0x0000000010000000",
                "Used is more than Total",
            ),
            ("0x0000000010000000 0x0000000010000000", "0x+000000010000000 0x0000000010000000", "no Used"),
            ("2 MiB", "3 MiB", "no PSize"),
            ("2 MiB", "2 B", "no PSize"),
            ("   ram0", "", "a column is missing"),
            ("ram0", "pc.bios", "its name is taken"),
        ] {
            let text = OF_10.replace(from, to);
            assert!(
                matches!(parse_ramblocks(&text), Err(ParseError::Line { reason: given, .. }) if given == reason),
                "{text}"
            );
        }
        let many: String = (0..=BLOCKS_MAX).map(|n| format!("b{n} 4 KiB 0x0 0x1 0x1\n")).collect();
        let titles = OF_7_2.lines().next().unwrap();
        assert_eq!(parse_ramblocks(&format!("{titles}\n{many}")), Err(ParseError::TooMany));
    }

    #[test]
    fn the_way_around_without_hva() {
        let mtree = "FlatView #0\r
 AS \"I/O\", root: io\r
  0000000000000000-0000000000000007 (prio 0, ram): b\r
\r
FlatView #1\r
 AS \"memory\", root: system\r
 AS \"cpu-memory-0\", root: system\r
 Root memory region: system\r
  0000000000000000-000000000009ffff (prio 0, ram): a KVM\r
  00000000000c0000-00000000000dffff (prio 1, rom): pc.rom\r
  0000000000100000-0000000003ffffff (prio 0, ram): bb @0000000000100000\r
  0000000004000000-0000000007ffffff (prio 0, ram): b @0000000000200000 KVM\r
  0000000008000000-000000000bffffff (prio 0, ram): b\r\n";
        assert_eq!(seen_at(mtree, "a"), Some((0, 0)));
        assert_eq!(seen_at(mtree, "b"), Some((0x400_0000, 0x20_0000)));
        assert_eq!(seen_at(mtree, "bb"), Some((0x10_0000, 0x10_0000)));
        assert_eq!(seen_at(mtree, "pc.rom"), None);
        assert_eq!(seen_at("", "a"), None);

        let text = "Host virtual address for 0x4000000 (b) is 0x7fa6fbffe000\r\n";
        assert_eq!(host_address(text, "b"), Some(0x7fa6_fbff_e000));
        assert_eq!(host_address(text, "a"), None);
        assert_eq!(host_address("No memory is mapped at address 0xf0000000", "a"), None);
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read(
            blocks in proptest::collection::btree_map(
                "[!-~]([ -~]{0,40}[!-~])?", (12u32..34, 0u64..1 << 40, 0u64..1 << 40, 1u64..1 << 47), 0..20
            ),
            with_address: bool,
        ) {
            let titles = OF_7_2.lines().next().unwrap().to_owned();
            let mut text = titles + if with_address { "                HVA  RO\r\n" } else { "\r\n" };
            let mut expected = Vec::new();
            for (name, (page, used, more, address)) in blocks {
                let max = used + more;
                let (unit, number) = [("KiB", 10), ("MiB", 20), ("GiB", 30)]
                    .map(|(unit, shift)| (unit, 1u64.checked_shl(page.wrapping_sub(shift)).unwrap_or(0)))
                    .into_iter().find(|(_, number)| (1..1000).contains(number)).unwrap();
                text += &format!("{name:>24} {number:>4} {unit}  {more:#018x} {used:#018x} {max:#018x}");
                text += &if with_address { format!(" {address:#018x}  rw\r\n") } else { "\r\n".into() };
                let host_address = with_address.then_some(address);
                expected.push(RamBlock { name, page_bytes: 1 << page, used_bytes: used, max_bytes: max, host_address });
            }
            prop_assert_eq!(parse_ramblocks(&text).unwrap(), expected);
        }

        #[test]
        fn nothing_panics(
            text in "[ -~\r\n\t]{0,400}",
            name in "[ -~]{0,5}",
            at in 0..OF_10.len(),
            instead in ".{0,3}",
        ) {
            let _ = (parse_ramblocks(&text), seen_at(&text, &name), host_address(&text, &name));
            let mut table = OF_10.to_owned();
            table.replace_range(at..at + 1, &instead);
            for block in parse_ramblocks(&table).unwrap_or_default() {
                prop_assert!(block.used_bytes <= block.max_bytes && block.page_bytes.is_power_of_two());
                prop_assert!(block.host_address.unwrap().checked_add(block.max_bytes).is_some());
            }
        }
    }
}
