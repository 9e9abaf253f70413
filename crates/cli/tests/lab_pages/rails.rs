//! Tests guests that move over RDMA, by libfabric's provider for TCP.

use super::*;

const VM: &str = "v";
const ONE_SIDED: &[&str] = &["--rdma", "tcp;ofi_rxm", "--rdma-plaintext", "allow"];
const SEALED: &[&str] = &["--rdma", "tcp;ofi_rxm"];

/// What happens to the processes of rails on the way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Live,
    Killed,
}

fn written(migration: &Migration) -> u64 {
    migration.copy.iter().filter_map(|copy| copy.pages.as_ref()).map(|pages| pages.counts.written_pages).sum()
}

#[test]
fn a_guest_moves_over_rails_sealed_and_one_sided_and_when_they_are_killed() {
    let mut world = World::new(Settings { nics: 2, rates: vec![Some(200)], ..settings() });
    let params = Params { fill_mb: 320, rewrite_mb: 24, rate: 1000, ..busy(21) };
    let definition = world.cluster.working(VM, &params);
    world.cluster.start_vm("a", &definition);
    world.cluster.wait_working(VM);
    let trips = [
        ("a", "b", ONE_SIDED, Fate::Live),
        ("b", "a", SEALED, Fate::Live),
        ("a", "b", ONE_SIDED, Fate::Killed),
        ("b", "a", SEALED, Fate::Killed),
    ];
    for (from, to, args, fate) in trips {
        world.args = args.iter().map(|word| (*word).to_owned()).collect();
        ["a", "b"].iter().for_each(|host| world.start(host, None));
        let mut killed = 0;
        let transport = Some(Transport::Multichannel);
        let options = MigrateOptions { transport, allow_throttle: Some(99), ..MigrateOptions::default() };
        let (pages, done) = world.compared(VM, (from, to), options, |cluster| {
            let is_on_rails = |migration: &Migration| match args {
                ONE_SIDED => written(migration) > 0,
                _ => migration.paths.iter().any(|path| path.rdma_connections > 0 && path.sent_bytes > 20_000_000),
            };
            let are_used = || {
                let under_way = cluster.migrations(from).into_iter().find(|migration| migration.outcome.is_none());
                under_way.is_some_and(|migration| is_on_rails(&cluster.migration(from, migration.id)))
            };
            assert!(until(SOON, are_used), "rails are not used: {:?}", cluster.migrations(from));
            if fate == Fate::Killed {
                killed = kill_processes(cluster.dir(), "serve-rail");
            }
        });
        let figures = pages_of(&done);
        println!(
            "{from} to {to}, {args:?}: {pages} pages, {} sent, {} written by rails, {killed} rails killed",
            figures.counts.pages, figures.counts.written_pages
        );
        assert_eq!((figures.direct, figures.counts.repaired_pages), (Some(true), 0));
        assert_eq!(written(&done) > 0, args == ONE_SIDED);
        assert_eq!(killed > 0, fate == Fate::Killed);
        assert_eq!(world.cluster.verify(VM).pages, 320 << 8);
    }
    world.end();
}
