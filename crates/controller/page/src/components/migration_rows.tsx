// Migrations in short: each in a line, or in a table.
import { bitsPerS, duration, instant, time, UNKNOWN } from "../format";
import { ofCopy } from "../migration/progress";
import { outcomeName, whyWords } from "../migration/words";
import { stageKey, stageName, stageWords } from "../migration/phases";
import { link } from "../router";
import type { MigrationView } from "../types";
import { GuestLink, HostLink, Meter, State } from "./basics";

export function MigrationState({ of }: { of: MigrationView }) {
  if (of.outcome) {
    const [name, tone] = outcomeName(of.outcome);
    return <State name={name} tone={tone} title={of.detail || whyWords(of.why) || undefined} />;
  }
  if (of.in_doubt) return <State name="in doubt" tone="bad" title="It is paused: not known which host runs it" />;
  const key = stageKey(of.stage);
  return (
    <State name={key ? stageName(key) : "under way"} tone={key === "held" ? "warn" : "busy"} title={stageWords(key)} />
  );
}

export function migrationTook(of: MigrationView): number | undefined {
  return of.outcome && instant(of.begun) !== undefined ? of.elapsed_ms : undefined;
}

/** When it was begun; where that is not known its id, as a link needs a name. */
function beginWords(of: MigrationView): string {
  return instant(of.begun) === undefined ? of.id : time(of.begun);
}

export function MigrationRows({ of }: { of: readonly MigrationView[] }) {
  return (
    <ul class="rows-list">
      {of.map((one) => (
        <li key={one.id}>
          <a class="num" href={link("migrations", one.id)}>
            {beginWords(one)}
          </a>{" "}
          <MigrationState of={one} /> <HostLink name={one.source} /> <span class="dim">→</span>{" "}
          <HostLink name={one.target} />{" "}
          <span class="dim num">
            {one.outcome && migrationTook(one) !== undefined ? `in ${duration(migrationTook(one))}` : ""}
          </span>
        </li>
      ))}
    </ul>
  );
}

export function MigrationTable({
  of,
  picked,
  pick,
}: {
  of: readonly MigrationView[];
  picked: readonly string[];
  pick: (id: string) => void;
}) {
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Migrations">
      <table class="table stacks">
        <thead>
          <tr>
            <th scope="col">
              <span class="visually-hidden">Pick for a comparison</span>
            </th>
            <th scope="col">Begun</th>
            <th scope="col">Guest</th>
            <th scope="col">From</th>
            <th scope="col">To</th>
            <th scope="col">State</th>
            <th scope="col">How far</th>
            <th scope="col" class="number">
              Moves
            </th>
            <th scope="col" class="number">
              Took
            </th>
            <th scope="col" class="number">
              Stood still
            </th>
            <th scope="col">By</th>
          </tr>
        </thead>
        <tbody>
          {of.map((one) => (
            <Row key={one.id} of={one} isPicked={picked.includes(one.id)} pick={pick} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Row({ of, isPicked, pick }: { of: MigrationView; isPicked: boolean; pick: (id: string) => void }) {
  const far = of.outcome ? undefined : ofCopy(of.copy);
  return (
    <tr>
      <td>
        <input
          type="checkbox"
          checked={isPicked}
          aria-label={`Compare the migration of ${of.vm}`}
          onChange={() => pick(of.id)}
        />
      </td>
      <td class="num no-wrap">
        <a href={link("migrations", of.id)}>{beginWords(of)}</a>
      </td>
      <td>
        <GuestLink name={of.vm} />
      </td>
      <td data-label="from">
        <HostLink name={of.source} />
      </td>
      <td data-label="to">
        <HostLink name={of.target} />
      </td>
      <td>
        <MigrationState of={of} />
      </td>
      <td>
        {far?.share !== undefined ? (
          <Meter
            label={`Of pass ${of.copy?.round}`}
            value={far.share}
            of={1}
            tone="busy"
            text={`${Math.round(far.share * 100)} % of pass ${of.copy?.round}`}
          />
        ) : (
          <span class="dim">{of.outcome ? of.detail || whyWords(of.why) : UNKNOWN}</span>
        )}
      </td>
      <td class="number num" data-label="moves">
        {of.outcome ? "" : bitsPerS(of.copy?.bits_per_s)}
      </td>
      <td class="number num" data-label="took">
        {duration(migrationTook(of))}
      </td>
      <td class="number num" data-label="stood still">
        {duration(of.downtime_ms)}
      </td>
      <td data-label={of.operation || of.outcome ? "by" : undefined}>
        {of.operation ? (
          <a href={link("operations", of.operation)}>operation</a>
        ) : (
          <span class="dim no-wrap">{of.outcome ? UNKNOWN : "by hand"}</span>
        )}
      </td>
    </tr>
  );
}
