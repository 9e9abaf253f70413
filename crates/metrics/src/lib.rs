//! Declares the metrics of agents and controllers, once, and serves them to scrapers.
//!
//! ```text
//!  who measures ─▶ Samples ─▶ OpenMetrics text ─▶ ScrapeServer ─▶ Prometheus
//!                     ▲
//!            agent, controller: what there is        ─▶ docs/metrics.md, and the tests of rules and dashboard
//! ```
//!
//! | file | what |
//! |---|---|
//! | `family` | what is said of a metric: name, kind, unit, labels with their bounds |
//! | `agent`, `controller`, `scraping` | the metrics of each program, and of both |
//! | `histogram`, `samples` | values, and their text |
//! | `document` | the tables of docs/metrics.md |
//! | `address`, `socket` | where scrapers come in, over TCP or a unix socket |
//! | `exchange` | one request and its answer |
//! | `scrape_server` | the listener with its threads |
//! | `scrape_service` | has it listen, also at an address that comes late |
//!
//! Nothing here knows what is measured, or by whom.
//!
//! # Invariants
//!
//! - **No label is without bound**: a value that a family does not list is `other`, and what is beyond a family's
//!   most series is left out and counted. Test: `what_is_beyond_the_bound_is_left_out_and_counted`.
//! - **A scraper costs next to nothing, whatever it does**: its connection has deadlines, connections and what is
//!   accepted a second have bounds, and values are computed at most twice a second. Tests: `tests/scrapers.rs`.
//! - **What is served is what is declared**: [`Samples`] takes values for a declared family only.

#![forbid(unsafe_code)]

mod address;
pub mod agent;
pub mod controller;
mod document;
mod exchange;
mod family;
mod histogram;
mod samples;
mod scrape_server;
mod scrape_service;
pub mod scraping;
mod socket;

pub use address::{NoScrapeAddress, ScrapeAddress};
pub use document::tables;
pub use family::{Bound, Family, Kind, Label, Unit};
pub use histogram::Histogram;
pub use samples::{Number, SERIES_MAX, Samples};
pub use scrape_server::{ScrapeError, ScrapeServer};
pub use scrape_service::ScrapeService;
