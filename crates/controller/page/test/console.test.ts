// A session with a console: nothing is lost or doubled, it comes back, and it says who else has it.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Problem } from "../src/api/problem";
import { ConsoleSession, fromBase64, toBase64, type Status } from "../src/terminal/session";
import type { ConsoleAnswer, ConsoleAsk } from "../src/types";

/** An agent that echoes what is typed, and does what a test says. */
class Agent {
  sessions = 0;
  session = "";
  output = "";
  typed = "";
  host = "a";
  asked: ConsoleAsk[] = [];
  /** What the next answers are instead. */
  next: (Partial<ConsoleAnswer> | Problem | "lost")[] = [];

  answer(of: ConsoleAsk): ConsoleAnswer | Problem {
    this.asked.push(of);
    const other = this.next.shift();
    if (other instanceof Problem) return other;
    if (other && other !== "lost") return { host: this.host, state: "open", ...other };
    if (of.step === "begin" || of.step === "take-over") {
      this.session = of.session;
      this.output = "";
      this.typed = "";
    }
    if (of.session !== this.session) return { host: this.host, state: "unknown" };
    if (of.step === "end") this.session = "";
    const at = of.input_at ?? 0;
    const input = new TextDecoder().decode(fromBase64(of.input ?? ""));
    const fresh = input.slice(this.typed.length - at);
    this.typed += fresh;
    this.output += fresh;
    const after = of.after ?? 0;
    const output = toBase64(new TextEncoder().encode(this.output.slice(after)));
    if (other === "lost") return new Problem(0, "the controller does not answer");
    return { host: this.host, state: "open", output, at: after, typed: this.typed.length };
  }
}

function opened() {
  const agent = new Agent();
  let text = "";
  const [notes, statuses]: [string[], Status[]] = [[], []];
  let bells = 0;
  const session = new ConsoleSession({
    ask: async (of, signal) => {
      const answer = agent.answer(of);
      // A request that waits for output takes a moment.
      await new Promise((resolve) => setTimeout(resolve, of.wait_ms ? 5 : 1));
      if (signal.aborted) throw new Error("aborted");
      if (answer instanceof Problem) throw answer;
      return answer;
    },
    output: (bytes) => (text += new TextDecoder().decode(bytes)),
    note: (words) => notes.push(words),
    status: (status) => statuses.push(status),
    bell: () => (bells += 1),
    newId: () => `s${(agent.sessions += 1)}`,
  });
  return { agent, session, text: () => text, notes, statuses, bells: () => bells };
}

async function until(is: () => boolean): Promise<void> {
  const end = Date.now() + 10_000;
  while (!is()) {
    assert.ok(Date.now() < end, "it takes too long");
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

const bytes = (text: string) => new TextEncoder().encode(text);

test("what is typed comes once, also when answers are lost", async () => {
  const { agent, session, text, statuses } = opened();
  session.begin();
  await until(() => session.status.kind === "open");
  session.type(bytes("ls"));
  await until(() => text() === "ls");
  agent.next = ["lost", "lost", "lost"];
  session.type(bytes(" -l"));
  session.type(bytes(" /\r"));
  await until(() => text() === "ls -l /\r");
  assert.equal(agent.typed, "ls -l /\r");
  assert.equal(agent.sessions, 1, "it is the same session");
  await until(() => session.status.kind === "open");
  assert.ok(statuses.some((of) => of.kind === "lost"));
  session.end();
  await until(() => agent.session === "");
});

test("output that is gone is said to be, and what is known is not shown twice", async () => {
  const { agent, session, text, notes } = opened();
  const output = (text: string): string => toBase64(bytes(text));
  agent.next = [
    { output: output("abc"), at: 0 },
    { output: output("bcd"), at: 1 },
    { output: output("ab"), at: 0 },
    { output: output("xyz"), at: 10 },
  ];
  session.begin();
  await until(() => text() === "abcdxyz");
  assert.deepEqual(notes, ["6 bytes are lost"]);
  session.end();
});

test("who else has it is told, and it is taken over only if one says so", async () => {
  const { agent, session, statuses, bells } = opened();
  agent.next = [{ state: "held", holder: "bob" }];
  session.begin();
  await until(() => session.status.kind === "held");
  assert.deepEqual(session.status, { kind: "held", holder: "bob" });
  session.type(bytes("x"));
  assert.equal(bells(), 1, "nobody reads that");
  session.begin(true);
  await until(() => session.status.kind === "open");
  assert.equal(agent.asked.find((of) => of.step === "take-over")?.session, "s2");
  assert.equal(statuses.filter((of) => of.kind === "held").length, 1);
  session.end();
});

test("after a move it goes on at the new host, and after an agent's restart by itself", async () => {
  const { agent, session, notes, text } = opened();
  session.begin();
  await until(() => session.status.kind === "open");
  session.type(bytes("one "));
  await until(() => text() === "one ");
  agent.next = [{ state: "closed" }];
  await until(() => session.status.kind === "closed");
  agent.host = "b";
  session.revive();
  await until(() => session.status.kind === "open");
  session.type(bytes("two "));
  await until(() => text() === "one two ");
  assert.deepEqual(notes.slice(-1), ["the guest runs on b now"]);
  agent.session = "";
  await until(() => agent.sessions === 3 && session.status.kind === "open");
  session.type(bytes("three"));
  await until(() => text() === "one two three");
  session.end();
});

test("what does not pass by itself is said, and begun again when the guest has changed", async () => {
  const { agent, session } = opened();
  agent.next = [new Problem(409, "it is not running", "start it")];
  session.begin();
  await until(() => session.status.kind === "refused");
  const asked = agent.asked.length;
  await new Promise((resolve) => setTimeout(resolve, 50));
  assert.equal(agent.asked.length, asked, "the audit log is not filled");
  session.revive();
  await until(() => session.status.kind === "open");
  session.end();
});
