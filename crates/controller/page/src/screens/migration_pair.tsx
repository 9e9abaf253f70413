// Two migrations side by side, from the beginning of each.
import { useMemo } from "preact/hooks";
import { Empty, GuestLink, HostLink, Panel, Title } from "../components/basics";
import { CoreChart, NicCharts, RateCharts, type Axis } from "../components/migration/charts";
import { MigrationBar, MigrationFigures } from "../components/migration/head";
import { Kinds } from "../components/migration/kinds";
import { PhaseAxis } from "../components/migration/phase_axis";
import { UntoldMigration } from "../components/migration/untold";
import { ProblemBox } from "../components/problem";
import { link } from "../router";
import { summaryOf, type Summary } from "../migration/summary";
import { useMigration, type Followed } from "../migration/use_migration";
import { axisOf, MigrationStates } from "./migration";

export function MigrationPair({ first, second }: { first: string; second: string }) {
  const [a, b] = [useMigration(first), useMigration(second)];
  const of_a = useMemo(() => summaryOf(a.record, a.samples), [a.record, a.samples]);
  const of_b = useMemo(() => summaryOf(b.record, b.samples), [b.record, b.samples]);
  // One axis for both: what took twice as long is twice as long.
  const to = Math.max(...[of_a, of_b].map((of) => (of ? axisOf(of, of.elapsedMs).to : 0)), 10_000);
  const axis = (of: Summary | undefined): Axis => ({
    from: 0,
    to,
    together: "pair",
    atRest: of?.outcome ? "most" : "last",
  });
  return (
    <>
      <Title
        crumbs={[["Migrations", link("migrations")]]}
        actions={
          <a class="button" href={link("migrations", second, first)}>
            Change sides
          </a>
        }
      >
        Two migrations
      </Title>
      <div class="columns even pair">
        <Side which="First" of={of_a} followed={a} axis={axis(of_a)} id={first} />
        <Side which="Second" of={of_b} followed={b} axis={axis(of_b)} id={second} />
      </div>
    </>
  );
}

function Side({
  which,
  of,
  followed,
  axis,
  id,
}: {
  which: "First" | "Second";
  of: Summary | undefined;
  followed: Followed;
  axis: Axis;
  id: string;
}) {
  const { record, samples } = followed;
  if (!of) {
    return (
      <section class="stack" aria-label={`${which} migration, ${id}`}>
        {followed.problem ? (
          <ProblemBox of={followed.problem} again={followed.again} />
        ) : record ? (
          <UntoldMigration id={id} record={record} />
        ) : (
          <Empty>Reading …</Empty>
        )}
      </section>
    );
  }
  return (
    <section class="stack" aria-label={`${which} migration, of ${of.vm}`}>
      <div>
        <h2 class="pair-title">
          <GuestLink name={of.vm} />{" "}
          <a class="dim small" href={link("migrations", of.id)}>
            alone
          </a>
        </h2>
        <div class="states">
          <MigrationStates of={of} />
        </div>
      </div>
      <MigrationBar of={of} link={followed.link} />
      <MigrationFigures of={of} samples={samples.source} />
      <Panel isPart title="Phases">
        <PhaseAxis
          record={record}
          nowMs={of.elapsedMs}
          uptoMs={axis.to / 1.05}
          hosts={{ source: of.source, target: of.target }}
        />
      </Panel>
      <Panel
        isPart
        title="NICs"
        note={
          <>
            as <HostLink name={of.source} /> sends
          </>
        }
      >
        <div class="charts one">
          <NicCharts end="source" samples={samples.source} paths={of.paths.source} axis={axis} />
          <CoreChart samples={samples.source} axis={axis} />
        </div>
      </Panel>
      <Panel isPart title="Memory">
        <div class="charts one">
          <RateCharts samples={samples.source} axis={axis} />
        </div>
      </Panel>
      <Panel isPart title="Bytes by kind">
        <Kinds of={of.ends.source?.copy} />
      </Panel>
    </section>
  );
}
