//! Tells whether this host's clock is kept right.

/// Returns whether something (NTP, PTP, a hypervisor's clock) keeps the clock right, as the kernel was told; `None` if
/// the kernel does not say. The bits and states are those of `linux/timex.h`, see adjtimex(2).
pub fn clock_synchronised() -> Option<bool> {
    // SAFETY: all-zero bytes are a valid timex: integers only.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: with `modes` zero adjtimex changes nothing and writes one timex, which outlives the call.
    let state = unsafe { libc::adjtimex(&raw mut timex) };
    (state >= 0).then_some(state != libc::TIME_ERROR && timex.status & libc::STA_UNSYNC == 0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_kernel_says() {
        assert!(super::clock_synchronised().is_some());
    }
}
