// Both ends of a migration as one. Pure.
import type { Migration, MigrationRecord, MigrationSample, PathView } from "../types";
import { howFar, type HowFar } from "./progress";
import type { End } from "./phases";

export interface Summary {
  id: string;
  vm: string;
  source: string;
  target: string;
  begun: string;
  elapsedMs: number;
  outcome: string | null | undefined;
  why: string | null | undefined;
  detail: string;
  downtimeMs: number | null | undefined;
  far: HowFar;
  /** The paths that carry it, or did. */
  paths: Record<End, PathView[]>;
  /** Each end as it was last told, also while the record is older than the samples. */
  ends: Record<End, Migration | undefined>;
}

/** An end as it is now: the newest sample, with what only the record has. */
export function newest(of: Migration | undefined, sample: MigrationSample | undefined): Migration | undefined {
  if (!sample) return of;
  if (!of) return sample.migration;
  const { migration } = sample;
  // What is kept after the end is made smaller: only these fields are in it.
  const is_newer = migration.elapsed_ms >= of.elapsed_ms && !of.outcome;
  if (!is_newer) return of;
  const is_whole = migration.vm !== "" && migration.vm !== undefined;
  const { stage, copy, paths, elapsed_ms, downtime_ms, outcome } = migration;
  const smaller = {
    stage: stage ?? null,
    copy: copy ?? null,
    paths,
    elapsed_ms,
    downtime_ms: downtime_ms ?? null,
    outcome: outcome ?? null,
  };
  return is_whole ? { ...of, ...migration, events: of.events ?? [] } : { ...of, ...smaller };
}

export function summaryOf(
  record: MigrationRecord | undefined,
  samples: Record<End, MigrationSample[]>,
): Summary | undefined {
  const [last_source, last_target] = [samples.source.at(-1), samples.target.at(-1)];
  const source = newest(record?.source?.migration, last_source);
  const target = newest(record?.target?.migration, last_target);
  const of = source ?? target;
  if (!of) return undefined;
  // Either end may know more: the target alone decides after the handover, the source has the reason before.
  const outcome = source?.outcome ?? target?.outcome;
  const copy = source?.copy ?? target?.copy;
  return {
    id: of.id,
    vm: of.vm,
    source: of.source,
    target: of.target,
    begun: of.begun,
    elapsedMs: of.elapsed_ms,
    outcome,
    why: source?.why ?? target?.why,
    detail: source?.detail || target?.detail || "",
    downtimeMs: source?.downtime_ms ?? target?.downtime_ms,
    far: howFar(last_source, copy, outcome),
    ends: { source, target },
    paths: { source: pathsOf(source, samples.source), target: pathsOf(target, samples.target) },
  };
}

/** Once it is over it has no paths any more: then those are told that it had last. */
function pathsOf(of: Migration | undefined, samples: readonly MigrationSample[]): PathView[] {
  const now = of?.paths ?? [];
  return now.length > 0
    ? now
    : (samples.findLast((sample) => sample.migration.paths.length > 0)?.migration.paths ?? []);
}
