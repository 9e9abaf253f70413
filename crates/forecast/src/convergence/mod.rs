//! Whether the copy of a guest that is under way ends, when, and what would make it end.
//!
//! | file | what |
//! |---|---|
//! | `write_model` | how a guest writes |
//! | `prediction` | whether a copy ends, and when |
//! | `throttling` | by how much a guest has to be throttled, and may be |
//! | `needs` | what would be enough |
//! | `sample`, `meter` | what is seen of a copy, and the figures made of that |
//! | `watch` | what to do, from sample to sample |
//!
//! # The model
//!
//! A guest that writes `w` bytes of pages a second into a hot set of `N` bytes, each page as likely as any other, has
//! dirtied `d(t) = N·(1 - e^(-w·t/N))` different bytes after `t`: `w·t` as long as the guest has not come around its
//! hot set, `N` in the end. A round that has `V` left at the rate `R` is followed by a round of `d(V/R)`, until what is
//! left fits into the switchover. With an endless `N` that is the geometric series of
//! [`forecast`](mod@crate::forecast), `V·λ^n` with `λ = w/R`. With a bounded `N` rounds stop shrinking at the `V` for
//! which `V = d(V/R)`: above zero if `w > R`. A guest converges all the same if that `V` fits.
//!
//! `N` and `w` are those with which the first round, which is long, and a late round, which is short, dirtied what they
//! did. What QEMU measures of either (`dirty-pages-rate`) is `d(t)/t`, which comes near `R` in *any* guest that does
//! not converge, and does not say by how much the guest writes more. A guest that is throttled by `p` lives `1 - p` of
//! the time.
//!
//! What a guest dirties can be sampled, too: a guest that dirtied more within a second than is moved in a second,
//! `d(1 s) > R·1 s`, does not converge, unless so much fits. A sample is the only figure that tells a guest that writes
//! six times as much as is moved from a guest that writes a little more: of both, whatever is sent is soon dirty again.
//! Samples count from the second round on: how fast pages are moved that are sent again, as changes most of them, does
//! not show in the first round.
//!
//! # Help
//!
//! A guest that writes at most `DIRTY_SHARE_CONVERGING` of what is moved converges within some rounds: that share is
//! what is said to be enough. A guest that is throttled is throttled to `DIRTY_SHARE_THROTTLED` of what is moved, if
//! that is allowed. With `λ = w/R` what is left takes `1/(1 - λ)` of the time for which the guest would have to stand
//! still. What the guest does not do meanwhile, `(1 - λ·R/w)/(1 - λ)` of what it would have done, only grows with `λ`.
//! Near 1 the guest would be throttled for long, near 0 it would be as good as stopped.
//!
//! A guest is throttled as soon as it is known not to converge. Without a sample it is throttled first for the least
//! `w` that would do what was seen, then for more, as far as that was not enough, by half of what is left to the guest
//! at most. (A guest that is seldom busy hardly notices that it is throttled. A guest that sweeps over its hot set
//! instead of writing here and there seems to write more than it does.) With a sample the guest is throttled at once
//! for the sample, and again if the next sample, of the guest as it is throttled then, is more than
//! `DIRTY_SHARE_CONVERGING`: a guest that had less CPU than it wanted slows down by less than it is throttled by. When
//! all that is allowed was tried, and some more rounds (`NO_PROGRESS_GIVE_UP_ROUNDS`) left no less than those before,
//! the migration is given up, if the figures say so, too, or many more rounds (`NO_PROGRESS_ROUNDS_MAX`) do.

mod meter;
mod needs;
mod prediction;
mod sample;
mod throttling;
mod watch;
mod write_model;

pub use self::needs::ConvergenceNeeds;
pub use self::prediction::{Convergence, CopyRates, Copying};
pub use self::sample::CopySample;
pub use self::throttling::{THROTTLE_MAX, advised, needed, throttle};
pub use self::watch::{ConvergenceStep, ConvergenceWatch};
pub use self::write_model::WriteModel;
