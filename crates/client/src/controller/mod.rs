//! The client of a cluster's controllers.
//!
//! | file | what |
//! |---|---|
//! | `url` | where a controller is |
//! | `login` | what a user keeps to reach a cluster |
//! | `transport` | TLS below an HTTP client: with the cluster's controllers, and nobody else |
//! | `error` | why a request failed, in words |
//! | `request` | one request: which controller, how often |
//! | `client` | the API's routes |
//! | `items` | lists, page by page |
//! | `events` | what changes, as it changes |

mod client;
mod error;
mod events;
mod items;
mod login;
mod request;
mod transport;
mod url;

pub use client::{ControllerClient, Moving, Settings};
pub use error::ControllerError;
pub use events::Events;
pub use items::Items;
pub use login::{Login, LoginError};
pub use request::random_key;
pub use transport::{Credentials, TlsConnector, TlsTransport};
pub use url::{BadUrl, ControllerUrl, DEFAULT_CONTROLLER_PORT};
