// An operation as one thing: what it does, in which order, how far it is, what stays and why.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ask, part } from "../api/request";
import { Problem, problemOf } from "../api/problem";
import { Empty, Facts, HostLink, Panel, Title } from "../components/basics";
import { RoleButton, RoleNote } from "../components/access";
import { AskDialog } from "../components/dialog";
import { OperationState, progressWords } from "../components/operation_row";
import { Plan } from "../components/plan";
import { ProblemBox, sentence } from "../components/problem";
import { UpdateTable } from "../components/update_table";
import { about, duration, time, UNKNOWN, until } from "../format";
import { link } from "../router";
import { readOperation } from "../store/follow";
import { store } from "../store/store";
import { useNow, useRepeated, useStore } from "../store/use";
import type { Operation } from "../types";
import { isOver, operationTitle } from "../words";

/** How far copies are is in no event. */
const READ_MS = 1500;

export function OperationPage({ id }: { id: string }) {
  const of = useStore(() => store.tables.operations.get(id));
  const [problem, setProblem] = useState<Problem>();
  const [isAsking, setAsking] = useState(false);
  useEffect(() => {
    const stop = new AbortController();
    readOperation(id, stop.signal).catch((error: unknown) => {
      if (!stop.signal.aborted) setProblem(problemOf(error));
    });
    return () => stop.abort();
  }, [id]);
  useRepeated((signal) => readOperation(id, signal), READ_MS, [id], of !== undefined && !isOver(of.state));
  const crumbs: [string, string][] = [["Operations", link("operations")]];
  if (!of) {
    return (
      <>
        <Title crumbs={crumbs}>Operation {id}</Title>
        {problem ? <ProblemBox of={problem} /> : <Empty>Reading …</Empty>}
      </>
    );
  }
  const over = isOver(of.state);
  return (
    <>
      <Title
        crumbs={crumbs}
        state={
          <>
            <OperationState of={of} /> <span class="dim">{states(of)}</span>
          </>
        }
        actions={
          !over && (
            <RoleButton
              needs="operator"
              look="danger"
              onClick={() => setAsking(true)}
              why={of.state === "cancelling" && "It is being called off."}
            >
              Call off …
            </RoleButton>
          )
        }
      >
        {operationTitle(of.kind)}
      </Title>
      {!over && <RoleNote needs="operator" to="call it off" />}
      {of.message && (
        <div class={`callout ${of.state === "failed" ? "bad" : "plain"}`} role="status">
          {sentence(of.message)}
        </div>
      )}
      <Progress of={of} />
      {of.update && (
        <Panel title="Hosts">
          <UpdateTable of={of.update} />
        </Panel>
      )}
      <Details of={of} />
      {!of.update && of.kind.kind !== "fence" && of.kind.kind !== "wake" && (
        <Panel title={of.kind.kind === "stop" || of.kind.kind === "delete" ? "Guest" : "Moves, in their order"}>
          <Plan of={of} />
        </Panel>
      )}
      {isAsking && (
        <AskDialog
          title={`Call off: ${operationTitle(of.kind)}`}
          verb="Call it off"
          danger
          close={() => setAsking(false)}
          work={async (once) => {
            const { value } = await ask<Operation>("POST", `/operations/${part(id)}/cancel`, { once });
            store.tables.merge("operations", [value], store.tables.mark());
            store.notify("It is being called off");
          }}
        >
          <p>
            What was not begun is not begun any more. What is under way is called off where it still can be; guests go
            on where they are.
          </p>
        </AskDialog>
      )}
    </>
  );
}

function states(of: Operation): string {
  const ended = of.ended != null ? `, took ${duration(of.ended - of.created)}` : "";
  return `by ${of.by}, ${time(of.created)}${ended}${of.cancelled ? ", called off by somebody" : ""}`;
}

function Progress({ of }: { of: Operation }) {
  const now = useNow(1000);
  const { moves = 0, moves_done = 0, moves_running = 0, left_ms, forecast_ms } = of.progress;
  const stays = of.moves.filter((move) => move.state === "left" || move.state === "failed").length;
  if (moves === 0 && of.moves.length === 0) return null;
  const over = isOver(of.state);
  const figures: [string, string, string?][] = [
    ["Done", progressWords(of), "moves"],
    ["Under way", String(moves_running), "at this moment"],
    ["Stay or failed", String(stays), stays > 0 ? "see below why" : undefined],
    ["Elapsed", duration((of.ended ?? now) - of.created)],
    ["Left", over ? "0 s" : left_ms == null ? UNKNOWN : `about ${about(left_ms)}`],
    ["Forecast", forecast_ms == null ? UNKNOWN : about(forecast_ms), "when it was planned"],
  ];
  const share = moves > 0 ? moves_done / moves : undefined;
  return (
    <>
      <div class="how-far slim">
        <div
          class="track"
          role="progressbar"
          aria-label="Moves done"
          aria-valuemin={0}
          aria-valuemax={moves}
          aria-valuenow={moves_done}
        >
          <i
            class={over ? (of.state === "done" ? "good" : "bad") : "busy"}
            style={{ transform: `scaleX(${(share ?? 0).toFixed(3)})` }}
          />
        </div>
      </div>
      <dl class="totals">
        {figures.map(([name, value, note]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
            <dd class="sub">{note ?? " "}</dd>
          </div>
        ))}
      </dl>
    </>
  );
}

const STAGES = {
  emptying: "its device is tried, and its guests leave",
  stopping: "it is shut down",
  waking: "it is switched on, and its agent is waited for",
};

function Details({ of }: { of: Operation }) {
  const now = useNow(5000);
  const { kind, fencing, power } = of;
  const facts: [string, ComponentChildren][] = [
    ["Host", "host" in kind && <HostLink name={kind.host} />],
    [
      "Deadline",
      kind.kind === "drain" && kind.deadline != null && `${time(kind.deadline)}, ${until(kind.deadline, now)}`,
    ],
    [
      "Follows",
      kind.kind === "drain" && kind.follows && <a href={link("operations", kind.follows)}>the drain before</a>,
    ],
    ["Drain", kind.kind === "resume" && <a href={link("operations", kind.drain)}>whose guests come home</a>],
    ["Power-offs ordered", fencing && String(fencing.attempts ?? 0)],
    ["Next attempt", fencing?.not_before != null && fencing.not_before > now && until(fencing.not_before, now)],
    ["Then", fencing?.failover && <a href={link("operations", fencing.failover)}>its guests start elsewhere</a>],
    ["Stage", power && STAGES[power.stage ?? "emptying"]],
    ["Has to be so", power?.until != null && until(power.until, now)],
    ["Its drain", power?.drain && <a href={link("operations", power.drain)}>{power.drain}</a>],
    [
      "Why this host",
      power?.reasons && power.reasons.length > 0 && (
        <ul>
          {power.reasons.map((words) => (
            <li key={words}>{sentence(words)}</li>
          ))}
        </ul>
      ),
    ],
  ];
  if (!facts.some(([name, value]) => name !== "Host" && value)) return null;
  return (
    <Panel title="Details">
      <Facts of={facts.filter(([, value]) => Boolean(value))} />
    </Panel>
  );
}
