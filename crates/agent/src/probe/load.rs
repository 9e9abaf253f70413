//! Reads how busy this host is.

use super::order::AgentLoad;

/// Returns how busy this host and its agent were so far. What the kernel does not say is 0.
pub(super) fn load(carries_else: bool) -> AgentLoad {
    let cores = skein_host::cores().unwrap_or_default();
    let sum = |part: fn(&skein_host::CoreTime) -> f64| (cores.iter().map(part).sum::<f64>() * 1e3) as u64;
    let segments = skein_host::tcp_segments().unwrap_or_default();
    AgentLoad {
        agent_us: skein_host::own_process_time().as_micros() as u64,
        busy_ms: sum(|core| core.busy_s),
        cores_ms: sum(|core| core.busy_s + core.idle_s),
        segments: segments.sent,
        repeated: segments.repeated,
        carries_else,
    }
}
