//! Controllers on loopback, with a store in memory and fake agents that speak the link over TLS.

mod abuse;
mod access;
mod by_hand;
mod certificates;
mod console;
mod drain;
mod failover;
mod fake_agent;
mod fake_devices;
mod fencing;
mod life;
mod metrics;
mod page;
mod power;
mod setup;
mod update;
