//! Is the per-host daemon ([`Agent`]), and the [`Tunnel`] that ends at one.
//!
//! An agent owns its host's VMs: it starts their QEMUs, which outlive it, and moves them to other hosts.
//! `skein_handover` decides who may run a guest; this crate carries the decisions out.
//!
//! A tunnel listens on unix sockets and connects each connection made to them to a unix socket of the agent's host, in
//! the order they were made. It carries opaque bytes: whose migration it is, and whether it succeeds, is its manager's
//! business.
//!
//! # Invariants
//!
//! - **The owner thread alone changes the migrations' state**, and waits for nothing but the journal. What may take
//!   long (QMP) has a thread for each migration.
//! - **What is asked for once is begun once**: a request is on the disk before its first migration is begun, and the
//!   next attempt belongs to the agent, whoever watches. Test:
//!   `an_agent_that_is_started_again_begins_no_second_migration_and_goes_on`.
//! - **The first reason for calling a migration off stands**: what follows from it is none. Tests:
//!   `the_first_reason_stands`, `the_end_of_a_migration_is_seen_with_the_reason_that_is_known_then`.
//! - **Room is promised once**: reserved where a migration is let in or a VM is started, until its guest has arrived or
//!   runs. Test: `room_for_one_is_not_given_to_two`.
//! - **A target is ready when what is to be remembered of its guest is on its disk**, and has all of the guest when the
//!   TPM's state is there. Tests: `a_guest_that_has_come_is_remembered_though_the_disk_is_full_by_then`,
//!   `firmware_and_tpm_move_with_their_guest`.
//! - **A VM that is started again has what it last had**: what a guest has open is remembered, and an older image is
//!   taken only on a person's word. Test: `a_file_is_started_with_what_its_guest_last_had`.
//! - **A VM's name has one process at most.** The starter has the name from before the start until the VM runs or is
//!   tidied up. A QEMU that runs is found again whatever became of its files, and never given up. Test:
//!   `a_name_has_one_process`.
//! - **A QEMU is known as a process from its start**, not from its first answer, and connected to with a deadline: a
//!   full queue makes connect(2) of a unix socket wait for ever. Test:
//!   `an_agent_that_finds_a_hung_one_comes_up_and_gives_it_up`.
//! - **A QEMU is never waited for to be killed.** A process is named by pid and start time, and killed through a pidfd.
//!   Test: `one_that_hangs_ends_as_soon_as_its_migration_is_called_off`.
//! - **No controller is needed, and none is waited for**, but by the thread of its own connection. A command's term is
//!   on the disk before the command is carried out, and a lower one is refused from then on. Tests:
//!   `a_controller_that_reads_nothing_costs_nobody_else_anything`, `a_lower_term_is_refused_also_after_a_restart`.
//! - **A network probe makes way**: it sends nothing while something else is carried, and stops within 20 ms of its
//!   beginning. Test: `a_lying_mtu_is_named_and_rates_are_right`.
//! - **A scraper of metrics costs a migration nothing**: it has threads, deadlines and bounds of its own, and asks no
//!   QEMU. Test: `scrapers_of_all_kinds_harm_nobody`.
//! - **A packer shares no lock with a thread in a hurry**, the lock on a process's memory neither: a packer may get no
//!   CPU for a while. Test: `pages_are_packed_by_another_process_which_ends_when_nobody_needs_it`.

#![forbid(unsafe_code)]

mod allow;
mod attempts;
mod catch;
mod channel_keeper;
mod clock;
mod composition;
mod consoles;
mod controllers;
mod daemon;
mod dirs;
mod events;
#[cfg(feature = "fault-points")]
mod fault_points;
mod firmware;
mod guest_ram;
mod host_files;
mod host_update;
mod incoming_channels;
mod kept_ram;
mod launch;
mod metrics;
mod migrations;
mod named_starts;
mod outgoing_channels;
mod own_socket;
mod own_state;
mod packer_process;
mod pass_descriptor;
mod path_meter;
mod peers;
mod permit;
mod probe;
mod random;
mod read_facts;
mod room;
mod samples;
mod server;
mod socket_buffers;
mod stream_destination;
mod to_api;
mod transport;
mod tunnel;
mod vms;
mod waker;
mod watchdog;
mod watched_file;

pub use allow::{Allow, AllowError};
pub use catch::{RedirectError, RedirectStatus, install_redirect, redirect_status, remove_redirect};
pub use channel_keeper::keep_channels;
pub use controllers::{ControllersError, DEFAULT_CONTROLLER_PORT};
pub use daemon::{Agent, AgentError, AgentSettings, VmSettings};
pub use dirs::Dirs;
pub use host_files::boot_id;
pub use host_update::UpdateCommands;
pub use incoming_channels::IncomingChannels;
pub use migrations::{Offer, OfferError};
pub use outgoing_channels::OutgoingChannels;
pub use own_socket::SocketError;
pub use packer_process::pack_pages;
pub use peers::{
    Answer, Answerer, AskError, CONTROL_VERSIONS, ControlMessage, ControlStreamError, ControlVersions, DEFAULT_PORT,
    DialError, FindError, PeerEvent, Peers, PeersSettings, Question, ResolveError, SessionHold, TooLong, resolve,
};
pub use skein_dataplane::{
    AcceptorSettings, Addresses, DialerSettings, HostRails, Network, NetworkProblem, Rails, SessionSnapshot,
    StartError, TrafficClass, rail_of, serve_rail,
};
pub use skein_metrics::{NoScrapeAddress, ScrapeAddress};
pub use skein_network::WantedConnections;
pub use tunnel::{Forward, ForwardError, Tunnel, TunnelError, TunnelSettings};
pub use watched_file::{TextFileError, WatchedFileError};

pub(crate) use skein_dataplane::error_chain;
