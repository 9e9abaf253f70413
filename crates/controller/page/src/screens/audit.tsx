// Who asked for what, the newest first.
import { useEffect, useState } from "preact/hooks";
import { get } from "../api/request";
import { problemOf, type Problem } from "../api/problem";
import { RoleNote, useMay } from "../components/access";
import { Button, Empty, Panel, State, Title } from "../components/basics";
import { ProblemBox } from "../components/problem";
import { count, time } from "../format";
import { replace, withQuery } from "../router";
import { matches } from "../store/filter";
import type { AuditRecord, Page } from "../types";

const HOURS = [
  ["1", "the last hour"],
  ["24", "the last day"],
  ["168", "the last week"],
  ["", "all of it"],
] as const;
const PAGES_MAX = 40;
const SHOWN = 200;

export function Audit({ query }: { query: URLSearchParams }) {
  const may = useMay("admin");
  const [search, hours, which] = [query.get("q") ?? "", query.get("hours") ?? "24", query.get("which") ?? ""];
  const { items, problem, isReading, hasMore, again } = useAudit(may, hours);
  const [shown, setShown] = useState(SHOWN);
  const found = items.filter(
    (of) =>
      (which === "" || (which === "refused") === of.status >= 400) &&
      matches(search, [of.by, of.from, of.what, of.detail, String(of.status)]),
  );
  const set = (q: string, hours: string, which: string): void =>
    replace(`${withQuery(["audit"], { q, which })}${q || which ? "&" : "?"}hours=${hours}`);
  return (
    <>
      <Title
        actions={
          <Button disabled={isReading} onClick={again}>
            {isReading ? "Reading …" : "Read again"}
          </Button>
        }
      >
        Audit log
      </Title>
      <RoleNote needs="admin" to="see it" />
      {may && (
        <>
          <div class="filters" role="search">
            <input
              type="search"
              data-search
              placeholder="Search  /"
              aria-label="Search by who, address, what, answer"
              value={search}
              onInput={(event) => set(event.currentTarget.value, hours, which)}
            />
            <select
              aria-label="Since when"
              value={hours}
              onChange={(event) => set(search, event.currentTarget.value, which)}
            >
              {HOURS.map(([key, name]) => (
                <option key={key} value={key}>
                  {name}
                </option>
              ))}
            </select>
            <select
              aria-label="Which"
              value={which}
              onChange={(event) => set(search, hours, event.currentTarget.value)}
            >
              <option value="">done and refused</option>
              <option value="done">done</option>
              <option value="refused">refused</option>
            </select>
            <span class="dim num" role="status">
              {count(found.length)}
            </span>
          </div>
          <ProblemBox of={problem} again={again} />
          <Panel title="Changes and refused ones" note="the newest first">
            {found.length === 0 ? (
              <Empty>{isReading ? "Reading …" : "Nothing."}</Empty>
            ) : (
              <AuditTable of={found.slice(0, shown)} />
            )}
            {found.length > shown && (
              <div>
                <Button small onClick={() => setShown(shown + SHOWN)}>
                  More
                </Button>
              </div>
            )}
            {hasMore && <p class="dim">There are older ones: choose a shorter time, or ask GET /audit.</p>}
          </Panel>
        </>
      )}
    </>
  );
}

/** Reads the log from its newest record on, as far back as is wanted. */
function useAudit(may: boolean, hours: string) {
  const [items, setItems] = useState<AuditRecord[]>([]);
  const [problem, setProblem] = useState<Problem>();
  const [isReading, setReading] = useState(true);
  const [hasMore, setMore] = useState(false);
  const [times, setTimes] = useState(0);
  useEffect(() => {
    if (!may) return;
    const stop = new AbortController();
    const read = async (): Promise<void> => {
      setReading(true);
      const all: AuditRecord[] = [];
      const since = hours === "" ? 0 : Date.now() - Number(hours) * 3_600_000;
      let after: string | undefined;
      for (let page = 0; page < PAGES_MAX; page += 1) {
        const from: string = after === undefined ? "" : `&after=${encodeURIComponent(after)}`;
        const { items: more, next } = await get<Page<AuditRecord>>(`/audit?newest=true&limit=500${from}`, stop.signal);
        all.push(...more.filter((record) => record.at >= since));
        after = more.every((record) => record.at >= since) ? (next ?? undefined) : undefined;
        if (after === undefined) break;
      }
      setItems(all);
      setMore(after !== undefined);
      setProblem(undefined);
    };
    read()
      .catch((error: unknown) => {
        if (!stop.signal.aborted) setProblem(problemOf(error));
      })
      .finally(() => {
        if (!stop.signal.aborted) setReading(false);
      });
    return () => stop.abort();
  }, [may, hours, times]);
  return { items, problem, isReading, hasMore, again: () => setTimes(times + 1) };
}

function AuditTable({ of }: { of: readonly AuditRecord[] }) {
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Audit log">
      <table class="table tight stacks">
        <thead>
          <tr>
            <th scope="col">When</th>
            <th scope="col">Who</th>
            <th scope="col">From</th>
            <th scope="col">What</th>
            <th scope="col">Answer</th>
          </tr>
        </thead>
        <tbody>
          {of.map((record) => {
            const [method = "", path = "", ...body] = record.what.split(" ");
            return (
              <tr key={record.id}>
                <td class="num no-wrap">{time(record.at)}</td>
                <td class="name">{record.by}</td>
                <td class="mono" data-label="from">
                  {record.from}
                </td>
                <td class="what">
                  <b>{method}</b> <span class="mono">{path.replace(/^\/api\/v1/, "")}</span>
                  {body.length > 0 && <code class="dim"> {body.join(" ")}</code>}
                </td>
                <td>
                  <State name={String(record.status)} tone={record.status >= 400 ? "bad" : "good"} />
                  {record.detail && <div class="dim">{record.detail}</div>}
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}
