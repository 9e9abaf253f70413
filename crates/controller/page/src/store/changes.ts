// What changed last, in words: from what the controller said of a thing before and after.
import type { Host, Operation, Vm } from "../types";
import { contactWords, modeWords, operationTitle, operationStateWords, runStateWords } from "../words";

export interface Change {
  at: number;
  kind: "host" | "guest" | "operation";
  name: string;
  words: string;
  tone: "good" | "bad" | "plain";
}

export function hostChange(before: Host | undefined, after: Host, at: number): Change | undefined {
  const of = (words: string, tone: Change["tone"]): Change => ({ at, kind: "host", name: after.name, words, tone });
  if (!before) return of("joined the cluster", "good");
  if (before.contact !== after.contact) {
    const tone = after.contact === "online" ? "good" : after.contact === "lost" ? "bad" : "plain";
    return of(contactWords(after.contact), tone);
  }
  if (before.mode !== after.mode) return of(modeWords(after.mode), after.mode === "active" ? "good" : "plain");
  return undefined;
}

export function guestChange(before: Vm | undefined, after: Vm, at: number): Change | undefined {
  const of = (words: string, tone: Change["tone"]): Change => ({ at, kind: "guest", name: after.name, words, tone });
  if (!before) return of("is new", "plain");
  if (before.host !== after.host && after.host) {
    return of(before.host ? `moved, ${before.host} → ${after.host}` : `is on ${after.host}`, "plain");
  }
  if (before.state !== after.state) {
    const is_bad = ["lost", "failed", "in-doubt", "unresponsive"].includes(after.state);
    return of(runStateWords(after.state), is_bad ? "bad" : after.state === "running" ? "good" : "plain");
  }
  return undefined;
}

export function operationChange(before: Operation | undefined, after: Operation, at: number): Change | undefined {
  if (before?.state === after.state) return undefined;
  const tone = after.state === "done" ? "good" : after.state === "failed" ? "bad" : "plain";
  const words = `${operationTitle(after.kind)}: ${operationStateWords(after.state)}`;
  return { at, kind: "operation", name: after.id, words, tone };
}
