// An operation in a line: what, how far, how long still.
import { about, UNKNOWN } from "../format";
import { link } from "../router";
import type { Operation } from "../types";
import { isOver, operationStateNames, operationTitle } from "../words";
import { Meter, State } from "./basics";

export function OperationState({ of }: { of: Operation }) {
  const [name, tone] = operationStateNames[of.state];
  return <State name={name} tone={tone} title={of.message || undefined} />;
}

export function progressWords(of: Operation): string {
  const { moves = 0, moves_done = 0 } = of.progress;
  return moves > 0 ? `${moves_done} of ${moves}` : UNKNOWN;
}

export function OperationRow({ of }: { of: Operation }) {
  const left = of.progress.left_ms;
  return (
    <li class="operation-row">
      <a href={link("operations", of.id)}>{operationTitle(of.kind)}</a>
      <OperationState of={of} />
      {(of.progress.moves ?? 0) > 0 && (
        <Meter
          label="Moves done"
          value={of.progress.moves_done}
          of={of.progress.moves}
          text={progressWords(of)}
          tone="busy"
        />
      )}
      <span class="dim num">{left != null && !isOver(of.state) ? `about ${about(left)} left` : ""}</span>
    </li>
  );
}
