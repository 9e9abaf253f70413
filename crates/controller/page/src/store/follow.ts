// Follows the cluster: first subscribes to what changes, then reads all that there is, so that nothing falls between.
import { problemOf } from "../api/problem";
import { get, onSignedOut, PAGES_MAX } from "../api/request";
import { Stream } from "../api/stream";
import type { ClusterStatus, Host, Operation, Page, Vm } from "../types";
import { isOver } from "../words";
import { store } from "./store";
import type { EventData, TableName } from "./tables";

const PAGE = 500;
/** How many operations are read at first, beside those that are under way, and how many older ones at a time. */
const OPERATIONS = 100;
const OLDER = 200;

let stream: Stream | undefined;
let reading: AbortController | undefined;
/** Where the list of operations goes on, as far as it was read. */
let olderThan: string | undefined;

async function readList(table: TableName, path: string, signal: AbortSignal): Promise<void> {
  const begun = store.tables.mark();
  const names = new Set<string>();
  let after = "";
  for (let page = 0; page < PAGES_MAX; page += 1) {
    const asked = store.tables.mark();
    const query = `?limit=${PAGE}${after ? `&after=${encodeURIComponent(after)}` : ""}`;
    const { items, next } = await get<Page<Host | Vm>>(`${path}${query}`, signal);
    items.forEach((item) => names.add(item.name));
    store.tables.merge(table, items, asked);
    store.changed();
    if (!next) break;
    after = next;
  }
  store.tables.keep(table, names, begun);
}

async function readOperations(signal: AbortSignal): Promise<void> {
  const asked = store.tables.mark();
  const [newest, open] = await Promise.all([
    get<Page<Operation>>(`/operations?limit=${OPERATIONS}`, signal),
    get<Page<Operation>>(`/operations?open=true&limit=${PAGE}`, signal),
  ]);
  olderThan = newest.next ?? undefined;
  const found = [...newest.items, ...open.items];
  store.tables.merge("operations", found, asked);
  // What ended while nothing was heard, and is not among the newest, counts as under way still.
  const known = new Set(found.map((of) => of.id));
  const unsure = [...store.tables.operations.values()].filter((of) => !isOver(of.state) && !known.has(of.id));
  for (const { id } of unsure) {
    await readOperation(id, signal).catch((error: unknown) => {
      if (problemOf(error).status !== 404) throw error;
      store.tables.forgetOperation(id);
    });
  }
}

/** Reads operations that are older than those which were read as a list. Returns whether there are older ones still. */
export async function readOlderOperations(): Promise<boolean> {
  if (olderThan === undefined) return false;
  const asked = store.tables.mark();
  const query = `limit=${OLDER}&before=${encodeURIComponent(olderThan)}`;
  const { items, next } = await get<Page<Operation>>(`/operations?${query}`);
  olderThan = next ?? undefined;
  store.tables.merge("operations", items, asked);
  store.changed();
  return olderThan !== undefined;
}

async function readAll(): Promise<void> {
  reading?.abort();
  reading = new AbortController();
  const { signal } = reading;
  for (let wait = 1000; !signal.aborted; wait = Math.min(wait * 2, 15_000)) {
    try {
      await Promise.all([
        readList("hosts", "/hosts", signal),
        readList("vms", "/vms", signal),
        readOperations(signal),
        readCluster(signal),
      ]);
      store.isLoaded = true;
      return store.changed();
    } catch {
      // The stream's state says that the controller is out of reach; this goes on once it is not.
      await new Promise((resolve) => setTimeout(resolve, wait));
      if (store.session === null) return;
    }
  }
}

export async function readCluster(signal?: AbortSignal): Promise<void> {
  store.cluster = await get<ClusterStatus>("/cluster", signal);
  store.changed();
}

/** Reads the hosts' loads again: they are in no event. */
export async function readHosts(signal: AbortSignal): Promise<void> {
  await readList("hosts", "/hosts", signal);
  store.changed();
}

export async function readHost(name: string, signal: AbortSignal): Promise<void> {
  const asked = store.tables.mark();
  store.tables.merge("hosts", [await get<Host>(`/hosts/${encodeURIComponent(name)}`, signal)], asked);
  store.changed();
}

export async function readVm(name: string, signal: AbortSignal): Promise<void> {
  const asked = store.tables.mark();
  store.tables.merge("vms", [await get<Vm>(`/vms/${encodeURIComponent(name)}`, signal)], asked);
  store.changed();
}

/** Reads the loads of guests again, by a query of the list. */
export async function readVms(query: string, signal: AbortSignal): Promise<void> {
  const asked = store.tables.mark();
  const { items } = await get<Page<Vm>>(`/vms?limit=${PAGE}${query}`, signal);
  store.tables.merge("vms", items, asked);
  store.changed();
}

export async function readOperation(id: string, signal: AbortSignal): Promise<void> {
  const asked = store.tables.mark();
  store.tables.merge("operations", [await get<Operation>(`/operations/${encodeURIComponent(id)}`, signal)], asked);
  store.changed();
}

export function begin(): void {
  stream?.close();
  store.link = { is: "connecting" };
  stream = new Stream({
    path: "/events",
    opened(resumedFrom) {
      store.link = { is: "live" };
      // Who goes on where it was gets what it missed, or a reset.
      if (resumedFrom === undefined) void readAll();
      store.changed();
    },
    take(sent) {
      let event: EventData;
      try {
        event = JSON.parse(sent.data) as EventData;
      } catch {
        return;
      }
      if (event.event === "reset") void readAll();
      else store.tables.take(event);
      store.changed();
    },
    lost(problem, nextInMs) {
      const since = store.link.is === "lost" ? store.link.since : Date.now();
      store.link = { is: "lost", since, detail: problem.detail, next: Date.now() + nextInMs };
      store.changed();
    },
  });
  document.addEventListener("visibilitychange", hurry);
  addEventListener("online", hurry);
}

export function hurry(): void {
  if (document.visibilityState === "visible" && store.link.is === "lost") stream?.hurry();
}

export function end(): void {
  stream?.close();
  reading?.abort();
  stream = undefined;
}

onSignedOut(() => {
  if (store.session === null) return;
  store.hasExpired = store.session !== undefined;
  store.session = null;
  end();
  store.changed();
});
