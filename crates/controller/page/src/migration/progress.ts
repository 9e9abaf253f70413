// How far a migration is. Pure.
import type { CopyProgress, MigrationSample } from "../types";

export interface HowFar {
  /** From 0 to 1; `undefined`: it is not known. */
  share: number | undefined;
  /** What the share is of: of the whole migration, or of the pass over the RAM that goes on. */
  of: "all" | "pass" | "none";
  leftMs?: number | undefined;
  lowMs?: number | undefined;
  highMs?: number | undefined;
}

/**
 * A share of the whole is only told by a forecast, which reckons with what the guest will write again: what is left of
 * a pass says nothing of that, and is called what it is.
 */
export function howFar(
  sample: MigrationSample | undefined,
  copy: CopyProgress | null | undefined,
  outcome: string | null | undefined,
): HowFar {
  if (outcome === "moved") return { share: 1, of: "all", leftMs: 0 };
  if (outcome) return { share: undefined, of: "none" };
  const forecast = sample?.forecast;
  if (forecast) {
    return {
      share: Math.max(0, Math.min(1, forecast.done_permille / 1000)),
      of: "all",
      leftMs: forecast.left_ms,
      lowMs: forecast.left_low_ms,
      highMs: forecast.left_high_ms,
    };
  }
  return ofCopy(copy);
}

/** As far as a copy's figures alone tell. */
export function ofCopy(copy: CopyProgress | null | undefined): HowFar {
  if (!copy || copy.total_bytes <= 0) return { share: undefined, of: "none" };
  const share = Math.max(0, Math.min(1, 1 - copy.remaining_bytes / copy.total_bytes));
  const converges = copy.converges;
  const seconds =
    converges &&
    ("in" in converges
      ? converges.in.seconds
      : "first-round" in converges
        ? converges["first-round"].seconds
        : undefined);
  return { share, of: "pass", leftMs: seconds == null ? undefined : seconds * 1000 };
}
