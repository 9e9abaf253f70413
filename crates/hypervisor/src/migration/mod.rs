//! A migration as QEMU sees it: settings, start, progress.
//!
//! # What QEMU does
//!
//! As observed with 7.2.22 and 10.0.2, with `return-path`, `events`, `pause-before-switchover` and `multifd`, the
//! target started with `-incoming defer -S`. `tests/lab_qemu.rs` asserts what does not depend on luck.
//!
//! In order, with the run states:
//!
//! | source | target |
//! |---|---|
//! | | `setup` at `migrate-incoming`, `inmigrate` |
//! | `setup`, `active` (`running`) | `active` |
//! | `STOP`, `pre-switchover` (`finish-migrate`) | |
//! | `migrate-continue`: `device` | |
//! | `completed` (`postmigrate`) | `completed` (`paused`), before or after the source's |
//! | `cont`: `RESUME`, also when the target runs | `cont`: `RESUME` |
//!
//! `MIGRATION_PASS` comes in between anywhere. Without the pause, 7.2 leaves out `device`. The source is `completed`
//! only after the target has said on the return path that it has everything; the target's event may still be later.
//!
//! When something happens:
//!
//! | what | in | source | target |
//! |---|---|---|---|
//! | target dies | `active` | `failed`; runs | |
//! | | `pre-switchover` | notices nothing, stays stopped; `migrate_cancel` helps | |
//! | | `device` | `failed`, `RESUME`: **runs by itself** | |
//! | | `completed` | stays `postmigrate`; `cont` works | |
//! | `migrate_cancel` | `active` | `cancelling`, `cancelled`; runs | `failed`, exits with 1 |
//! | | `pre-switchover` | `cancelling`, `RESUME`, `cancelled` (7.2: at times `device` first) | `failed`, exits with 1 |
//! | | `device` | `cancelling`, `RESUME`, `cancelled` | **may be `completed` all the same**, `paused` |
//! | | `completed` | nothing | nothing |
//! | `cont` | `pre-switchover`, `device` | refused: not finalized yet | |
//! | source dies | before `completed` | | `failed`, exits with 1 |
//! | | `completed` | | stays `paused`; `cont` works |
//!
//! After `migrate_cancel`, both versions at times say `failed` instead of `cancelled`: the cut connections were noticed
//! before the reason was. The guest runs then too.
//!
//! `RESUME` comes before `cancelled`, and after `failed`, which may come twice. A guest that was stopped by
//! [`Monitor::stop`](crate::Monitor::stop) before the migration tells no `STOP`, and stays stopped: `paused`, or
//! `postmigrate` (7.2) after a cancel; `cont` works from both. `stop` during the pause is accepted and forgotten.
//!
//! So a source may run again as soon as its connection breaks in `device`, and a target that is `completed` says
//! nothing about the source: only a grant may run the target.
//!
//! In `device` the source writes its last pages and its devices with the lock held that QMP needs. If the other end
//! does not read, **no command is answered**, `migrate_cancel` neither, until it reads or the main channel breaks (seen
//! with both versions: `failed` or `cancelled`, and `RESUME`). A QMP that is silent then is no sign of a dead QEMU.
//!
//! # Multifd channels that break
//!
//! **Where a source's multifd channels break before its main channel does, its QEMU may hang for ever**, the guest with
//! it: the migration thread waits for a channel's thread that has ended (`multifd_send_sync_main`), and during the
//! switchover holds the lock that everything else in QEMU needs. Nothing mends that. After `migrate-continue` towards a
//! dead target, tries that hung:
//!
//! | shut down first | 7.2 | 10.0 |
//! |---|---|---|
//! | multifd channels | 7 of 42 | 5 of 40 |
//! | all at once, as when a QEMU dies at the other end | 3 of 25 | 2 of 23 |
//! | main channel | 0 of 18 | 0 of 16 |
//! | none, then `migrate_cancel` | 0 of 12 | 0 of 8 |
//!
//! Therefore who holds the other ends of a source's channels ends a migration with `migrate_cancel`, or by shutting
//! down the main channel only, waits for `cancelled` or `failed` *and* for the guest to run, and closes the multifd
//! channels then, reading from them until then.
//!
//! Where they break while the connections are made, the guest runs, and QEMU 7.2 says `failed`, but the migration
//! thread waits in the same place for ever: every further `migrate` is refused ("duplicate yank instance").
//! [`Monitor::holds_migration`](crate::Monitor::holds_migration) tells.
//!
//! # A cancel in the moment of the pause
//!
//! QEMU 7.2 lets go of its lock before it says `pre-switchover` (`migration_maybe_pause`). A `migrate_cancel` in
//! between finds `active`, wakes nobody, and the migration thread waits to be continued, `cancelling`, the guest
//! stopped in `finish-migrate` for ever. `migrate-continue` with the state `cancelling` wakes it
//! ([`Monitor::migrate_continue_cancelling`](crate::Monitor::migrate_continue_cancelling)). QEMU 10 has closed that gap
//! (`migration_switchover_prepare`).
//!
//! # Throttling
//!
//! With the capability `auto-converge` QEMU throttles a guest when a round ends (`migration_trigger_throttle` of its
//! migration/ram.c): every second time that this is a second after the last, and the guest has dirtied more than
//! `throttle-trigger-threshold` per cent of what was sent since. The first time to `cpu-throttle-initial`, later by
//! `cpu-throttle-increment` more, never beyond `max-cpu-throttle`; what is beyond already is taken back to it. So with
//! the first and the last the same, it is what [`Monitor::set_throttle`](crate::Monitor::set_throttle) says from the
//! next such moment on. The capability cannot be changed while a migration runs, and a percentage has to be 1 at least:
//! a guest that may be throttled loses a hundredth of its time. A migration that ends, whatever way, ends it
//! (`cpu_throttle_stop`).
//!
//! # Milder forms
//!
//! QEMU 7.2 with multifd has some more. After `migrate_cancel` in `active`: `cancelling` for ever (2 of 48: the guest
//! runs, but no further migration starts). With a target that died in `pre-switchover`, `migrate_cancel` ended once (of
//! 94) in `failed` with the guest stopped.

pub mod commands;
mod event;
pub mod info;
pub mod tuning;
