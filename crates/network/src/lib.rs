//! What a host's network is: interfaces, what they stand on, and everything that decides how fast they are.
//!
//! [`read()`] asks a [`Source`]: a kernel (`skein_host::Kernel`), or a [`Recording`] of what a kernel said, so that a
//! host with hardware that is not at hand can be looked at as if it were. [`nics`] asks the part of that which is read
//! several times a second.

#![forbid(unsafe_code)]

mod any_bond;
pub mod attributes;
mod bond_ports;
mod carriers;
mod connections;
mod core_list;
mod dcb;
mod dcb_ends;
mod device;
mod driver;
#[cfg(test)]
mod ets_fake;
mod ets_steps;
mod ieee_ets;
mod interface;
mod layers;
pub mod mac;
mod nic;
mod nic_list;
mod ovs;
mod own_ets;
mod qos;
mod rdma;
mod source;
mod team;
mod tune;

pub use any_bond::{AnyBond, BondBelow, Spread};
pub use bond_ports::{member_of, ports_of_member};
pub use carriers::{bond_below, carriers, cores_of_node, near_cores, nodes, queues};
pub use connections::{
    ConnectionsPath, PEER_MAX, PathConnections, WantedConnections, WantedConnectionsError, connections,
};
pub use core_list::{CoreList, CoreListError};
pub use dcb::{Application, Dcb, Dcbx, Ets, Pfc, Selector};
pub use dcb_ends::{DcbEnd, DcbMismatch, NicDcb, compare_dcb, dcb_of};
pub use device::{Device, Interrupt};
pub use driver::{Channels, Driver, Duplex, Offloads, Rings, offloads};
pub use ets_steps::{EtsError, EtsHost, EtsUndone, make_ets, undo_ets};
pub use ieee_ets::{IeeeEts, asking as dcb_question, set_answer as dcb_set_answer};
pub use interface::{Interface, read};
pub use layers::{Bond, BondHash, BondMode, BondPort, Layer};
pub use nic::{Counters, InterfaceAddress, Nic, NicError, uplink};
pub use nic_list::nics;
pub use ovs::{OvsBond, OvsBondMode, OvsMember, OvsPort, OvsUplink, questions as ovs_questions};
pub use own_ets::{EtsPhase, EtsRecord, NoOwnEts, OwnEts, own_ets, plan_own_ets};
pub use qos::{
    AppliedShare, FLOW_QUEUES, NicQueue, SHARE_RATE_BPS_MAX, Scheduler, ShareSettings, flow_lines,
    has_queues as has_share_queues, queue, removal_lines, share_lines, usual_nics,
};
pub use rdma::{RdmaCounters, RdmaPort, SentAndReceived, rdma_counters};
pub use source::{Answer, Ask, DriverAsk, ENOENT, Recorder, Recording, Source};
pub use team::{Team, TeamHash, TeamMode, TeamPort};
pub use tune::{
    InterruptNow, NicInterrupts, PinnedInterrupt, TuneAction, TunePlan, TuneRecord, TuneStep, nic_interrupts,
    plan_apply, plan_remove, recorded_interrupts,
};
