// The moves of an operation, or of one that is only shown: in which order, where to, why, how far.
import { about, bitsPerS, clockTime, duration, UNKNOWN, until } from "../format";
import { link } from "../router";
import { useNow } from "../store/use";
import type { Move, Operation } from "../types";
import { moveStateNames } from "../words";
import { Empty, GuestLink, HostLink, State } from "./basics";
import { ofCopy } from "../migration/progress";
import { sentence } from "./problem";

export interface Picking {
  picked: ReadonlySet<string>;
  pick: (vm: string, isPicked: boolean) => void;
}

export function Plan({ of, picking }: { of: Operation; picking?: Picking | undefined }) {
  const going = of.moves.filter((move) => move.state !== "left");
  const staying = of.moves.filter((move) => move.state === "left");
  const isShown = of.id === "not-begun";
  return (
    <>
      {of.moves.length === 0 && <Empty>{isShown ? "There is nothing to move." : "No moves are planned yet."}</Empty>}
      {going.length > 0 && <MoveTable moves={going} all={of.moves} isShown={isShown} picking={picking} />}
      {staying.length > 0 && (
        <>
          <h3>{isShown ? "Cannot move" : "Stay"}</h3>
          <ul class="stays">
            {staying.map((move) => (
              <li key={move.vm}>
                <GuestLink name={move.vm} /> <span class="dim">on</span>{" "}
                {move.from ? <HostLink name={move.from} /> : UNKNOWN}
                <p>{sentence(move.detail || move.reason)}</p>
              </li>
            ))}
          </ul>
        </>
      )}
    </>
  );
}

function MoveTable({
  moves,
  all,
  isShown,
  picking,
}: {
  moves: readonly Move[];
  all: readonly Move[];
  isShown: boolean;
  picking: Picking | undefined;
}) {
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Moves, in their order">
      <table class="table plan stacks">
        <thead>
          <tr>
            {picking && (
              <th scope="col">
                <span class="visually-hidden">Take</span>
              </th>
            )}
            <th scope="col" class="number">
              No.
            </th>
            <th scope="col">Guest</th>
            <th scope="col">From</th>
            <th scope="col">To</th>
            {!isShown && <th scope="col">State</th>}
            <th scope="col" class="number">
              {isShown ? "Forecast" : "Took"}
            </th>
            <th scope="col">Why</th>
          </tr>
        </thead>
        <tbody>
          {moves.map((move) => (
            <tr key={move.vm}>
              {picking && (
                <td>
                  <input
                    type="checkbox"
                    aria-label={`Move ${move.vm}`}
                    checked={picking.picked.has(move.vm)}
                    onChange={(event) => picking.pick(move.vm, event.currentTarget.checked)}
                  />
                </td>
              )}
              <td class="number num" data-label="no.">
                {all.indexOf(move) + 1}
              </td>
              <td>
                <GuestLink name={move.vm} />
                {move.off && <span class="dim"> off</span>}
              </td>
              <td data-label="from">
                {move.from ? <HostLink name={move.from} /> : <span class="dim">no host</span>}
              </td>
              <td data-label="to">
                <HostLink name={move.to} />
              </td>
              {!isShown && (
                <td>
                  <MoveState of={move} />
                </td>
              )}
              <td class="number num" data-label={isShown ? "forecast" : "took"}>
                {isShown ? about(move.forecast_ms) : tookWords(move)}
              </td>
              <td class="why">
                <MoveWhy of={move} all={all} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function tookWords(of: Move): string {
  if (of.begun == null || of.ended == null) return of.forecast_ms != null ? `about ${about(of.forecast_ms)}` : UNKNOWN;
  return duration(of.ended - of.begun);
}

function MoveState({ of }: { of: Move }) {
  const [name, tone] = moveStateNames[of.state];
  const { share } = of.state === "begun" ? ofCopy(of.copy) : { share: undefined };
  const words = share === undefined ? name : `pass ${of.copy?.round}: ${Math.round(share * 100)} %`;
  const state = (
    <State
      name={words}
      tone={tone}
      title={of.copy ? `${bitsPerS(of.copy.bits_per_s)}` : of.begun ? `begun at ${clockTime(of.begun)}` : undefined}
    />
  );
  return of.migration ? (
    <a class="plain" href={link("migrations", of.migration)}>
      {state}
    </a>
  ) : (
    state
  );
}

function MoveWhy({ of, all }: { of: Move; all: readonly Move[] }) {
  const now = useNow(5000);
  const waits = (of.waits ?? []).map((index) => all[index]?.vm).filter((vm) => vm !== undefined);
  const before = [...new Set([...waits, ...(of.after ?? [])])];
  return (
    <>
      {of.reason}
      {of.state === "waiting" && before.length > 0 && (
        <div class="dim">
          after {before.slice(0, 4).join(", ")}
          {before.length > 4 && ` and ${before.length - 4} more`}
        </div>
      )}
      {of.detail && <div class="dim">{of.detail}</div>}
      {of.state === "waiting" && of.not_before != null && of.not_before > now && (
        <div class="dim">next attempt {until(of.not_before, now)}</div>
      )}
      {of.downtime_ms != null && <div class="dim">stood still for {duration(of.downtime_ms)}</div>}
    </>
  );
}
