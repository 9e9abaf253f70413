// What people set of a host.
import { part } from "../api/request";
import type { Host, HostSettings } from "../types";
import { EditPanel } from "./edit";
import { AreaField, CheckField, NumberField, SelectField, TextField } from "./field";
import { readProperties, writeProperties } from "./settings_text";
import { useState } from "preact/hooks";

export function HostSettingsForm({ name }: { name: string }) {
  const path = `/hosts/${part(name)}`;
  return (
    <EditPanel<Host, HostSettings>
      title="Settings"
      needs="admin"
      read={path}
      write={`${path}/settings`}
      pick={(host) => host.settings}
      done={`The settings of ${name} are saved`}
    >
      {({ value, set, disabled }) => (
        <>
          <TextField
            label="Host group"
            value={value.group ?? ""}
            disabled={disabled}
            set={(group) => set({ group: group.trim() || null })}
            hint="Rules name hosts by it"
          />
          <PropertiesField
            label="Properties"
            of={value.properties}
            disabled={disabled}
            set={(properties) => set({ properties })}
            hint="What rules compare: disk=ssd, a line each"
          />
          <PropertiesField
            label="Areas"
            of={value.areas}
            disabled={disabled}
            set={(areas) => set({ areas })}
            hint="Fault domains: rack=r1, a line each"
          />
          <NumberField
            label="Migrations to it at once"
            value={value.incoming_max ?? null}
            min={0}
            max={65535}
            disabled={disabled}
            set={(incoming_max) => set({ incoming_max })}
            hint="Empty: as many as the controller says"
          />
          <NumberField
            label="Migrations from it at once"
            value={value.outgoing_max ?? null}
            min={0}
            max={65535}
            disabled={disabled}
            set={(outgoing_max) => set({ outgoing_max })}
            hint="Empty: as many as the controller says"
          />
          <SelectField
            label="Goes to sleep"
            value={value.sleep ?? "device"}
            disabled={disabled}
            options={[
              ["device", "by its management controller"],
              ["agent", "by its agent's command"],
              ["never", "never"],
            ]}
            set={(sleep) => set({ sleep })}
          />
          <CheckField
            label="Others need its disks"
            value={value.storage ?? false}
            disabled={disabled}
            set={(storage) => set({ storage })}
            hint="It is never switched off by itself"
          />
        </>
      )}
    </EditPanel>
  );
}

/** Properties as text: kept as it is written, while it can be read. */
export function PropertiesField({
  label,
  of,
  set,
  hint,
  disabled,
}: {
  label: string;
  of: Record<string, string> | undefined;
  set: (of: Record<string, string>) => void;
  hint: string;
  disabled: boolean;
}) {
  const [text, setText] = useState<string>();
  const written = writeProperties(of);
  const is_same = text !== undefined && writeProperties(readProperties(text).properties) === written;
  const shown = is_same ? text : written;
  return (
    <AreaField
      label={label}
      value={shown}
      hint={hint}
      disabled={disabled}
      rows={2}
      wrong={readProperties(shown).wrong}
      set={(next) => {
        setText(next);
        set(readProperties(next).properties);
      }}
    />
  );
}
