// What can be asked of a host.
import { useState } from "preact/hooks";
import { ask, part } from "../api/request";
import { go, link } from "../router";
import { store } from "../store/store";
import type { Host, Operation, PowerReading } from "../types";
import { operationTitle } from "../words";
import { RoleButton } from "./access";
import { AskDialog } from "./dialog";
import { CheckField, NumberField } from "./field";
import { PreviewDialog } from "./preview";

type Asked = "drain" | "evacuate" | "resume" | "fence" | "is-off" | "sleep" | "wake" | "remove" | "test";

/** Asks for something that may become an operation, and leads there. */
export async function askHost(name: string, verb: string, body: unknown, once: string): Promise<void> {
  const { value } = await ask<Operation | undefined>("POST", `/hosts/${part(name)}/${verb}`, { body, once });
  if (value?.id) {
    store.notify(`Begun: ${operationTitle(value.kind)}`, "good", link("operations", value.id));
  } else store.notify(`Done: ${verb} ${name}`);
}

export function HostActions({ of }: { of: Host }) {
  const [asked, setAsked] = useState<Asked>();
  const { contact, mode } = of;
  const is_gone = contact === "lost" || contact === "off" || contact === "asleep";
  const open = (what: Asked) => () => setAsked(what);
  const no_device = of.settings.fencing == null && "No fencing device is set for this host.";
  return (
    <>
      {mode === "active" && (
        <RoleButton needs="operator" onClick={open("drain")} why={is_gone && "It is not online."}>
          Drain …
        </RoleButton>
      )}
      {mode === "draining" && (
        <RoleButton needs="operator" onClick={open("evacuate")}>
          Evacuate …
        </RoleButton>
      )}
      {mode !== "active" && (
        <RoleButton needs="operator" look="main" onClick={open("resume")}>
          Resume …
        </RoleButton>
      )}
      {contact === "online" && mode === "active" && (
        <RoleButton needs="operator" onClick={open("evacuate")}>
          Evacuate …
        </RoleButton>
      )}
      {contact !== "asleep" && contact !== "off" && (
        <RoleButton
          needs="operator"
          onClick={open("sleep")}
          why={contact !== "online" ? "It is not online." : no_device && of.settings.sleep !== "agent" && no_device}
        >
          Sleep …
        </RoleButton>
      )}
      {(contact === "asleep" || contact === "off" || of.power?.trouble) && (
        <RoleButton needs="operator" onClick={open("wake")} why={no_device}>
          Wake …
        </RoleButton>
      )}
      {of.settings.fencing != null && (
        <RoleButton needs="operator" onClick={open("test")}>
          Ask its device …
        </RoleButton>
      )}
      {contact === "lost" && (
        <>
          <RoleButton needs="operator" look="danger" onClick={open("fence")} why={no_device}>
            Switch off …
          </RoleButton>
          <RoleButton needs="admin" look="danger" onClick={open("is-off")}>
            It is off …
          </RoleButton>
        </>
      )}
      <RoleButton
        needs="admin"
        look="danger"
        onClick={open("remove")}
        why={of.vms_running > 0 && "Guests are on it: drain it first."}
      >
        Remove …
      </RoleButton>
      {asked && <HostDialog of={of} asked={asked} close={() => setAsked(undefined)} />}
    </>
  );
}

function HostDialog({ of, asked, close }: { of: Host; asked: Asked; close: () => void }) {
  const name = of.name;
  switch (asked) {
    case "drain":
    case "evacuate":
      return <DrainDialog name={name} evacuate={asked === "evacuate"} close={close} />;
    case "resume":
      return <ResumeDialog of={of} close={close} />;
    case "is-off":
      return <IsOffDialog of={of} close={close} />;
    case "test":
      return <TestDialog name={name} close={close} />;
    case "fence":
      return (
        <AskDialog
          title={`Switch ${name} off`}
          verb={`Switch ${name} off`}
          danger
          close={close}
          typed={name}
          work={(once) => askHost(name, "fence", { is_off: false }, once)}
        >
          <p>
            Its fencing device takes the power away. That proves that the host is off, and its guests are then started
            elsewhere. A guest that still runs there, unseen, ends with it.
          </p>
        </AskDialog>
      );
    case "sleep":
      return (
        <AskDialog
          title={`Put ${name} to sleep`}
          verb="Put to sleep"
          close={close}
          work={(once) => askHost(name, "sleep", undefined, once)}
        >
          <p>
            Its guests are moved to other hosts, then it is shut down in order. It is switched on again when somebody
            wakes it, or when guests need room.
          </p>
        </AskDialog>
      );
    case "wake":
      return (
        <AskDialog
          title={`Wake ${name}`}
          verb="Wake"
          close={close}
          work={(once) => askHost(name, "wake", undefined, once)}
        >
          <p>
            Its device switches it on, and it takes guests again once its agent reports. What went wrong before is
            forgotten.
          </p>
        </AskDialog>
      );
    case "remove":
      return <RemoveDialog name={name} close={close} />;
  }
}

export function DrainDialog({ name, evacuate, close }: { name: string; evacuate: boolean; close: () => void }) {
  const [minutes, setMinutes] = useState<number | null>(null);
  const body = { evacuate, ...(minutes === null || minutes <= 0 ? {} : { deadline_s: Math.round(minutes * 60) }) };
  return (
    <PreviewDialog
      title={`${evacuate ? "Evacuate" : "Drain"} ${name}`}
      path={`/hosts/${part(name)}/drain`}
      body={body}
      verb={evacuate ? "Evacuate" : "Drain"}
      danger={evacuate}
      close={close}
    >
      <p>
        {evacuate
          ? "The host is about to fail: what is most important goes first, and nothing that is held is waited for."
          : "The host takes no guests from now on, and its guests move to other hosts. This is where they would go:"}
      </p>
      <div class="fields">
        <NumberField
          label="Deadline"
          unit="minutes"
          value={minutes}
          set={setMinutes}
          min={1}
          hint="Guests that are not away by then stay. Empty: none"
        />
      </div>
    </PreviewDialog>
  );
}

function ResumeDialog({ of, close }: { of: Host; close: () => void }) {
  const [isHome, setHome] = useState(of.drain != null);
  const words = of.mode === "draining" ? "This calls the drain off. " : "";
  return (
    <AskDialog
      title={`Resume ${of.name}`}
      verb="Resume"
      close={close}
      work={(once) => askHost(of.name, "resume", { bring_home: isHome }, once)}
    >
      <p>{words}The host takes guests again.</p>
      <CheckField
        label="Bring home the guests that left"
        value={isHome}
        set={setHome}
        hint="Those that drains moved away since the host last took guests."
      />
    </AskDialog>
  );
}

/** The one question that a person alone can answer: so it is asked in plain words, and answered by typing. */
export function IsOffDialog({ of, close }: { of: Host; close: () => void }) {
  const [isSure, setSure] = useState(false);
  return (
    <AskDialog
      title={`Is ${of.name} off?`}
      verb={`I say that ${of.name} is off`}
      danger
      close={close}
      ready={isSure}
      typed={of.name}
      work={(once) => askHost(of.name, "fence", { is_off: true }, once)}
    >
      <div class="plain-words">
        <p>
          <b>The controllers do not hear of {of.name}. They cannot know whether its guests still run.</b>
        </p>
        <p>
          If you say that it is off, they start its guests on other hosts at once. If it is not off, the same guest then
          runs twice, and both write to the same disks: <b>its data is destroyed</b>.
        </p>
        <ul>
          <li>See it with your own eyes, or by its management controller: no power.</li>
          <li>That it does not answer to ping is no proof. That its switch is down is no proof.</li>
          <li>It must stay off until it is to run again.</li>
        </ul>
      </div>
      <CheckField label={`I have made sure that ${of.name} has no power`} value={isSure} set={setSure} />
    </AskDialog>
  );
}

function TestDialog({ name, close }: { name: string; close: () => void }) {
  const [reading, setReading] = useState<PowerReading>();
  return (
    <AskDialog
      title={`Ask the fencing device of ${name}`}
      verb={reading ? "Ask again" : "Ask"}
      close={close}
      stays
      work={async () => setReading((await ask<PowerReading>("POST", `/hosts/${part(name)}/fencing/test`)).value)}
    >
      <p>The device is asked whether the host has power. Nothing is switched.</p>
      {reading && (
        <p class="answer">
          Power: <b>{reading.power}</b>. {reading.detail}
        </p>
      )}
    </AskDialog>
  );
}

function RemoveDialog({ name, close }: { name: string; close: () => void }) {
  const [isForced, setForced] = useState(false);
  return (
    <AskDialog
      title={`Remove ${name} from the cluster`}
      verb="Remove"
      danger
      close={close}
      typed={name}
      work={async () => {
        await ask("DELETE", `/hosts/${part(name)}${isForced ? "?force=true" : ""}`);
        store.notify(`${name} is removed`);
        go(link("hosts"));
      }}
    >
      <p>The controllers refuse the host from now on, until it joins anew.</p>
      <CheckField
        label="Also forget its guests that are off"
        value={isForced}
        set={setForced}
        hint="The cluster alone forgets them; the host keeps their files."
      />
    </AskDialog>
  );
}
