// What lists show of a host.
import { bitsPerS, bytes, cores, digits, speed, UNKNOWN } from "../format";
import { link } from "../router";
import { healthOf } from "../store/summary";
import type { Host, NicLoad } from "../types";
import { contactNames, modeNames } from "../words";
import { classes, Meter, State } from "./basics";
import { byNumber, byText, type Column } from "./list";

export function HostState({ of }: { of: Host }) {
  const [name, tone] = contactNames[of.contact];
  const health = healthOf(of);
  const shown = of.contact === "online" && of.mode !== "active" ? modeNames[of.mode] : ([name, tone] as const);
  const worse = shown[1] === "good" && health.tone !== "good" ? health.tone : shown[1];
  const word = worse !== "good" && shown[0] === "online" ? "online, see note" : shown[0];
  return <State name={word} tone={worse} title={health.reasons.join("; ") || undefined} />;
}

/** Each NIC's rate of the busier way, against its speed. */
export function Nics({ of }: { of: Host }) {
  const nics = of.nics ?? [];
  if (nics.length === 0) {
    const load = of.load;
    if (!load) return <span class="dim">{UNKNOWN}</span>;
    const most = Math.max(load.net_receive_bytes_per_s, load.net_send_bytes_per_s) * 8;
    return (
      <span class="num" title="all NICs together; the speeds are not known">
        {bitsPerS(most)}
      </span>
    );
  }
  return (
    <span class="nics">
      {nics.slice(0, 4).map((nic) => (
        <Nic key={nic.name} of={nic} />
      ))}
    </span>
  );
}

function Nic({ of }: { of: NicLoad }) {
  const rate = Math.max(of.receive_bits_per_s, of.send_bits_per_s);
  const share = of.speed_bits_per_s ? Math.min(1, rate / of.speed_bits_per_s) : undefined;
  const of_speed = of.speed_bits_per_s ? ` of ${speed(of.speed_bits_per_s)}` : "";
  const has_link = of.has_link !== false;
  const words = has_link ? `${of.name}: ${bitsPerS(rate)}${of_speed}` : `${of.name}: no link`;
  const level = !has_link ? "bad" : (share ?? 0) >= 0.9 ? "warn" : "plain";
  return (
    <span class={classes("nic", level)} title={words}>
      <span class="visually-hidden">{words}</span>
      <span class="track" aria-hidden="true">
        <i style={{ transform: `scaleX(${(share ?? 0).toFixed(3)})` }} />
      </span>
      <span class="num" aria-hidden="true">
        {has_link ? digits(rate / 1e9) : "no link"}
      </span>
    </span>
  );
}

export function usedRam(of: Host): number | undefined {
  return of.load ? of.load.ram_bytes - of.load.ram_available_bytes : undefined;
}

function Why({ of }: { of: Host }) {
  const { tone, reasons } = healthOf(of);
  return (
    <span class={tone === "good" || tone === "plain" ? "dim" : `tone ${tone}`} title={reasons.join("; ")}>
      {reasons.join("; ")}
    </span>
  );
}

export const hostColumns: Column<Host>[] = [
  {
    name: "Host",
    width: "minmax(96px, 1.4fr)",
    smallest: "minmax(70px, 1fr)",
    sort: byText((of) => of.name),
    cell: (of) => (
      <a class="name" href={link("hosts", of.name)} tabIndex={-1}>
        {of.name}
      </a>
    ),
  },
  {
    name: "State",
    width: "minmax(104px, 1fr)",
    smallest: "minmax(86px, 1fr)",
    sort: byText((of) => `${of.contact} ${of.mode}`),
    cell: (of) => <HostState of={of} />,
  },
  {
    name: "CPU",
    width: "minmax(118px, 1fr)",
    from: "medium",
    isNumber: true,
    sort: byNumber((of) => (of.load && of.cpus ? of.load.cpu_millicores / of.cpus : undefined)),
    cell: (of) => (
      <Meter
        label="CPU"
        value={of.load?.cpu_millicores}
        of={(of.cpus ?? 0) * 1000}
        text={of.load ? `${cores(of.load.cpu_millicores)} of ${of.cpus ?? UNKNOWN}` : UNKNOWN}
      />
    ),
  },
  {
    name: "Memory",
    width: "minmax(110px, 1fr)",
    smallest: "70px",
    isNumber: true,
    sort: byNumber(usedRam),
    cell: (of) => (
      <Meter
        label="Memory in use"
        value={usedRam(of)}
        of={of.load?.ram_bytes ?? of.ram_bytes}
        text={bytes(usedRam(of))}
      />
    ),
  },
  {
    name: "NICs, Gbit/s",
    width: "minmax(108px, 1.2fr)",
    from: "medium",
    isNumber: true,
    sort: byNumber((of) => (of.load ? of.load.net_send_bytes_per_s + of.load.net_receive_bytes_per_s : undefined)),
    cell: (of) => <Nics of={of} />,
  },
  {
    name: "Guests",
    width: "64px",
    smallest: "52px",
    isNumber: true,
    sort: byNumber((of) => of.vms_running),
    cell: (of) => <span class="num">{of.vms_running}</span>,
  },
  {
    name: "Moves",
    width: "64px",
    from: "wide",
    isNumber: true,
    sort: byNumber((of) => of.incoming + of.outgoing),
    cell: (of) =>
      of.incoming + of.outgoing === 0 ? (
        <span class="dim">0</span>
      ) : (
        <span class="num" title={`${of.incoming} to it, ${of.outgoing} from it`}>
          ↓{of.incoming} ↑{of.outgoing}
        </span>
      ),
  },
  { name: "What is to be said", width: "minmax(120px, 1.4fr)", from: "wide", cell: (of) => <Why of={of} /> },
];
