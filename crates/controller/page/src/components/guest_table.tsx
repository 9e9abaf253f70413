// Guests as a list, with a search and filters. The loads of those that are seen are read again now and then.
import { useRef, useState } from "preact/hooks";
import { count } from "../format";
import { link } from "../router";
import { matches } from "../store/filter";
import { readVm, readVms } from "../store/follow";
import { store } from "../store/store";
import { useComputed, useRepeated, useStore } from "../store/use";
import type { Vm } from "../types";
import { guestColumns } from "./guest_columns";
import { List, sorted, type Sort } from "./list";

export const GUEST_STATES: readonly [string, string][] = [
  ["", "any state"],
  ["running", "running"],
  ["moving", "moving"],
  ["stopped", "off"],
  ["paused", "paused"],
  ["starting", "starting"],
  ["handover", "handover"],
  ["in-doubt", "in doubt"],
  ["unresponsive", "unresponsive"],
  ["lost", "lost"],
  ["failed", "failed"],
];

/** How often loads are read again. */
const LOADS_MS = 6000;
/** Up to how many guests all are read again; of more, those that are seen. */
const ALL_MAX = 500;
/** How many are asked for one by one at most. */
const ONE_BY_ONE_MAX = 24;

export interface GuestFilter {
  q: string;
  state: string;
  host: string;
  tag: string;
}

function fits(of: Vm, filter: GuestFilter): boolean {
  if (filter.state === "moving" ? !of.migration : filter.state !== "" && of.state !== filter.state) return false;
  if (filter.host !== "" && of.host !== filter.host) return false;
  if (filter.tag !== "" && !(of.settings.tags ?? []).includes(filter.tag)) return false;
  if (filter.q === "") return true;
  const settings = of.settings;
  const properties = Object.entries(settings.properties ?? {}).map(([key, value]) => `${key}=${value}`);
  return matches(filter.q, [
    of.name,
    of.host ?? "",
    of.note,
    settings.tenant ?? "",
    settings.availability_set ?? "",
    ...(settings.tags ?? []),
    ...properties,
  ]);
}

export function GuestTable({
  filter: first,
  changed,
  tall,
  fixedHost,
}: {
  filter?: Partial<GuestFilter>;
  changed?: (filter: GuestFilter) => void;
  tall?: boolean;
  fixedHost?: string;
}) {
  const [filter, setFilter] = useState<GuestFilter>({
    q: "",
    state: "",
    host: "",
    tag: "",
    ...first,
    ...(fixedHost === undefined ? {} : { host: fixedHost }),
  });
  const [sort, setSort] = useState<Sort>({ column: "Guest", isDown: false });
  const seen = useRef<readonly Vm[]>([]);
  const all = useStore(() => store.tables.vms.size);
  const isLoaded = useStore(() => store.isLoaded);
  const hosts = useComputed(["hosts"], () => [...store.tables.hosts.keys()].sort(), [], 5000);
  const tags = useComputed(
    ["vms"],
    () => [...new Set([...store.tables.vms.values()].flatMap((of) => of.settings.tags ?? []))].sort(),
    [],
    5000,
  );
  const items = useComputed(
    ["vms"],
    () => {
      const found = [...store.tables.vms.values()].filter((of) => fits(of, filter));
      return sorted(found, guestColumns, sort);
    },
    [filter, sort],
    all > 2000 ? 1000 : 300,
  );
  useRepeated((signal) => readLoads(seen.current, all, fixedHost, signal), LOADS_MS, [fixedHost, all > ALL_MAX]);
  const set = (more: Partial<GuestFilter>): void => {
    const next = { ...filter, ...more };
    setFilter(next);
    changed?.(next);
  };
  const columns = fixedHost === undefined ? guestColumns : guestColumns.filter((column) => column.name !== "Host");
  return (
    <>
      <div class="filters" role="search">
        <input
          type="search"
          data-search
          placeholder="Search  /"
          value={filter.q}
          aria-label="Search guests by name, host, tag, property, tenant, note"
          onInput={(event) => set({ q: event.currentTarget.value })}
        />
        <select
          aria-label="State of guests"
          value={filter.state}
          onChange={(event) => set({ state: event.currentTarget.value })}
        >
          {GUEST_STATES.map(([key, name]) => (
            <option key={key} value={key}>
              {name}
            </option>
          ))}
        </select>
        {fixedHost === undefined && (
          <Choice label="Host" any="any host" value={filter.host} of={hosts} set={(host) => set({ host })} />
        )}
        {tags.length > 0 && (
          <Choice label="Tag" any="any tag" value={filter.tag} of={tags} set={(tag) => set({ tag })} />
        )}
        <span class="dim num" role="status">
          {count(items.length)}
          {fixedHost === undefined && ` of ${count(all)}`}
        </span>
      </div>
      <List
        label="Guests"
        items={items}
        columns={columns}
        keyOf={(of) => of.name}
        tall={tall ?? false}
        href={(of) => link("guests", of.name)}
        sort={sort}
        setSort={setSort}
        seen={(rows) => {
          seen.current = rows;
        }}
        empty={
          fixedHost !== undefined
            ? "No guest is on this host."
            : all > 0
              ? "No guest is like that."
              : isLoaded
                ? "There is no guest yet."
                : "Reading guests …"
        }
      />
    </>
  );
}

function Choice({
  label,
  any,
  value,
  of,
  set,
}: {
  label: string;
  any: string;
  value: string;
  of: readonly string[];
  set: (value: string) => void;
}) {
  // What is chosen stays in the choice, also when nothing is like that any more.
  const all = value === "" || of.includes(value) ? of : [value, ...of];
  return (
    <select aria-label={label} value={value} onChange={(event) => set(event.currentTarget.value)}>
      <option value="">{any}</option>
      {all.map((name) => (
        <option key={name} value={name}>
          {name}
        </option>
      ))}
    </select>
  );
}

async function readLoads(
  rows: readonly Vm[],
  all: number,
  host: string | undefined,
  signal: AbortSignal,
): Promise<void> {
  if (host !== undefined) return readVms(`&host=${encodeURIComponent(host)}`, signal);
  if (all <= ALL_MAX) return readVms("", signal);
  const first = rows[0];
  if (!first) return;
  // Rows that are neighbours by name are one part of the list; others have to be asked for one by one.
  const names = rows.map((row) => row.name).sort();
  const between = [...store.tables.vms.keys()].filter((name) => name >= names[0]! && name <= names.at(-1)!);
  if (between.length <= ALL_MAX) {
    const before = names[0]!.slice(0, -1);
    const from = [...store.tables.vms.keys()]
      .filter((name) => name < names[0]! && name >= before)
      .sort()
      .at(-1);
    return readVms(`&after=${encodeURIComponent(from ?? before)}`.replace("&after=&", "&"), signal);
  }
  for (const row of rows.slice(0, ONE_BY_ONE_MAX)) await readVm(row.name, signal);
}
