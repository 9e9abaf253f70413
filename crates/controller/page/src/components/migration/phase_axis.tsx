// The phases of both ends on one axis of time, by name, and how long each was.
import { duration } from "../../format";
import { phasesOf, standsStill, stageName, stageWords, type End, type Phase } from "../../migration/phases";
import type { MigrationRecord } from "../../types";
import { classes, Empty } from "../basics";

export function PhaseAxis({
  record,
  nowMs,
  hosts,
  uptoMs,
}: {
  record: MigrationRecord | undefined;
  nowMs: number;
  hosts: Record<End, string>;
  /** To where the axis goes, if that is further than what happened so far. */
  uptoMs?: number;
}) {
  const lanes = (["source", "target"] as const).map((end) => {
    const of = record?.[end];
    return { end, phases: of ? phasesOf(end, of, nowMs) : [] };
  });
  const most = Math.max(1, nowMs, uptoMs ?? 0, ...lanes.flatMap(({ phases }) => phases.map((phase) => phase.to)));
  return (
    <div class="phases">
      {lanes.map(({ end, phases }) => (
        <div key={end} class="lane">
          <h3>
            {end === "source" ? "Source" : "Target"} <span class="name">{hosts[end]}</span>
          </h3>
          {phases.length === 0 ? (
            <Empty>{record ? "It does not say." : "Reading …"}</Empty>
          ) : (
            <>
              <div class="axis" aria-hidden="true">
                {phases.map((phase) => (
                  <Bar key={`${phase.key} ${phase.from}`} of={phase} most={most} />
                ))}
              </div>
              <ol>
                {phases.map((phase) => (
                  <Item key={`${phase.key} ${phase.from}`} of={phase} />
                ))}
              </ol>
            </>
          )}
        </div>
      ))}
      <div class="scale num dim" aria-hidden="true">
        <span>0</span>
        <span>{duration(most / 2)}</span>
        <span>{duration(most)}</span>
      </div>
    </div>
  );
}

function look(of: Phase): string {
  if (standsStill(of.key, of.end)) return "still";
  return { precopy: "copy", ready: "copy", held: "held", keep: "bad", refuse: "bad" }[of.key] ?? "other";
}

function Bar({ of, most }: { of: Phase; most: number }) {
  return (
    <span
      class={classes("bar", look(of), of.isNow && "now")}
      title={`${stageName(of.key)}: ${duration(of.to - of.from)}`}
      style={{ left: `${(100 * of.from) / most}%`, width: `${(100 * (of.to - of.from)) / most}%` }}
    >
      {(of.to - of.from) / most > 0.12 ? stageName(of.key) : ""}
    </span>
  );
}

function Item({ of }: { of: Phase }) {
  return (
    <li class={classes(look(of), of.isNow && "now")} title={stageWords(of.key, of.end)}>
      <i aria-hidden="true" />
      <span>{stageName(of.key)}</span> <b class="num">{duration(of.to - of.from)}</b>
    </li>
  );
}
