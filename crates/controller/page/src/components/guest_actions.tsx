// What can be asked of a guest.
import { useState } from "preact/hooks";
import { ask, part } from "../api/request";
import { readRate } from "../format";
import { go, link } from "../router";
import { store } from "../store/store";
import { useComputed } from "../store/use";
import type { Operation, Vm } from "../types";
import { operationTitle } from "../words";
import { RoleButton } from "./access";
import { AskDialog } from "./dialog";
import { CheckField, NumberField, SelectField, TextField } from "./field";
import { PreviewDialog } from "./preview";

type Asked = "migrate" | "start" | "stop" | "delete";

export function GuestActions({ of }: { of: Vm }) {
  const [asked, setAsked] = useState<Asked>();
  const close = (): void => setAsked(undefined);
  const is_off = of.state === "stopped" || of.state === "failed";
  const moving = of.migration ? "It is in a migration." : undefined;
  return (
    <>
      <a class="button" href={link("guests", of.name, "explain")}>
        Explain
      </a>
      <RoleButton
        needs="operator"
        onClick={() => go(link("guests", of.name, "console"))}
        why={
          is_off
            ? "It is off."
            : of.adopted
              ? "Another program started it: its console is where that program has it."
              : undefined
        }
      >
        Console
      </RoleButton>
      <RoleButton
        needs="operator"
        look="main"
        onClick={() => setAsked("migrate")}
        why={moving ?? (of.state !== "running" && of.state !== "stopped" ? `It is ${of.state}.` : undefined)}
      >
        Migrate …
      </RoleButton>
      {is_off ? (
        <RoleButton needs="operator" onClick={() => setAsked("start")}>
          Start …
        </RoleButton>
      ) : (
        <RoleButton needs="operator" onClick={() => setAsked("stop")} why={moving}>
          Stop …
        </RoleButton>
      )}
      {is_off && (
        <RoleButton needs="admin" look="danger" onClick={() => setAsked("delete")}>
          Delete …
        </RoleButton>
      )}
      {asked === "migrate" && <MigrateDialog of={of} close={close} />}
      {asked === "start" && <StartDialog of={of} close={close} />}
      {asked === "stop" && <StopDialog of={of} close={close} />}
      {asked === "delete" && (
        <AskDialog
          title={`Delete ${of.name}`}
          verb="Delete"
          danger
          typed={of.name}
          close={close}
          work={(once) => begin("DELETE", `/vms/${part(of.name)}`, undefined, once)}
        >
          <p>Its host and the cluster forget it. Its disks stay.</p>
        </AskDialog>
      )}
    </>
  );
}

async function begin(method: string, path: string, body: unknown, once: string): Promise<void> {
  const { value } = await ask<Operation | undefined>(method, path, { body, once });
  if (!value) return;
  store.notify(`Begun: ${operationTitle(value.kind)}`, "good", link("operations", value.id));
  go(link("operations", value.id));
}

function useHostNames(): string[] {
  return useComputed(
    ["hosts"],
    () =>
      [...store.tables.hosts.values()]
        .filter((host) => host.contact === "online" && host.mode === "active")
        .map((host) => host.name)
        .sort(),
    [],
    5000,
  );
}

function HostChoice({
  label,
  value,
  set,
  not,
}: {
  label: string;
  value: string;
  set: (host: string) => void;
  not?: string | null | undefined;
}) {
  const hosts = useHostNames().filter((host) => host !== not);
  return (
    <TextField
      label={label}
      value={value}
      set={set}
      list={hosts}
      placeholder="the controller picks it"
      wrong={value !== "" && !hosts.includes(value) ? "No such host takes guests now" : undefined}
    />
  );
}

function MigrateDialog({ of, close }: { of: Vm; close: () => void }) {
  const [to, setTo] = useState("");
  const [rate, setRate] = useState("");
  const [isHeld, setHeld] = useState(false);
  const [longest, setLongest] = useState<number | null>(null);
  const bits = readRate(rate);
  const body = {
    ...(to === "" ? {} : { to }),
    ...(bits === undefined ? {} : { rate_bits_per_s: bits }),
    ...(isHeld ? { hold: longest ? { longest_s: longest * 60 } : {} } : {}),
  };
  return (
    <PreviewDialog
      title={`Migrate ${of.name}`}
      path={`/vms/${part(of.name)}/migrate`}
      body={body}
      verb="Migrate"
      close={close}
    >
      <div class="fields">
        <HostChoice label="To" value={to} set={setTo} not={of.host} />
        {of.state === "running" && (
          <>
            <TextField
              label="Rate at most"
              value={rate}
              set={setRate}
              placeholder="as fast as links carry"
              hint="2.5 Gbit/s, 800 Mbit/s"
              wrong={
                rate.trim() !== "" && (bits === undefined || bits < 8e6) ? "At least 8 Mbit/s, as 2 Gbit/s" : undefined
              }
            />
            <CheckField
              label="Hold before the switch"
              value={isHeld}
              set={setHeld}
              hint="It is copied and kept fresh, and switches when somebody says so"
            />
            {isHeld && (
              <NumberField
                label="Held for"
                unit="minutes at most"
                value={longest}
                set={setLongest}
                min={1}
                hint="Then it is called off. Empty: a day"
              />
            )}
          </>
        )}
      </div>
    </PreviewDialog>
  );
}

function StartDialog({ of, close }: { of: Vm; close: () => void }) {
  const [on, setOn] = useState("");
  return (
    <PreviewDialog
      title={`Start ${of.name}`}
      path={`/vms/${part(of.name)}/start`}
      body={on === "" ? {} : { on }}
      verb="Start"
      close={close}
    >
      <HostChoice label="On" value={on} set={setOn} />
    </PreviewDialog>
  );
}

function StopDialog({ of, close }: { of: Vm; close: () => void }) {
  const [seconds, setSeconds] = useState<number | null>(60);
  const [how, setHow] = useState<"ask" | "force">("ask");
  return (
    <AskDialog
      title={`Stop ${of.name}`}
      verb={how === "force" ? "Stop, by force if need be" : "Stop"}
      danger={how === "force"}
      close={close}
      work={(once) =>
        begin("POST", `/vms/${part(of.name)}/stop`, { timeout_s: seconds ?? 60, force: how === "force" }, once)
      }
    >
      <p>Its power button is pressed, and its system shuts down.</p>
      <NumberField
        label="It has to be off within"
        unit="seconds"
        value={seconds}
        set={setSeconds}
        min={0}
        max={86400}
      />
      <SelectField
        label="If it is not"
        value={how}
        set={setHow}
        options={[
          ["ask", "give up: it runs on"],
          ["force", "pull the plug: what it did not write is lost"],
        ]}
      />
    </AskDialog>
  );
}
