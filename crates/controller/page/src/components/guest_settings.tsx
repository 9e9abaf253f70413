// What people set of a guest.
import { part } from "../api/request";
import type { Vm, VmSettings } from "../types";
import { EditPanel } from "./edit";
import { CheckField, NumberField, TextField } from "./field";
import { PropertiesField } from "./host_settings";
import { NamesField } from "./names_field";

export function GuestSettingsForm({ name }: { name: string }) {
  const path = `/vms/${part(name)}`;
  return (
    <EditPanel<Vm, VmSettings>
      title="Settings"
      needs="admin"
      read={path}
      write={`${path}/settings`}
      pick={(vm) => vm.settings}
      done={`The settings of ${name} are saved`}
      check={({ priority }) =>
        priority != null && (priority < 0 || priority > 100) ? "A priority is 0 to 100" : undefined
      }
    >
      {({ value, set, disabled }) => (
        <>
          <NamesField
            label="Tags"
            of={value.tags}
            disabled={disabled}
            set={(tags) => set({ tags })}
            hint="By which rules name it"
          />
          <PropertiesField
            label="Properties"
            of={value.properties}
            disabled={disabled}
            set={(properties) => set({ properties })}
            hint="What rules compare: disk=ssd, a line each"
          />
          <NamesField
            label="Preferred hosts"
            of={value.preferred}
            disabled={disabled}
            set={(preferred) => set({ preferred })}
            hint="Best first"
          />
          <NamesField
            label="Only on"
            of={value.owners ?? []}
            disabled={disabled}
            set={(owners) => set({ owners: owners.length > 0 ? owners : null })}
            hint="The only hosts. Empty: all"
          />
          <TextField
            label="Tenant"
            value={value.tenant ?? ""}
            disabled={disabled}
            set={(tenant) => set({ tenant: tenant.trim() || null })}
          />
          <TextField
            label="Availability set"
            value={value.availability_set ?? ""}
            disabled={disabled}
            set={(of) => set({ availability_set: of.trim() || null })}
            hint="Kept apart from the others of it"
          />
          <NumberField
            label="Priority"
            value={value.priority ?? null}
            min={0}
            max={100}
            disabled={disabled}
            set={(priority) => set({ priority })}
            hint="0 to 100; the greatest is moved and started first"
          />
          <CheckField
            label="Pinned"
            value={value.pinned ?? false}
            disabled={disabled}
            set={(pinned) => set({ pinned })}
            hint="Neither the optimisation nor a drain moves it"
          />
          <CheckField
            label="Autostart"
            value={value.autostart ?? false}
            disabled={disabled}
            set={(autostart) => set({ autostart })}
            hint="It starts again after its host was booted"
          />
        </>
      )}
    </EditPanel>
  );
}
