// How far a migration is: the true percentage, what is left, how long still and how sure that is.
import { about, bitsPerS, bytes, bytesPerS, duration, range, UNKNOWN } from "../../format";
import { guestBytes, kindsOf, wireBytes } from "../../migration/kinds";
import { stageKey, stageWords } from "../../migration/phases";
import { rateSeries } from "../../migration/series";
import type { Summary } from "../../migration/summary";
import { outcomeName, outcomeWords, whyWords } from "../../migration/words";
import type { Migration, MigrationSample } from "../../types";
import { State } from "../basics";
import { sentence } from "../problem";

export function MigrationBar({ of, link }: { of: Summary; link: string }) {
  const { far } = of;
  const share = far.share;
  const kept = of.outcome != null && of.outcome !== "moved";
  const what = far.of === "pass" ? `of pass ${of.ends.source?.copy?.round ?? UNKNOWN}` : of.outcome ? "" : "of all";
  const percent = share === undefined ? UNKNOWN : `${(share * 100).toFixed(of.outcome ? 0 : 1)} %`;
  return (
    <div class="how-far">
      <p class="percent">
        <b class="num">{kept ? outcomeName(of.outcome ?? "")[0] : percent}</b> <span class="dim">{what}</span>
      </p>
      <div
        class="track"
        role="progressbar"
        aria-label="How far the migration is"
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={share === undefined ? undefined : Math.round(share * 100)}
      >
        <i
          class={kept ? "bad" : of.outcome ? "good" : "busy"}
          style={{ transform: `scaleX(${(share ?? 0).toFixed(4)})` }}
        />
      </div>
      <p class="left" role="status" aria-live="off">
        {of.outcome ? <OutcomeWords of={of} /> : <LeftWords of={of} />}
        {link === "lost" && (
          <>
            {" "}
            <State name="no connection, trying again" tone="warn" />
          </>
        )}
      </p>
    </div>
  );
}

function OutcomeWords({ of }: { of: Summary }) {
  const told = [...new Set([whyWords(of.why), of.detail])].filter(Boolean);
  const why = of.outcome === "moved" ? "" : told.join(": ");
  return (
    <>
      {outcomeWords(of.outcome ?? "")} {why && sentence(why)}
    </>
  );
}

function LeftWords({ of }: { of: Summary }) {
  const { leftMs, lowMs, highMs } = of.far;
  const key = stageKey(of.ends.source?.stage) ?? stageKey(of.ends.target?.stage);
  const words = sentence(stageWords(key));
  if (leftMs === undefined) return <>{key === "held" ? words : `${words} How long still is not known.`}</>;
  const sure = lowMs !== undefined && highMs !== undefined ? <span class="dim"> ({range(lowMs, highMs)})</span> : null;
  const upto = of.far.of === "pass" && of.ends.source?.copy?.round === 1 ? " to the end of its first pass" : " left";
  return (
    <>
      {words} About <b class="num">{about(leftMs)}</b>
      {upto}
      {sure}.
    </>
  );
}

/** What the source's paths carry, in bits a second. What is moved may be more: zeros, and what compresses. */
function onTheWire(source: Migration | undefined): number | undefined {
  const rates = source?.paths.map((path) => path.bits_per_s);
  return rates?.length ? rates.reduce((sum, rate) => sum + rate, 0) : undefined;
}

/** What moves now; after the end, what has been moved in all. */
function movedFigures(of: Summary, samples: readonly MigrationSample[]): [string, string, string][] {
  const pages = of.ends.source?.copy?.pages;
  if (of.outcome) {
    return [
      ["On the wire", bytes(pages ? wireBytes(pages) : undefined), "in all"],
      ["Moved", bytes(pages ? guestBytes(kindsOf(pages)) : undefined), "of the guest, in all"],
    ];
  }
  return [
    ["On the wire", bitsPerS(onTheWire(of.ends.source)), "now, all paths"],
    ["Moved", bytesPerS(rateSeries(samples.slice(-30)).moved.at(-1)), "of the guest"],
  ];
}

/** The figures of now, in places that do not move while they change. */
export function MigrationFigures({ of, samples }: { of: Summary; samples: readonly MigrationSample[] }) {
  const source = of.ends.source;
  const copy = source?.copy;
  const expected = source?.hold?.downtime_ms;
  const figures: [string, string, string?][] = [
    ["Elapsed", duration(of.elapsedMs), of.outcome ? "in all" : undefined],
    ...movedFigures(of, samples),
    ["Dirtied", bytesPerS(copy?.dirty_bytes_per_s), of.outcome ? "by the guest, at the end" : "by the guest"],
    [
      "Left",
      bytes(of.outcome === "moved" ? 0 : copy?.remaining_bytes),
      copy ? `of ${bytes(copy.total_bytes)}` : undefined,
    ],
    [
      "Pass",
      copy ? String(copy.round) : UNKNOWN,
      copy?.throttle_percent ? `throttled by ${copy.throttle_percent} %` : "not throttled",
    ],
    [
      "Downtime",
      duration(of.downtimeMs),
      of.downtimeMs != null ? "in all" : expected != null ? `expected ${duration(expected)}` : `expected ${UNKNOWN}`,
    ],
  ];
  return (
    <dl class="totals figures">
      {figures.map(([name, value, note]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
          <dd class="sub">{note ?? " "}</dd>
        </div>
      ))}
    </dl>
  );
}
