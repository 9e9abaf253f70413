//! Why a guest stands still.

/// Returns why a guest stands still in one of QEMU's run states (RunState of its qapi/run-state.json), and what to do.
/// `None`: the guest runs.
pub fn standstill(run_state: &str) -> Option<(&'static str, &'static str)> {
    let resume = "resume it (`skein vm resume`) or shut it down (`skein vm stop --force`), and repeat";
    let reset = "reset it (QMP `system_reset`, then `cont`) or shut it down (`skein vm stop --force`), and repeat";
    let wait = "wait until it runs, and repeat";
    Some(match run_state {
        "running" => return None,
        "paused" => ("somebody paused it", resume),
        "prelaunch" => ("it was started paused (-S)", resume),
        "io-error" => {
            ("one of its disks fails", "mend the disk, then resume it (`skein vm resume`) or shut it down, and repeat")
        }
        "suspended" => ("it sleeps", "wake it (QMP `system_wakeup`) or shut it down, and repeat"),
        "watchdog" => ("its watchdog stopped it", resume),
        "guest-panicked" => ("its kernel panicked", reset),
        "internal-error" => ("QEMU or KVM failed", reset),
        "shutdown" => ("it has shut down", reset),
        "inmigrate" => ("it is still arriving", wait),
        // The guest may run elsewhere.
        "postmigrate" => (
            "somebody else's migration took it away",
            "if it runs there, end this one (`skein vm stop --force`); only if it does not, resume it (QMP `cont`), \
             and repeat",
        ),
        "finish-migrate" | "save-vm" | "restore-vm" => ("QEMU holds it for a moment", wait),
        _ => ("somebody or something stopped it", resume),
    })
}
