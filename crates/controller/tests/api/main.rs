//! Controllers on loopback, with a store in memory and fake agents that speak the link over TLS.

mod access;
mod drain;
mod fake_agent;
mod setup;
