//! A multifd channel, taken apart.

use skein_pages::page_record;
use skein_pages::{BATCH_PAGES_MAX, Batch, BatchForm, PAGE_BYTES, PageRuns};
use skein_qemu_stream::barrier::Barriers;
use skein_qemu_stream::multifd::{Head, PACKET_BYTES, Packet, Parser};

use super::{Intake, IntakeStop};
use crate::source::error::{SourceError, Unplaceable};
use crate::source::pages::PageRoute;

impl Intake<'_> {
    pub(super) fn multifd(&mut self) -> Result<(), IntakeStop> {
        let mut parser = Parser::new();
        let mut barriers = Barriers::new();
        loop {
            let mut part = [0; PACKET_BYTES];
            let part = &mut part[..parser.need()];
            if let Err((ended, done)) = self.reader.read_exact(part) {
                let kept = [parser.kept(), &part[..done]].concat();
                self.gather(&kept)?;
                return Err(ended.into());
            }
            match parser.head(part) {
                Ok(Head::More) => {}
                Ok(Head::Init { .. }) => {
                    self.gather(part)?;
                    self.flush()?;
                    self.pages.passed(self.id, barriers.count() as u32);
                }
                Ok(Head::Packet(packet)) => {
                    self.packet(&packet, barriers.count() as u32)?;
                    barriers.packet(&packet);
                    if packet.is_sync() {
                        self.push(vec![page_record::barrier()])?;
                        self.pages.passed(self.id, barriers.count() as u32);
                        self.pages.wait_pages_written(self.id, barriers.count() as u32, self.is_over);
                    }
                }
                Ok(Head::DeviceState { header, payload_bytes }) => {
                    self.gather(&header[..])?;
                    self.pass_on(payload_bytes as usize)?;
                }
                Err(why) => {
                    self.pages.not_understood(why)?;
                    self.gather(parser.kept())?;
                    return self.opaque();
                }
            }
        }
    }

    fn packet(&mut self, packet: &Packet, barriers: u32) -> Result<(), IntakeStop> {
        let has_pages = packet.normal().len() + packet.zero().len() > 0;
        let direct = match has_pages.then(|| self.pages.mode(self.is_over)).transpose()? {
            Some(PageRoute::Direct(direct)) => direct.number(packet.block()).map(|number| (direct, number)),
            _ => None,
        };
        let Some((direct, block)) = direct else {
            self.pages.counts.zeros(packet.zero().len());
            self.gather(&packet.header()[..])?;
            if packet.is_compressed() || packet.payload_bytes() != packet.normal().len() * PAGE_BYTES {
                return self.pass_on(packet.payload_bytes());
            }
            self.flush()?;
            let mut left = packet.normal().len();
            while left > 0 {
                let pages = left.min(BATCH_PAGES_MAX);
                let content = self.content(pages)?;
                self.batch(Batch::new(BatchForm::Content, content))?;
                left -= pages;
            }
            return Ok(());
        };
        if packet.is_compressed() {
            return Err(self.pages.fail_direct_placement(Unplaceable::Compressed).into());
        }
        let number = |offset: u64| u32::try_from(offset / PAGE_BYTES as u64).map_err(|_| SourceError::NoNumber(offset));
        let normal = packet.normal().map(number).collect::<Result<Vec<u32>, SourceError>>()?;
        for pages in normal.chunks(BATCH_PAGES_MAX) {
            let content = self.content(pages.len())?;
            let batch = Batch::new(BatchForm::Direct(PageRuns::new(block, pages.iter().copied())), content);
            self.send_direct(&direct, batch, barriers)?;
        }
        let zero = packet.zero().map(number).collect::<Result<Vec<u32>, SourceError>>()?;
        for pages in zero.chunks(BATCH_PAGES_MAX) {
            self.send_direct(&direct, Batch::zeros(PageRuns::new(block, pages.iter().copied())), barriers)?;
        }
        if packet.is_sync() {
            // The barrier is QEMU's too; the pages are not, any more.
            self.gather(&packet.without_pages()[..])?;
            self.flush()?;
        }
        Ok(())
    }
}
