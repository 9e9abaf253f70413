//! How programs reach an agent: [`Client`] sends requests of [`skein_api`] to its unix socket. How they reach a
//! cluster's controllers: [`ControllerClient`] asks their REST API, with what a [`Login`] or a host's identity gives.

#![forbid(unsafe_code)]

mod agent;
mod controller;

pub use agent::{CallError, Client, Conversation};
pub use controller::{
    BadUrl, ControllerClient, ControllerError, ControllerUrl, Credentials, DEFAULT_CONTROLLER_PORT, Events, Items,
    Login, LoginError, Moving, Settings, TlsConnector, TlsTransport, random_key,
};
