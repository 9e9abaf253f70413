//! What an agent tells of its host. The names of phases, reasons and events are those of commands and logs; the agent's
//! tests compare them with where they are declared.

use crate::family::families;
use crate::{Bound, Kind::*, Label};

const ROLE: Label = Label { name: "role", bound: Bound::OneOf(&["source", "target"]) };
const PHASE: Label = Label { name: "phase", bound: Bound::OneOf(PHASES) };
const EVENT: Label = Label { name: "event", bound: Bound::OneOf(EVENTS) };
const OUTCOME: Label = Label { name: "outcome", bound: Bound::OneOf(&["moved", "kept", "ended"]) };
const REASON: Label = Label { name: "reason", bound: Bound::OneOf(REASONS) };
const SENT_KIND: Label =
    Label { name: "kind", bound: Bound::OneOf(&["packed", "stored", "delta", "written", "other"]) };
const PAGE_KIND: Label = Label { name: "kind", bound: Bound::OneOf(PAGE_KINDS) };
const VM: Label = Label { name: "vm", bound: Bound::Of("guests that leave this host now") };
const GUESS: Label = Label { name: "guess", bound: Bound::OneOf(&["low", "likely", "high"]) };
const FORECAST_END: Label = Label { name: "end", bound: Bound::OneOf(&["early", "in_range", "late"]) };
const VM_STATE: Label = Label { name: "state", bound: Bound::OneOf(VM_STATES) };
const NIC: Label =
    Label { name: "nic", bound: Bound::Of("the host's own NICs; empty of a path whose NIC is not known") };
const PEER: Label =
    Label { name: "peer", bound: Bound::Of("hosts with an open session; of totals those that had one, too") };
const REMOTE: Label =
    Label { name: "remote", bound: Bound::Of("addresses of paths of open sessions; of totals those of before, too") };
const TRANSPORT: Label = Label { name: "transport", bound: Bound::OneOf(&["tcp", "rdma"]) };
const DIRECTION: Label = Label { name: "direction", bound: Bound::OneOf(&["sent", "received"]) };
const BATCH: Label = Label { name: "result", bound: Bound::OneOf(&["done", "gone", "displaced", "failed"]) };
const VERSION: Label = Label { name: "version", bound: Bound::Of("the program's own version") };

/// The phases of both ends of a migration, as in events.
pub const PHASES: &[&str] = &[
    "queued",
    "begin",
    "prepare",
    "precopy",
    "held",
    "switchover",
    "grant",
    "release",
    "keep",
    "done",
    "ready",
    "completed",
    "run",
    "running",
    "refuse",
];

/// The events of an agent's migrations, by their names in its log.
pub const EVENTS: &[&str] = &[
    "queued",
    "phase",
    "reported",
    "called-off",
    "in-doubt",
    "recovered",
    "write-failed",
    "over",
    "offered",
    "retried",
    "attempt-follows",
    "attempt-not-begun",
    "other-host-proven-off",
    "told",
    "copy-noted",
    "minor-difference",
    "target-noted",
    "hold-ends",
    "restarts",
    "agent-stops",
    "qemu-not-killed",
    "not-worked-on",
];

/// The reasons why migrations are called off, as in the API.
pub const REASONS: &[&str] = &[
    "cancelled",
    "deadline",
    "contact-lost",
    "migration-failed",
    "guest-changed",
    "target-refused",
    "qemu-ended",
    "cannot-run",
    "journal",
    "agent-restarted",
    "proof",
    "aborted",
    "not-understood",
    "not-held",
    "hold-over",
    "other",
];

/// What became of pages at the source.
pub const PAGE_KINDS: &[&str] = &["zero", "packed", "stored", "written", "unchanged", "delta"];
/// What this host knows of its VMs without asking their QEMUs.
pub const VM_STATES: &[&str] = &["on", "starting", "incoming", "moved", "in_doubt", "unresponsive", "off"];

const DOWNTIMES: &[f64] = &[0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0];
const DURATIONS: &[f64] = &[1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 10800.0];
const ERRORS: &[f64] = &[0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0];
const WRITES: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

families! {
    /// The families of an agent.
    FAMILIES;
    BUILD = Info, "skein_agent_build_info", Count, "The agent's version", [VERSION];
    START_TIME = Gauge, "skein_agent_start_time_seconds", Seconds, "When the agent was started", [];
    CPU = Counter, "skein_agent_cpu_seconds_total", Seconds,
        "CPU time of the agent's own process", [];
    LEADER_HEARD = Gauge, "skein_agent_leader_heard", Count,
        "Whether a controller that leads has acknowledged a report lately; only where the host has controllers", [];

    VMS = Gauge, "skein_vms", Count, "VMs of this host by what it knows without asking their QEMUs", [VM_STATE];

    MIGRATIONS = Gauge, "skein_migrations", Count, "Migrations from and to this host that are not over", [ROLE, PHASE];
    IN_DOUBT = Gauge, "skein_migrations_in_doubt", Count,
        "Guests that are paused since this host alone cannot decide where they run", [];
    MIGRATION_EVENTS = Counter, "skein_migration_events_total", Count,
        "Events of migrations, by their names in the agent's log", [EVENT];
    PHASES_BEGUN = Counter, "skein_migration_phases_total", Count, "Phases that migrations came to", [ROLE, PHASE];
    PHASE_SECONDS = Counter, "skein_migration_phase_seconds_total", Seconds,
        "Time that migrations spent in each phase, with the phases they are in", [ROLE, PHASE];
    ENDED = Counter, "skein_migrations_ended_total", Count, "Migrations that are over", [ROLE, OUTCOME];
    CALLED_OFF = Counter, "skein_migrations_called_off_total", Count,
        "Migrations that were called off, by the reason", [ROLE, REASON];
    DURATION = Histogram(DURATIONS), "skein_migration_duration_seconds", Seconds,
        "Time from being asked for to the end, of migrations that moved their guest", [ROLE];
    DOWNTIME = Histogram(DOWNTIMES), "skein_migration_downtime_seconds", Seconds,
        "Time that guests stood still, as the source's QEMU and agent saw it", [];

    SENT = Counter, "skein_migration_sent_bytes_total", Bytes,
        "What guests took on the wire, without framing and encryption, by form", [SENT_KIND];
    PAGES = Counter, "skein_migration_page_bytes_total", Bytes,
        "Guests' pages that were moved, by what became of them", [PAGE_KIND];
    AGAIN = Counter, "skein_migration_again_bytes_total", Bytes,
        "Pages that were sent again since their guests wrote to them", [];
    REPAIRED = Counter, "skein_migration_repaired_bytes_total", Bytes,
        "Pages that were sent again since the target's copy differed", [];
    LATE = Counter, "skein_migration_late_bytes_total", Bytes,
        "Pages that went uncompressed as no CPU was there in time", [];
    MISSED = Counter, "skein_migration_missed_bytes_total", Bytes,
        "Pages that QEMU missed and that were sent from the guest's RAM", [];

    TOTAL = Gauge, "skein_migration_memory_bytes", Bytes, "The RAM of a guest that is copied", [VM];
    REMAINING = Gauge, "skein_migration_remaining_bytes", Bytes, "What is left of it to send", [VM];
    DIRTY_RATE = Gauge, "skein_migration_dirty_bytes_per_second", BytesPerSecond,
        "What a guest that is copied dirties", [VM];
    MOVED_RATE = Gauge, "skein_migration_moved_bytes_per_second", BytesPerSecond,
        "The RAM of it that moves in a second, of late, however small that is on the wire", [VM];
    THROTTLE = Gauge, "skein_migration_throttle_ratio", Ratio, "By how much a guest that is copied is throttled", [VM];
    ROUND = Gauge, "skein_migration_round", Count, "The pass over the RAM of a guest that is copied, from 1", [VM];
    CONVERGES = Gauge, "skein_migration_converges", Count,
        "Whether a copy converges; only once that is known", [VM];

    FORECAST = Gauge, "skein_migration_forecast_seconds", Seconds,
        "Time until a guest runs at its target: the best guess, and the range that nine of ten end in", [VM, GUESS];
    FORECAST_ERROR = Histogram(ERRORS), "skein_migration_forecast_error_ratio", Ratio,
        "How far the forecast of the middle of a copy was from the time that was left, of guests that moved", [];
    FORECASTS = Counter, "skein_migration_forecasts_total", Count,
        "The same forecasts by whether their guests moved within their range", [FORECAST_END];

    NIC_BYTES = Counter, "skein_nic_bytes_total", Bytes,
        "What the host's own NICs carried since they were made, of all programs", [NIC, DIRECTION];
    NIC_DROPS = Counter, "skein_nic_dropped_packets_total", Count,
        "Packets that these NICs dropped, or that arrived broken", [NIC, DIRECTION];
    NIC_SPEED = Gauge, "skein_nic_speed_bytes_per_second", BytesPerSecond,
        "The speed of their links, where drivers tell it", [NIC];

    SESSIONS = Gauge, "skein_sessions", Count, "Open sessions with another host", [PEER];
    STREAMS = Gauge, "skein_session_streams", Count, "Streams that are open in these sessions", [PEER];
    RESENT = Counter, "skein_session_resent_bytes_total", Bytes,
        "What was sent a second time, after a path had failed, in all sessions with the host", [PEER];
    NETWORK_PROBLEMS = Gauge, "skein_session_network_problems", Count,
        "Problems of the network between the two hosts; the end that dialled knows them", [PEER];
    PATH_USABLE = Gauge, "skein_path_usable", Count,
        "Whether a path may carry data now; 0: it is up, and kept from that; none: it is down", [PEER, NIC, REMOTE];
    PATH_BYTES = Counter, "skein_path_bytes_total", Bytes,
        "What a path carried, with framing, in all sessions with the host", [PEER, NIC, REMOTE, DIRECTION];
    PATH_CONNECTIONS = Gauge, "skein_path_connections", Count,
        "A path's connections for data", [PEER, NIC, REMOTE, TRANSPORT];
    PATH_RATE = Gauge, "skein_path_rate_bytes_per_second", BytesPerSecond,
        "The most that a path was seen to carry", [PEER, NIC, REMOTE];
    PATH_ROUND_TRIP = Gauge, "skein_path_round_trip_seconds", Seconds,
        "The least round trip of a path", [PEER, NIC, REMOTE];
    PATH_IN_FLIGHT = Gauge, "skein_path_in_flight_bytes", Bytes,
        "What was sent on a path and is not acknowledged", [PEER, NIC, REMOTE];

    JOURNAL_WRITES = Histogram(WRITES), "skein_journal_write_seconds", Seconds,
        "How long it took until records were on the disk", [];
    JOURNAL_FAILURES = Counter, "skein_journal_write_failures_total", Count,
        "Writes of the journal that failed", [];
    JOURNAL_RECORDS = Gauge, "skein_journal_records", Count, "Records in the journal", [];
    JOURNAL_FREE = Gauge, "skein_journal_free_slots", Count, "How many more records the journal takes", [];

    PACKER_BATCHES = Counter, "skein_packer_batches_total", Count,
        "Batches of pages that packers dealt with: done, gone as their turn had come, displaced by newer ones, failed",
        [BATCH];
    PACKER_QUEUE = Gauge, "skein_packer_queue_batches", Count, "Batches that wait for a packer", [];
    PACKER_CPU = Counter, "skein_packer_cpu_seconds_total", Seconds, "CPU time that packing took", [];
}
