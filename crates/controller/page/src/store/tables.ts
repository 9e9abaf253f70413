// The cluster as the page knows it, by name: lists that were read, and events since. Pure: no network, no clock.
import type { Host, Operation, Vm } from "../types";
import { guestChange, hostChange, operationChange, type Change } from "./changes";

/** How many of the last changes are kept. */
const CHANGES_MAX = 200;
/** How many operations are kept: of older ones the list is asked. */
const OPERATIONS_MAX = 500;

export type EventData =
  | { at: number; event: "host"; host: Host }
  | { at: number; event: "vm"; vm: Vm }
  | { at: number; event: "operation"; operation: Operation }
  | { at: number; event: "gone"; kind: string; name: string }
  | { at: number; event: "reset" };

export type TableName = "hosts" | "vms" | "operations";

export class Tables {
  readonly hosts = new Map<string, Host>();
  readonly vms = new Map<string, Vm>();
  readonly operations = new Map<string, Operation>();
  readonly changes: Change[] = [];
  /** Grows with each change of a table: whoever has computed something from it sees that it is old. */
  readonly revision = { hosts: 0, vms: 0, operations: 0 };

  /** The number of the newest event of each thing: what a list says that was asked for before is older. */
  private readonly told = {
    hosts: new Map<string, number>(),
    vms: new Map<string, number>(),
    operations: new Map<string, number>(),
  };
  private events = 0;

  /** Names this moment, for `merge` of what is asked for now. */
  mark(): number {
    return this.events;
  }

  take(event: EventData): void {
    this.events += 1;
    switch (event.event) {
      case "host":
        this.note(hostChange(this.hosts.get(event.host.name), event.host, event.at));
        return this.set("hosts", event.host.name, withNics(event.host, this.hosts.get(event.host.name)));
      case "vm":
        this.note(guestChange(this.vms.get(event.vm.name), event.vm, event.at));
        return this.set("vms", event.vm.name, event.vm);
      case "operation":
        this.note(operationChange(this.operations.get(event.operation.id), event.operation, event.at));
        this.set("operations", event.operation.id, event.operation);
        return this.forgetOperations();
      case "gone":
        return this.gone(event);
      case "reset":
        return;
    }
  }

  /** Takes what a list says, but for things of which events came after the list was asked for. */
  merge(table: TableName, items: readonly (Host | Vm | Operation)[], asked: number): void {
    const told = this.told[table];
    for (const item of items) {
      const name = "id" in item ? item.id : item.name;
      if ((told.get(name) ?? -1) > asked) continue;
      (this[table] as Map<string, unknown>).set(name, item);
    }
    this.revision[table] += 1;
  }

  /** Forgets what a whole list does not have that was asked for at `asked`, and no event has told of since. */
  keep(table: TableName, names: ReadonlySet<string>, asked: number): void {
    for (const name of [...this[table].keys()]) {
      if (!names.has(name) && (this.told[table].get(name) ?? -1) <= asked) this[table].delete(name);
    }
    this.revision[table] += 1;
  }

  /** Forgets an operation that the controller does not know any more. */
  forgetOperation(id: string): void {
    this.operations.delete(id);
    this.revision.operations += 1;
  }

  clear(): void {
    for (const table of ["hosts", "vms", "operations"] as const) {
      this[table].clear();
      this.told[table].clear();
      this.revision[table] += 1;
    }
    this.changes.length = 0;
  }

  private set(table: TableName, name: string, item: Host | Vm | Operation): void {
    (this[table] as Map<string, unknown>).set(name, item);
    this.told[table].set(name, this.events);
    this.revision[table] += 1;
  }

  private gone({ at, kind, name }: { at: number; kind: string; name: string }): void {
    const table = kind === "host" ? "hosts" : kind === "vm" ? "vms" : "operations";
    if (!this[table].delete(name)) return;
    this.told[table].set(name, this.events);
    this.revision[table] += 1;
    const of = table === "hosts" ? "host" : table === "vms" ? "guest" : "operation";
    // That an old operation is forgotten is no news.
    if (of !== "operation") this.note({ at, kind: of, name, words: "is gone", tone: "plain" });
  }

  private note(change: Change | undefined): void {
    if (!change) return;
    this.changes.unshift(change);
    if (this.changes.length > CHANGES_MAX) this.changes.length = CHANGES_MAX;
  }

  private forgetOperations(): void {
    if (this.operations.size <= OPERATIONS_MAX) return;
    const [oldest] = [...this.operations.values()]
      .filter((of) => of.ended != null)
      .sort((a, b) => a.created - b.created);
    if (oldest) this.operations.delete(oldest.id);
  }
}

/** An event may not have the NICs' rates: then those that were read last stay, of a host that still reports. */
function withNics(host: Host, before: Host | undefined): Host {
  return host.nics || !before?.nics || !host.load ? host : { ...host, nics: before.nics };
}
