// The hosts as a list, with a search and a filter by state.
import { useState } from "preact/hooks";
import { matches } from "../store/filter";
import { healthOf } from "../store/summary";
import { store } from "../store/store";
import { useComputed, useStore } from "../store/use";
import { count } from "../format";
import { link } from "../router";
import type { Host } from "../types";
import { List, sorted, type Sort } from "./list";
import { hostColumns } from "./host_columns";

export const HOST_STATES: readonly [string, string][] = [
  ["", "any state"],
  ["online", "online"],
  ["attention", "to be looked at"],
  ["draining", "draining"],
  ["maintenance", "in maintenance"],
  ["lost", "lost"],
  ["off", "off"],
  ["asleep", "asleep"],
  ["joined", "joined"],
];

function hasState(of: Host, state: string): boolean {
  if (state === "") return true;
  if (state === "attention") return ["warn", "bad"].includes(healthOf(of).tone);
  return of.contact === state || of.mode === state;
}

export function HostTable({
  tall,
  search: first = "",
  state: firstState = "",
  changed,
}: {
  tall?: boolean;
  search?: string;
  state?: string;
  changed?: (search: string, state: string) => void;
}) {
  const [search, setSearch] = useState(first);
  const [state, setState] = useState(firstState);
  const [sort, setSort] = useState<Sort>({ column: "Host", isDown: false });
  const isLoaded = useStore(() => store.isLoaded);
  const all = useStore(() => store.tables.hosts.size);
  const items = useComputed(
    ["hosts"],
    () => {
      const found = [...store.tables.hosts.values()].filter(
        (of) => hasState(of, state) && matches(search, hostWords(of)),
      );
      return sorted(found, hostColumns, sort);
    },
    [search, state, sort],
  );
  const set = (nextSearch: string, nextState: string): void => {
    setSearch(nextSearch);
    setState(nextState);
    changed?.(nextSearch, nextState);
  };
  return (
    <>
      <div class="filters" role="search">
        <input
          type="search"
          data-search
          placeholder="Search  /"
          aria-label="Search hosts by name, group, note, address"
          value={search}
          onInput={(event) => set(event.currentTarget.value, state)}
        />
        <select aria-label="State of hosts" value={state} onChange={(event) => set(search, event.currentTarget.value)}>
          {HOST_STATES.map(([key, name]) => (
            <option key={key} value={key}>
              {name}
            </option>
          ))}
        </select>
        <span class="dim num" role="status">
          {count(items.length)} of {count(all)}
        </span>
      </div>
      <List
        label="Hosts"
        items={items}
        columns={hostColumns}
        keyOf={(of) => of.name}
        tall={tall ?? false}
        href={(of) => link("hosts", of.name)}
        sort={sort}
        setSort={setSort}
        empty={
          all > 0
            ? "No host is like that."
            : isLoaded
              ? "No host has joined yet: see Access for a ticket."
              : "Reading hosts …"
        }
      />
    </>
  );
}

function hostWords(of: Host): string[] {
  const properties = Object.entries(of.settings.properties ?? {}).map(([key, value]) => `${key}=${value}`);
  return [of.name, of.settings.group ?? "", of.note, ...of.addresses, ...properties];
}
