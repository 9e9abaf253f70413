//! What a controller tells of itself and its cluster. What is counted of hosts, VMs and operations is what this
//! controller sees: one that does not lead sees what is in the store, and no host's reports.

use crate::family::families;
use crate::{Bound, Kind::*, Label};

const VERSION: Label = Label { name: "version", bound: Bound::Of("the program's own version") };
const CONTACT: Label = Label { name: "contact", bound: Bound::OneOf(CONTACTS) };
const MODE: Label = Label { name: "mode", bound: Bound::OneOf(&["active", "draining", "maintenance"]) };
const VM_STATE: Label = Label { name: "state", bound: Bound::OneOf(VM_STATES) };
const OPERATION: Label = Label { name: "operation", bound: Bound::OneOf(OPERATIONS) };
const STATE: Label = Label { name: "state", bound: Bound::OneOf(&["planning", "running", "cancelling"]) };
const END: Label = Label { name: "state", bound: Bound::OneOf(&["done", "failed", "cancelled"]) };
const MOVE: Label = Label { name: "state", bound: Bound::OneOf(&["waiting", "begun"]) };
const WEIGHT: Label = Label { name: "weight", bound: Bound::OneOf(&["hard", "soft"]) };
const PRESENCE: Label = Label { name: "state", bound: Bound::OneOf(&["there", "gone"]) };
const HEALTH: Label = Label { name: "state", bound: Bound::OneOf(&["well", "ill"]) };
const STATUS: Label = Label { name: "status", bound: Bound::OneOf(&["1xx", "2xx", "3xx", "4xx", "5xx"]) };
const CHANGED: Label = Label { name: "kind", bound: Bound::OneOf(CHANGES) };

/// How hosts' agents are reached, as in the API.
pub const CONTACTS: &[&str] = &["joined", "online", "lost", "off", "asleep"];
/// The states of VMs, as in the API.
pub const VM_STATES: &[&str] =
    &["running", "paused", "starting", "handover", "in-doubt", "stopped", "unresponsive", "lost", "failed"];
/// The kinds of operations, as in the API.
pub const OPERATIONS: &[&str] = &[
    "migrate",
    "drain",
    "optimize",
    "failover",
    "start",
    "stop",
    "delete",
    "autostart",
    "fence",
    "sleep",
    "wake",
    "update",
    "resume",
];
/// What events are about, by the names that subscribers get.
pub const CHANGES: &[&str] = &["host", "vm", "operation", "gone"];

const WRITES: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
const REQUESTS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

families! {
    /// The families of a controller.
    FAMILIES;
    BUILD = Info, "skein_controller_build_info", Count, "The controller's version", [VERSION];
    START_TIME = Gauge, "skein_controller_start_time_seconds", Seconds, "When the controller was started", [];
    LEADS = Gauge, "skein_controller_leads", Count, "Whether this controller leads", [];
    LEADER_KNOWN = Gauge, "skein_controller_leader_known", Count,
        "Whether this controller knows of one that leads", [];
    TERM = Gauge, "skein_controller_term", Count, "The election that made the leader; 0: none is known", [];
    CONTROLLERS = Gauge, "skein_controllers", Count,
        "Controllers that this one sees, and those that were there and are gone", [PRESENCE];
    AGENTS = Gauge, "skein_controller_agents", Count, "Agents that are connected to this controller", [];
    REQUESTS_ANSWERED = Counter, "skein_controller_requests_total", Count,
        "Requests of the API that were answered, by the class of the status", [STATUS];
    REQUEST_SECONDS = Histogram(REQUESTS), "skein_controller_request_seconds", Seconds,
        "How long it took until answers began", [];
    EVENTS = Counter, "skein_controller_events_total", Count,
        "Changes that subscribers were told, by what has changed", [CHANGED];

    HOSTS = Gauge, "skein_cluster_hosts", Count, "Hosts by whether their agents report", [CONTACT];
    HOST_MODES = Gauge, "skein_cluster_host_modes", Count, "Hosts by whether they take guests", [MODE];
    VMS = Gauge, "skein_cluster_vms", Count, "VMs by their state", [VM_STATE];
    RUN_TWICE = Gauge, "skein_cluster_vms_running_twice", Count,
        "Guests that run on several hosts, by what these report; only of the leader", [];
    MIGRATIONS = Gauge, "skein_cluster_migrations", Count,
        "Migrations under way, each once; only of the leader", [];
    OPERATIONS_OPEN = Gauge, "skein_cluster_operations", Count,
        "Operations that are not over", [OPERATION, STATE];
    OPERATIONS_ENDED = Counter, "skein_cluster_operations_ended_total", Count,
        "Operations that this controller saw come to an end", [OPERATION, END];
    MOVES = Gauge, "skein_cluster_moves", Count,
        "Moves and starts of these operations that wait for their turn, and that are under way", [MOVE];
    ATTENTION = Gauge, "skein_cluster_attention", Count,
        "What needs a person, as skein cluster status says it", [];
    RULES_BROKEN = Gauge, "skein_cluster_rules_broken", Count,
        "What is broken of rules and of room on hosts, as skein rule check says it; only of the leader", [WEIGHT];
    RULES_CHECKED = Gauge, "skein_cluster_rules_check_time_seconds", Seconds,
        "When that was last found; only of the leader", [];

    STORE_REVISION = Gauge, "skein_store_revision", Count, "The store's newest revision that this controller knows", [];
    STORE_WRITES = Histogram(WRITES), "skein_store_write_seconds", Seconds,
        "How long the store took for what this controller wrote as the leader", [];
    STORE_FAILURES = Counter, "skein_store_write_failures_total", Count, "Such writes that failed", [];
    STORE_MEMBERS = Gauge, "skein_store_members", Count, "etcd's members; none with a store in a file", [HEALTH];
}
