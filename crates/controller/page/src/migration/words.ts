// What happened in a migration, and how it ended, in words. Pure.
import { bitsPerS, bytes, bytesPerS, duration, time } from "../format";
import type { CopyProgress, LogEntry, Migration, RateLimit } from "../types";
import type { Tone } from "../words";
import { stageKey, stageName, stageWords, type End } from "./phases";

const WHY: Record<string, string> = {
  cancelled: "somebody called it off",
  deadline: "its deadline ran out, or a step took longer than it may",
  "contact-lost": "the other host could not be reached",
  "migration-failed": "it could not be copied",
  "guest-changed": "the guest changed while it was copied",
  "target-refused": "the target called it off",
  "qemu-ended": "QEMU ended",
  "cannot-run": "QEMU would not run the guest",
  journal: "the journal cannot be written",
  "agent-restarted": "the agent was started again in the middle of it",
  proof: "the other host is off, by somebody's word",
  aborted: "the source called it off",
  "not-understood": "the two agents do not understand each other",
  "not-held": "it could not be held: the guest would have moved before anybody said so",
  "hold-over": "it was held as long as it may be, and did not switch",
  other: "the reason is not known here",
};

export function whyWords(why: string | null | undefined): string {
  return why ? (WHY[why] ?? why) : "";
}

const OUTCOMES: Record<string, [string, Tone]> = {
  moved: ["moved", "good"],
  kept: ["called off", "bad"],
  ended: ["the guest ended", "bad"],
};

export function outcomeName(outcome: string): [string, Tone] {
  return OUTCOMES[outcome] ?? [outcome, "plain"];
}

export function outcomeWords(outcome: string): string {
  const of: Record<string, string> = {
    moved: "The guest runs on the target.",
    kept: "The guest stays at the source.",
    ended: "The guest ended with its QEMU.",
  };
  return of[outcome] ?? outcome;
}

export function limitWords(limit: RateLimit): string {
  const whose = { migration: "its own limit", host: "its host's limit", cluster: "the cluster's limit" }[limit.by];
  return `${bitsPerS(limit.bits_per_s)} by ${whose}`;
}

export interface EventWords {
  words: string;
  tone: Tone;
}

export function eventWords(of: LogEntry, end: End): EventWords {
  const plain = (words: string): EventWords => ({ words, tone: "plain" });
  switch (of.entry) {
    case "begun":
      return plain(`Asked for: ${of.vm} from ${of.source} to ${of.target}`);
    case "note":
      return plain(of.text);
    case "downtime":
      return { words: `The guest stood still for ${duration(of.ms)}`, tone: "good" };
    case "copied":
      return plain(copyWords(of.copy));
    case "handover": {
      const event = of.event;
      const detail = "detail" in event && event.detail ? `: ${event.detail}` : "";
      switch (event.kind) {
        case "queued":
          return plain("Waits for a place");
        case "phase": {
          const key = stageKey(event.stage) ?? "";
          return { words: `Phase ${stageName(key)}: ${stageWords(key, end)}`, tone: "busy" };
        }
        case "reported":
          return plain(`The other end says: ${event.report.toLowerCase()}${detail}`);
        case "called-off":
          return { words: `Called off: ${whyWords(event.why)}${detail}`, tone: "bad" };
        case "in-doubt":
          return { words: "The guest is in doubt: paused, and this end can do nothing", tone: "bad" };
        case "recovered":
          return { words: "Taken up after the agent was started again", tone: "warn" };
        case "write-failed":
          return { words: "The journal could not be written", tone: "bad" };
        case "over": {
          const [name, tone] = outcomeName(event.outcome);
          return { words: `Over: ${name}`, tone };
        }
      }
    }
  }
}

export function copyWords(copy: CopyProgress): string {
  const left = `${bytes(copy.remaining_bytes)} left`;
  return `Pass ${copy.round}: ${bytes(copy.transferred_bytes)} sent, ${left}, ${bitsPerS(copy.bits_per_s)}`;
}

/** Why a migration waits, or does not get there: a sentence each. */
export function waitsFor(of: Migration): string[] {
  const why: string[] = [];
  const key = stageKey(of.stage);
  if (of.in_doubt) why.push("The guest is paused, and no host alone can decide where it runs.");
  if (key === "queued") why.push("It waits for a place among the host's migrations.");
  if (key === "held") {
    const hold = of.hold;
    const from = hold?.switches_from ? `, or by itself from ${time(hold.switches_from)}` : "";
    const end = hold?.called_off_at ? ` It is called off at ${time(hold.called_off_at)}.` : "";
    why.push(`It is held: it switches when somebody says so${from}.${end}`);
  } else if (of.hold && !of.outcome) why.push("It will be held before the switch.");
  const converges = of.copy?.converges;
  if (converges && "never" in converges && !of.outcome) {
    const { dirties_bytes_per_s: dirties, moves_bytes_per_s: moves } = converges.never;
    why.push(
      `It does not get there: the guest dirties ${bytesPerS(dirties)}, and ${bytesPerS(moves)} are moved. ` +
        "Throttling, or a time when the guest writes less, would help.",
    );
  }
  if (of.rate_limit && !of.outcome) why.push(`It sends ${limitWords(of.rate_limit)} at most.`);
  const attempt = of.attempt;
  if (attempt?.next_in_ms != null) why.push("Another attempt follows.");
  for (const path of of.paths) if (path.note && !of.outcome) why.push(`The path over ${path.nic}: ${path.note}.`);
  return why;
}
