// A session with a guest's console: it reads and types, comes back after what broke, and goes on after a move. It knows
// nothing of the page: what it asks and what it tells are given to it.
import { Problem, problemOf } from "../api/problem";
import type { ConsoleAnswer, ConsoleAsk } from "../types";

/** How long the controller and the agent wait for output before they answer that there is none. */
const WAIT_MS = 10_000;
/** How much is typed in one request. */
const INPUT_MAX = 4096;
/** How much is kept of what is typed while nothing can be sent. */
const TYPED_MAX = 64 << 10;
const AGAIN_FIRST_MS = 500;
const AGAIN_MAX_MS = 4000;

export type Status =
  | { kind: "opening" }
  | { kind: "open"; host: string }
  /** Somebody else has it. */
  | { kind: "held"; holder: string }
  /** It comes back by itself. */
  | { kind: "lost"; problem: Problem }
  /** The guest's end closed: it is begun again once the guest runs. */
  | { kind: "closed" }
  /** It does not come back by itself, unless something changes with the guest. */
  | { kind: "refused"; problem: Problem };

export interface Surroundings {
  ask(asked: ConsoleAsk, signal: AbortSignal): Promise<ConsoleAnswer>;
  output(bytes: Uint8Array): void;
  /** Something that the reader is to know of what is shown. */
  note(words: string): void;
  status(status: Status): void;
  /** What is typed is lost. */
  bell(): void;
  newId(): string;
}

export function toBase64(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes));
}

export function fromBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** What may pass if the same is asked again soon: no answer, or a controller or a host that cannot at the moment. */
function isPassing({ status }: Problem): boolean {
  return [0, 408, 425, 429, 500, 502, 503, 504].includes(status);
}

export class ConsoleSession {
  private id = "";
  /** How many bytes of output were read, and of input taken, in this session. */
  private read = 0;
  private typed = 0;
  private unsent: number[] = [];
  private isSending = false;
  private isOpen = false;
  private host: string | undefined;
  private stop = new AbortController();
  private current: Status = { kind: "opening" };

  constructor(private readonly around: Surroundings) {}

  get status(): Status {
    return this.current;
  }

  /** The host where the console was open last. */
  get lastHost(): string | undefined {
    return this.host;
  }

  private set(status: Status): void {
    this.current = status;
    this.around.status(status);
  }

  /** Begins, or begins again. */
  begin(isTakeOver = false): void {
    this.stop.abort();
    this.stop = new AbortController();
    this.set({ kind: "opening" });
    void this.follow(isTakeOver ? "take-over" : "begin", this.stop.signal);
  }

  /** Lets the console go. */
  end(): void {
    const was = this.id;
    this.stop.abort();
    this.isOpen = false;
    this.id = "";
    if (was === "") return;
    const { signal } = new AbortController();
    void this.around.ask({ session: was, step: "end" }, signal).catch(() => undefined);
  }

  /** Begins again where that was not to be done by itself: something has changed with the guest. */
  revive(): void {
    if (this.current.kind === "refused" || this.current.kind === "closed") this.begin();
  }

  type(bytes: Uint8Array): void {
    if (this.unsent.length + bytes.length > TYPED_MAX || this.current.kind === "held") return this.around.bell();
    this.unsent.push(...bytes);
    void this.send(this.stop.signal);
  }

  private renew(): void {
    this.id = this.around.newId();
    this.read = 0;
    this.typed = 0;
    // It was for a session that is over: typing it now could do what nobody expects any more.
    this.unsent = [];
  }

  private async follow(first: "begin" | "take-over", signal: AbortSignal): Promise<void> {
    let step: ConsoleAsk["step"] = first;
    let again = AGAIN_FIRST_MS;
    this.isOpen = false;
    this.renew();
    while (!signal.aborted) {
      let answer: ConsoleAnswer;
      try {
        const wait = step === "go-on" ? { wait_ms: WAIT_MS } : {};
        answer = await this.around.ask({ session: this.id, step, after: this.read, ...wait }, signal);
      } catch (error) {
        if (signal.aborted) return;
        const problem = problemOf(error);
        if (!isPassing(problem)) {
          this.isOpen = false;
          return this.set({ kind: "refused", problem });
        }
        this.set({ kind: "lost", problem });
        await pause(again, signal);
        again = Math.min(again * 2, AGAIN_MAX_MS);
        continue;
      }
      if (signal.aborted) return;
      again = AGAIN_FIRST_MS;
      this.take(answer);
      if (answer.state === "open") {
        step = "go-on";
        this.opened(answer.host);
        void this.send(signal);
        continue;
      }
      this.isOpen = false;
      if (answer.state === "held") return this.set({ kind: "held", holder: answer.holder ?? "somebody" });
      if (answer.state === "closed") {
        this.around.note("the console closed: the guest was stopped, or moved");
        return this.set({ kind: "closed" });
      }
      // The agent was started again, or nobody asked for a while.
      step = "begin";
      this.renew();
      await pause(again, signal);
    }
  }

  private opened(host: string): void {
    if (this.host !== undefined && this.host !== host) this.around.note(`the guest runs on ${host} now`);
    this.host = host;
    this.isOpen = true;
    if (this.current.kind !== "open" || this.current.host !== host) this.set({ kind: "open", host });
  }

  /** Takes what is new of an answer: others may have brought the same. */
  private take(answer: ConsoleAnswer): void {
    const bytes = fromBase64(answer.output ?? "");
    const at = answer.at ?? 0;
    if (at > this.read) {
      this.around.note(`${at - this.read} bytes are lost`);
      this.read = at;
    }
    const known = this.read - at;
    if (bytes.length > known) {
      this.read = at + bytes.length;
      this.around.output(bytes.subarray(known));
    }
  }

  /** Sends what is typed, one request after the other. */
  private async send(signal: AbortSignal): Promise<void> {
    if (this.isSending) return;
    this.isSending = true;
    try {
      while (this.isOpen && this.unsent.length > 0 && !signal.aborted) {
        const session = this.id;
        const input = toBase64(Uint8Array.from(this.unsent.slice(0, INPUT_MAX)));
        const asked = { session, step: "go-on" as const, input, input_at: this.typed, after: this.read };
        const answer = await this.around.ask(asked, signal).catch(() => undefined);
        if (session !== this.id) continue;
        // The other request finds out what is wrong, and says so.
        if (answer?.state !== "open") {
          await pause(AGAIN_FIRST_MS, signal);
          continue;
        }
        this.take(answer);
        const taken = Math.max(0, Math.min((answer.typed ?? 0) - this.typed, this.unsent.length));
        this.unsent.splice(0, taken);
        this.typed += taken;
        // The guest reads nothing at the moment.
        if (taken === 0) await pause(AGAIN_FIRST_MS, signal);
      }
    } finally {
      this.isSending = false;
    }
    // A session that began meanwhile has its own signal.
    if (signal.aborted && this.isOpen && this.unsent.length > 0) void this.send(this.stop.signal);
  }
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done);
    if (signal.aborted) done();
  });
}
