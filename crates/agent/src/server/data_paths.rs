//! Tells which paths to a host count for a migration. Pure.

use skein_dataplane::PathSnapshot;

/// Returns the paths that carry data. If none does yet, those that may soon; if none may, those that are excluded.
pub(super) fn counting(paths: Vec<PathSnapshot>) -> Vec<PathSnapshot> {
    let (excluded, others): (Vec<_>, Vec<_>) =
        paths.into_iter().filter(|path| path.status.usable).partition(|path| path.excluded.any());
    let (carrying, others): (Vec<_>, Vec<_>) = others.into_iter().partition(PathSnapshot::carries_data);
    // A path that is a spare says so.
    let soon = || others.into_iter().filter(|path| path.carries.is_empty()).collect();
    [carrying, soon()].into_iter().find(|paths: &Vec<_>| !paths.is_empty()).unwrap_or(excluded)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use skein_dataplane::{ExcludedBy, PathId, PathInfo, PathStatus};

    use super::*;

    const THERE: ExcludedBy = ExcludedBy { here: false, there: true };
    const NOBODY: ExcludedBy = ExcludedBy { here: false, there: false };

    fn path(of: u8, carries: &str, data_connections: usize, excluded: ExcludedBy) -> PathSnapshot {
        let address = |host| SocketAddr::new([10, 0, of, host].into(), 0);
        PathSnapshot {
            info: PathInfo { nic: format!("eth{of}"), local: address(1), remote: address(2) },
            status: PathStatus {
                path: PathId(of.into()),
                has_control_connection: true,
                data_connections,
                usable: true,
                sent_bytes: 0,
                received_bytes: 0,
                rate: None,
                rtt_s: None,
                inflight_bytes: 0,
            },
            carries: carries.into(),
            connections: String::new(),
            rdma_connections: 0,
            excluded,
        }
    }

    #[test]
    fn only_paths_that_carry_data_count() {
        let spare = "a spare: another network is preferred";
        let counted = |paths: Vec<PathSnapshot>| -> Vec<String> {
            counting(paths).into_iter().map(|path| path.info.nic).collect()
        };
        let all = || vec![path(0, "", 2, NOBODY), path(1, spare, 0, NOBODY), path(2, "", 0, THERE)];
        assert_eq!(counted(all()), ["eth0"]);
        // As the end sees it that did not dial.
        assert_eq!(counted(vec![path(0, "", 2, NOBODY), path(1, "", 0, NOBODY)]), ["eth0"]);
        // Data connections come after the others.
        assert_eq!(counted(vec![path(0, "", 0, NOBODY), path(1, spare, 0, NOBODY)]), ["eth0"]);
        assert_eq!(counted(vec![path(0, "", 0, NOBODY), path(2, "", 0, THERE)]), ["eth0"]);
        // What was excluded a moment ago may still have its connections.
        assert_eq!(counted(vec![path(2, "", 2, THERE)]), ["eth2"]);
        let mut down = all();
        down[0].status.usable = false;
        assert_eq!(counted(down), ["eth2"]);
    }
}
