// The migrations: those that are under way, and those that ended of late.
import { useMemo, useState } from "preact/hooks";
import { getAll } from "../api/request";
import { Button, Empty, Panel, Title } from "../components/basics";
import { MigrationTable } from "../components/migration_rows";
import { ProblemBox } from "../components/problem";
import { count } from "../format";
import { go, link, replace, withQuery } from "../router";
import { matches } from "../store/filter";
import { useRead } from "../store/use";
import type { MigrationView } from "../types";

/** How many rows are drawn at most: agents keep few, but there may be many agents. */
const SHOWN_MAX = 200;

export function Migrations({ query }: { query: URLSearchParams }) {
  const search = query.get("q") ?? "";
  const state = query.get("state") ?? "";
  const [picked, setPicked] = useState<string[]>([]);
  const { value, problem, again } = useRead("/migrations?limit=500", 2500, getAll<MigrationView>);
  const found = useMemo(
    () =>
      (value ?? [])
        .filter((of) => state === "" || (state === "running" ? !of.outcome : of.outcome === state))
        .filter((of) => matches(search, [of.vm, of.source, of.target, of.id, of.detail]))
        .sort((a, b) => Number(!!a.outcome) - Number(!!b.outcome) || b.begun.localeCompare(a.begun)),
    [value, search, state],
  );
  const set = (q: string, next: string): void => replace(withQuery(["migrations"], { q, state: next }));
  const pick = (id: string): void =>
    setPicked(picked.includes(id) ? picked.filter((of) => of !== id) : [...picked.slice(-1), id]);
  const [first, second] = picked;
  return (
    <>
      <Title
        actions={
          <Button
            disabled={!first || !second}
            title="Pick two of the list"
            onClick={() => first && second && go(link("migrations", first, second))}
          >
            Compare two
          </Button>
        }
      >
        Migrations
      </Title>
      <div class="filters" role="search">
        <input
          type="search"
          data-search
          placeholder="Search  /"
          aria-label="Search migrations by guest, host, id"
          value={search}
          onInput={(event) => set(event.currentTarget.value, state)}
        />
        <select
          aria-label="State of migrations"
          value={state}
          onChange={(event) => set(search, event.currentTarget.value)}
        >
          <option value="">any state</option>
          <option value="running">under way</option>
          <option value="moved">moved</option>
          <option value="kept">called off</option>
          <option value="ended">the guest ended</option>
        </select>
        <span class="dim num" role="status">
          {count(found.length)}
        </span>
      </div>
      <ProblemBox of={problem} again={again} />
      <Panel title="Migrations" note="those of late as far as agents keep them">
        {found.length > 0 ? (
          <MigrationTable of={found.slice(0, SHOWN_MAX)} picked={picked} pick={pick} />
        ) : (
          <Empty>{value ? "There is no such migration." : "Reading …"}</Empty>
        )}
        {found.length > SHOWN_MAX && <p class="dim">The newest {SHOWN_MAX} are shown: search for others.</p>}
      </Panel>
    </>
  );
}
