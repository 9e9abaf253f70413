// A migration, live while it is under way, and from its record afterwards: the same page.
import { useEffect, useMemo } from "preact/hooks";
import { Empty, GuestLink, HostLink, Panel, State, Title } from "../components/basics";
import { MigrationActions } from "../components/migration/actions";
import { CoreChart, NicCharts, RateCharts, type Axis } from "../components/migration/charts";
import { Events } from "../components/migration/events";
import { MigrationBar, MigrationFigures } from "../components/migration/head";
import { Kinds } from "../components/migration/kinds";
import { Paths } from "../components/migration/paths";
import { PhaseAxis } from "../components/migration/phase_axis";
import { UntoldMigration } from "../components/migration/untold";
import { RoleNote } from "../components/access";
import { ProblemBox, sentence } from "../components/problem";
import { time } from "../format";
import { stageKey, stageName } from "../migration/phases";
import { summaryOf, type Summary } from "../migration/summary";
import { useMigration, type Followed } from "../migration/use_migration";
import { outcomeName, waitsFor } from "../migration/words";
import { link } from "../router";
import type { MigrationSample } from "../types";
import { readVm } from "../store/follow";
import { store } from "../store/store";
import { useRepeated, useStore } from "../store/use";
import type { Tone } from "../words";

export function MigrationPage({ id }: { id: string }) {
  const followed = useMigration(id);
  const { record, samples, problem, again } = followed;
  const of = useMemo(() => summaryOf(record, samples), [record, samples]);
  const crumbs: [string, string][] = [["Migrations", link("migrations")]];
  if (!of) {
    return (
      <>
        <Title crumbs={crumbs}>Migration {id}</Title>
        {problem ? (
          <ProblemBox of={problem} again={again} />
        ) : record ? (
          <UntoldMigration id={id} record={record} />
        ) : (
          <Empty>Reading …</Empty>
        )}
      </>
    );
  }
  return (
    <>
      <Title
        crumbs={crumbs}
        kind="Migration of"
        state={<MigrationStates of={of} />}
        actions={<MigrationActions of={of} />}
      >
        <GuestLink name={of.vm} />
      </Title>
      {!of.outcome && <RoleNote needs="operator" to="call it off, limit or hold it" />}
      <ProblemBox of={problem} again={again} />
      <MigrationBody followed={followed} of={of} />
    </>
  );
}

export function MigrationStates({ of }: { of: Summary }) {
  const key = stageKey(of.ends.source?.stage) ?? stageKey(of.ends.target?.stage);
  const [name, tone]: readonly [string, Tone] = of.outcome
    ? outcomeName(of.outcome)
    : ([key ? stageName(key) : "under way", key === "held" ? "warn" : "busy"] as const);
  return (
    <>
      <State name={name} tone={tone} />
      <span>
        <HostLink name={of.source} /> <span class="dim">→</span> <HostLink name={of.target} />
      </span>
      <span class="dim num">begun {time(of.begun)}</span>
    </>
  );
}

/** The axis of all charts of a migration: from its beginning, so that nothing moves but what is new. */
export function axisOf(of: Summary, nowMs: number): Axis {
  return {
    from: 0,
    to: Math.max(10_000, of.outcome ? of.elapsedMs * 1.02 : nowMs * 1.05),
    together: of.id,
    atRest: of.outcome ? "most" : "last",
  };
}

const READ_MS = 2000;

/** Where to go on from a migration that is over, if its guest is in another one by now. */
function NextMigration({ of }: { of: Summary }) {
  useRepeated((signal) => readVm(of.vm, signal), READ_MS, [of.vm], of.outcome != null);
  const next = useStore(() => store.tables.vms.get(of.vm)?.migration?.id);
  if (!of.outcome || next === undefined || next === of.id) return null;
  return (
    <div class="callout plain" role="status">
      {of.vm} is in another migration now: <a href={link("migrations", next)}>{next}</a>
    </div>
  );
}

/** Tells whoever measures the page which sample is in the frame that is drawn next. */
function tellShown(sample: MigrationSample | undefined): void {
  if (sample) requestAnimationFrame(() => dispatchEvent(new CustomEvent("skein-shown", { detail: sample.at })));
}

function MigrationBody({ followed, of }: { followed: Followed; of: Summary }) {
  const { record, samples } = followed;
  const hosts = { source: of.source, target: of.target };
  const axis = axisOf(of, of.elapsedMs);
  const waits = of.ends.source ? waitsFor(of.ends.source) : [];
  const copy = of.ends.source?.copy ?? of.ends.target?.copy;
  useEffect(() => tellShown(samples.source.at(-1)), [samples]);
  return (
    <>
      <MigrationBar of={of} link={followed.link} />
      <NextMigration of={of} />
      {record?.note && <div class="callout plain">{sentence(record.note)}</div>}
      {waits.length > 0 && (
        <div class="callout warn" role="status">
          <ul>
            {waits.map((words) => (
              <li key={words}>{words}</li>
            ))}
          </ul>
        </div>
      )}
      <MigrationFigures of={of} samples={samples.source} />
      <Panel title="Phases">
        <PhaseAxis record={record} nowMs={of.elapsedMs} hosts={hosts} />
      </Panel>
      <div class="columns even">
        {(["source", "target"] as const).map((end) => (
          <Panel key={end} title={end === "source" ? "Source" : "Target"} note={<HostLink name={hosts[end]} />}>
            {samples[end].length === 0 ? (
              <Empty>
                {record && !record[end] ? sentence(record.note || "this host does not tell") : "No samples yet."}
              </Empty>
            ) : (
              <div class="charts one">
                <NicCharts end={end} samples={samples[end]} paths={of.paths[end]} axis={axis} />
                <CoreChart samples={samples[end]} axis={axis} />
              </div>
            )}
          </Panel>
        ))}
      </div>
      <div class="columns even">
        <Panel title="Memory">
          {samples.source.length === 0 ? (
            <Empty>No samples of the source.</Empty>
          ) : (
            <div class="charts one">
              <RateCharts samples={samples.source} axis={axis} />
            </div>
          )}
        </Panel>
        <Panel title="Bytes by kind">
          <Kinds of={copy} />
        </Panel>
      </div>
      <div class="columns even">
        <Panel title="Events" note="newest first">
          <Events record={record} hosts={hosts} />
        </Panel>
        <Panel title="Paths">
          <Paths of={of.paths.source} isOver={of.outcome != null} />
        </Panel>
      </div>
    </>
  );
}
