// A guest: whether and where it runs, how busy it is, what is set of it, and what can be asked.
import { useState } from "preact/hooks";
import { Problem } from "../api/problem";
import { part } from "../api/request";
import { Button, Empty, Facts, HostLink, Meter, Panel, Tag, Title } from "../components/basics";
import { GuestActions } from "../components/guest_actions";
import { GuestState } from "../components/guest_columns";
import { GuestSettingsForm } from "../components/guest_settings";
import { HistoryCharts } from "../components/history";
import { RoleNote, useMay } from "../components/access";
import { ProblemBox, sentence } from "../components/problem";
import { about, bitsPerS, bytes, bytesPerS, cores, forHowLong, time, UNKNOWN, wholeBytes } from "../format";
import { ofCopy } from "../migration/progress";
import { link } from "../router";
import { readVm } from "../store/follow";
import { store } from "../store/store";
import { useComputed, useNow, useRead, useRepeated, useStore } from "../store/use";
import type { MigrationView, Page, Vm } from "../types";
import { runStateWords } from "../words";
import { MigrationRows } from "../components/migration_rows";

const READ_MS = 2000;

export function GuestPage({ name }: { name: string }) {
  const of = useStore(() => store.tables.vms.get(name));
  const isLoaded = useStore(() => store.isLoaded);
  useRepeated((signal) => readVm(name, signal), READ_MS, [name]);
  if (!of) {
    return (
      <>
        <Title crumbs={[["Guests", link("guests")]]}>{name}</Title>
        {isLoaded ? (
          <ProblemBox of={new Problem(404, `there is no guest '${name}'`, "it may have been deleted")} />
        ) : (
          <Empty>Reading …</Empty>
        )}
      </>
    );
  }
  return (
    <>
      <Title
        crumbs={[["Guests", link("guests")]]}
        kind="Guest"
        actions={<GuestActions of={of} />}
        state={<GuestStates of={of} />}
      >
        {name}
      </Title>
      <RoleNote needs="operator" to="move, start or stop it, or open its console" />
      <Trouble of={of} />
      <Moving of={of} />
      <div class="columns even">
        <GuestFacts of={of} />
        <Past name={name} />
      </div>
      <HistoryCharts path={`/vms/${part(name)}/history`} cpus={of.cpus} ram={of.ram_bytes} />
      <div class="columns even">
        <GuestSettingsForm name={name} />
        <Definition of={of} />
      </div>
    </>
  );
}

function GuestStates({ of }: { of: Vm }) {
  const now = useNow(30_000);
  return (
    <>
      <GuestState of={of} /> <span class="dim">on</span> <HostLink name={of.host} />
      <span class="dim">{forHowLong(of.since, now)}</span>
      {(of.settings.tags ?? []).map((tag) => (
        <Tag key={tag}>{tag}</Tag>
      ))}
      {of.settings.pinned && <Tag>pinned</Tag>}
      {of.adopted && <Tag title="Another program started it">adopted</Tag>}
    </>
  );
}

/** What a person has to know, and to do, of a guest that no host alone can decide about. */
function Trouble({ of }: { of: Vm }) {
  const steps: Partial<Record<Vm["state"], string>> = {
    "in-doubt":
      "It is paused, so nothing is lost. If the other host of its migration is there again, the two agents " +
      "decide by themselves. If that host is off for good, say so on its page; then it goes on here.",
    lost:
      "Its host does not report, so whether it runs is not known. See to the host: once it reports, or is proven to " +
      "be off, the guest goes on, here or elsewhere.",
    failed: "Its host is proven to be off. It is started elsewhere by itself where that is switched on, or by Start.",
    unresponsive:
      "Its QEMU does not answer. Look at the host: its disks may hang. Stopping it by force loses what it did " +
      "not write.",
  };
  const words = steps[of.state];
  if (!words && !of.note) return null;
  return (
    <div class={`callout ${words ? "bad" : "plain"}`} role="status">
      {words && (
        <p>
          <b>The guest {runStateWords(of.state)}.</b> {words}
        </p>
      )}
      {of.note && <p>{sentence(of.note)}</p>}
      {words && of.host && (
        <p>
          <a href={link("hosts", of.host)}>The host {of.host}</a>
        </p>
      )}
    </div>
  );
}

function Moving({ of }: { of: Vm }) {
  const migration = of.migration;
  if (!migration) return null;
  const far = ofCopy(migration.copy);
  return (
    <Panel
      title="Migration under way"
      actions={
        <a class="button main" href={link("migrations", migration.id)}>
          Watch it
        </a>
      }
    >
      <Facts
        of={[
          ["From", <HostLink name={migration.source} />],
          ["To", <HostLink name={migration.target} />],
          ["Begun", time(migration.begun)],
          ["This pass", <Meter label="Of this pass" value={far.share} of={1} tone="busy" />],
          ["Rate", bitsPerS(migration.copy?.bits_per_s)],
          ["Left", far.leftMs === undefined ? UNKNOWN : `about ${about(far.leftMs)}`],
          ["Held", migration.hold?.since ? `since ${time(migration.hold.since)}` : undefined],
          [
            "Operation",
            migration.operation ? (
              <a href={link("operations", migration.operation)}>{migration.operation}</a>
            ) : (
              "none: somebody began it on the host"
            ),
          ],
        ]}
      />
    </Panel>
  );
}

function GuestFacts({ of }: { of: Vm }) {
  const load = of.load;
  return (
    <Panel title="Facts">
      <Facts
        of={[
          [
            "CPU",
            <Meter
              label="CPU"
              value={load?.cpu_millicores}
              of={of.cpus * 1000}
              tone="plain"
              text={load ? `${cores(load.cpu_millicores)} of ${of.cpus}` : `${UNKNOWN} of ${of.cpus}`}
            />,
          ],
          [
            "Memory",
            <Meter
              label="Memory of its QEMU"
              value={load?.ram_bytes}
              of={of.ram_bytes}
              tone="plain"
              text={load ? `${bytes(load.ram_bytes)} of ${wholeBytes(of.ram_bytes)}` : wholeBytes(of.ram_bytes)}
            />,
          ],
          [
            "Network",
            load
              ? `receives ${bitsPerS(load.net_receive_bytes_per_s * 8)}, sends ` +
                bitsPerS(load.net_send_bytes_per_s * 8)
              : UNKNOWN,
          ],
          [
            "Disks",
            load
              ? `reads ${bytesPerS(load.disk_read_bytes_per_s)}, writes ${bytesPerS(load.disk_write_bytes_per_s)}`
              : UNKNOWN,
          ],
          ["Operation", of.operation && <a href={link("operations", of.operation)}>{of.operation}</a>],
        ]}
      />
    </Panel>
  );
}

function Past({ name }: { name: string }) {
  const { value, problem } = useRead<Page<MigrationView>>(`/migrations?limit=500&vm=${part(name)}`, 10_000);
  const own = useComputed(
    [],
    () =>
      (value?.items ?? [])
        .sort((a, b) => b.begun.localeCompare(a.begun))
        .slice(0, 6),
    [value, name],
  );
  return (
    <Panel title="Migrations" note="as far as agents keep them">
      <ProblemBox of={problem} />
      {own.length === 0 ? <Empty>{value ? "None of late." : "Reading …"}</Empty> : <MigrationRows of={own} />}
    </Panel>
  );
}

function Definition({ of }: { of: Vm }) {
  const may = useMay("operator");
  const [isShown, setShown] = useState(false);
  const { value, problem, isReading, again } = useRead<{ toml: string }>(
    isShown ? `/vms/${part(of.name)}/definition` : undefined,
  );
  return (
    <Panel title="Definition" note="as its host has it">
      {!may ? (
        <RoleNote needs="operator" to="see it" />
      ) : !isShown ? (
        <Button onClick={() => setShown(true)}>Show it</Button>
      ) : problem ? (
        <ProblemBox of={problem} again={again} />
      ) : value ? (
        <pre class="code" tabIndex={0} aria-label={`Definition of ${of.name}`}>
          {value.toml}
        </pre>
      ) : (
        <Empty>{isReading ? "Reading …" : UNKNOWN}</Empty>
      )}
    </Panel>
  );
}
