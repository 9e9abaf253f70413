// What speaks against each host, as a matrix: hosts by reasons. Pure.
import type { Explanation } from "../types";

type HostObjections = Explanation["hosts"][number];

/** A reason without what differs from host to host, so that the same reason is one column. */
export function kindOfReason(text: string, host: string): string {
  return text
    .replaceAll(`'${host}'`, "it")
    .replace(/'[^']*'/g, "'…'")
    .replace(/\d+(\.\d+)?( ?(GiB|MiB|KiB|TiB|GB|MB|kB|%|cores?|s|ms|[GMk]bit\/s))?/g, "…");
}

export interface Matrix {
  /** The kinds of reasons, the most frequent first. */
  kinds: string[];
  rows: { host: HostObjections; isHere: boolean; reasons: (string[] | undefined)[] }[];
}

/** Where the guest is comes first, then hosts that accept it, then those with the fewest reasons against them. */
export function matrixOf(of: Explanation): Matrix {
  const times = new Map<string, number>();
  for (const host of of.hosts) {
    for (const kind of new Set(host.objections.map((text) => kindOfReason(text, host.host))))
      times.set(kind, (times.get(kind) ?? 0) + 1);
  }
  const kinds = [...times.entries()].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([kind]) => kind);
  const place = (host: HostObjections): number => (host.host === of.on ? 0 : host.accepts ? 1 : 2);
  const rows = [...of.hosts]
    .sort((a, b) => place(a) - place(b) || a.objections.length - b.objections.length || (a.host < b.host ? -1 : 1))
    .map((host) => ({
      host,
      isHere: host.host === of.on,
      reasons: kinds.map((kind) => {
        const found = host.objections.filter((text) => kindOfReason(text, host.host) === kind);
        return found.length > 0 ? found : undefined;
      }),
    }));
  return { kinds, rows };
}
