// Brings hosts up to date, one after the other: looked at first, then begun as an operation.
import { useState } from "preact/hooks";
import { ask } from "../api/request";
import { Button, Panel, Title } from "../components/basics";
import { RoleButton, RoleNote } from "../components/access";
import { useWork } from "../components/dialog";
import { CheckField, NumberField, SelectField } from "../components/field";
import { NamesField } from "../components/names_field";
import { ProblemBox, sentence } from "../components/problem";
import { UpdateTable } from "../components/update_table";
import { several } from "../format";
import { go, link } from "../router";
import type { Operation, UpdateRequest } from "../types";

const HOWS = [
  ["update-reboot", "update, then reboot"],
  ["update", "update, without a reboot"],
  ["reboot", "reboot only"],
  ["manual", "a person does it"],
] as const;

export function Update() {
  const [hosts, setHosts] = useState<string[]>([]);
  const [how, setHow] = useState<(typeof HOWS)[number][0]>("update-reboot");
  const [isHome, setHome] = useState(true);
  const [isSkipping, setSkipping] = useState(false);
  const [minutes, setMinutes] = useState<number | null>(30);
  const [shown, setShown] = useState<{ asked: string; plan: Operation }>();
  const { isBusy, problem, run } = useWork();
  const body: Partial<UpdateRequest> = {
    hosts,
    how,
    bring_home: isHome,
    skip_blocked: isSkipping,
    wait_s: Math.max(60, Math.round((minutes ?? 30) * 60)),
  };
  const asked = JSON.stringify(body);
  const look = (): void =>
    void run(async () => {
      const { value } = await ask<Operation>("POST", "/cluster/update", { body: { ...body, dry_run: true } });
      setShown({ asked, plan: value });
    });
  const begin = (): void =>
    void run(async (once) => {
      const { value } = await ask<Operation>("POST", "/cluster/update", { body, once });
      go(link("operations", value.id));
    });
  const plan = shown?.asked === asked ? shown.plan : undefined;
  const blocked = plan?.update?.hosts?.filter((host) => host.blocks).length ?? 0;
  return (
    <>
      <Title crumbs={[["Operations", link("operations")]]}>Update hosts</Title>
      <RoleNote needs="operator" to="update hosts" />
      <Panel title="What to do" note="each host is emptied, updated, booted, and takes guests again">
        <div class="fields">
          <NamesField
            label="Hosts"
            of={hosts}
            set={setHosts}
            disabled={isBusy}
            hint="In their order. Empty: all, those with a controller last"
          />
          <SelectField
            label="How"
            value={how}
            options={HOWS}
            set={setHow}
            disabled={isBusy}
            hint={
              how === "manual"
                ? "Each host is emptied, and waits for a person"
                : "What is run is the host's own: its administrator sets it"
            }
          />
          <NumberField
            label="Each host has"
            unit="minutes"
            value={minutes}
            set={setMinutes}
            min={1}
            max={1440}
            disabled={isBusy}
            hint="To be updated and back"
          />
          <CheckField label="Guests come home" value={isHome} set={setHome} disabled={isBusy} />
          <CheckField
            label="Leave out hosts that cannot be emptied"
            value={isSkipping}
            set={setSkipping}
            disabled={isBusy}
            hint="Otherwise nothing is begun if there is one"
          />
        </div>
        <ProblemBox of={problem} />
        <div class="buttons">
          <Button look={plan ? undefined : "main"} disabled={isBusy} onClick={look}>
            {isBusy ? "Asking …" : "Look what would be done"}
          </Button>
          {plan && (
            <RoleButton
              needs="operator"
              look="main"
              onClick={begin}
              why={blocked > 0 ? `${several(blocked, "host")} cannot be emptied.` : isBusy && "It is being asked for."}
            >
              Begin
            </RoleButton>
          )}
        </div>
      </Panel>
      {plan && (
        <Panel title="What would be done">
          {plan.message && <p>{sentence(plan.message)}</p>}
          {plan.update && <UpdateTable of={plan.update} />}
        </Panel>
      )}
    </>
  );
}
