//! Follows the copy of a guest that is under way, and carries out what is decided about the copy.

use std::cell::OnceCell;
use std::time::Duration;

use skein_forecast::Convergence;
use skein_forecast::CopySample;
use skein_handover::{MigrationId, SourceInput};
use skein_hypervisor::{CopyState, Guest, GuestError, MigrationState, MigrationStatus};
use tracing::info;

use super::convergence::{ConvergenceAction, ConvergenceDriver, ConvergencePolicy, ConvergenceVerdict, Slowest};
use super::dirty_rate::{DirtyRateSampler, Measurement, SAMPLE_TIME};
use super::environment::SourceEnvironment;
use super::hold::{HELD_SWITCHOVER_BYTES, HoldDecision, HoldDriver, HoldSample, RateLimit};
use super::links::{LinkWatch, PathSample};
use super::outage::{OutageSample, OutageWatch};
use super::path_notes::PathNotes;
use super::path_totals::PathTotals;
use super::progress::{Logged, ProgressWatch, page_figures, progress, throttle_percent};
use super::switchover::{PagesSample, SwitchoverSample, SwitchoverSteering};
use crate::migrations::guest_watch::GuestWatch;
use crate::migrations::input::Input;
use crate::migrations::offer::Offer;

/// The copy of a guest, from the order to its hypervisor to migrate until the copy is over.
pub(super) struct GuestCopy {
    id: MigrationId,
    offer: Offer,
    begun: Duration,
    /// The watch of what happens to the guest meanwhile.
    pub(super) guest: GuestWatch,
    steering: SwitchoverSteering,
    convergence: ConvergenceDriver,
    /// What is decided about a copy that is held; `None`: the guest may switch.
    hold: Option<HoldDriver>,
    /// The rounds and the bytes of pages that were over when the guest was last let go: a copy begins anew then.
    before: (u64, u64),
    sampler: DirtyRateSampler,
    links: LinkWatch,
    outage: OutageWatch,
    progress: ProgressWatch,
    path_notes: PathNotes,
    path_totals: PathTotals,
}

/// The reason why a guest that is held was not let go.
#[derive(Debug, thiserror::Error)]
pub(super) enum LetGoError {
    #[error(transparent)]
    Guest(#[from] GuestError),
    #[error("its main channel is gone")]
    Channel(#[from] std::io::Error),
}

fn policy(offer: &Offer) -> ConvergencePolicy {
    ConvergencePolicy { allow_throttle: offer.allow_throttle, has_deadline: offer.has_deadline }
}

/// What a copy is checked with.
pub(super) struct CopyLook<'a> {
    pub(super) now: Duration,
    pub(super) environment: &'a dyn SourceEnvironment,
    pub(super) guest: &'a dyn Guest,
    /// The name of the target's host.
    pub(super) peer: &'a str,
    /// The paths to the target, once they were asked for.
    paths: OnceCell<Vec<PathSample>>,
}

impl<'a> CopyLook<'a> {
    pub(super) fn new(
        now: Duration,
        environment: &'a dyn SourceEnvironment,
        guest: &'a dyn Guest,
        peer: &'a str,
    ) -> CopyLook<'a> {
        CopyLook { now, environment, guest, peer, paths: OnceCell::new() }
    }

    fn paths(&self) -> &[PathSample] {
        self.paths.get_or_init(|| self.environment.paths())
    }
}

impl GuestCopy {
    /// Returns a copy that begins now.
    pub(super) fn new(
        id: MigrationId,
        offer: Offer,
        guest: GuestWatch,
        hold: Option<HoldDriver>,
        now: Duration,
    ) -> GuestCopy {
        let policy = policy(&offer);
        GuestCopy {
            id,
            offer,
            begun: now,
            guest,
            steering: SwitchoverSteering::default(),
            convergence: ConvergenceDriver::new(policy),
            hold,
            before: (0, 0),
            sampler: DirtyRateSampler::default(),
            links: LinkWatch::default(),
            outage: OutageWatch::new(now),
            progress: ProgressWatch::new(now),
            path_notes: PathNotes::default(),
            path_totals: PathTotals::default(),
        }
    }

    /// Returns why the copy will not converge, as was told.
    pub(super) fn not_converging_why(&self) -> Option<&str> {
        self.convergence.not_converging_why()
    }

    /// Returns why a copy did not end that is called off before its end, by what was last seen of the copy.
    pub(super) fn why_unfinished(&self) -> Option<String> {
        self.convergence.why_unfinished()
    }

    /// Returns whether the guest may not switch yet.
    pub(super) fn is_to_be_held(&self) -> bool {
        self.hold.is_some()
    }

    /// Lets go of a guest that is held: the copy converges as any other from here on.
    ///
    /// # Errors
    /// The hypervisor does not do its part. This may be tried again.
    pub(super) fn let_go(&mut self, look: &CopyLook<'_>) -> Result<(), LetGoError> {
        if self.hold.is_none() {
            return Ok(());
        }
        match look.guest.limit_rate(None) {
            Ok(()) | Err(GuestError::Unsupported(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let copy = look.guest.migration()?.copy.unwrap_or_default();
        if let Some(word) = look.guest.switchover_word() {
            look.environment.give_word(word)?;
        }
        self.hold = None;
        // What was seen of a copy that was slowed down says nothing.
        self.before = (copy.round.saturating_sub(1), copy.sent_page_bytes);
        let note = self.convergence.note_throttle(look.now, 0);
        note.into_iter().for_each(|text| look.environment.note(text));
        self.convergence = ConvergenceDriver::new(policy(&self.offer));
        self.steering.forget_told();
        look.environment.show_freshness(None);
        Ok(())
    }

    /// Notes that the guest stands still for the switchover: the copy has converged.
    pub(super) fn note_standstill(&mut self, environment: &dyn SourceEnvironment) {
        let actions = self.convergence.converges_again();
        self.carry_out(environment, actions);
    }

    /// Notes what the paths carried.
    pub(super) fn note_paths(&mut self, environment: &dyn SourceEnvironment) {
        self.path_totals.look(&environment.paths());
        std::mem::take(&mut self.path_totals).told().into_iter().for_each(|text| environment.note(text));
    }

    /// Ends the copy. The guest is not throttled any more.
    pub(super) fn end(mut self, now: Duration, environment: &dyn SourceEnvironment) {
        self.note_paths(environment);
        self.convergence.note_throttle(now, 0).into_iter().for_each(|text| environment.note(text));
    }

    /// Returns whether the copy is to be called off, because the network is out and a throttled guest must not wait for
    /// the network.
    pub(super) fn is_out(&mut self, look: &CopyLook<'_>) -> bool {
        let Some(pages) = look.environment.pages() else { return false };
        let counts = pages.counts();
        let read = counts.guest_bytes().saturating_add(counts.other_bytes);
        let may_freeze = look.guest.quirks().freezes_throttled_without_network && self.offer.allow_throttle.is_some();
        let sample = OutageSample {
            read_bytes: (counts.pages > 0).then_some(read),
            paths: look.paths(),
            may_freeze: may_freeze || self.convergence.is_throttled(),
            copies: look.environment.copies_to_target(),
        };
        self.outage.is_out(look.now, &sample)
    }

    /// Shows how far the copy is, and does what is needed for the copy to end.
    pub(super) fn look(&mut self, look: &CopyLook<'_>, state: &MigrationState) {
        let Some(copy) = &state.copy else { return };
        let bits_per_s = self.progress.rate(look.now, copy);
        self.path_totals.look(look.paths());
        let throttle = throttle_percent(state);
        let note = self.convergence.note_throttle(look.now, throttle);
        note.into_iter().for_each(|text| look.environment.note(text));
        let converges = match state.status {
            MigrationStatus::Active => {
                // A copy that may not use all NICs takes one of these paths, and not all its connections.
                if self.offer.transport.uses_all_nics() {
                    self.path_notes.note(look.paths()).into_iter().for_each(|text| look.environment.note(text));
                }
                let fits = self.steer(look, copy);
                let throttle = state.throttle_percent.unwrap_or(0);
                match self.is_held() {
                    true => {
                        self.hold_on(look, copy, fits, throttle);
                        None
                    }
                    false => {
                        let converges = self.drive(look, copy, fits, throttle);
                        self.hold_on(look, copy, fits, throttle);
                        converges
                    }
                }
            }
            _ => None,
        };
        let pages = look.environment.pages();
        let figures = pages.as_ref().map(|pages| page_figures(&**pages, Some(&self.offer), copy.total_bytes));
        if let Some((figures, pages)) = figures.as_ref().zip(pages.as_ref()) {
            let notes = self.progress.note_placement(figures, pages.builds_on_kept(), look.peer);
            let lack = self.progress.note_lack(figures);
            let notes = notes.into_iter().chain(lack).chain(pages.take_rail_words());
            notes.for_each(|text| look.environment.note(text));
        }
        let is_first_round = copy.round.saturating_sub(self.before.0) <= 1;
        let remaining_wire_bytes = pages
            .filter(|_| is_first_round && state.status == MigrationStatus::Active)
            .and_then(|pages| pages.remaining_wire_bytes(copy.remaining_bytes));
        let shown = progress(copy, bits_per_s, converges, throttle, remaining_wire_bytes, figures);
        match self.progress.is_logged(look.now, state) {
            Logged::Yes => look.environment.log_progress(shown),
            Logged::No => look.environment.show_progress(shown),
        }
    }

    /// Tells the hypervisor what may be left at the switchover. Returns the bytes that would fit.
    fn steer(&mut self, look: &CopyLook<'_>, copy: &CopyState) -> u64 {
        let pages = look.environment.pages();
        let sample = SwitchoverSample {
            downtime_limit_ms: self.offer.downtime_limit_ms,
            carried_bits_per_s: look.environment.carried_bits_per_s(),
            copies: look.environment.copies_to_target(),
            socket_mbit_per_s: copy.socket_mbit_per_s,
            limit_bytes_per_s: pages.as_ref().and_then(|pages| pages.rate_limit()),
            pages: pages.as_ref().map(|pages| PagesSample {
                counts: pages.counts(),
                held_bytes: pages.held_bytes(),
                held_back_bytes: pages.held_back_bytes(),
            }),
        };
        let decision = self.steering.decide(&sample, self.convergence.watch());
        pages.iter().for_each(|pages| pages.set_held_bytes_max(decision.held_bytes_max));
        if let Some(limit) = decision.limit {
            let bytes = if self.hold.is_some() { HELD_SWITCHOVER_BYTES } else { limit.bytes };
            match look.guest.set_switchover(bytes, self.offer.downtime_limit_ms, limit.socket_mbit_per_s) {
                Ok(()) => self.steering.note_told(limit),
                Err(error) => info!(id = %self.id, "QEMU: {error}"),
            }
        }
        decision.fits_bytes
    }

    /// Checks whether the copy converges if `fits` bytes are left at the switchover. Does what is allowed for that.
    fn drive(&mut self, look: &CopyLook<'_>, copy: &CopyState, fits: u64, throttle: u8) -> Option<Convergence> {
        if self.convergence.has_given_up() {
            return None;
        }
        let links = self.links.sample(look.paths(), |nics| look.environment.nics_bits_per_s(nics));
        let limit = look.environment.pages().and_then(|pages| pages.rate_limit());
        let slowest = Slowest::of(limit, || look.environment.carried_bits_per_s(), links.is_full);
        // Links count as full whose speed nobody knows; a limit that binds is known.
        let could_use_more = self.offer.transport.uses_all_nics() && links.is_full && slowest != Slowest::Limit;
        let sample = CopySample {
            at: look.now.saturating_sub(self.begun),
            round: copy.round.saturating_sub(self.before.0),
            sent: copy.sent_page_bytes.saturating_sub(self.before.1),
            remaining: copy.remaining_bytes,
            fits,
            throttle,
            sampled: self.sampled(look, copy, throttle),
            nics: if could_use_more { links.nics } else { 0 },
            limit: limit.filter(|_| slowest == Slowest::Limit).map(|limit| limit as u64),
        };
        let decision = self.convergence.decide(&sample, slowest);
        let actions = match decision.verdict {
            ConvergenceVerdict::GoOn(actions) => actions,
            // The guest may have got to the switchover since the sample.
            ConvergenceVerdict::GiveUp(_)
                if look.guest.migration().is_ok_and(|now| now.status != MigrationStatus::Active) =>
            {
                Vec::new()
            }
            ConvergenceVerdict::GiveUp(why) => self.convergence.give_up(why),
        };
        self.carry_out_at(look, actions);
        decision.converges
    }

    /// Returns whether the guest is held: its copy has converged, and it may not switch yet.
    fn is_held(&self) -> bool {
        self.hold.as_ref().is_some_and(HoldDriver::has_converged)
    }

    /// Does what a hold needs: tells when the copy has converged, slows the copy down from then on, and shows how fresh
    /// the target is. A guest that is held is not throttled.
    fn hold_on(&mut self, look: &CopyLook<'_>, copy: &CopyState, fits: u64, throttle: u8) {
        let sample = HoldSample {
            now: look.now,
            round: copy.round,
            sent: copy.sent_page_bytes,
            remaining: copy.remaining_bytes,
            fits,
            moves: self.convergence.watch().moves(),
        };
        let Some(hold) = &mut self.hold else { return };
        let HoldDecision { has_converged, freshness, rate } = hold.decide(&sample);
        if let Some(rate) = rate {
            let bytes_per_s = match rate {
                RateLimit::None => None,
                RateLimit::BytesPerS(rate) => Some(rate),
            };
            match look.guest.limit_rate(bytes_per_s) {
                Ok(()) | Err(GuestError::Unsupported(_)) => hold.note_told(rate),
                Err(error) => info!(id = %self.id, "QEMU: {error}"),
            }
        }
        if has_converged {
            let mut actions = self.convergence.converges_again();
            actions.extend((throttle > 0).then_some(ConvergenceAction::Throttle(0)));
            self.carry_out_at(look, actions);
            look.environment.tell(vec![Input::Source(self.id, SourceInput::Converged)]);
        }
        if freshness.is_some() {
            look.environment.show_freshness(freshness);
        }
    }

    /// Returns the bytes that the guest was last seen to write in a second, if the decision needs them. Has the
    /// hypervisor measure again now and then.
    fn sampled(&mut self, look: &CopyLook<'_>, copy: &CopyState, throttle: u8) -> Option<u64> {
        if !self.convergence.wants_dirty_rate(copy.round) {
            return None;
        }
        self.sampler.set_throttle(throttle);
        if self.sampler.is_due(look.now) {
            let measured = match look.guest.dirty_rate() {
                Ok(Some(rate)) => Measurement::Rate(rate),
                Ok(None) => Measurement::NotYet,
                Err(_) => Measurement::Unknown,
            };
            self.sampler.take(look.now, measured);
        }
        if let Some(pages_per_gib) = self.sampler.pages_to_measure(look.now, copy.total_bytes) {
            let begun = look.guest.measure_dirty_rate(SAMPLE_TIME, pages_per_gib);
            self.sampler.note_measuring(look.now, begun.is_ok());
        }
        self.sampler.last()
    }

    /// Carries out actions.
    fn carry_out_at(&self, look: &CopyLook<'_>, actions: Vec<ConvergenceAction>) {
        for action in &actions {
            if let ConvergenceAction::Throttle(percent) = action
                && let Err(error) = look.guest.set_throttle(*percent)
            {
                look.environment.note(format!("QEMU does not throttle it: {error}"));
            } else {
                self.carry_out(look.environment, vec![action.clone()]);
            }
        }
    }

    /// Carries out the actions that need no hypervisor.
    fn carry_out(&self, environment: &dyn SourceEnvironment, actions: Vec<ConvergenceAction>) {
        for action in actions {
            match action {
                ConvergenceAction::Note(text) => environment.note(text),
                ConvergenceAction::Detail(why) => environment.tell(vec![Input::Detail(self.id, why)]),
                ConvergenceAction::CallOff => {
                    environment.tell(vec![Input::Source(self.id, SourceInput::MigrationFailed)]);
                }
                ConvergenceAction::Throttle(_) => {}
            }
        }
    }
}
