// Words for what the API says by a word of its own. One word for one thing, as in docs/glossary.md.
import type { Contact, HostMode, HostUpdate, Move, OperationKind, OperationState, VmRunState } from "./types";

export type Tone = "good" | "bad" | "warn" | "busy" | "plain";

export const contactNames: Record<Contact, [string, Tone]> = {
  joined: ["joined", "plain"],
  online: ["online", "good"],
  lost: ["lost", "bad"],
  off: ["off", "plain"],
  asleep: ["asleep", "plain"],
};

export function contactWords(contact: Contact): string {
  return {
    joined: "has joined, and has not reported yet",
    online: "is online",
    lost: "is lost: its agent does not report",
    off: "is off",
    asleep: "sleeps",
  }[contact];
}

export const modeNames: Record<HostMode, [string, Tone]> = {
  active: ["takes guests", "good"],
  draining: ["draining", "busy"],
  maintenance: ["maintenance", "warn"],
};

export function modeWords(mode: HostMode): string {
  return { active: "takes guests", draining: "is being emptied", maintenance: "takes no guests" }[mode];
}

export const runStateNames: Record<VmRunState, [string, Tone]> = {
  running: ["running", "good"],
  paused: ["paused", "warn"],
  starting: ["starting", "busy"],
  handover: ["handover", "busy"],
  "in-doubt": ["in doubt", "bad"],
  stopped: ["off", "plain"],
  unresponsive: ["unresponsive", "bad"],
  lost: ["lost", "bad"],
  failed: ["failed", "bad"],
};

export function runStateWords(state: VmRunState): string {
  return {
    running: "runs",
    paused: "is paused",
    starting: "is being started",
    handover: "is between two hosts",
    "in-doubt": "is in doubt: no host alone can decide where it runs",
    stopped: "is off",
    unresponsive: "does not answer: its QEMU hangs",
    lost: "is lost: whether it runs is not known",
    failed: "ended with its host",
  }[state];
}

export function operationTitle(kind: OperationKind): string {
  switch (kind.kind) {
    case "migrate":
      return `Move ${kind.vm}${kind.to ? ` to ${kind.to}` : ""}`;
    case "drain":
      return `${kind.evacuate ? "Evacuate" : "Drain"} ${kind.host}`;
    case "optimize":
      return kind.automatic ? "Optimise, by itself" : "Optimise";
    case "failover":
      return `Start the guests of ${kind.host} elsewhere`;
    case "start":
      return `Start ${kind.vm}${kind.on ? ` on ${kind.on}` : ""}`;
    case "stop":
      return `Stop ${kind.vm}`;
    case "delete":
      return `Delete ${kind.vm}`;
    case "autostart":
      return `Start guests again on ${kind.host}`;
    case "fence":
      return `Switch ${kind.host} off`;
    case "sleep":
      return `Put ${kind.host} to sleep`;
    case "wake":
      return `Wake ${kind.host}`;
    case "update":
      return "Update hosts";
    case "resume":
      return `Bring the guests of ${kind.host} home`;
  }
}

export const operationStateNames: Record<OperationState, [string, Tone]> = {
  planning: ["planning", "busy"],
  running: ["running", "busy"],
  cancelling: ["being called off", "warn"],
  done: ["done", "good"],
  failed: ["failed", "bad"],
  cancelled: ["called off", "warn"],
};

export function operationStateWords(state: OperationState): string {
  return operationStateNames[state][0];
}

export function isOver(state: OperationState): boolean {
  return state === "done" || state === "failed" || state === "cancelled";
}

export const moveStateNames: Record<Move["state"], [string, Tone]> = {
  waiting: ["waits", "plain"],
  begun: ["under way", "busy"],
  done: ["done", "good"],
  failed: ["failed", "bad"],
  left: ["stays", "warn"],
};

export const updateStateNames: Record<NonNullable<HostUpdate["state"]>, [string, Tone]> = {
  unchecked: ["to be checked", "plain"],
  waiting: ["waits", "plain"],
  emptying: ["being emptied", "busy"],
  updating: ["being updated", "busy"],
  returning: ["guests come home", "busy"],
  done: ["done", "good"],
  failed: ["failed", "bad"],
  skipped: ["left out", "warn"],
};

export const roleWords = {
  viewer: "may look",
  operator: "may look, move, start and stop guests, and drain hosts",
  admin: "may do everything",
};
