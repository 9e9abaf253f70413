import assert from "node:assert/strict";
import { test } from "node:test";
import { step, windowOf } from "../src/components/window";
import { readNames, readProperties, writeProperties } from "../src/components/settings_text";
import { matches } from "../src/store/filter";
import { kindOfReason, matrixOf } from "../src/store/matrix";
import { readReason } from "../src/store/reason";
import { readRule, RULE_KINDS, ruleWords, templateOf } from "../src/store/rule_words";
import { clusterLoad, healthOf } from "../src/store/summary";
import type { Host } from "../src/types";

test("only rows that are seen are drawn", () => {
  assert.deepEqual(windowOf(20_000, 36, 36_000, 720, 8), { first: 992, end: 1028 });
  assert.deepEqual(windowOf(3, 36, 0, 720, 8), { first: 0, end: 3 });
  assert.deepEqual(windowOf(0, 36, 0, 720, 8), { first: 0, end: 0 });
  // A list that became shorter while it was scrolled far down.
  assert.deepEqual(windowOf(5, 36, 9000, 720, 8), { first: 4, end: 5 });
});

test("keys lead through a list and not out of it", () => {
  assert.equal(step("ArrowDown", -1, 5, 3), 0);
  assert.equal(step("ArrowDown", 4, 5, 3), 4);
  assert.equal(step("PageUp", 4, 5, 3), 1);
  assert.equal(step("End", 0, 5, 3), 4);
  assert.equal(step("x", 0, 5, 3), undefined);
  assert.equal(step("End", 0, 0, 3), undefined);
});

test("each word of a search has to be somewhere", () => {
  assert.ok(matches("WEB h2", ["web1", "h2"]));
  assert.ok(!matches("web h3", ["web1", "h2"]));
  assert.ok(matches("  ", []));
});

test("properties and names are read as they are written", () => {
  assert.deepEqual(readProperties("disk=ssd, rack = r1\n\na=b=c"), {
    properties: { disk: "ssd", rack: "r1", a: "b=c" },
    wrong: undefined,
  });
  assert.match(readProperties("disk").wrong ?? "", /“disk”/);
  assert.equal(writeProperties({ a: "1", b: "2" }), "a=1\nb=2");
  assert.deepEqual(readNames("a, b  c,a"), ["a", "b", "c"]);
});

test("rules are told in a line, and a slip in one is told", () => {
  assert.equal(ruleWords({ apart: { of: { tag: "web" }, force: "hard" } }), "tag web; hard");
  assert.equal(
    ruleWords({ owners: { of: { guests: ["a", "b"] }, within: { group: "gold" } } }),
    "a, b; within group gold",
  );
  assert.equal(
    ruleWords({ among: { of: { tenant: "t" }, within: [{ group: "g" }, { hosts: ["h"] }] } }),
    "tenant t; within group g or h",
  );
  for (const kind of RULE_KINDS) assert.equal(readRule(JSON.stringify(templateOf(kind))).wrong, undefined);
  assert.match(readRule("{").wrong ?? "", /no JSON/);
  assert.match(readRule("{}").wrong ?? "", /only key/);
  assert.match(readRule("[1]").wrong ?? "", /only key/);
});

test("what a move costs and saves is read, and another sentence is kept", () => {
  assert.deepEqual(readReason("less is broken than on h1; costs 0.3 s of traffic, saves 0 s of an overloaded host"), {
    why: "less is broken than on h1",
    costs: "0.3 s of traffic",
    saves: "0 s of an overloaded host",
  });
  assert.deepEqual(readReason("h1 is drained").why, "h1 is drained");
  assert.equal(readReason("h1 is drained").costs, undefined);
});

test("the same reason of several hosts is one column", () => {
  assert.equal(
    kindOfReason("'h1' is full; rule 'x' needs 8 GiB of 3.5 GiB", "h1"),
    "it is full; rule '…' needs … of …",
  );
  const { kinds, rows } = matrixOf({
    vm: "v",
    on: "b",
    remedies: [],
    hosts: [
      { host: "a", accepts: false, objections: ["needs 8 GiB, 2 GiB are free"] },
      { host: "b", accepts: true, objections: [] },
      { host: "c", accepts: false, objections: ["needs 8 GiB, 1 GiB are free", "rule 'x' keeps it away"] },
    ],
  });
  assert.deepEqual(kinds, ["needs …, … are free", "rule '…' keeps it away"]);
  assert.deepEqual(
    rows.map((row) => row.host.host),
    ["b", "a", "c"],
  );
  assert.deepEqual(rows[2]?.reasons[1], ["rule 'x' keeps it away"]);
});

const host = (more: Partial<Host>): Host => ({
  name: "a",
  contact: "online",
  contact_since: 0,
  mode: "active",
  settings: {},
  addresses: [],
  vms_running: 0,
  incoming: 0,
  outgoing: 0,
  note: "",
  version: 1,
  ...more,
});

test("health is the worst of its reasons", () => {
  assert.deepEqual(healthOf(host({})), { tone: "good", reasons: [] });
  assert.equal(healthOf(host({ contact: "lost" })).tone, "bad");
  assert.equal(healthOf(host({ note: "its clock is behind" })).tone, "warn");
  assert.equal(healthOf(host({ mode: "maintenance" })).tone, "plain");
});

test("hosts that do not report are in no sum", () => {
  const load = {
    cpu_millicores: 1000,
    ram_bytes: 100,
    ram_available_bytes: 25,
    disk_read_bytes_per_s: 0,
    disk_write_bytes_per_s: 0,
    net_receive_bytes_per_s: 1,
    net_send_bytes_per_s: 2,
  };
  const sum = clusterLoad([host({ load, cpus: 4 }), host({ cpus: 99 })]);
  assert.deepEqual([sum.cpu, sum.ram, sum.sendBitsPerS], [0.25, 0.75, 16]);
  assert.equal(clusterLoad([]).cpu, undefined);
});
