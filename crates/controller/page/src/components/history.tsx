// The load of a host or a guest over hours.
import type { History } from "../types";
import { bitsPerS, bytes, bytesPerS, cores } from "../format";
import { useRead } from "../store/use";
import { Empty, Panel } from "./basics";
import { Chart, type Series } from "./chart";
import { ProblemBox } from "./problem";

export function HistoryCharts({
  path,
  cpus,
  ram,
}: {
  path: string;
  cpus: number | null | undefined;
  ram: number | null | undefined;
}) {
  const { value: past, problem, isReading, again } = useRead<History>(path, 30_000);
  if (!past) {
    const what = isReading ? "Reading the loads …" : "No loads are known yet.";
    return <Panel title="Load">{problem ? <ProblemBox of={problem} again={again} /> : <Empty>{what}</Empty>}</Panel>;
  }
  const count = Math.max(0, ...Object.values(past.series).map((series) => series.length));
  const times = Array.from({ length: count }, (_, index) => past.until - (count - 1 - index) * past.step_ms);
  const of = (name: string, scale = 1): (number | null)[] => {
    const values = past.series[name] ?? [];
    const padded = [...new Array<null>(count - values.length).fill(null), ...values];
    return scale === 1 ? padded : padded.map((value) => (value === null ? null : value * scale));
  };
  const is_known = Object.values(past.series).some((series) => series.some((value) => value !== null));
  const common = { times, together: path, height: 120 };
  const line = (name: string, colour: Series["colour"], values: (number | null)[]): Series => ({
    name,
    colour,
    values,
    isFilled: colour === 1,
  });
  const note = "up to six hours, since this controller was started";
  return (
    <Panel title="Load" note={note}>
      {!is_known ? (
        <Empty>No loads are known yet: they are kept from now on.</Empty>
      ) : (
        <div class="charts">
          <Chart
            {...common}
            title="CPU"
            note={cpus ? `of ${cpus} cores` : undefined}
            format={(value) => cores(value)}
            most={cpus ? Math.min(cpus * 1000, 4000) : undefined}
            series={[line("cores", 1, of("cpu_millicores"))]}
          />
          <Chart
            {...common}
            title="Memory"
            note={ram ? `of ${bytes(ram)}` : undefined}
            format={bytes}
            base={1024}
            most={ram ?? undefined}
            series={[line("in use", 1, of("ram_used_bytes"))]}
          />
          <Chart
            {...common}
            title="Network"
            format={bitsPerS}
            series={[
              line("receives", 1, of("net_receive_bytes_per_s", 8)),
              line("sends", 2, of("net_send_bytes_per_s", 8)),
            ]}
          />
          <Chart
            {...common}
            title="Disks"
            format={bytesPerS}
            series={[line("reads", 1, of("disk_read_bytes_per_s")), line("writes", 2, of("disk_write_bytes_per_s"))]}
          />
        </div>
      )}
    </Panel>
  );
}
