//! Takes a multifd channel apart: reads pages, packet by packet, into batches.

use skein_pages::page_record::{self, BYTES_MAX};
use skein_pages::{BATCH_PAGES_MAX, Batch, BatchForm, PAGE_BYTES, PageRuns};
use skein_qemu_stream::barrier::Barriers;
use skein_qemu_stream::multifd::{Head, PACKET_BYTES, Packet, Parser};

use super::input::{Input, IntakeStop};
use crate::source::error::{SourceError, Unplaceable};
use crate::source::page_counters::add;
use crate::source::pages::{DirectBlocks, PageRoute};

/// Reads the channel to its end.
pub(super) fn read(input: &mut Input<'_>) -> Result<(), IntakeStop> {
    let mut parser = Parser::new();
    let mut barriers = Barriers::new();
    loop {
        let mut part = [0; PACKET_BYTES];
        let part = &mut part[..parser.need()];
        if let Err(ended) = input.reader.read_exact(part) {
            input.outbox.gather(parser.kept())?;
            return Err(ended.into());
        }
        match parser.head(part) {
            Ok(Head::More) => {}
            Ok(Head::Init { .. }) => {
                input.outbox.gather(part)?;
                input.outbox.flush()?;
                input.pages.passed(input.id, barriers.count() as u32);
            }
            Ok(Head::Packet(packet)) => {
                read_packet(input, &packet, barriers.count() as u32)?;
                barriers.packet(&packet);
                if packet.is_sync() {
                    let count = barriers.count() as u32;
                    input.outbox.send(vec![page_record::barrier()])?;
                    input.pages.passed(input.id, count);
                    input.pages.wait_pages_written(input.id, count, input.is_over);
                }
            }
            Ok(Head::DeviceState { header, payload_bytes }) => {
                input.outbox.gather(&header[..])?;
                pass_on(input, payload_bytes as usize)?;
            }
            Err(why) => {
                input.pages.not_understood(why)?;
                input.outbox.gather(parser.kept())?;
                return input.send_opaque();
            }
        }
    }
}

/// Reads what follows the header of a packet. `version` is that of the packet's pages.
fn read_packet(input: &mut Input<'_>, packet: &Packet, version: u32) -> Result<(), IntakeStop> {
    let route = packet.has_pages().then(|| input.pages.mode(input.is_over)).transpose()?;
    if let Some(PageRoute::Direct(direct)) = route
        && let Some(block) = direct.number(packet.block())
    {
        return read_direct(input, packet, &direct, block, version);
    }
    input.pages.counts.zeros(packet.zero().len());
    input.outbox.gather(&packet.header()[..])?;
    if packet.is_compressed() || packet.payload_bytes() != packet.normal().len() * PAGE_BYTES {
        return pass_on(input, packet.payload_bytes());
    }
    input.outbox.flush()?;
    let mut left = packet.normal().len();
    while left > 0 {
        let pages = left.min(BATCH_PAGES_MAX);
        let content = input.reader.read_bytes(&input.live.pool, pages * PAGE_BYTES)?;
        input.outbox.send_batch(Batch::new(BatchForm::Content, content))?;
        left -= pages;
    }
    Ok(())
}

/// Reads the pages of a packet that the target's agent writes itself.
fn read_direct(
    input: &mut Input<'_>,
    packet: &Packet,
    direct: &DirectBlocks,
    block: u16,
    version: u32,
) -> Result<(), IntakeStop> {
    if packet.is_compressed() {
        return Err(input.pages.fail_direct_placement(Unplaceable::Compressed).into());
    }
    let number = |offset: u64| u32::try_from(offset / PAGE_BYTES as u64).map_err(|_| SourceError::NoNumber(offset));
    let normal = packet.normal().map(number).collect::<Result<Vec<u32>, SourceError>>()?;
    for pages in normal.chunks(BATCH_PAGES_MAX) {
        let content = input.reader.read_for_rails(&input.live.pool, pages.len() * PAGE_BYTES)?;
        add(&input.pages.counts.copied_bytes, content.len());
        let batch = Batch::new(BatchForm::Direct(PageRuns::new(block, pages.iter().copied())), content);
        input.outbox.send_direct(direct, batch, version)?;
    }
    let zero = packet.zero().map(number).collect::<Result<Vec<u32>, SourceError>>()?;
    for pages in zero.chunks(BATCH_PAGES_MAX) {
        let batch = Batch::zeros(PageRuns::new(block, pages.iter().copied()));
        input.outbox.send_direct(direct, batch, version)?;
    }
    if packet.is_sync() {
        // The barrier is QEMU's, too; the pages are QEMU's no more.
        input.outbox.gather(&packet.without_pages()[..])?;
        input.outbox.flush()?;
    }
    Ok(())
}

/// Sends the bytes that come next to QEMU.
fn pass_on(input: &mut Input<'_>, mut bytes: usize) -> Result<(), IntakeStop> {
    input.outbox.flush()?;
    while bytes > 0 {
        let part = input.reader.read_bytes(&input.live.pool, bytes.min(BYTES_MAX))?;
        bytes -= part.len();
        input.outbox.send_bytes(part)?;
    }
    Ok(())
}
