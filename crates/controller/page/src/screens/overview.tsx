// The whole cluster at a glance: what needs somebody, what goes on, how full it is, what changed last.
import { Empty, GuestLink, Panel, State, Title } from "../components/basics";
import { Asked } from "../components/asked";
import { HostTable } from "../components/host_table";
import { OperationRow } from "../components/operation_row";
import { ProblemBox, sentence } from "../components/problem";
import { ago, bitsPerS, bytes, clockTime, cores, count, percent, several, UNKNOWN } from "../format";
import { link, withQuery } from "../router";
import { readHosts } from "../store/follow";
import { store } from "../store/store";
import { useComputed, useNow, useRead, useRepeated, useStore } from "../store/use";
import { clusterLoad } from "../store/summary";
import type { Change } from "../store/changes";
import type { Complaint, Page } from "../types";
import { isOver } from "../words";

/** Loads are in no event: they are read again, less often where there are many. */
export function hostsEveryMs(hosts: number): number {
  return hosts > 300 ? 15_000 : hosts > 50 ? 8000 : 4000;
}

export function Overview() {
  const hosts = useStore(() => store.tables.hosts.size);
  useRepeated(readHosts, hostsEveryMs(hosts), [hosts > 300]);
  return (
    <>
      <Title>Overview</Title>
      <Asked />
      <Totals />
      <div class="columns">
        <Panel title="Hosts" note={<a href={link("hosts")}>all hosts</a>}>
          <HostTable />
        </Panel>
        <div class="stack">
          <Running />
          <Broken />
          <Changes />
        </div>
      </div>
    </>
  );
}

function Totals() {
  const cluster = useStore(() => store.cluster);
  const load = useComputed(["hosts"], () => clusterLoad(store.tables.hosts.values()), [], 500);
  const { hosts, vms } = cluster ?? {};
  const parts = (of: [number | undefined, string][]): string =>
    of
      .filter(([number]) => number)
      .map(([number, word]) => `, ${count(number)} ${word}`)
      .join("");
  return (
    <dl class="totals">
      <div>
        <dt>Hosts</dt>
        <dd>
          <a href={link("hosts")}>{count(hosts?.online)}</a> <small>online</small>
        </dd>
        <dd class="sub">
          of {count(hosts?.all)}
          {hosts &&
            parts([
              [hosts.lost, "lost"],
              [hosts.off, "off"],
              [hosts.asleep, "asleep"],
              [hosts.in_maintenance, "take none"],
            ])}
        </dd>
      </div>
      <div>
        <dt>Guests</dt>
        <dd>
          <a href={link("guests")}>{count(vms?.running)}</a> <small>run</small>
        </dd>
        <dd class="sub">
          of {count(vms?.all)}
          {vms &&
            parts([
              [vms.lost, "lost"],
              [vms.stopped, "off"],
            ])}
        </dd>
      </div>
      <div>
        <dt>CPU</dt>
        <dd>
          {percent(load.cpu)} <small>of {count(load.cpus || undefined)} cores</small>
        </dd>
        <dd class="sub">{cores(load.cpus ? load.cpuMillicores : undefined)} cores busy</dd>
      </div>
      <div>
        <dt>Memory</dt>
        <dd>
          {percent(load.ram)} <small>of {bytes(load.ramBytes || undefined)}</small>
        </dd>
        <dd class="sub">{bytes(load.ramBytes ? load.ramFreeBytes : undefined)} free</dd>
      </div>
      <div>
        <dt>Network</dt>
        <dd>
          {bitsPerS(load.cpus ? load.sendBitsPerS : undefined)} <small>sent</small>
        </dd>
        <dd class="sub">{bitsPerS(load.cpus ? load.receiveBitsPerS : undefined)} received</dd>
      </div>
      <div>
        <dt>Controller</dt>
        <dd class="name">
          {cluster?.controllers.find((of) => of.leads)?.name ?? UNKNOWN} <small>leads</small>
        </dd>
        <dd class="sub">{cluster ? controllerWords(cluster.controllers.length, cluster) : UNKNOWN}</dd>
      </div>
    </dl>
  );
}

function controllerWords(all: number, cluster: NonNullable<typeof store.cluster>): string {
  const gone = cluster.controllers.filter((of) => of.gone_since).length;
  const ill = (cluster.store_members ?? []).filter((member) => member.problem).length;
  const store = ill > 0 ? `${cluster.store}: ${several(ill, "member is", "members are")} ill` : cluster.store;
  return `${several(all, "controller")}${gone > 0 ? `, ${gone} gone` : ""}, ${store}`;
}

function Running() {
  const running = useComputed(
    ["operations"],
    () => [...store.tables.operations.values()].filter((of) => !isOver(of.state)).sort((a, b) => b.created - a.created),
    [],
  );
  return (
    <Panel title="Under way" note={<a href={link("operations")}>all operations</a>}>
      {running.length === 0 ? (
        <Empty>No operation is under way.</Empty>
      ) : (
        <ul class="rows-list">
          {running.slice(0, 8).map((of) => (
            <OperationRow key={of.id} of={of} />
          ))}
          {running.length > 8 && <li class="dim">and {running.length - 8} more</li>}
        </ul>
      )}
    </Panel>
  );
}

function Broken() {
  const { value, problem, again } = useRead<Page<Complaint>>("/complaints", 30_000);
  const items = value?.items ?? [];
  return (
    <Panel title="Broken rules" note={<a href={link("rules")}>rules</a>}>
      <ProblemBox of={problem} again={again} />
      {value && items.length === 0 && <Empty>Nothing is broken.</Empty>}
      {!value && !problem && <Empty>Reading …</Empty>}
      <ul class="rows-list">
        {items.slice(0, 6).map((of) => (
          <li key={of.what}>
            <State name={of.hard ? "must not be" : "should not be"} tone={of.hard ? "bad" : "warn"} />{" "}
            {sentence(of.what)}
          </li>
        ))}
        {items.length > 6 && (
          <li>
            <a href={link("rules")}>and {items.length - 6} more</a>
          </li>
        )}
      </ul>
    </Panel>
  );
}

function Changes() {
  const now = useNow(10_000);
  const changes = useComputed(["hosts", "vms", "operations"], () => store.tables.changes.slice(0, 12), []);
  return (
    <Panel title="Changed last" note="since this page was opened">
      {changes.length === 0 ? (
        <Empty>Nothing has changed yet.</Empty>
      ) : (
        <ol class="changes">
          {changes.map((of, index) => (
            <li key={`${of.at}${of.name}${index}`}>
              <time title={ago(of.at, now)} class="num dim">
                {clockTime(of.at)}
              </time>
              <span class={`tone ${of.tone}`}>
                <ChangeWords of={of} />
              </span>
            </li>
          ))}
        </ol>
      )}
    </Panel>
  );
}

function ChangeWords({ of }: { of: Change }) {
  if (of.kind === "operation") return <a href={link("operations", of.name)}>{of.words}</a>;
  if (of.kind === "guest")
    return (
      <>
        <GuestLink name={of.name} /> {of.words}
      </>
    );
  return (
    <>
      <a class="name" href={withQuery(["hosts", of.name], {})}>
        {of.name}
      </a>{" "}
      {of.words}
    </>
  );
}
