// What an end of a migration said over time, as charts need it. Pure.
import type { MigrationSample } from "../types";

/** How many samples of an end are kept; older ones are thinned out, as an axis has no more points anyway. */
export const SAMPLES_MAX = 1500;
/** Over how long a rate is computed from amounts. */
const RATE_MS = 1000;

/** Puts samples where they belong by time; each time once. */
export function merged(known: readonly MigrationSample[], more: readonly MigrationSample[]): MigrationSample[] {
  const last = known.at(-1)?.at ?? -Infinity;
  const first = more[0]?.at ?? Infinity;
  const is_behind =
    first > last && more.every((sample, index) => index === 0 || sample.at > (more[index - 1]?.at ?? 0));
  const all = is_behind ? [...known, ...more] : byTime([...known, ...more]);
  return all.length > SAMPLES_MAX ? thinned(all) : all;
}

function byTime(samples: MigrationSample[]): MigrationSample[] {
  const at = new Map(samples.map((sample) => [sample.at, sample]));
  return [...at.values()].sort((a, b) => a.at - b.at);
}

/** Leaves every other sample of the older half out. */
function thinned(samples: readonly MigrationSample[]): MigrationSample[] {
  const half = Math.floor(samples.length / 2);
  return [...samples.slice(0, half).filter((_, index) => index % 2 === 0), ...samples.slice(half)];
}

/** The milliseconds since the migration began: by the host's own clock alone, as hosts' clocks differ. */
export function sinceBegin(samples: readonly MigrationSample[]): number[] {
  const first = samples[0];
  if (!first) return [];
  const begin = first.at - first.migration.elapsed_ms;
  return samples.map((sample) => sample.at - begin);
}

export interface NicSeries {
  name: string;
  speed?: number | undefined;
  send: (number | null)[];
  receive: (number | null)[];
}

export function nicSeries(samples: readonly MigrationSample[]): NicSeries[] {
  const names = [...new Set(samples.flatMap((sample) => sample.nics.map((nic) => nic.name)))];
  return names.map((name) => {
    const of = samples.map((sample) => sample.nics.find((nic) => nic.name === name));
    return {
      name,
      speed: of.findLast((nic) => nic?.speed_bits_per_s)?.speed_bits_per_s ?? undefined,
      send: of.map((nic) => nic?.send_bits_per_s ?? null),
      receive: of.map((nic) => nic?.receive_bits_per_s ?? null),
    };
  });
}

/** The NICs that a migration uses come first, each part by name: a chart keeps its place while rates change. */
export function usedFirst(nics: readonly NicSeries[], paths: readonly string[]): NicSeries[] {
  const used = new Set(paths);
  return [...nics].sort((a, b) => Number(used.has(b.name)) - Number(used.has(a.name)) || (a.name < b.name ? -1 : 1));
}

export interface CoreSeries {
  count: number;
  /** In cores' worth of time, in thousandths. */
  all: (number | null)[];
  mover: (number | null)[];
  busiest: (number | null)[];
}

export function coreSeries(samples: readonly MigrationSample[]): CoreSeries {
  const known = (sample: MigrationSample): boolean => sample.cores_permille.length > 0;
  return {
    count: Math.max(0, ...samples.map((sample) => sample.cores_permille.length)),
    all: samples.map((sample) => (known(sample) ? sample.cores_permille.reduce((sum, core) => sum + core, 0) : null)),
    mover: samples.map((sample) => sample.mover_millicores),
    busiest: samples.map((sample) => (known(sample) ? Math.max(...sample.cores_permille) : null)),
  };
}

export interface RateSeries {
  /** What the guest dirtied a second. */
  dirty: (number | null)[];
  /** What of the guest was moved a second, however many bytes that were on the wire. */
  moved: (number | null)[];
  /** What is left. */
  left: (number | null)[];
}

export function rateSeries(samples: readonly MigrationSample[]): RateSeries {
  let behind = 0;
  const moved = samples.map((sample, index) => {
    while (behind < index && sample.at - (samples[behind + 1]?.at ?? 0) >= RATE_MS) behind += 1;
    const from = samples[behind];
    if (!from?.migration.copy || !sample.migration.copy || sample.at <= from.at) return null;
    const moved = sample.migration.copy.transferred_bytes - from.migration.copy.transferred_bytes;
    return moved < 0 ? null : (moved / (sample.at - from.at)) * 1000;
  });
  const copies = samples.map((sample) => sample.migration.copy);
  return {
    moved,
    dirty: copies.map((copy) => copy?.dirty_bytes_per_s ?? null),
    left: copies.map((copy) => copy?.remaining_bytes ?? null),
  };
}
