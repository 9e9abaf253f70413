// Where a guest may run, and every reason against every host.
import { useMemo, useState } from "preact/hooks";
import { part } from "../api/request";
import { Empty, GuestLink, HostLink, Panel, State, Tag, Title } from "../components/basics";
import { ProblemBox, sentence } from "../components/problem";
import { several } from "../format";
import { link } from "../router";
import { matches } from "../store/filter";
import { matrixOf } from "../store/matrix";
import { useRead } from "../store/use";
import type { Explanation } from "../types";

/** Of more kinds of reasons a matrix is wider than a page: then the reasons are lists. */
const COLUMNS_MAX = 8;
const ROWS_MAX = 300;

export function Explain({ name }: { name: string }) {
  const { value, problem, again } = useRead<Explanation>(`/vms/${part(name)}/explanation`);
  const [search, setSearch] = useState("");
  const [which, setWhich] = useState<"all" | "yes" | "no">("all");
  const matrix = useMemo(() => value && matrixOf(value), [value]);
  const rows = (matrix?.rows ?? []).filter(
    ({ host }) =>
      (which === "all" || host.accepts === (which === "yes")) && matches(search, [host.host, ...host.objections]),
  );
  const accepting = value?.hosts.filter((host) => host.accepts).length ?? 0;
  return (
    <>
      <Title
        crumbs={[
          ["Guests", link("guests")],
          [name, link("guests", name)],
        ]}
        kind="Where may it run:"
      >
        <GuestLink name={name} />
      </Title>
      <ProblemBox of={problem} again={again} />
      {!value && !problem && <Empty>Asking …</Empty>}
      {value && matrix && (
        <>
          <p>
            {several(accepting, "host")} of {value.hosts.length} may have it.{" "}
            {value.on ? (
              <>
                It is on <HostLink name={value.on} />.
              </>
            ) : (
              "It is on no host."
            )}
          </p>
          {value.remedies.length > 0 && (
            <Panel title="What would help" note="the cheapest first">
              <ol class="numbered">
                {value.remedies.map((words) => (
                  <li key={words}>{sentence(words)}</li>
                ))}
              </ol>
            </Panel>
          )}
          <div class="filters" role="search">
            <input
              type="search"
              data-search
              placeholder="Search  /"
              aria-label="Search hosts and reasons"
              value={search}
              onInput={(event) => setSearch(event.currentTarget.value)}
            />
            <select
              aria-label="Which hosts"
              value={which}
              onChange={(event) => setWhich(event.currentTarget.value as "all" | "yes" | "no")}
            >
              <option value="all">all hosts</option>
              <option value="yes">may have it</option>
              <option value="no">may not</option>
            </select>
            <span class="dim num" role="status">
              {rows.length} of {value.hosts.length}
            </span>
          </div>
          <Panel title="Hosts and reasons">
            {rows.length === 0 ? (
              <Empty>No host is like that.</Empty>
            ) : (
              <MatrixTable
                kinds={matrix.kinds.length <= COLUMNS_MAX ? matrix.kinds : []}
                rows={rows.slice(0, ROWS_MAX)}
              />
            )}
            {rows.length > ROWS_MAX && <p class="dim">The first {ROWS_MAX} are shown: search for others.</p>}
          </Panel>
        </>
      )}
    </>
  );
}

function MatrixTable({ kinds, rows }: { kinds: string[]; rows: ReturnType<typeof matrixOf>["rows"] }) {
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Hosts and reasons">
      <table class="table matrix">
        <thead>
          <tr>
            <th scope="col">Host</th>
            <th scope="col">May have it</th>
            {kinds.map((kind) => (
              <th key={kind} scope="col" class="reason">
                {sentence(kind)}
              </th>
            ))}
            {kinds.length === 0 && <th scope="col">Reasons against it</th>}
          </tr>
        </thead>
        <tbody>
          {rows.map(({ host, isHere, reasons }) => (
            <tr key={host.host}>
              <th scope="row">
                <HostLink name={host.host} /> {isHere && <Tag>here</Tag>}
              </th>
              <td>{host.accepts ? <State name="yes" tone="good" /> : <State name="no" tone="bad" />}</td>
              {kinds.map((kind, index) => (
                <td key={kind}>
                  {reasons[index] ? (
                    <span class={host.accepts ? "against soft" : "against"}>
                      {reasons[index].map(sentence).join(" ")}
                    </span>
                  ) : (
                    <span class="dim" aria-label="nothing">
                      ·
                    </span>
                  )}
                </td>
              ))}
              {kinds.length === 0 && (
                <td>
                  {host.objections.length === 0 ? (
                    <span class="dim">none</span>
                  ) : (
                    <ul>
                      {host.objections.map((words) => (
                        <li key={words}>{sentence(words)}</li>
                      ))}
                    </ul>
                  )}
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
