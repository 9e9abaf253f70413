//! Decides when a guest may be stopped for the switchover: how much may be left then, so that the rest arrives within
//! the downtime limit. Pure: takes samples, and gives decisions.
//!
//! What may be left is what fits through this guest's share of what the paths were seen to carry, in the time that the
//! handover leaves. Framing and other traffic are subtracted. QEMU's own measure counts what buffers swallow as what
//! arrives. It is used only until the paths were measured. What NICs say of themselves is not used, because it may be
//! ten times what the network gives.

use std::collections::VecDeque;
use std::time::Duration;

use skein_forecast::ConvergenceWatch;
use skein_pages::PageCounts;

/// The share of what the paths carry that a guest's last bytes get.
const SWITCHOVER_SHARE: f64 = 0.9;
/// Bounds how many times smaller pages are taken to become: a guest's last pages may become less small than those
/// before.
const PACKING_RATIO_DROP_MAX: f64 = 10.0;
/// The least bytes of pages that say how small pages become.
const PACKING_RATIO_BYTES_MIN: u64 = 1 << 20;
/// The part of the downtime limit that the handover takes, and comparing what both ends hold. At most half of the
/// limit.
pub(super) const HANDOVER_TIME_RESERVED: Duration = Duration::from_millis(25);
/// How many samples count as recent: those of a second.
const RECENT_SAMPLES: usize = 10;
/// A change is worth a command to the hypervisor if it is more than the limit divided by this.
const CHANGE_SHARE_MIN: u64 = 10;
/// Some of what fits stays for other pages if pages are held back: at least what fits divided by this.
const FITS_FRACTION_BESIDE_HELD: u64 = 8;

/// What is known of a copy at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SwitchoverSample {
    /// The time for which the guest may stand still, in milliseconds.
    pub(super) downtime_limit_ms: u64,
    /// The bits a second that the paths to the target carry together; 0: not known yet.
    pub(super) carried_bits_per_s: u64,
    /// The guests that are copied to the target now, this guest included.
    pub(super) copies: u32,
    /// The Mb/s that the hypervisor's sockets took recently.
    pub(super) socket_mbit_per_s: f64,
    /// The bytes a second that the migration may send; `None`: nothing limits it but the paths.
    pub(super) limit_bytes_per_s: Option<f64>,
    /// What became of the guest's pages; `None`: the agent has not seen any page.
    pub(super) pages: Option<PagesSample>,
}

/// What became of a guest's pages so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct PagesSample {
    pub(super) counts: PageCounts,
    /// The bytes of pages that are held back until the guest stands still.
    pub(super) held_bytes: u64,
    /// The bytes of pages that were held back so far. A page counts each time that it was held back.
    pub(super) held_back_bytes: u64,
}

/// What is to be done for the switchover.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SwitchoverDecision {
    /// The bytes that would fit.
    pub(super) fits_bytes: u64,
    /// The bytes of pages that may be held back until the guest stands still.
    pub(super) held_bytes_max: u64,
    /// What the hypervisor is to be told; `None`: nothing new is worth a command.
    pub(super) limit: Option<SwitchoverLimit>,
}

/// What a hypervisor is told of the switchover.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SwitchoverLimit {
    /// The bytes that may be left.
    pub(super) bytes: u64,
    /// The most Mb/s that the hypervisor's sockets took recently.
    pub(super) socket_mbit_per_s: f64,
}

impl SwitchoverLimit {
    /// Returns whether a change to `next` is not worth a command.
    fn is_near(&self, next: &SwitchoverLimit) -> bool {
        next.bytes.abs_diff(self.bytes) <= self.bytes / CHANGE_SHARE_MIN
            && (next.socket_mbit_per_s - self.socket_mbit_per_s).abs()
                <= self.socket_mbit_per_s / CHANGE_SHARE_MIN as f64
    }
}

/// Decides what may be left at the switchover.
#[derive(Debug, Default)]
pub(super) struct SwitchoverSteering {
    counted_last: PageCounts,
    held_back_last: u64,
    /// How many bytes of pages a byte on the wire was, at the last samples.
    packing_ratios: VecDeque<f64>,
    /// The Mb/s that the hypervisor's sockets took, at the last samples.
    socket_mbit_per_s: VecDeque<f64>,
    /// What the hypervisor was told last.
    told: Option<SwitchoverLimit>,
    /// Whether the copy was seen not to converge. Then pages that the guest writes in every round may be held back,
    /// until the end.
    holds_pages_back: bool,
}

impl SwitchoverSteering {
    /// Decides by a sample. `watch` has seen the samples of this copy before.
    pub(super) fn decide(&mut self, sample: &SwitchoverSample, watch: &ConvergenceWatch) -> SwitchoverDecision {
        let limit = Duration::from_millis(sample.downtime_limit_ms);
        let time = (limit - HANDOVER_TIME_RESERVED.min(limit / 2)).as_secs_f64();
        let ratio = self.packing_ratio(sample.pages.as_ref());
        let rate = sample.carried_bits_per_s as f64 / 8.0;
        let share = rate / f64::from(sample.copies.max(1));
        let wire = sample.limit_bytes_per_s.map_or(share, |limit| limit.min(share)) * SWITCHOVER_SHARE * time;
        // If pages become small, something else than the paths is the slowest: what was moved counts, too.
        let fits = watch.moves().map_or(wire * ratio, |moves| (wire * ratio).min(moves * time)) as u64;
        self.holds_pages_back |= watch.is_hopeless();
        // Up to half of what the wire takes may be pages that are held back, if there is no other way. They are sent
        // whole.
        let held_bytes_max = if self.holds_pages_back { (wire / 2.0) as u64 } else { 0 };
        remember(&mut self.socket_mbit_per_s, sample.socket_mbit_per_s);
        if fits == 0 {
            let own = (sample.socket_mbit_per_s * 1e6 / 8.0 * limit.as_secs_f64()) as u64;
            return SwitchoverDecision { fits_bytes: own, held_bytes_max, limit: None };
        }
        let held = sample.pages.map_or(0, |pages| (pages.held_bytes as f64 * ratio) as u64);
        let bytes = match held {
            0 => watch.aim(fits),
            held => fits.saturating_sub(held).max(fits / FITS_FRACTION_BESIDE_HELD),
        };
        // The sockets may take as much as at their fastest of these samples.
        let socket_mbit_per_s = self.socket_mbit_per_s.iter().copied().fold(0.0, f64::max);
        let next = SwitchoverLimit { bytes, socket_mbit_per_s };
        let is_news = !self.told.is_some_and(|told| told.is_near(&next));
        SwitchoverDecision { fits_bytes: fits, held_bytes_max, limit: is_news.then_some(next) }
    }

    /// Has the hypervisor told again what may be left.
    pub(super) fn forget_told(&mut self) {
        self.told = None;
    }

    /// Notes that the hypervisor has taken this limit.
    pub(super) fn note_told(&mut self, limit: SwitchoverLimit) {
        self.told = Some(limit);
    }

    /// Returns how many bytes of pages a byte on the wire is at least, by recent samples: the last pages are like those
    /// before.
    fn packing_ratio(&mut self, pages: Option<&PagesSample>) -> f64 {
        let Some(pages) = pages else { return 1.0 };
        let (now, before) = (&pages.counts, &self.counted_last);
        // Pages that are held back say nothing of how small pages become.
        let before_held = std::mem::replace(&mut self.held_back_last, pages.held_back_bytes);
        let held_back = pages.held_back_bytes.saturating_sub(before_held);
        let guest = now.guest_bytes().saturating_sub(before.guest_bytes()).saturating_sub(held_back);
        if guest >= PACKING_RATIO_BYTES_MIN {
            let wire = now.wire_bytes().saturating_sub(before.wire_bytes());
            self.counted_last = *now;
            let ratio = (guest as f64 / wire.max(1) as f64).clamp(1.0, PACKING_RATIO_DROP_MAX);
            remember(&mut self.packing_ratios, ratio);
        }
        self.packing_ratios.iter().copied().reduce(f64::min).unwrap_or(1.0)
    }
}

/// Adds a value to the recent values.
fn remember(recent: &mut VecDeque<f64>, value: f64) {
    recent.push_back(value);
    if recent.len() > RECENT_SAMPLES {
        recent.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use skein_forecast::CopySample;
    use skein_pages::PAGE_BYTES;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Returns a sample of one copy over 1 Gb/s, with a downtime limit of 300 ms: 30.9 MB fit.
    fn sample() -> SwitchoverSample {
        SwitchoverSample {
            downtime_limit_ms: 300,
            carried_bits_per_s: 1_000_000_000,
            copies: 1,
            socket_mbit_per_s: 900.0,
            limit_bytes_per_s: None,
            pages: None,
        }
    }

    fn pages(guest_mib: u64, wire_mib: u64) -> PagesSample {
        let counts = PageCounts {
            pages: guest_mib * MIB / PAGE_BYTES as u64,
            packed_bytes: wire_mib * MIB,
            ..PageCounts::default()
        };
        PagesSample { counts, ..PagesSample::default() }
    }

    /// Returns a watch that has seen a guest write more than is moved, 100 MB/s.
    fn hopeless() -> ConvergenceWatch {
        let mut watch = ConvergenceWatch::new(0);
        let round = |tenths: u64| CopySample {
            at: Duration::from_millis(tenths * 100),
            round: 1 + tenths / 10,
            sent: tenths * 10_000_000,
            remaining: 100_000_000 - tenths % 10 * 10_000_000,
            fits: 1_000_000,
            throttle: 0,
            sampled: None,
            nics: 1,
            limit: None,
        };
        (0..60).for_each(|tenths| {
            watch.sample(&round(tenths));
        });
        assert!(watch.is_hopeless());
        watch
    }

    #[test]
    fn what_fits_is_this_guests_share_of_what_the_paths_carry() {
        let decided =
            |sample: &SwitchoverSample| SwitchoverSteering::default().decide(sample, &ConvergenceWatch::new(0));
        let one = decided(&sample());
        assert_eq!(one.fits_bytes, 30_937_500, "125 MB/s, 0.9 of it, for 275 ms");
        assert_eq!(one.limit.map(|limit| limit.bytes), Some(30_937_500 / 16), "a part of it is enough");
        assert_eq!(one.held_bytes_max, 0);
        assert_eq!(decided(&SwitchoverSample { copies: 3, ..sample() }).fits_bytes, 10_312_500);
        let limited = SwitchoverSample { limit_bytes_per_s: Some(12_500_000.0), ..sample() };
        assert_eq!(decided(&limited).fits_bytes, 3_093_750, "a limit holds while the guest stands still, too");
        let short = SwitchoverSample { downtime_limit_ms: 20, ..sample() };
        assert_eq!(decided(&short).fits_bytes, 1_125_000, "the handover takes half of it at most");
    }

    #[test]
    fn what_is_not_known_yet_is_left_to_the_hypervisor() {
        let mut steering = SwitchoverSteering::default();
        let unknown = SwitchoverSample { carried_bits_per_s: 0, ..sample() };
        let decision = steering.decide(&unknown, &ConvergenceWatch::new(0));
        let expected = SwitchoverDecision { fits_bytes: 33_750_000, held_bytes_max: 0, limit: None };
        assert_eq!(decision, expected, "what its sockets take for 300 ms");
    }

    #[test]
    fn small_changes_are_not_told() {
        let (mut steering, watch) = (SwitchoverSteering::default(), ConvergenceWatch::new(0));
        let at = |mbit: u64| SwitchoverSample { carried_bits_per_s: mbit * 1_000_000, ..sample() };
        let limit = steering.decide(&at(1000), &watch).limit.unwrap();
        assert_eq!(steering.decide(&at(1000), &watch).limit, Some(limit), "it was not taken");
        steering.note_told(limit);
        assert_eq!(steering.decide(&at(1000), &watch).limit, None);
        assert_eq!(steering.decide(&at(950), &watch).limit, None);
        assert!(steering.decide(&at(800), &watch).limit.is_some());
        let faster = SwitchoverSample { socket_mbit_per_s: 1200.0, ..sample() };
        let told = steering.decide(&faster, &watch).limit.unwrap();
        assert_eq!(told.socket_mbit_per_s, 1200.0);
        steering.note_told(told);
        assert_eq!(steering.decide(&at(1000), &watch).limit, None, "the next moment may be as fast as any of late");
    }

    #[test]
    fn pages_that_become_small_fit_more_by_the_least_ratio_of_late() {
        let (mut steering, watch) = (SwitchoverSteering::default(), ConvergenceWatch::new(0));
        let mut fits = |guest, wire| {
            steering.decide(&SwitchoverSample { pages: Some(pages(guest, wire)), ..sample() }, &watch).fits_bytes
        };
        assert_eq!(fits(40, 10), 4 * 30_937_500);
        assert_eq!(fits(60, 20), 2 * 30_937_500, "the last were less small");
        assert_eq!(fits(160, 21), 2 * 30_937_500, "the least of late counts");
        for more in 1..10 {
            fits(160 + 40 * more, 21 + more);
        }
        assert_eq!(fits(1000, 31), 10 * 30_937_500, "they may become less small than that");
    }

    #[test]
    fn of_a_guest_that_does_not_converge_pages_may_wait() {
        let (mut steering, watch) = (SwitchoverSteering::default(), hopeless());
        let held = |held_bytes| {
            let pages = PagesSample { held_bytes, held_back_bytes: held_bytes, ..pages(0, 0) };
            SwitchoverSample { pages: Some(pages), ..sample() }
        };
        let decision = steering.decide(&held(0), &watch);
        assert_eq!(decision.held_bytes_max, 30_937_500 / 2);
        let fits = decision.fits_bytes;
        assert_eq!(fits, 27_500_000, "no more than is moved of the guest, 100 MB/s");
        let bytes =
            |steering: &mut SwitchoverSteering, bytes| steering.decide(&held(bytes), &watch).limit.unwrap().bytes;
        assert_eq!(bytes(&mut steering, 10_000_000), fits - 10_000_000);
        assert_eq!(bytes(&mut steering, 27_000_000), fits / 8, "others must come to an end, too");
        // Pages that may be held back may be so until the end.
        assert!(steering.decide(&held(0), &ConvergenceWatch::new(0)).held_bytes_max > 0);
    }
}
