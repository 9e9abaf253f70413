// A host: what it is, how busy it is, which guests are on it, and what can be asked of it.
import { Button, Empty, Facts, GuestLink, HostLink, Meter, Panel, State, Tag, Title } from "../components/basics";
import { HostActions } from "../components/host_actions";
import { HostState, Nics, usedRam } from "../components/host_columns";
import { HostSettingsForm } from "../components/host_settings";
import { HistoryCharts } from "../components/history";
import { GuestTable } from "../components/guest_table";
import { RoleNote } from "../components/access";
import { ProblemBox, sentence } from "../components/problem";
import { Problem } from "../api/problem";
import { part } from "../api/request";
import { bitsPerS, bytes, bytesPerS, cores, duration, forHowLong, several, speed, time, UNKNOWN } from "../format";
import { link } from "../router";
import { readHost } from "../store/follow";
import { healthOf } from "../store/summary";
import { store } from "../store/store";
import { useComputed, useNow, useRepeated, useStore } from "../store/use";
import type { FencingDevice, Host, NicLoad } from "../types";
import { isOver, modeNames } from "../words";
import { useState } from "preact/hooks";
import { OperationRow } from "../components/operation_row";

const READ_MS = 3000;

export function HostPage({ name }: { name: string }) {
  const of = useStore(() => store.tables.hosts.get(name));
  const isLoaded = useStore(() => store.isLoaded);
  useRepeated((signal) => readHost(name, signal), READ_MS, [name]);
  if (!of) {
    return (
      <>
        <Title crumbs={[["Hosts", link("hosts")]]}>{name}</Title>
        {isLoaded ? (
          <ProblemBox of={new Problem(404, `there is no host '${name}'`, "it may have been removed")} />
        ) : (
          <Empty>Reading …</Empty>
        )}
      </>
    );
  }
  return (
    <>
      <Title
        crumbs={[["Hosts", link("hosts")]]}
        kind="Host"
        actions={<HostActions of={of} />}
        state={<HostStates of={of} />}
      >
        {name}
      </Title>
      <RoleNote needs="operator" to="drain, move, switch or wake it" />
      <Health of={of} />
      <div class="columns even">
        <HostFacts of={of} />
        <HostNics of={of} />
      </div>
      <HistoryCharts path={`/hosts/${part(name)}/history`} cpus={of.cpus} ram={of.ram_bytes} />
      <HostMoves of={of} />
      <Panel title="Guests" note={several(of.vms_running, "guest runs", "guests run")}>
        <GuestTable fixedHost={name} />
      </Panel>
      <div class="columns even">
        <HostPower of={of} />
        <HostSettingsForm name={name} />
      </div>
    </>
  );
}

function HostStates({ of }: { of: Host }) {
  const now = useNow(30_000);
  const [mode, tone] = modeNames[of.mode];
  return (
    <>
      <HostState of={of} /> <span class="dim">{forHowLong(of.contact_since, now)}</span>
      {of.contact !== "online" || of.mode === "active" ? <State name={mode} tone={tone} /> : null}
      {of.settings.group && <Tag title="Its host group">{of.settings.group}</Tag>}
      {of.drain && <a href={link("operations", of.drain)}>its drain</a>}
    </>
  );
}

function Health({ of }: { of: Host }) {
  const { tone, reasons } = healthOf(of);
  if (reasons.length === 0 || tone === "good") return null;
  return (
    <div class={`callout ${tone}`} role="status">
      <ul>
        {reasons.map((words) => (
          <li key={words}>{sentence(words)}</li>
        ))}
      </ul>
      {of.contact === "lost" && (
        <p>
          {of.settings.fencing
            ? "If nobody calls that off, its fencing device switches it off, and its guests start elsewhere."
            : "Whether its guests run is not known. Nothing starts elsewhere until somebody says that the host is off: " +
              "look at it first."}
        </p>
      )}
    </div>
  );
}

function HostFacts({ of }: { of: Host }) {
  const load = of.load ?? of.last_load;
  const old = !of.load && of.last_load ? <span class="dim"> when it last reported</span> : null;
  return (
    <Panel title="Facts">
      <Facts
        of={[
          [
            "CPU",
            <>
              <Meter
                label="CPU"
                value={load?.cpu_millicores}
                of={(of.cpus ?? 0) * 1000}
                text={load ? `${cores(load.cpu_millicores)} of ${of.cpus ?? UNKNOWN} cores` : UNKNOWN}
              />
              {old}
            </>,
          ],
          [
            "Memory",
            <Meter
              label="Memory"
              value={usedRam(of)}
              of={of.ram_bytes}
              text={
                load
                  ? `${bytes(load.ram_bytes - load.ram_available_bytes)} of ${bytes(of.ram_bytes)}`
                  : `${UNKNOWN} of ${bytes(of.ram_bytes)}`
              }
            />,
          ],
          [
            "Disks",
            load
              ? `reads ${bytesPerS(load.disk_read_bytes_per_s)}, writes ${bytesPerS(load.disk_write_bytes_per_s)}`
              : UNKNOWN,
          ],
          ["Agent", of.release ?? "has not reported yet"],
          ["Addresses", <span class="mono">{of.addresses.join(", ") || UNKNOWN}</span>],
          ["Certificate", of.certificate_ends ? <>ends {time(of.certificate_ends)}, is renewed by itself</> : UNKNOWN],
          [
            "Areas",
            Object.entries(of.settings.areas ?? {})
              .map(([level, area]) => `${level} ${area}`)
              .join(", ") || undefined,
          ],
          ["Storage", of.settings.storage && "others need its disks: it is never switched off"],
        ]}
      />
    </Panel>
  );
}

function HostNics({ of }: { of: Host }) {
  const nics = of.nics ?? [];
  return (
    <Panel title="NICs" note={nics.length > 0 ? several(nics.length, "NIC") : undefined}>
      {nics.length === 0 ? (
        <Facts
          of={[
            ["All together", <Nics of={of} />],
            ["Each", "not told by this host's agent"],
          ]}
        />
      ) : (
        <div class="scroll" tabIndex={0} role="group" aria-label="NICs">
          <table class="table stacks">
            <thead>
              <tr>
                <th scope="col">NIC</th>
                <th scope="col" class="number">
                  Speed
                </th>
                <th scope="col">Receives</th>
                <th scope="col">Sends</th>
              </tr>
            </thead>
            <tbody>
              {nics.map((nic) => (
                <NicRow key={nic.name} of={nic} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Panel>
  );
}

function NicRow({ of }: { of: NicLoad }) {
  const rate = (bits_per_s: number) => (
    <Meter label="Rate" value={bits_per_s} of={of.speed_bits_per_s} text={bitsPerS(bits_per_s)} />
  );
  return (
    <tr>
      <th scope="row">
        <span class="name">{of.name}</span> {of.is_migration && <Tag title="Migrations may use it">migration</Tag>}
      </th>
      <td class="number num" data-label="speed">
        {of.has_link !== false ? speed(of.speed_bits_per_s) : <State name="no link" tone="bad" />}
      </td>
      <td data-label="receives">{rate(of.receive_bits_per_s)}</td>
      <td data-label="sends">{rate(of.send_bits_per_s)}</td>
    </tr>
  );
}

function HostMoves({ of }: { of: Host }) {
  const moving = useComputed(
    ["vms"],
    () =>
      [...store.tables.vms.values()].filter(
        ({ migration }) => migration && (migration.source === of.name || migration.target === of.name),
      ),
    [of.name],
  );
  const own = useComputed(
    ["operations"],
    () =>
      [...store.tables.operations.values()].filter(
        (operation) => !isOver(operation.state) && "host" in operation.kind && operation.kind.host === of.name,
      ),
    [of.name],
  );
  if (moving.length === 0 && own.length === 0) return null;
  return (
    <Panel title="Under way">
      <ul class="rows-list">
        {own.map((operation) => (
          <OperationRow key={operation.id} of={operation} />
        ))}
        {moving.map(
          ({ name, migration }) =>
            migration && (
              <li key={name}>
                <GuestLink name={name} /> <span class="dim">from</span> <HostLink name={migration.source} />{" "}
                <span class="dim">to</span> <HostLink name={migration.target} />{" "}
                <a href={link("migrations", migration.id)}>its migration</a>
              </li>
            ),
        )}
      </ul>
    </Panel>
  );
}

function deviceWords(of: FencingDevice): string {
  return of.kind === "redfish" ? `Redfish at ${of.url}` : `the fence agent ${of.agent}`;
}

function HostPower({ of }: { of: Host }) {
  const power = of.power;
  const [isMore, setMore] = useState(false);
  const dog = of.watchdog;
  return (
    <Panel title="Power and fencing">
      <Facts
        of={[
          [
            "Fencing device",
            of.settings.fencing
              ? deviceWords(of.settings.fencing)
              : "none: if this host is lost, a person has to say that it is off",
          ],
          [
            "Watchdog",
            !dog
              ? "none"
              : dog.why_not
                ? `not armed: ${dog.why_not}`
                : `${dog.identity ?? "armed"}${
                    dog.resets_within_ms != null
                      ? `: a host that is silent is proven to be off after ${duration(dog.resets_within_ms)}`
                      : ""
                  }`,
          ],
          [
            "Sleeps",
            power?.asleep_since
              ? `since ${time(power.asleep_since)}${power.asleep_by ? `, by ${power.asleep_by}` : ""}`
              : undefined,
          ],
          ["Awake because", power?.awake_because],
          ["Trouble", power?.trouble],
          ["Has slept", power && (power.slept_ms ?? 0) > 0 ? duration(power.slept_ms) : undefined],
        ]}
      />
      <Button look="quiet" small aria-expanded={isMore} onClick={() => setMore(!isMore)}>
        How a device is set
      </Button>
      {isMore && (
        <p class="dim">
          On a machine with the command:{" "}
          <code>skein host fencing set {of.name} --redfish https://… --user … --secret …</code>, then{" "}
          <code>skein host fencing test {of.name}</code>. A secret is a file of each controller, and is never sent by
          this page.
        </p>
      )}
    </Panel>
  );
}
