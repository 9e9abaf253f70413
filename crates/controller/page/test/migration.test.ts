import assert from "node:assert/strict";
import { test } from "node:test";
import { guestBytes, kindsOf, wireBytes } from "../src/migration/kinds";
import { phasesOf } from "../src/migration/phases";
import { howFar } from "../src/migration/progress";
import { coreSeries, merged, nicSeries, rateSeries, SAMPLES_MAX, sinceBegin, usedFirst } from "../src/migration/series";
import { newest, summaryOf } from "../src/migration/summary";
import { eventWords, waitsFor } from "../src/migration/words";
import type { CopyProgress, LoggedEvent, Migration, MigrationSample, PageFigures } from "../src/types";

const migration = (more: Partial<Migration> = {}): Migration => ({
  id: "1",
  vm: "v",
  role: "source",
  source: "a",
  target: "b",
  stage: { source: "precopy" },
  detail: "",
  in_doubt: false,
  begun: "2026-01-01T00:00:00.000Z",
  elapsed_ms: 0,
  paths: [],
  ...more,
});
const copy = (more: Partial<CopyProgress> = {}): CopyProgress => ({
  total_bytes: 1000,
  remaining_bytes: 400,
  transferred_bytes: 600,
  round: 1,
  dirty_bytes_per_s: 5,
  bits_per_s: 8,
  throttle_percent: 0,
  ...more,
});
const sample = (at: number, more: Partial<MigrationSample> = {}): MigrationSample => ({
  at,
  migration: migration({ elapsed_ms: at - 1000 }),
  nics: [],
  cores_permille: [],
  mover_millicores: 0,
  ...more,
});

test("a percentage of all is only told by a forecast", () => {
  const far = howFar(sample(1), copy(), undefined);
  assert.deepEqual([far.share, far.of], [0.6, "pass"]);
  const forecast = { done_permille: 321, left_ms: 9, left_low_ms: 8, left_high_ms: 12 };
  assert.deepEqual(howFar(sample(1, { forecast }), copy(), null), {
    share: 0.321,
    of: "all",
    leftMs: 9,
    lowMs: 8,
    highMs: 12,
  });
  assert.deepEqual(howFar(undefined, undefined, undefined), { share: undefined, of: "none" });
  assert.equal(howFar(undefined, copy(), "moved").share, 1);
  assert.equal(howFar(undefined, copy(), "kept").share, undefined);
});

test("samples come in any order, each once, and are bounded", () => {
  assert.deepEqual(
    merged([sample(2), sample(4)], [sample(3), sample(4)]).map((one) => one.at),
    [2, 3, 4],
  );
  let all: MigrationSample[] = [];
  for (let at = 0; at < 4000; at += 1) all = merged(all, [sample(at)]);
  assert.ok(all.length <= SAMPLES_MAX);
  assert.equal(all.at(-1)?.at, 3999);
  assert.equal(all[0]?.at, 0);
  assert.ok(all.every((one, index) => index === 0 || one.at > (all[index - 1]?.at ?? 0)));
});

test("time goes from the beginning, by the host's own clock", () => {
  assert.deepEqual(sinceBegin([sample(1500), sample(1700)]), [500, 700]);
  assert.deepEqual(sinceBegin([]), []);
});

test("NICs that carry the migration come first, and a gap is no zero", () => {
  const nic = (name: string, send: number) => ({
    name,
    speed_bits_per_s: null,
    send_bits_per_s: send,
    receive_bits_per_s: 0,
  });
  const nics = nicSeries([sample(1, { nics: [nic("z", 1), nic("a", 9)] }), sample(2, { nics: [nic("a", 8)] })]);
  assert.deepEqual(nics.find((one) => one.name === "z")?.send, [1, null]);
  assert.deepEqual(
    usedFirst(nics, ["z"]).map((one) => one.name),
    ["z", "a"],
  );
  assert.deepEqual(
    usedFirst(nics, []).map((one) => one.name),
    ["a", "z"],
  );
});

test("what is moved a second is told from amounts over a second", () => {
  const at = (ms: number, transferred_bytes: number): MigrationSample =>
    sample(ms, { migration: migration({ copy: copy({ transferred_bytes }) }) });
  const { moved } = rateSeries([at(0, 0), at(500, 50), at(1000, 100), at(2000, 300), at(2500, 300)]);
  assert.deepEqual(moved, [null, 100, 100, 200, 400 / 3]);
  assert.deepEqual(rateSeries([sample(1)]).dirty, [null]);
});

test("cores are summed, and none are unknown", () => {
  const of = coreSeries([sample(1, { cores_permille: [500, 1000], mover_millicores: 700 }), sample(2)]);
  assert.deepEqual([of.count, of.all, of.busiest, of.mover], [2, [1500, null], [1000, null], [700, 0]]);
});

const event = (ms: number, entry: object): LoggedEvent =>
  ({ time: new Date(Date.parse("2026-01-01T00:00:00.000Z") + ms).toISOString(), ...entry }) as LoggedEvent;
const phase = (ms: number, key: string): LoggedEvent =>
  event(ms, { entry: "handover", event: { kind: "phase", stage: { source: key } } });

test("phases follow each other, and the last lasts until now or the end", () => {
  const events = [
    event(0, { entry: "begun", vm: "v", role: "source", source: "a", target: "b" }),
    phase(5, "prepare"),
    phase(100, "precopy"),
  ];
  const now = phasesOf("source", { migration: migration({ events }), samples: [] }, 900);
  assert.deepEqual(
    now.map((one) => [one.key, one.from, one.to, one.isNow]),
    [
      ["prepare", 5, 100, false],
      ["precopy", 100, 900, true],
    ],
  );
  const over = [
    ...events,
    phase(700, "done"),
    event(800, { entry: "handover", event: { kind: "over", outcome: "moved" } }),
  ];
  const ended = phasesOf("source", { migration: migration({ events: over, outcome: "moved" }), samples: [] }, 9000);
  assert.deepEqual(ended.at(-1), { end: "source", key: "precopy", from: 100, to: 800, isNow: false });
  assert.deepEqual(phasesOf("source", { migration: migration({ begun: "" }), samples: [] }, 1), []);
});

test("bytes by kind add up, and what is on the wire is as the agents count it", () => {
  const pages: PageFigures = {
    transport: "auto",
    pages: 15,
    zero_pages: 2,
    packed_pages: 5,
    packed_bytes: 4096,
    stored_pages: 3,
    unchanged_pages: 1,
    delta_pages: 4,
    delta_bytes: 2048,
    other_bytes: 1024,
  };
  assert.equal(guestBytes(kindsOf(pages)), 15 * 4096);
  assert.equal(wireBytes(pages), 4 * 4096 + 3072);
  assert.equal(kindsOf({ ...pages, packed_delta_bytes: 1 }).find((kind) => kind.key === "compressed")?.wire, undefined);
});

test("the newest sample is shown, with the record's events; what has ended is not undone by an old sample", () => {
  const events = [phase(1, "precopy")];
  const record = migration({ elapsed_ms: 10, events });
  const live = sample(1, { migration: migration({ elapsed_ms: 20, detail: "new" }) });
  assert.equal(newest(record, live)?.detail, "new");
  assert.equal(newest(record, live)?.events, events);
  assert.equal(newest({ ...record, outcome: "moved" }, live)?.outcome, "moved");
  const small = { stage: null, copy: copy(), paths: [], elapsed_ms: 30, outcome: null } as unknown as Migration;
  assert.equal(newest(record, sample(2, { migration: small }))?.vm, "v");
  const both = summaryOf(
    {
      source: { migration: record, samples: [] },
      target: { migration: migration({ role: "target", outcome: "moved" }), samples: [] },
    },
    { source: [], target: [] },
  );
  assert.equal(both?.outcome, "moved");
  assert.equal(summaryOf(undefined, { source: [], target: [] }), undefined);
});

test("why it waits is said in words", () => {
  const never = { never: { dirties_bytes_per_s: 3e8, moves_bytes_per_s: 1e8 } };
  const words = waitsFor(migration({ copy: copy({ converges: never }), rate_limit: { bits_per_s: 1e9, by: "host" } }));
  assert.match(words[0] ?? "", /does not get there: the guest dirties 300 MB\/s, and 100 MB\/s are moved/);
  assert.match(words[1] ?? "", /1.00 Gbit\/s by its host's limit/);
  assert.match(waitsFor(migration({ stage: "queued" }))[0] ?? "", /waits for a place/);
  assert.deepEqual(waitsFor(migration()), []);
});

test("each kind of event has words", () => {
  const entries = [
    { entry: "begun", vm: "v", role: "source", source: "a", target: "b" },
    { entry: "note", text: "a path is slow" },
    { entry: "downtime", ms: 61 },
    { entry: "copied", copy: copy() },
    { entry: "handover", event: { kind: "queued" } },
    { entry: "handover", event: { kind: "recovered" } },
    { entry: "handover", event: { kind: "reported", report: "ready" } },
    { entry: "handover", event: { kind: "called-off", why: "deadline", detail: "60 s" } },
    { entry: "handover", event: { kind: "over", outcome: "kept" } },
  ] as LoggedEvent[];
  const words = entries.map((entry) => eventWords(entry, "source").words);
  assert.ok(
    words.every((text) => text.length > 5),
    words.join("\n"),
  );
  assert.match(words[7] ?? "", /its deadline ran out.*60 s/);
});
