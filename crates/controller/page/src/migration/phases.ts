// The phases of a migration, by name and by time. Pure.
import type { LoggedEvent, MigrationEnd, Stage } from "../types";

export type End = "source" | "target";

const SOURCE: Record<string, string> = {
  begin: "beginning",
  prepare: "preparing the target",
  precopy: "copying while it runs",
  held: "held, kept fresh until it is to switch",
  switchover: "stopped, copying the rest",
  grant: "handing over",
  release: "runs on the target, clearing up",
  keep: "called off, clearing up",
  done: "done",
};
const TARGET: Record<string, string> = {
  begin: "beginning",
  prepare: "starting QEMU",
  ready: "receiving",
  completed: "received, waiting for the word to run",
  run: "taking over",
  running: "runs here",
  refuse: "called off, clearing up",
  done: "done",
};
const NAMES: Record<string, string> = { precopy: "copy" };

export function stageKey(stage: Stage | null | undefined): string | undefined {
  if (!stage) return undefined;
  if (typeof stage === "string") return stage;
  return "source" in stage ? stage.source : stage.target;
}

/** What a phase is called for short. */
export function stageName(key: string): string {
  return NAMES[key] ?? key;
}

/** What goes on in a phase. */
export function stageWords(key: string | undefined, end: End = "source"): string {
  if (key === undefined) return "over";
  if (key === "queued") return "waiting for a place";
  return (end === "source" ? SOURCE : TARGET)[key] ?? key;
}

/** Whether the guest stands still in a phase. */
export function standsStill(key: string, end: End): boolean {
  return end === "source" ? key === "switchover" || key === "grant" : key === "completed" || key === "run";
}

export interface Phase {
  end: End;
  key: string;
  /** Milliseconds since the migration began. */
  from: number;
  to: number;
  isNow: boolean;
}

/** The phases of an end, from its log; `nowMs` since the beginning is where a phase that lasts is cut. */
export function phasesOf(end: End, of: MigrationEnd, nowMs: number): Phase[] {
  const events = of.migration.events ?? [];
  const begun = beginOf(of);
  if (begun === undefined) return [];
  const phases: Phase[] = [];
  let over: number | undefined;
  for (const event of events) {
    const at = Math.max(0, Date.parse(event.time) - begun);
    const key = phaseKey(event);
    const before = phases.at(-1);
    if (isOverEvent(event)) over = at;
    if (key === undefined || key === "done") continue;
    if (before) before.to = at;
    phases.push({ end, key, from: at, to: at, isNow: false });
  }
  const last = phases.at(-1);
  if (last) {
    const is_over = over !== undefined || of.migration.outcome != null;
    last.to = Math.max(last.from, over ?? (is_over ? of.migration.elapsed_ms : nowMs));
    last.isNow = !is_over;
  }
  return phases;
}

/** When a migration began by the clock of an end. */
export function beginOf(of: MigrationEnd): number | undefined {
  const ms = Date.parse(of.migration.begun || (of.migration.events?.[0]?.time ?? ""));
  return Number.isFinite(ms) ? ms : undefined;
}

function phaseKey(event: LoggedEvent): string | undefined {
  if (event.entry !== "handover") return undefined;
  if (event.event.kind === "queued") return "queued";
  return event.event.kind === "phase" ? stageKey(event.event.stage) : undefined;
}

function isOverEvent(event: LoggedEvent): boolean {
  return event.entry === "handover" && event.event.kind === "over";
}
