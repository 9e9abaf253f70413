// What is asked of a person, in plain words: hosts that are lost, guests that are in doubt.
import { useState } from "preact/hooks";
import { duration, several } from "../format";
import { link } from "../router";
import { store } from "../store/store";
import { healthOf } from "../store/summary";
import { useComputed, useNow, useStore } from "../store/use";
import type { Host } from "../types";
import { RoleButton } from "./access";
import { GuestLink, HostLink, Panel, State } from "./basics";
import { IsOffDialog } from "./host_actions";
import { sentence } from "./problem";

/** How many guests are named; of more their number is told. */
const NAMED_MAX = 12;

export function Asked() {
  const lost = useComputed(["hosts"], () => [...store.tables.hosts.values()].filter((of) => of.contact === "lost"), []);
  const doubt = useComputed(
    ["vms"],
    () => [...store.tables.vms.values()].filter((of) => of.state === "in-doubt"),
    [],
    500,
  );
  const ill = useComputed(
    ["hosts"],
    () =>
      [...store.tables.hosts.values()].filter(
        (of) => of.contact !== "lost" && ["warn", "bad"].includes(healthOf(of).tone),
      ),
    [],
    1000,
  );
  const attention = useStore(() => store.cluster?.attention);
  // The controllers say of each lost host what this page says with its buttons.
  const others = (attention ?? []).filter((words) => !lost.some((of) => isOf(words, of.name)));
  const all = lost.length + (doubt.length > 0 ? 1 : 0) + others.length + ill.length;
  if (all === 0) return null;
  return (
    <Panel title="Needs attention" note={several(all, "matter")}>
      <ul class="rows-list">
        {lost.map((host) => (
          <LostHost key={host.name} of={host} />
        ))}
        {doubt.length > 0 && (
          <li>
            <State name="in doubt" tone="bad" /> {several(doubt.length, "guest is", "guests are")} paused between two
            hosts, and no host alone can decide where {doubt.length === 1 ? "it runs" : "they run"}. Nothing is lost:
            see that both hosts of {doubt.length === 1 ? "its" : "each"} migration are on and reach each other.
            <div>
              {doubt.slice(0, NAMED_MAX).map((of) => (
                <span key={of.name}>
                  <GuestLink name={of.name} />{" "}
                  {of.host && (
                    <span class="dim">
                      on <HostLink name={of.host} />;{" "}
                    </span>
                  )}
                </span>
              ))}
              {doubt.length > NAMED_MAX && <a href="#/guests?state=in-doubt">all of them</a>}
            </div>
          </li>
        )}
        {ill.slice(0, NAMED_MAX).map((of) => (
          <li key={of.name}>
            <State name="see to it" tone={healthOf(of).tone} /> <HostLink name={of.name} />:{" "}
            {healthOf(of).reasons.join("; ")}.
          </li>
        ))}
        {ill.length > NAMED_MAX && (
          <li>
            <a href="#/hosts?state=attention">all {ill.length} hosts to be looked at</a>
          </li>
        )}
        {others.map((words) => (
          <li key={words}>
            <State name="see to it" tone="warn" /> {sentence(words)}
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function isOf(words: string, host: string): boolean {
  return words.startsWith(`host '${host}' does not report`);
}

function LostHost({ of }: { of: Host }) {
  const now = useNow(5000);
  const [isAsking, setAsking] = useState(false);
  const guests = useComputed(
    ["vms"],
    () => [...store.tables.vms.values()].filter((vm) => vm.host === of.name && vm.state === "lost").length,
    [of.name],
    1000,
  );
  const has_device = of.settings.fencing != null;
  return (
    <li class="asked">
      <div>
        <State name="lost" tone="bad" /> <HostLink name={of.name} /> has been lost for{" "}
        {duration(now - of.contact_since)}.{" "}
        {guests > 0 ? `Whether its ${several(guests, "guest")} ${guests === 1 ? "runs" : "run"} is not known. ` : ""}
        {has_device
          ? "Its fencing device switches it off by itself where that is set; then its guests start elsewhere."
          : "It has no fencing device: somebody has to look whether it is off. Until then its guests start nowhere."}
      </div>
      <div class="actions">
        <a class="button small" href={link("hosts", of.name)}>
          Look at it
        </a>
        <RoleButton needs="admin" small look="danger" onClick={() => setAsking(true)}>
          It is off …
        </RoleButton>
      </div>
      {isAsking && <IsOffDialog of={of} close={() => setAsking(false)} />}
    </li>
  );
}
