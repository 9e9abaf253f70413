// Sums over hosts. Pure.
import type { Host } from "../types";

export interface ClusterLoad {
  cpus: number;
  cpuMillicores: number;
  cpu: number | undefined;
  ramBytes: number;
  ramFreeBytes: number;
  ram: number | undefined;
  sendBitsPerS: number;
  receiveBitsPerS: number;
}

/** What all hosts that report use together. */
export function clusterLoad(hosts: Iterable<Host>): ClusterLoad {
  const sum = { cpus: 0, cpuMillicores: 0, ramBytes: 0, ramFreeBytes: 0, sendBitsPerS: 0, receiveBitsPerS: 0 };
  for (const { load, cpus } of hosts) {
    if (!load) continue;
    sum.cpus += cpus ?? 0;
    sum.cpuMillicores += load.cpu_millicores;
    sum.ramBytes += load.ram_bytes;
    sum.ramFreeBytes += load.ram_available_bytes;
    sum.sendBitsPerS += load.net_send_bytes_per_s * 8;
    sum.receiveBitsPerS += load.net_receive_bytes_per_s * 8;
  }
  return {
    ...sum,
    cpu: sum.cpus > 0 ? sum.cpuMillicores / (sum.cpus * 1000) : undefined,
    ram: sum.ramBytes > 0 ? 1 - sum.ramFreeBytes / sum.ramBytes : undefined,
  };
}

/** Whether something about a host is to be looked at, and what, the worst first. */
export function healthOf(host: Host): { tone: "good" | "warn" | "bad" | "plain"; reasons: string[] } {
  const reasons: string[] = [];
  let tone: "good" | "warn" | "bad" | "plain" = "good";
  const add = (words: string, of: "warn" | "bad" | "plain"): void => {
    reasons.push(words);
    const order = { good: 0, plain: 1, warn: 2, bad: 3 };
    if (order[of] > order[tone]) tone = of;
  };
  if (host.contact === "lost" && !host.note) add("its agent does not report", "bad");
  if (host.contact === "off") add("it is off", "plain");
  if (host.contact === "asleep") add("it sleeps", "plain");
  if (host.contact === "joined") add("its agent has not reported yet", "warn");
  if (host.note) add(host.note, host.contact === "lost" ? "bad" : "warn");
  for (const nic of host.nics ?? []) {
    if (nic.has_link === false && nic.is_migration) add(`${nic.name} has no link`, "warn");
  }
  if (host.power?.trouble) add(host.power.trouble, "warn");
  if (host.watchdog?.why_not) add(`no watchdog: ${host.watchdog.why_not}`, "warn");
  const load = host.load;
  if (load && load.ram_bytes > 0 && load.ram_available_bytes / load.ram_bytes < 0.05)
    add("memory is nearly used up", "warn");
  if (host.contact === "online" && host.mode !== "active") {
    add(host.mode === "draining" ? "it is being emptied" : "it takes no guests", "plain");
  }
  return { tone, reasons };
}
