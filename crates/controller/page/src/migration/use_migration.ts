// Follows a migration: its record first, then each sample as it comes, then its record again when it is over.
import { useEffect, useState } from "preact/hooks";
import { problemOf, type Problem } from "../api/problem";
import { get, part } from "../api/request";
import { Stream } from "../api/stream";
import type { Migration, MigrationRecord, MigrationSample } from "../types";
import { stageKey, type End } from "./phases";
import { merged } from "./series";

export interface Followed {
  record: MigrationRecord | undefined;
  samples: Record<End, MigrationSample[]>;
  problem: Problem | undefined;
  /** `live`: samples come; `lost`: the connection is tried again; `over`: there will be none. */
  link: "reading" | "live" | "lost" | "over";
  again(): void;
}

/** How often what came is shown: a sample comes from each end five times a second. */
const SHOW_MS = 200;

const NOTHING = { source: [], target: [] };

export function useMigration(id: string): Followed {
  const [times, setTimes] = useState(0);
  const [state, set] = useState<Omit<Followed, "again">>({
    record: undefined,
    samples: NOTHING,
    problem: undefined,
    link: "reading",
  });
  useEffect(() => {
    set({ record: undefined, samples: NOTHING, problem: undefined, link: "reading" });
    return follow(id, (more) => set((before) => ({ ...before, ...more(before) })));
  }, [id, times]);
  return { ...state, again: () => setTimes((before) => before + 1) };
}

type State = Omit<Followed, "again">;
type Change = (more: (before: State) => Partial<State>) => void;

function follow(id: string, change: Change): () => void {
  const stop = new AbortController();
  const path = `/migrations/${part(id)}`;
  const waiting: Record<End, MigrationSample[]> = { source: [], target: [] };
  const stages: Record<End, string | undefined> = { source: undefined, target: undefined };
  let stream: Stream | undefined;
  let isOver = false;
  let wasLost = false;
  /** The controller has said that it hears nothing more, and ends the stream. */
  let hasEnded = false;
  let timer: ReturnType<typeof setTimeout> | undefined;

  const show = (): void => {
    timer = undefined;
    const [source, target] = [waiting.source.splice(0), waiting.target.splice(0)];
    change(({ samples }) => ({
      samples: { source: merged(samples.source, source), target: merged(samples.target, target) },
    }));
  };
  const read = async (): Promise<MigrationRecord | undefined> => {
    const record = await get<MigrationRecord>(path, stop.signal);
    change(({ samples, record: before }) => ({
      record: {
        source: record.source ?? before?.source ?? null,
        target: record.target ?? before?.target ?? null,
        note: record.note ?? "",
      },
      problem: undefined,
      samples: {
        source: merged(record.source?.samples ?? [], samples.source),
        target: merged(record.target?.samples ?? [], samples.target),
      },
    }));
    return record;
  };
  const failed = (error: unknown): void => {
    if (!stop.signal.aborted) change(() => ({ problem: problemOf(error) }));
  };
  const settle = (): void => {
    read().then((record) => {
      if (stop.signal.aborted || !isOverNow(record)) return;
      isOver = true;
      stream?.close();
      change(() => ({ link: "over" }));
    }, failed);
  };
  const listen = (): Stream =>
    new Stream({
      path: `${path}/live`,
      opened() {
        change(() => ({ link: "live" }));
        // What came while the connection was lost is in the record.
        if (wasLost) void read().catch(failed);
        wasLost = false;
      },
      take(sent) {
        // The agents write down how it ended before they say so; the record has it. Of a migration that goes on
        // though nothing was heard of it for a while, the stream comes back.
        if (sent.event === "end") {
          hasEnded = true;
          return settle();
        }
        const end: End = sent.event === "target" ? "target" : "source";
        const sample = JSON.parse(sent.data) as MigrationSample;
        waiting[end].push(sample);
        timer ??= setTimeout(show, SHOW_MS);
        const stage = stageKey(sample.migration.stage);
        // What happened is in the record, which is large: it is read when there is something new in it.
        if (stage !== stages[end]) {
          if (stages[end] !== undefined) void read().catch(failed);
          stages[end] = stage;
        }
      },
      lost() {
        wasLost = true;
        const isExpected = hasEnded;
        hasEnded = false;
        if (isExpected) return;
        change(() => ({ link: "lost" }));
        // It may be over by now, and its end was what was missed.
        settle();
      },
      isOver: () => isOver,
    });
  read().then((record) => {
    if (stop.signal.aborted) return;
    if (isOverNow(record)) change(() => ({ link: "over" }));
    else stream = listen();
  }, failed);
  return () => {
    stop.abort();
    stream?.close();
    clearTimeout(timer);
  };
}

/** An end that does not answer says nothing about the other. */
function isOverNow(record: MigrationRecord | undefined): boolean {
  const ends = [record?.source?.migration, record?.target?.migration].filter((end) => end !== undefined);
  return ends.length > 0 && !ends.some(isUnderWay);
}

function isUnderWay(of: Migration | undefined): boolean {
  return of !== undefined && !of.outcome && of.stage != null;
}
