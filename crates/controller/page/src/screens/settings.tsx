// What is set of the whole cluster.
import { EditPanel } from "../components/edit";
import { CheckField, NumberField, TextField } from "../components/field";
import { Title } from "../components/basics";
import type { ClusterSettings } from "../types";

type Part = "optimize" | "failover" | "power";

export function Settings() {
  return (
    <>
      <Title>Settings</Title>
      <EditPanel<ClusterSettings, ClusterSettings>
        title="The whole cluster"
        needs="admin"
        read="/settings"
        write="/settings"
        pick={(of) => of}
        done="The settings are saved"
      >
        {({ value, set, disabled }) => {
          const of = <P extends Part>(part: P, more: Partial<NonNullable<ClusterSettings[P]>>): void =>
            set({ [part]: { ...value[part], ...more } } as Partial<ClusterSettings>);
          // A number that is being written is empty for a moment, and is not sent so: the least is.
          const number = (next: number | null, least: number): number => next ?? least;
          const { optimize, failover, power } = value;
          return (
            <>
              <h3 class="across">Migrations</h3>
              <NumberField
                label="At once in the cluster"
                value={value.migrations_max ?? null}
                min={1}
                max={10000}
                disabled={disabled}
                set={(next) => set({ migrations_max: number(next, 1) })}
              />
              <TextField
                label="All together send at most"
                value={value.migration_rate ?? ""}
                disabled={disabled}
                set={(next) => set({ migration_rate: next.trim() === "" ? null : next })}
                placeholder="as fast as links carry"
                hint="4 Gbit/s; mon-fri 08:00-18:00 1 Gbit/s, by the leading controller's clock"
              />
              <h3 class="across">Optimise</h3>
              <CheckField
                label="By itself"
                value={optimize?.automatic ?? false}
                disabled={disabled}
                set={(automatic) => of("optimize", { automatic })}
                hint="Guests move where less is broken, or load is better spread"
              />
              <NumberField
                label="A round each"
                unit="seconds"
                value={optimize?.interval_s ?? null}
                min={60}
                max={86400}
                disabled={disabled}
                set={(next) => of("optimize", { interval_s: number(next, 60) })}
              />
              <NumberField
                label="How much, 1 to 5"
                value={optimize?.aggressiveness ?? null}
                min={1}
                max={5}
                disabled={disabled}
                set={(next) => of("optimize", { aggressiveness: number(next, 1) })}
                hint="1: only what is broken is repaired"
              />
              <NumberField
                label="Moves of a round at most"
                value={optimize?.round_moves_max ?? null}
                min={0}
                disabled={disabled}
                set={(next) => of("optimize", { round_moves_max: number(next, 0) })}
              />
              <NumberField
                label="Moves of a guest a day"
                value={optimize?.vm_moves_max ?? null}
                min={0}
                disabled={disabled}
                set={(next) => of("optimize", { vm_moves_max: number(next, 0) })}
              />
              <NumberField
                label="A guest stays after a move"
                unit="seconds"
                value={optimize?.cooldown_s ?? null}
                min={0}
                disabled={disabled}
                set={(next) => of("optimize", { cooldown_s: number(next, 0) })}
              />
              <h3 class="across">When a host dies</h3>
              <NumberField
                label="Lost after silence of"
                unit="seconds"
                value={value.host_lease_s ?? null}
                min={3}
                max={3600}
                disabled={disabled}
                set={(next) => set({ host_lease_s: number(next, 3) })}
              />
              <CheckField
                label="Switch lost hosts off by their devices"
                value={failover?.power_off ?? true}
                disabled={disabled}
                set={(power_off) => of("failover", { power_off })}
                hint="That proves that a host is off"
              />
              <CheckField
                label="Start guests elsewhere"
                value={failover?.restart ?? true}
                disabled={disabled}
                set={(restart) => of("failover", { restart })}
                hint="Of hosts that are proven to be off"
              />
              <NumberField
                label="Lost so long before it is switched off"
                unit="seconds"
                value={failover?.grace_s ?? null}
                min={0}
                max={86400}
                disabled={disabled}
                set={(next) => of("failover", { grace_s: number(next, 0) })}
              />
              <NumberField
                label="Hosts switched off at once"
                value={failover?.power_offs_max ?? null}
                min={1}
                max={10000}
                disabled={disabled}
                set={(next) => of("failover", { power_offs_max: number(next, 1) })}
              />
              <h3 class="across">Hosts that are not needed</h3>
              <CheckField
                label="Let them sleep"
                value={power?.saving ?? false}
                disabled={disabled}
                set={(saving) => of("power", { saving })}
                hint="By themselves, and they wake when guests need room"
              />
              <NumberField
                label="Stay awake at least"
                unit="hosts"
                value={power?.hosts_min ?? null}
                min={1}
                max={10000}
                disabled={disabled}
                set={(next) => of("power", { hosts_min: number(next, 1) })}
              />
              <NumberField
                label="May fail, and all find room"
                unit="hosts"
                value={power?.spare_hosts ?? null}
                min={0}
                max={2}
                disabled={disabled}
                set={(next) => of("power", { spare_hosts: number(next, 0) })}
              />
              <NumberField
                label="Could sleep for"
                unit="seconds"
                value={power?.settle_s ?? null}
                min={0}
                max={86400}
                disabled={disabled}
                set={(next) => of("power", { settle_s: number(next, 0) })}
                hint="Before one is put to sleep"
              />
              <NumberField
                label="Awake at least"
                unit="seconds"
                value={power?.awake_min_s ?? null}
                min={0}
                max={604800}
                disabled={disabled}
                set={(next) => of("power", { awake_min_s: number(next, 0) })}
              />
              <NumberField
                label="Wakes within"
                unit="seconds"
                value={power?.wake_within_s ?? null}
                min={30}
                max={3600}
                disabled={disabled}
                set={(next) => of("power", { wake_within_s: number(next, 30) })}
              />
              <TextField
                label="Hours"
                value={power?.hours ?? ""}
                disabled={disabled}
                placeholder="always"
                set={(next) => of("power", { hours: next.trim() === "" ? null : next })}
                hint="mon-fri 19:00-06:30; sat,sun"
              />
            </>
          );
        }}
      </EditPanel>
    </>
  );
}
