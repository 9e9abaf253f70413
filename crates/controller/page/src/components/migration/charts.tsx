// Charts of a migration: each NIC at both ends against what it can carry, the cores, what is dirtied and moved.
import { useMemo } from "preact/hooks";
import { bitsPerS, bytes, bytesPerS, cores, percent, speed } from "../../format";
import { coreSeries, nicSeries, rateSeries, sinceBegin, usedFirst, type NicSeries } from "../../migration/series";
import type { MigrationSample, PathView } from "../../types";
import type { End } from "../../migration/phases";
import { Empty } from "../basics";
import { Chart } from "../chart";

/** How many NICs of an end have a chart; the others are few bits. */
const NICS_MAX = 8;

export interface Axis {
  from: number;
  to: number;
  together: string;
  atRest: "last" | "most";
}

export function NicCharts({
  end,
  samples,
  paths,
  axis,
}: {
  end: End;
  samples: readonly MigrationSample[];
  paths: readonly PathView[];
  axis: Axis;
}) {
  const times = useMemo(() => sinceBegin(samples), [samples]);
  const used = paths.map((path) => path.nic);
  const nics = useMemo(() => usedFirst(nicSeries(samples), used), [samples, used.join()]);
  if (nics.length === 0) return <Empty>No rates are known of this end.</Empty>;
  // Charts of an end have one scale, so that a NIC that carries less looks so.
  const most = Math.max(...nics.map((nic) => nic.speed ?? 0));
  return (
    <>
      {nics.slice(0, NICS_MAX).map((nic) => (
        <NicChart
          key={nic.name}
          end={end}
          nic={nic}
          times={times}
          axis={axis}
          most={most}
          isUsed={used.includes(nic.name)}
        />
      ))}
    </>
  );
}

function NicChart({
  end,
  nic,
  times,
  axis,
  most,
  isUsed,
}: {
  end: End;
  nic: NicSeries;
  times: number[];
  axis: Axis;
  most: number;
  isUsed: boolean;
}) {
  const [main, other] = end === "source" ? [nic.send, nic.receive] : [nic.receive, nic.send];
  const names = end === "source" ? ["sends", "receives"] : ["receives", "sends"];
  const shown = axis.atRest === "most" ? Math.max(0, ...main.map((value) => value ?? 0)) : main.at(-1);
  const share = nic.speed && shown != null ? `, ${percent(shown / nic.speed)}` : "";
  const note = nic.speed ? `of ${speed(nic.speed)}${share}` : "its speed is not known";
  const mark = nic.speed
    ? [{ name: "speed", colour: 1 as const, isMark: true, values: times.map(() => nic.speed ?? null) }]
    : [];
  return (
    <Chart
      title={nic.name}
      note={isUsed ? note : `${note}; it has no part in this`}
      times={times}
      format={bitsPerS}
      isSince
      most={nic.speed ?? (isUsed ? most : undefined)}
      height={110}
      {...axis}
      series={[
        { name: names[0] ?? "", colour: 1, values: main, isFilled: true },
        { name: names[1] ?? "", colour: 2, values: other },
        ...mark,
      ]}
    />
  );
}

export function CoreChart({ samples, axis }: { samples: readonly MigrationSample[]; axis: Axis }) {
  const times = useMemo(() => sinceBegin(samples), [samples]);
  const of = useMemo(() => coreSeries(samples), [samples]);
  const last = samples.at(-1)?.cores_permille ?? [];
  return (
    <div class="cores">
      <Chart
        title="Cores"
        note={of.count > 0 ? `${of.count} cores` : undefined}
        times={times}
        isSince
        height={110}
        format={(value) => cores(value)}
        {...axis}
        most={1000}
        series={[
          { name: "busy in all", colour: 1, values: of.all, isFilled: true },
          { name: "Skein", colour: 3, values: of.mover },
        ]}
      />
      {last.length > 0 && (
        <div
          class="core-bars"
          role="img"
          aria-label={`Each core now: ${last.map((core) => percent(core / 1000)).join(", ")}`}
        >
          {last.slice(0, 256).map((core, index) => (
            <span key={index} title={`core ${index}: ${percent(core / 1000)}`}>
              <i style={{ transform: `scaleY(${(core / 1000).toFixed(2)})` }} />
            </span>
          ))}
        </div>
      )}
    </div>
  );
}

export function RateCharts({ samples, axis }: { samples: readonly MigrationSample[]; axis: Axis }) {
  const times = useMemo(() => sinceBegin(samples), [samples]);
  const of = useMemo(() => rateSeries(samples), [samples]);
  return (
    <>
      <Chart
        title="Moved and dirtied"
        note="it gets there while more is moved than dirtied"
        times={times}
        isSince
        format={bytesPerS}
        {...axis}
        series={[
          { name: "moved", colour: 1, values: of.moved, isFilled: true },
          { name: "dirtied", colour: 4, values: of.dirty },
        ]}
      />
      <Chart
        title="Left to send"
        times={times}
        isSince
        format={bytes}
        base={1024}
        {...axis}
        atRest="last"
        series={[{ name: "left", colour: 1, values: of.left, isFilled: true }]}
      />
    </>
  );
}
