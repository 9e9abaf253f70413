// What a controller will say, invented: NICs, histories, and migrations, for work on the page without hosts that
// migrate. Nothing here is measured.

const GBIT = 1e9;
const RAM = 32 * 2 ** 30;
const started = Date.now();

function nicsOf(load) {
  const speed_bits_per_s = 10 * GBIT;
  const part = (bytes, share) => Math.round(bytes * share);
  const nic = (name, share) => ({
    name,
    speed_bits_per_s,
    receive_bits_per_s: part(load.net_receive_bytes_per_s * 8, share),
    send_bits_per_s: part(load.net_send_bytes_per_s * 8, share),
  });
  return [nic("nic0", 0.7), nic("nic1", 0.3)];
}

/** Adds NICs to hosts in a text of JSON that has some. */
export function withNics(text) {
  return text.replace(
    /"load":(\{"cpu_millicores":[^{}]*"ram_available_bytes":[^{}]*\})/g,
    (whole, load) => `${whole},"nics":${JSON.stringify(nicsOf(JSON.parse(load)))}`,
  );
}

function noise(seed) {
  const x = Math.sin(seed * 12.9898) * 43758.5453;
  return x - Math.floor(x);
}

/** Invents the loads of hours, which end with those of now. */
function history(name, is_host, load) {
  const step_ms = 30_000;
  const count = 360;
  const seed = [...name].reduce((sum, letter) => sum * 31 + letter.charCodeAt(0), 7) % 997;
  const wave = (most, phase) =>
    Array.from({ length: count }, (_, i) => {
      if (i < 40) return null;
      const slow = 0.5 + 0.3 * Math.sin(i / 37 + phase + seed);
      return Math.round(most * (slow + 0.2 * noise(seed + i + phase * 99)));
    });
  const size = is_host ? 1 : 0.05;
  /** Has values end with that of now, around which they vary as much as before, or by a `share` of that. */
  const endingWith = (now, values, share = 1) => {
    const last = values.at(-1);
    if (now === undefined || !last) return values;
    return values.map((value) => value && Math.max(0, Math.round(now * (1 + share * (value / last - 1)))));
  };
  const used = load?.ram_available_bytes === undefined ? load?.ram_bytes : load.ram_bytes - load.ram_available_bytes;
  return {
    step_ms,
    until: Date.now(),
    series: {
      cpu_millicores: endingWith(load?.cpu_millicores, wave(is_host ? 24000 : 1800, 0)),
      ram_used_bytes: endingWith(used, wave((is_host ? 128 : 4) * 2 ** 30, 1), 0.1),
      net_receive_bytes_per_s: endingWith(load?.net_receive_bytes_per_s, wave(6e8 * size, 2)),
      net_send_bytes_per_s: endingWith(load?.net_send_bytes_per_s, wave(7e8 * size, 3)),
      disk_read_bytes_per_s: endingWith(load?.disk_read_bytes_per_s, wave(2e8 * size, 4)),
      disk_write_bytes_per_s: endingWith(load?.disk_write_bytes_per_s, wave(1e8 * size, 5)),
    },
  };
}

const ends = [
  {
    id: "00000000000fa4e5",
    vm: "v00001",
    source: "h0001",
    target: "h0002",
    begun: started,
    lasts: 60_000,
    loops: true,
  },
  { id: "0000000000aaaa01", vm: "v00021", source: "h0002", target: "h0003", begun: started - 900_000, lasts: 41_000 },
  { id: "0000000000aaaa02", vm: "v00022", source: "h0002", target: "h0004", begun: started - 700_000, lasts: 52_000 },
  {
    id: "0000000000aaaa03",
    vm: "v00023",
    source: "h0002",
    target: "h0004",
    begun: started - 500_000,
    lasts: 20_000,
    fails: true,
  },
];

function beginOf(of) {
  if (!of.loops) return of.begun;
  const round = of.lasts + 15_000;
  return of.begun + Math.floor((Date.now() - of.begun) / round) * round;
}

/** What is to be told of a migration so many milliseconds after it began. */
function stateAt(of, ms) {
  const over = ms >= of.lasts;
  const copying = Math.max(0, Math.min(1, (ms - 1200) / (of.lasts - 2400)));
  const stage = over
    ? null
    : ms < 300
      ? { source: "begin" }
      : ms < 1200
        ? { source: "prepare" }
        : ms < of.lasts - 1200
          ? { source: "precopy" }
          : ms < of.lasts - 900
            ? { source: "switchover" }
            : ms < of.lasts - 800
              ? { source: "grant" }
              : { source: "release" };
  const target_stage = over
    ? null
    : ms < 300
      ? { target: "begin" }
      : ms < 1200
        ? { target: "prepare" }
        : ms < of.lasts - 900
          ? { target: "ready" }
          : ms < of.lasts - 800
            ? { target: "run" }
            : { target: "running" };
  const round = 1 + Math.floor(copying * 3.2);
  const sent = copying * RAM * 1.35;
  const rate = ms > 1200 && ms < of.lasts - 900 ? (15.5 + 2.5 * noise(ms / 200) + (copying < 0.05 ? -9 : 0)) * GBIT : 0;
  const pages = Math.floor(sent / 4096);
  const share = (part) => Math.floor(pages * part);
  const copy =
    ms < 1200
      ? null
      : {
          total_bytes: RAM,
          remaining_bytes: Math.round(Math.max(0, RAM * (1 - copying) ** 1.3)),
          transferred_bytes: Math.round(sent),
          round,
          dirty_bytes_per_s: Math.round(3.1e8 + 8e7 * noise(ms / 1000)),
          bits_per_s: Math.round(rate),
          converges: over
            ? null
            : round === 1
              ? { "first-round": { seconds: (1 - copying) * 30 } }
              : { in: { seconds: (of.lasts - ms) / 1000 } },
          throttle_percent: 0,
          pages: {
            transport: "auto",
            direct: true,
            why_not_direct: "",
            not_compared: "",
            again_bytes: Math.max(0, Math.round(sent - RAM)),
            pages,
            zero_pages: share(0.31),
            packed_pages: share(0.38),
            packed_bytes: share(0.38) * 4096 * 0.44,
            stored_pages: share(0.14),
            written_pages: 0,
            unchanged_pages: share(0.07),
            delta_pages: share(0.1),
            delta_bytes: share(0.1) * 300,
            packed_delta_bytes: share(0.1) * 600,
            repaired_pages: 0,
            missed_pages: 0,
            other_bytes: 120_000 + pages,
            copied_bytes: sent,
            late_pages: share(0.02),
            packing_us: ms * 900,
            zstd_level: 1,
            compared_us: over ? 8200 : null,
          },
        };
  return { over, stage, target_stage, copying, rate, copy };
}

function migrationAt(of, role, ms) {
  const at = stateAt(of, ms);
  const outcome = !at.over ? null : of.fails ? "kept" : "moved";
  const path = (nic, share) => ({
    nic,
    remote: role === "source" ? "10.0.0.3:7070" : "10.0.0.2:7070",
    usable: true,
    sent_bytes: role === "source" ? Math.round(at.copying * RAM * 0.6 * share) : 0,
    bits_per_s: Math.round(at.rate * share),
    connections: "4: 10 Gbit/s and 0.2 ms",
  });
  return {
    id: of.id,
    vm: of.vm,
    role,
    source: of.source,
    target: of.target,
    stage: role === "source" ? at.stage : at.target_stage,
    outcome,
    why: at.over && of.fails ? "contact-lost" : null,
    detail: at.over && of.fails ? "h0004 did not answer for 10 s" : "",
    in_doubt: false,
    begun: new Date(beginOf(of)).toISOString(),
    elapsed_ms: Math.min(ms, of.lasts),
    downtime_ms: at.over && !of.fails ? 61 : null,
    copy: role === "source" ? at.copy : null,
    paths: [path("nic0", 0.52), path("nic1", 0.48)],
    attempt: { number: 1, of: 3 },
  };
}

function sampleAt(of, role, ms) {
  const at = stateAt(of, ms);
  const nic = (name, share) => ({
    name,
    speed_bits_per_s: 10 * GBIT,
    send_bits_per_s: Math.round(role === "source" ? at.rate * share : at.rate * share * 0.004 + 1e6),
    receive_bits_per_s: Math.round(role === "target" ? at.rate * share * 0.99 : at.rate * share * 0.004 + 1e6),
  });
  const left_ms = Math.max(0, of.lasts - ms);
  return {
    at: beginOf(of) + ms,
    migration: migrationAt(of, role, ms),
    nics: [nic("nic0", 0.52), nic("nic1", 0.48), { name: "mgmt0", send_bits_per_s: 2.1e6, receive_bits_per_s: 3e6 }],
    cores_permille: Array.from({ length: 16 }, (_, core) =>
      Math.round(core < 4 && at.rate > 0 ? 820 + 170 * noise(ms + core) : 150 + 200 * noise(ms / 7 + core * 13)),
    ),
    mover_millicores: at.rate > 0 ? Math.round(3600 + 400 * noise(ms / 200)) : 100,
    ...(role === "source" && at.copy && !at.over
      ? {
          forecast: {
            done_permille: Math.round(at.copying * 1000),
            left_ms,
            left_low_ms: Math.round(left_ms * 0.8),
            left_high_ms: Math.round(left_ms * 1.45),
          },
        }
      : {}),
  };
}

function eventsOf(of, role, until_ms) {
  const at = (ms, entry) => ({ ms, entry });
  const phase = (ms, stage) => at(ms, { entry: "handover", event: { kind: "phase", stage } });
  const end = of.lasts;
  const source = [
    at(0, { entry: "begun", vm: of.vm, role, source: of.source, target: of.target }),
    phase(2, { source: "begin" }),
    phase(300, { source: "prepare" }),
    phase(1200, { source: "precopy" }),
    at(1300, { entry: "note", text: "2 paths carry data: nic0 to 10.0.0.3, nic1 to 10.1.0.3" }),
    at(9000, { entry: "note", text: "the path nic1 to 10.1.0.3 is slow: it carries 31 % of what it did" }),
    ...(of.fails
      ? [
          at(end - 900, {
            entry: "handover",
            event: { kind: "called-off", why: "contact-lost", detail: "h0004 did not answer for 10 s" },
          }),
          phase(end - 890, { source: "keep" }),
          at(end, { entry: "handover", event: { kind: "over", outcome: "kept" } }),
        ]
      : [
          phase(end - 1200, { source: "switchover" }),
          phase(end - 900, { source: "grant" }),
          phase(end - 800, { source: "release" }),
          at(end - 790, { entry: "downtime", ms: 61 }),
          at(end, { entry: "handover", event: { kind: "over", outcome: "moved" } }),
        ]),
  ];
  const target = [
    at(1, { entry: "begun", vm: of.vm, role, source: of.source, target: of.target }),
    phase(3, { target: "begin" }),
    phase(301, { target: "prepare" }),
    phase(1190, { target: "ready" }),
    ...(of.fails
      ? []
      : [
          phase(end - 905, { target: "completed" }),
          phase(end - 900, { target: "run" }),
          phase(end - 805, { target: "running" }),
        ]),
    at(end, { entry: "handover", event: { kind: "over", outcome: of.fails ? "kept" : "moved" } }),
  ];
  const begun = beginOf(of);
  return (role === "source" ? source : target)
    .filter((event) => event.ms <= until_ms)
    .map(({ ms, entry }) => ({ time: new Date(begun + ms).toISOString(), ...entry }));
}

function record(of) {
  const ms = Date.now() - beginOf(of);
  const end = (role) => {
    const upto = Math.min(ms, of.lasts);
    const step = Math.max(200, of.lasts / 600);
    const samples = [];
    for (let at = 0; at <= upto; at += step) samples.push(sampleAt(of, role, at));
    return { migration: { ...migrationAt(of, role, ms), events: eventsOf(of, role, ms) }, samples };
  };
  return of.fails
    ? { source: end("source"), target: null, note: `${of.target} has no contact with this controller` }
    : { source: end("source"), target: end("target"), note: "" };
}

function view(of) {
  const ms = Date.now() - beginOf(of);
  const m = migrationAt(of, "source", ms);
  return {
    id: of.id,
    vm: of.vm,
    source: of.source,
    target: of.target,
    begun: m.begun,
    elapsed_ms: m.elapsed_ms,
    stage: m.stage,
    outcome: m.outcome,
    ...(m.why ? { why: m.why } : {}),
    detail: m.detail,
    ...(m.downtime_ms ? { downtime_ms: m.downtime_ms } : {}),
    ...(m.copy ? { copy: m.copy } : {}),
  };
}

function live(of, response) {
  response.writeHead(200, { "content-type": "text/event-stream" });
  const timer = setInterval(() => {
    const ms = Date.now() - beginOf(of);
    if (ms >= of.lasts) {
      response.write("event: end\ndata: {}\n\n");
      clearInterval(timer);
      return response.end();
    }
    for (const role of ["source", "target"]) {
      response.write(`event: ${role}\ndata: ${JSON.stringify(sampleAt(of, role, ms))}\n\n`);
    }
  }, 200);
  response.on("close", () => clearInterval(timer));
}

function json(response, value) {
  response.writeHead(200, { "content-type": "application/json" });
  response.end(JSON.stringify(value));
  return true;
}

function begunNow(id) {
  const of = { id, vm: "v00002", source: "h0001", target: "h0002", begun: Date.now(), lasts: 12_000 };
  ends.push(of);
  return of;
}

/** Answers what a controller does not have yet. Returns whether it did. */
export function invented(incoming, response, load) {
  const url = new URL(incoming.url, "http://page");
  const path = url.pathname.slice("/api/v1".length);
  const past = /^\/(hosts|vms)\/([^/]+)\/history$/.exec(path);
  if (past) return json(response, history(past[2], past[1] === "hosts", load));
  if (/^\/vms\/[^/]+\/definition$/.test(path)) {
    const name = path.split("/")[2];
    return json(response, {
      toml: `name = "${name}"\nmemory = "4 GiB"\ncpus = 2\n\n[[disk]]\npath = "/srv/${name}.qcow2"\n`,
    });
  }
  if (path === "/migrations") {
    const vm = url.searchParams.get("vm");
    const items = ends.filter((end) => vm === null || end.vm === vm).map(view);
    return json(response, { items, next: null });
  }
  const id = /^\/migrations\/([0-9a-f]{16})/.exec(path)?.[1];
  // A migration of a simulated host has no figures: it is as if it had begun when it is first looked at.
  const of = id && (ends.find((end) => end.id === id) ?? begunNow(id));
  if (of && path.endsWith("/live")) return live(of, response) ?? true;
  if (of) return json(response, record(of));
  if (/^\/vms\/v00001\/migration\//.test(path)) return json(response, { ...view(ends[0]), operation: null });
  return false;
}
