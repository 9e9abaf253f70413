//! Handshakes between two ends in memory.

#![allow(dead_code)] // each test takes of it what it needs

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use skein_identity::explain;

/// The first error that each end meets, if any, after all bytes have gone both ways.
pub struct Outcome {
    pub client: ClientConnection,
    pub server: ServerConnection,
    pub client_error: Option<rustls::Error>,
    pub server_error: Option<rustls::Error>,
}

impl Outcome {
    /// What a person at each end reads.
    #[track_caller]
    pub fn errors_at_both_ends(&self) -> (String, String) {
        let text = |error: &Option<rustls::Error>| explain(error.as_ref().expect("this end must have failed"));
        (text(&self.client_error), text(&self.server_error))
    }
}

/// Shakes hands in memory.
pub fn shake(client: Arc<ClientConfig>, server: Arc<ServerConfig>, name: ServerName<'static>) -> Outcome {
    let mut client = ClientConnection::new(client, name).unwrap();
    let mut server = ServerConnection::new(server).unwrap();
    let (mut client_error, mut server_error) = (None, None);
    // A full handshake takes two round trips; twice as many would be a loop.
    for _ in 0..4 {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        feed(&wire, &mut server, &mut server_error);
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        feed(&wire, &mut client, &mut client_error);
    }
    assert!(!client.wants_write() && !server.wants_write());
    Outcome { client, server, client_error, server_error }
}

/// Gives bytes to one end. An end that failed keeps its first error, and takes no more.
pub fn feed<Data>(
    mut wire: &[u8],
    end: &mut impl std::ops::DerefMut<Target = rustls::ConnectionCommon<Data>>,
    error: &mut Option<rustls::Error>,
) {
    while !wire.is_empty() && error.is_none() {
        end.read_tls(&mut wire).unwrap();
        *error = end.process_new_packets().err();
    }
}
