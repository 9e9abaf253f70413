// What would be moved to have less broken and load better spread; all of it or some can be taken.
import { useState } from "preact/hooks";
import { ask, part } from "../api/request";
import { problemOf, type Problem } from "../api/problem";
import { Button, Empty, Facts, GuestLink, HostLink, Panel, State, Title } from "../components/basics";
import { RoleButton, RoleNote } from "../components/access";
import { useWork } from "../components/dialog";
import { SelectField } from "../components/field";
import { ProblemBox, sentence } from "../components/problem";
import { about, duration, several, UNKNOWN } from "../format";
import { go, link } from "../router";
import { readReason } from "../store/reason";
import { store } from "../store/store";
import { useComputed, useRead } from "../store/use";
import type { ClusterSettings, Operation } from "../types";
import { OperationTable } from "./operations";

const LEVELS = [
  ["", "as is set"],
  ["1", "1: only what is broken"],
  ["2", "2"],
  ["3", "3"],
  ["4", "4"],
  ["5", "5: as much as pays"],
] as const;

export function Optimize() {
  const [level, setLevel] = useState<(typeof LEVELS)[number][0]>("");
  const [plan, setPlan] = useState<Operation>();
  const [picked, setPicked] = useState<ReadonlySet<string>>(new Set());
  const [isReading, setReading] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const body = level === "" ? {} : { aggressiveness: Number(level) };
  const look = async (): Promise<void> => {
    setReading(true);
    setProblem(undefined);
    try {
      const { value } = await ask<Operation>("POST", "/optimize", { body: { ...body, apply: false } });
      setPlan(value);
      setPicked(new Set(movesOf(value).map((move) => move.vm)));
    } catch (error) {
      setPlan(undefined);
      setProblem(problemOf(error));
    }
    setReading(false);
  };
  return (
    <>
      <Title>Optimise</Title>
      <RoleNote needs="operator" to="make the moves" />
      <Panel title="What would be moved" note="a look changes nothing">
        <div class="ask-line">
          <SelectField
            label="How much"
            value={level}
            options={LEVELS}
            set={(next) => {
              setLevel(next);
              setPlan(undefined);
            }}
          />
          <Button look={plan ? undefined : "main"} disabled={isReading} onClick={() => void look()}>
            {isReading ? "Asking …" : plan ? "Look again" : "Look"}
          </Button>
        </div>
        <ProblemBox of={problem} />
        {plan && (
          <Proposal plan={plan} picked={picked} setPicked={setPicked} body={body} done={() => setPlan(undefined)} />
        )}
      </Panel>
      <Automatic />
    </>
  );
}

function movesOf(plan: Operation): Operation["moves"] {
  return plan.moves.filter((move) => move.to && move.state !== "left");
}

function Proposal({
  plan,
  picked,
  setPicked,
  body,
  done,
}: {
  plan: Operation;
  picked: ReadonlySet<string>;
  setPicked: (picked: ReadonlySet<string>) => void;
  body: object;
  done: () => void;
}) {
  const { isBusy, problem, run } = useWork();
  const moves = movesOf(plan);
  if (moves.length === 0) return <Empty>Nothing would be moved: it is as good as can be had at this price.</Empty>;
  const chosen = moves.filter((move) => picked.has(move.vm));
  const is_all = chosen.length === moves.length;
  const pick = (vm: string, isPicked: boolean): void => {
    const next = new Set(picked);
    if (isPicked) next.add(vm);
    else next.delete(vm);
    setPicked(next);
  };
  const apply = (): void =>
    void run(async (once) => {
      if (is_all) {
        const { value } = await ask<Operation>("POST", "/optimize", { body: { ...body, apply: true }, once });
        go(link("operations", value.id));
      } else {
        // The controller applies a round as a whole, so that some of it are moves of their own, in the round's order.
        for (const [index, move] of chosen.entries()) {
          await ask("POST", `/vms/${part(move.vm)}/migrate`, { body: { to: move.to }, once: `${once}.${index}` });
        }
        store.notify(`Begun: ${several(chosen.length, "move")}`, "good", link("operations"));
        done();
      }
    });
  return (
    <>
      <div class="scroll" tabIndex={0} role="group" aria-label="Moves that would be made">
        <table class="table stacks">
          <thead>
            <tr>
              <th scope="col">
                <input
                  type="checkbox"
                  aria-label="All moves"
                  checked={is_all}
                  onChange={() => setPicked(new Set(is_all ? [] : moves.map((move) => move.vm)))}
                />
              </th>
              <th scope="col">Guest</th>
              <th scope="col">From</th>
              <th scope="col">To</th>
              <th scope="col">Why</th>
              <th scope="col">Costs</th>
              <th scope="col">Saves</th>
              <th scope="col" class="number">
                Takes
              </th>
            </tr>
          </thead>
          <tbody>
            {moves.map((move) => {
              const { why, costs, saves } = readReason(move.reason);
              const waits = (move.waits ?? []).map((index) => plan.moves[index]?.vm).filter(Boolean);
              const lacking = waits.filter((vm) => vm && !picked.has(vm));
              return (
                <tr key={move.vm}>
                  <td>
                    <input
                      type="checkbox"
                      aria-label={`Move ${move.vm}`}
                      checked={picked.has(move.vm)}
                      onChange={(event) => pick(move.vm, event.currentTarget.checked)}
                    />
                  </td>
                  <td>
                    <GuestLink name={move.vm} />
                  </td>
                  <td data-label="from">
                    <HostLink name={move.from} />
                  </td>
                  <td data-label="to">
                    <HostLink name={move.to} />
                  </td>
                  <td>
                    {sentence(why)}
                    {waits.length > 0 && <div class="dim">After {waits.join(", ")}.</div>}
                    {lacking.length > 0 && picked.has(move.vm) && (
                      <State name={`needs ${lacking.join(", ")}, which is not picked`} tone="warn" />
                    )}
                  </td>
                  <td data-label="costs">{costs ?? UNKNOWN}</td>
                  <td data-label="saves">{saves ?? UNKNOWN}</td>
                  <td class="number num" data-label="takes">
                    {about(move.forecast_ms)}
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      <ProblemBox of={problem} />
      <div class="buttons">
        <span class="dim grow">
          {several(chosen.length, "move")} of {moves.length}
          {plan.progress.forecast_ms != null && is_all ? `, about ${about(plan.progress.forecast_ms)} in all` : ""}
          {is_all ? ". The controller plans once more when it begins." : ". Each becomes an operation of its own."}
        </span>
        <RoleButton
          needs="operator"
          look="main"
          onClick={apply}
          why={isBusy ? "It is being asked for." : chosen.length === 0 ? "No move is picked." : undefined}
        >
          {isBusy ? "Asking …" : is_all ? "Make all moves" : `Make ${several(chosen.length, "move")}`}
        </RoleButton>
      </div>
    </>
  );
}

function Automatic() {
  const { value, problem } = useRead<ClusterSettings>("/settings");
  const past = useComputed(
    ["operations"],
    () =>
      [...store.tables.operations.values()]
        .filter((of) => of.kind.kind === "optimize")
        .sort((a, b) => b.created - a.created)
        .slice(0, 20),
    [],
  );
  const of = value?.optimize;
  return (
    <Panel title="By itself" note={<a href={link("settings")}>settings</a>}>
      <ProblemBox of={problem} />
      {of && (
        <Facts
          of={[
            ["It is", of.automatic ? <State name="on" tone="good" /> : <State name="off" tone="plain" />],
            ["A round each", duration((of.interval_s ?? 600) * 1000)],
            ["How much", `${of.aggressiveness} of 5, ${of.round_moves_max} moves a round at most`],
            [
              "Of one guest",
              `${of.vm_moves_max} moves a day, none within ${duration((of.cooldown_s ?? 0) * 1000)} of the last`,
            ],
          ]}
        />
      )}
      <h3 class="gap">What it did, and why</h3>
      {past.length === 0 ? <Empty>It has done nothing of late.</Empty> : <OperationTable of={past} />}
    </Panel>
  );
}
