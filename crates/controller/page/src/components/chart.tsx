// A chart of some series over time, by uPlot. Each series has a sign, a name and its last value in text above, so that
// it is read without colour; a screen reader gets that text.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { clockTime, UNKNOWN } from "../format";
import { onTheme } from "../theme";

export interface Series {
  name: string;
  values: (number | null)[];
  /** Which of the page's colours, from 1 on; each has a line of its own kind, too. */
  colour: 1 | 2 | 3 | 4 | 5;
  isFilled?: boolean;
  /** Not a line of its own but a mark, as a link's speed: dashed, without a value in the legend. */
  isMark?: boolean;
}

export interface ChartOf {
  title: string;
  note?: string | undefined;
  /** Milliseconds since 1970, or since the beginning if `isSince`. */
  times: number[];
  series: Series[];
  format: (value: number | null | undefined) => string;
  /** The least that the axis reaches to; what is more is shown all the same. */
  most?: number | undefined;
  isSince?: boolean;
  /** The times from and to which the axis goes, in the units of `times`. */
  from?: number | undefined;
  to?: number | undefined;
  height?: number;
  /** What is told beside a name while nobody points at a moment: the last value, or the greatest of what is over. */
  atRest?: "last" | "most";
  /** Charts of one name show the same moment. */
  together?: string;
  base?: 1000 | 1024;
}

const DASHES: Record<number, number[] | undefined> = { 1: undefined, 2: [6, 3], 3: [2, 2], 4: [8, 3, 2, 3], 5: [1, 3] };

export function Chart(of: ChartOf) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const now = useRef(of);
  now.current = of;
  const [index, setIndex] = useState<number | null>(null);
  const [theme, setTheme] = useState(0);
  useEffect(() => onTheme(() => setTheme((before) => before + 1)), []);
  const shape = of.series.map((series) => `${series.name}/${series.colour}`).join();
  useLayoutEffect(() => {
    const of = box.current;
    if (!of) return;
    const made = new uPlot(options(now, of, setIndex), data(now.current), of);
    plot.current = made;
    const observer = new ResizeObserver(() => {
      const width = Math.floor(of.clientWidth);
      if (width > 0 && width !== made.width) made.setSize({ width, height: made.height });
    });
    observer.observe(of);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = undefined;
    };
  }, [shape, theme, of.height, of.isSince, of.together]);
  useEffect(() => {
    plot.current?.setData(data(of));
  }, [of.times, of.series, of.most, of.from, of.to]);
  const last = of.times.length - 1;
  const at = index !== null && index <= last ? index : last;
  const lines = of.series.filter((series) => !series.isMark);
  const is_most = of.atRest === "most" && index === null;
  const value = (series: Series): string =>
    is_most ? of.format(greatest(series.values)) : of.format(series.values[at]);
  const words = `${of.title}. ${lines.map((series) => `${series.name}: ${value(series)}`).join(", ")}`;
  return (
    <figure class="chart">
      <figcaption>
        <span class="chart-title">{of.title}</span>
        {of.note && <span class="note">{of.note}</span>}
        <span class="legend">
          {lines.map((series) => (
            <span key={series.name} class={`key c${series.colour}`}>
              <svg width="18" height="8" aria-hidden="true">
                <line x1="0" y1="4" x2="18" y2="4" stroke-dasharray={DASHES[series.colour]?.join(" ") ?? ""} />
              </svg>
              {series.name}
              {is_most ? " at most" : ""} <b class="num">{value(series)}</b>
            </span>
          ))}
          {index !== null && last >= 0 && <span class="dim num">{moment(of, of.times[at])}</span>}
        </span>
      </figcaption>
      <div class="plot" ref={box} role="img" aria-label={words} />
    </figure>
  );
}

function greatest(values: readonly (number | null)[]): number | null {
  return values.reduce((most, value) => (value !== null && (most === null || value > most) ? value : most), null);
}

function moment(of: ChartOf, at: number | undefined): string {
  if (at === undefined) return UNKNOWN;
  return of.isSince ? `at ${(at / 1000).toFixed(1)} s` : clockTime(at);
}

function data(of: ChartOf): uPlot.AlignedData {
  return [of.times.map((ms) => ms / 1000), ...of.series.map((series) => series.values)] as uPlot.AlignedData;
}

function options(now: { current: ChartOf }, box: HTMLElement, pointed: (index: number | null) => void): uPlot.Options {
  const of = now.current;
  const css = getComputedStyle(box);
  const colour = (name: string): string => css.getPropertyValue(name).trim();
  const grid = { stroke: colour("--chart-grid"), width: 1 };
  const font = `11px ${css.fontFamily}`;
  const axis = { stroke: colour("--dim"), font, ticks: { show: false } };
  const seconds = (value: number): string =>
    value < 120 ? `${Number(value.toFixed(1))} s` : `${Number((value / 60).toFixed(1))} min`;
  return {
    width: Math.max(100, Math.floor(box.clientWidth)),
    height: of.height ?? 130,
    padding: [8, 18, 0, 0],
    legend: { show: false },
    cursor: {
      drag: { x: false, y: false },
      points: { size: 6 },
      y: false,
      ...(of.together ? { sync: { key: of.together } } : {}),
    },
    hooks: { setCursor: [(plot) => pointed(plot.cursor.idx ?? null)] },
    scales: {
      x: {
        time: !of.isSince,
        range: (_, low, high) => {
          const { from, to } = now.current;
          return [from === undefined ? low : from / 1000, to === undefined ? high : to / 1000];
        },
      },
      y: { range: (_, _low, high) => [0, Math.max(high ?? 0, now.current.most ?? 0, 1e-9) * 1.08] },
    },
    axes: [
      { ...axis, grid: { show: false }, size: 24, ...(of.isSince ? { values: (_, at) => at.map(seconds) } : clock()) },
      {
        ...axis,
        grid,
        size: 74,
        space: 36,
        incrs: steps(of.base ?? 1000),
        values: (_, at) => at.map((value) => plain(now.current.format(value))),
      },
    ],
    series: [
      {},
      ...of.series.map((series) => ({
        stroke: series.isMark ? colour("--dim") : colour(`--chart-${series.colour}`),
        dash: series.isMark ? [3, 4] : (DASHES[series.colour] ?? []),
        width: series.isMark ? 1 : 1.6,
        points: { show: false },
        spanGaps: false,
        ...(series.isFilled ? { fill: `${colour(`--chart-${series.colour}`)}22` } : {}),
      })),
    ],
  };
}

/** An axis has round numbers: 10 Gbit/s, and not 10.0 Gbit/s. */
function plain(text: string): string {
  return text
    .replace(/^0 .*/, "0")
    .replace(/(\.\d*?)0+(?= |$)/, "$1")
    .replace(/\.(?= |$)/, "");
}

/** Hours of the day as they are read here, and not in the American way. */
function clock(): Pick<uPlot.Axis, "values"> {
  return { values: (_, at) => at.map((value) => clockTime(value * 1000).slice(0, 5)) };
}

/** Steps of an axis that are round numbers in their unit: of memory powers of two, of all else 1, 2 and 5. */
function steps(base: number): number[] {
  if (base === 1024) return Array.from({ length: 54 }, (_, power) => 2 ** power);
  return Array.from({ length: 17 }, (_, power) => [1, 2, 5].map((of) => of * 10 ** (power - 2))).flat();
}
