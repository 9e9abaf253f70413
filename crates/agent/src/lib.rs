//! The per-host daemon: the far end of tunnels.
