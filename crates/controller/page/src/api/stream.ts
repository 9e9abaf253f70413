// Keeps a stream of server-sent events: reads it, notices when it is silent, and comes back to where it was.
//
// The browser's EventSource does none of that after an answer that is an error, and does not let a page say the
// Last-Event-ID itself, so this is done with fetch.
import { Problem, noAnswer, refusal } from "./problem";
import { signedOut } from "./request";
import { SseReader, type Sent } from "./sse";

/** A quiet stream says every 10 s that it is there. */
const SILENT_MS = 25_000;
/** How long a stream may take to begin. */
const BEGIN_MS = 15_000;
const WAIT_MS = { first: 500, most: 15_000 };

export interface StreamUse {
  path: string;
  /** The stream has begun, or begun again; with the id that it goes on from. */
  opened(resumedFrom: string | undefined): void;
  take(sent: Sent): void;
  /** The stream was lost, and is tried again. */
  lost(problem: Problem, nextInMs: number): void;
  /** Whether the end of the stream is its end, and no loss. */
  isOver?(): boolean;
}

/** How long to wait before another attempt: longer each time, and never the same for all pages at once. */
export function waitMs(failures: number, dice: number): number {
  const full = Math.min(WAIT_MS.most, WAIT_MS.first * 2 ** Math.min(failures, 10));
  return Math.round(full * (0.5 + dice / 2));
}

export class Stream {
  private readonly stop = new AbortController();
  private lastId: string | undefined;
  private failures = 0;
  private wake: () => void = () => undefined;

  constructor(private readonly use: StreamUse) {
    void this.run();
  }

  close(): void {
    this.stop.abort();
    this.wake();
  }

  /** Tries again at once: somebody looks again, or the network is back. */
  hurry(): void {
    this.wake();
  }

  private async run(): Promise<void> {
    const { signal } = this.stop;
    while (!signal.aborted) {
      let problem: Problem;
      try {
        await this.read();
        problem = noAnswer();
      } catch (error) {
        problem = error instanceof Problem ? error : noAnswer();
      }
      if (signal.aborted || this.use.isOver?.()) return;
      if (problem.status === 401) return signedOut();
      // What the controller cannot read it will not read later.
      if (problem.status === 400) this.lastId = undefined;
      const wait = waitMs(this.failures, Math.random());
      this.failures += 1;
      this.use.lost(problem, wait);
      await this.pause(wait);
    }
  }

  private pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  private async read(): Promise<void> {
    const attempt = new AbortController();
    const signal = AbortSignal.any([this.stop.signal, attempt.signal]);
    let timer = setTimeout(() => attempt.abort(), BEGIN_MS);
    try {
      const headers: Record<string, string> = { accept: "text/event-stream" };
      if (this.lastId !== undefined) headers["last-event-id"] = this.lastId;
      const response = await fetch(`/api/v1${this.use.path}`, {
        headers,
        signal,
        cache: "no-store",
        credentials: "same-origin",
      });
      if (!response.ok || !response.body) throw await refusal(response);
      this.failures = 0;
      this.use.opened(this.lastId);
      const [reader, lines] = [response.body.pipeThrough(new TextDecoderStream()).getReader(), new SseReader()];
      for (;;) {
        clearTimeout(timer);
        timer = setTimeout(() => attempt.abort(), SILENT_MS);
        const { done, value } = await reader.read();
        if (done) return;
        for (const sent of lines.take(value)) {
          this.use.take(sent);
          if (sent.id !== undefined) this.lastId = sent.id;
        }
      }
    } finally {
      clearTimeout(timer);
      attempt.abort();
    }
  }
}
