// What can be asked of a migration that is under way.
import { useState } from "preact/hooks";
import { ask, part } from "../../api/request";
import { bitsPerS, readRate } from "../../format";
import { stageKey } from "../../migration/phases";
import type { Summary } from "../../migration/summary";
import { store } from "../../store/store";
import { RoleButton } from "../access";
import { AskDialog } from "../dialog";
import { TextField } from "../field";

type Asked = "cancel" | "hold" | "limit" | "switch" | "throttle";

/** From here on the target may run the guest: nothing is called off any more. */
const DECIDED = new Set(["grant", "release", "keep", "done"]);

export function MigrationActions({ of }: { of: Summary }) {
  const [asked, setAsked] = useState<Asked>();
  if (of.outcome) return null;
  const key = stageKey(of.ends.source?.stage) ?? "";
  const decided = DECIDED.has(key) && "The guest is being handed over.";
  const open = (what: Asked) => () => setAsked(what);
  const is_held = key === "held" || of.ends.source?.hold;
  return (
    <>
      {is_held ? (
        <RoleButton needs="operator" look="main" onClick={open("switch")} why={decided}>
          Switch …
        </RoleButton>
      ) : (
        <RoleButton needs="operator" onClick={open("hold")} why={decided}>
          Hold …
        </RoleButton>
      )}
      <RoleButton needs="operator" onClick={open("throttle")} why={decided}>
        Allow throttling …
      </RoleButton>
      <RoleButton needs="operator" onClick={open("limit")} why={decided}>
        Limit the rate …
      </RoleButton>
      <RoleButton needs="operator" look="danger" onClick={open("cancel")} why={decided}>
        Call off …
      </RoleButton>
      {asked && <MigrationDialog of={of} asked={asked} close={() => setAsked(undefined)} />}
    </>
  );
}

function MigrationDialog({ of, asked, close }: { of: Summary; asked: Asked; close: () => void }) {
  const send =
    (what: string, body: unknown, said: string) =>
    async (once: string): Promise<void> => {
      await ask("POST", `/vms/${part(of.vm)}/migration/${what}?id=${part(of.id)}`, { body, once });
      store.notify(said);
    };
  switch (asked) {
    case "cancel":
      return (
        <AskDialog
          title={`Call the migration of ${of.vm} off`}
          verb="Call it off"
          danger
          close={close}
          work={send("cancel", undefined, `The migration of ${of.vm} is being called off`)}
        >
          <p>
            The guest goes on at <b class="name">{of.source}</b>. What was copied is thrown away.
          </p>
        </AskDialog>
      );
    case "switch":
      return (
        <AskDialog
          title={`Have ${of.vm} switch`}
          verb="Switch now"
          close={close}
          work={send("switch", {}, `${of.vm} switches`)}
        >
          <p>
            The guest stops here, and goes on at <b class="name">{of.target}</b>.
          </p>
        </AskDialog>
      );
    case "hold":
      return (
        <AskDialog
          title={`Hold ${of.vm} before it switches`}
          verb="Begin again, and hold it"
          close={close}
          work={send("hold", {}, `The migration of ${of.vm} begins again, and is held`)}
        >
          <p>
            The guest runs here until you have it switch, for a day at most, and <b class="name">{of.target}</b> is kept
            fresh.
          </p>
          <AnewNote />
        </AskDialog>
      );
    case "throttle":
      return <ThrottleDialog of={of} close={close} send={send} />;
    case "limit":
      return <LimitDialog of={of} close={close} send={send} />;
  }
}

type Send = (what: string, body: unknown, said: string) => (once: string) => Promise<void>;

function AnewNote() {
  return (
    <p class="dim">
      QEMU takes this only when a copy begins: what was copied is copied again, as another migration, and the guest runs
      on meanwhile.
    </p>
  );
}

function ThrottleDialog({ of, close, send }: { of: Summary; close: () => void; send: Send }) {
  const [text, setText] = useState("60");
  const percent = /^\d{1,2}$/.test(text.trim()) ? Number(text) : 0;
  const wrong = percent >= 1 ? undefined : "A whole number of per cent, 1 to 99";
  return (
    <AskDialog
      title={`Let ${of.vm} be throttled`}
      verb="Begin again, and allow it"
      close={close}
      ready={wrong === undefined}
      work={send("throttle", { percent }, `The migration of ${of.vm} begins again, and may throttle its guest`)}
    >
      <TextField
        label="Per cent of its CPUs' time at most"
        value={text}
        set={setText}
        placeholder="60"
        wrong={wrong}
        hint="The guest is throttled only as far as that takes for its copy to converge."
      />
      <AnewNote />
    </AskDialog>
  );
}

function LimitDialog({ of, close, send }: { of: Summary; close: () => void; send: Send }) {
  const now = of.ends.source?.rate_limit;
  const [text, setText] = useState(now?.by === "migration" ? bitsPerS(now.bits_per_s) : "");
  const bits = readRate(text);
  const is_none = text.trim() === "";
  const wrong = !is_none && (bits === undefined || bits < 8e6) ? "At least 8 Mbit/s, as 2 Gbit/s" : undefined;
  const said = is_none ? "It has no limit of its own any more" : `It sends ${bitsPerS(bits)} at most`;
  return (
    <AskDialog
      title={`Limit how fast ${of.vm} is sent`}
      verb={is_none ? "Take the limit away" : "Limit"}
      close={close}
      ready={wrong === undefined}
      work={send("limit", { rate_bits_per_s: is_none ? null : bits }, said)}
    >
      <TextField
        label="Rate at most"
        value={text}
        set={setText}
        placeholder="2.5 Gbit/s"
        wrong={wrong}
        hint="Empty: no limit of its own. Limits of its host and the cluster hold all the same."
      />
    </AskDialog>
  );
}
