import assert from "node:assert/strict";
import { test } from "node:test";
import { Tables } from "../src/store/tables";
import type { Host, Operation, Vm } from "../src/types";

const host = (name: string, more: Partial<Host> = {}): Host => ({
  name,
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
const vm = (name: string, more: Partial<Vm> = {}): Vm => ({
  name,
  state: "running",
  host: "a",
  since: 0,
  ram_bytes: 1,
  cpus: 1,
  settings: {},
  adopted: false,
  note: "",
  version: 1,
  ...more,
});

test("what a list says that was asked for before an event is older", () => {
  const tables = new Tables();
  const asked = tables.mark();
  tables.take({ at: 1, event: "host", host: host("a", { note: "new" }) });
  tables.merge("hosts", [host("a", { note: "old" }), host("b")], asked);
  assert.equal(tables.hosts.get("a")?.note, "new");
  assert.ok(tables.hosts.has("b"));
  tables.merge("hosts", [host("a", { note: "newest" })], tables.mark());
  assert.equal(tables.hosts.get("a")?.note, "newest");
});

test("what is gone meanwhile does not come back with an old list", () => {
  const tables = new Tables();
  tables.merge("vms", [vm("v")], tables.mark());
  const asked = tables.mark();
  tables.take({ at: 1, event: "gone", kind: "vm", name: "v" });
  tables.merge("vms", [vm("v")], asked);
  assert.ok(!tables.vms.has("v"));
});

test("after a reset what no list has is forgotten, but not what events have told of since", () => {
  const tables = new Tables();
  tables.merge("hosts", [host("a"), host("b")], tables.mark());
  tables.take({ at: 1, event: "reset" });
  const asked = tables.mark();
  tables.take({ at: 2, event: "host", host: host("c") });
  tables.merge("hosts", [host("a")], asked);
  tables.keep("hosts", new Set(["a"]), asked);
  assert.deepEqual([...tables.hosts.keys()].sort(), ["a", "c"]);
});

test("changes are told in words, the newest first; what is the same is none", () => {
  const tables = new Tables();
  tables.merge("hosts", [host("a")], tables.mark());
  tables.merge("vms", [vm("v")], tables.mark());
  tables.take({ at: 1, event: "host", host: host("a", { vms_running: 4 }) });
  tables.take({ at: 2, event: "host", host: host("a", { contact: "lost" }) });
  tables.take({ at: 3, event: "vm", vm: vm("v", { host: "b" }) });
  tables.take({ at: 4, event: "vm", vm: vm("v", { host: "b", state: "in-doubt" }) });
  const operation: Operation = {
    id: "1",
    kind: { kind: "drain", host: "a", evacuate: false },
    state: "running",
    by: "anna",
    created: 1,
    cancelled: false,
    message: "",
    moves: [],
    progress: {},
    version: 1,
  };
  tables.take({ at: 5, event: "operation", operation });
  tables.take({ at: 6, event: "operation", operation: { ...operation, version: 2 } });
  tables.take({ at: 7, event: "gone", kind: "host", name: "a" });
  const told = tables.changes.map((change) => `${change.name} ${change.words} ${change.tone}`);
  assert.deepEqual(told, [
    "a is gone plain",
    "1 Drain a: running plain",
    "v is in doubt: no host alone can decide where it runs bad",
    "v moved, a → b plain",
    "a is lost: its agent does not report bad",
  ]);
});

test("changes and operations are bounded", () => {
  const tables = new Tables();
  for (let n = 0; n < 700; n += 1) {
    const operation: Operation = {
      id: String(n).padStart(5, "0"),
      kind: { kind: "delete", vm: "v" },
      state: "done",
      by: "anna",
      created: n,
      ended: n,
      cancelled: false,
      message: "",
      moves: [],
      progress: {},
      version: 1,
    };
    tables.take({ at: n, event: "operation", operation });
  }
  assert.equal(tables.operations.size, 500);
  assert.ok(tables.operations.has("00699") && !tables.operations.has("00000"));
  assert.equal(tables.changes.length, 200);
});
