// All operations, the newest first.
import { useState } from "preact/hooks";
import { problemOf, type Problem } from "../api/problem";
import { Button, Empty, Panel, Title } from "../components/basics";
import { OperationState, progressWords } from "../components/operation_row";
import { ProblemBox } from "../components/problem";
import { about, count, duration, time, UNKNOWN } from "../format";
import { link, replace, withQuery } from "../router";
import { matches } from "../store/filter";
import { readOlderOperations } from "../store/follow";
import { store } from "../store/store";
import { useComputed, useStore } from "../store/use";
import type { Operation, OperationKind } from "../types";
import { isOver, operationTitle } from "../words";

const KINDS: readonly [OperationKind["kind"] | "", string][] = [
  ["", "any kind"],
  ["migrate", "moves"],
  ["drain", "drains"],
  ["resume", "homecomings"],
  ["optimize", "optimisation"],
  ["update", "updates"],
  ["failover", "failovers"],
  ["fence", "fencing"],
  ["start", "starts"],
  ["stop", "stops"],
  ["delete", "deletions"],
  ["autostart", "autostarts"],
  ["sleep", "to sleep"],
  ["wake", "awake"],
];

export function Operations({ query }: { query: URLSearchParams }) {
  const [search, kind, state] = ["q", "kind", "state"].map((name) => query.get(name) ?? "") as [string, string, string];
  const [problem, setProblem] = useState<Problem>();
  const [isEnd, setEnd] = useState(false);
  const isLoaded = useStore(() => store.isLoaded);
  const items = useComputed(
    ["operations"],
    () =>
      [...store.tables.operations.values()]
        .filter((of) => kind === "" || of.kind.kind === kind)
        .filter((of) => state === "" || (state === "running" ? !isOver(of.state) : of.state === state))
        .filter((of) =>
          matches(search, [operationTitle(of.kind), of.by, of.id, of.message, ...of.moves.map((one) => one.vm)]),
        )
        .sort((a, b) => b.created - a.created),
    [search, kind, state],
  );
  const set = (q: string, kind: string, state: string): void => replace(withQuery(["operations"], { q, kind, state }));
  const older = async (): Promise<void> => {
    try {
      setEnd(!(await readOlderOperations()));
      setProblem(undefined);
    } catch (error) {
      setProblem(problemOf(error));
    }
  };
  return (
    <>
      <Title
        actions={
          <a class="button" href="#/update">
            Update hosts …
          </a>
        }
      >
        Operations
      </Title>
      <div class="filters" role="search">
        <input
          type="search"
          data-search
          placeholder="Search  /"
          aria-label="Search operations by guest, host, who asked"
          value={search}
          onInput={(event) => set(event.currentTarget.value, kind, state)}
        />
        <select aria-label="Kind" value={kind} onChange={(event) => set(search, event.currentTarget.value, state)}>
          {KINDS.map(([key, name]) => (
            <option key={key} value={key}>
              {name}
            </option>
          ))}
        </select>
        <select aria-label="State" value={state} onChange={(event) => set(search, kind, event.currentTarget.value)}>
          <option value="">any state</option>
          <option value="running">under way</option>
          <option value="done">done</option>
          <option value="failed">failed</option>
          <option value="cancelled">called off</option>
        </select>
        <span class="dim num" role="status">
          {count(items.length)}
        </span>
      </div>
      <Panel title="Operations" note="the newest first">
        {items.length === 0 ? (
          <Empty>{isLoaded ? "There is no such operation." : "Reading …"}</Empty>
        ) : (
          <OperationTable of={items.slice(0, 300)} />
        )}
        <ProblemBox of={problem} />
        <div>
          {isEnd ? (
            <span class="dim">That is all.</span>
          ) : (
            <Button small onClick={() => void older()}>
              Older ones
            </Button>
          )}
        </div>
      </Panel>
    </>
  );
}

export function OperationTable({ of }: { of: readonly Operation[] }) {
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Operations">
      <table class="table stacks">
        <thead>
          <tr>
            <th scope="col">Asked for</th>
            <th scope="col">What</th>
            <th scope="col">State</th>
            <th scope="col" class="number">
              Moves
            </th>
            <th scope="col" class="number">
              Left or took
            </th>
            <th scope="col">By</th>
          </tr>
        </thead>
        <tbody>
          {of.map((one) => (
            <tr key={one.id}>
              <td class="num no-wrap">{time(one.created)}</td>
              <td>
                <a href={link("operations", one.id)}>{operationTitle(one.kind)}</a>
                {one.message && one.state === "failed" && <div class="dim">{one.message}</div>}
              </td>
              <td>
                <OperationState of={one} />
              </td>
              <td class="number num" data-label="moves">
                {progressWords(one)}
              </td>
              <td class="number num" data-label={one.ended != null ? "took" : "left"}>
                {one.ended != null
                  ? duration(one.ended - one.created)
                  : one.progress.left_ms != null
                    ? `about ${about(one.progress.left_ms)}`
                    : UNKNOWN}
              </td>
              <td class="name" data-label="by">
                {one.by}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
