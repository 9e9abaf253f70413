// What lists show of a guest.
import { bitsPerS, cores, UNKNOWN, wholeBytes } from "../format";
import { link } from "../router";
import type { Vm } from "../types";
import { runStateNames } from "../words";
import { HostLink, Meter, State, Tag } from "./basics";
import { byNumber, byText, type Column } from "./list";
import { ofCopy } from "../migration/progress";

export function GuestState({ of }: { of: Vm }) {
  if (of.migration && of.state === "running") {
    const { share } = ofCopy(of.migration.copy);
    const words = share === undefined ? "moving" : `moving ${Math.round(share * 100)} %`;
    return <State name={words} tone="busy" title={`to ${of.migration.target}; of this pass over its memory`} />;
  }
  const [name, tone] = runStateNames[of.state];
  return <State name={name} tone={tone} title={of.note || undefined} />;
}

export const guestColumns: Column<Vm>[] = [
  {
    name: "Guest",
    width: "minmax(110px, 1.5fr)",
    sort: byText((of) => of.name),
    cell: (of) => (
      <a class="name" href={link("guests", of.name)} tabIndex={-1}>
        {of.name}
      </a>
    ),
  },
  {
    name: "State",
    width: "minmax(104px, 0.9fr)",
    sort: byText((of) => of.state),
    cell: (of) => <GuestState of={of} />,
  },
  {
    name: "Host",
    width: "minmax(84px, 1fr)",
    sort: byText((of) => of.host),
    cell: (of) =>
      of.host ? (
        <span class="no-wrap">
          <HostLink name={of.host} />
          {of.migration && (
            <span class="dim"> → {of.migration.target === of.host ? of.host : of.migration.target}</span>
          )}
        </span>
      ) : (
        <span class="dim">{UNKNOWN}</span>
      ),
  },
  {
    name: "CPU",
    width: "minmax(110px, 1fr)",
    from: "medium",
    isNumber: true,
    sort: byNumber((of) => of.load?.cpu_millicores),
    cell: (of) => (
      <Meter
        label="CPU"
        value={of.load?.cpu_millicores}
        of={of.cpus * 1000}
        text={of.load ? `${cores(of.load.cpu_millicores)} of ${of.cpus}` : UNKNOWN}
        tone="plain"
      />
    ),
  },
  {
    name: "Memory",
    width: "minmax(120px, 1fr)",
    from: "medium",
    isNumber: true,
    sort: byNumber((of) => of.ram_bytes),
    cell: (of) => (
      <Meter
        label="Memory of its QEMU"
        value={of.load?.ram_bytes}
        of={of.ram_bytes}
        text={wholeBytes(of.ram_bytes)}
        tone="plain"
      />
    ),
  },
  {
    name: "Network",
    width: "minmax(96px, 0.8fr)",
    from: "wide",
    isNumber: true,
    sort: byNumber((of) => (of.load ? of.load.net_receive_bytes_per_s + of.load.net_send_bytes_per_s : undefined)),
    cell: (of) => (
      <span
        class="num"
        title={
          of.load
            ? `receives ${bitsPerS(of.load.net_receive_bytes_per_s * 8)}, sends ` +
              `${bitsPerS(of.load.net_send_bytes_per_s * 8)}`
            : undefined
        }
      >
        {of.load ? bitsPerS((of.load.net_receive_bytes_per_s + of.load.net_send_bytes_per_s) * 8) : UNKNOWN}
      </span>
    ),
  },
  {
    name: "Tags",
    width: "minmax(60px, 0.9fr)",
    from: "wide",
    cell: (of) => (
      <span class="tags">
        {(of.settings.tags ?? []).map((tag) => (
          <Tag key={tag}>{tag}</Tag>
        ))}
        {of.settings.pinned && <Tag title="Neither the optimisation nor a drain moves it">pinned</Tag>}
      </span>
    ),
  },
];
