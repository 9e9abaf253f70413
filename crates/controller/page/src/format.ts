// Numbers and times as people read them. What is not known is a dash, never 0.

export const UNKNOWN = "–";

type Maybe = number | null | undefined;

function isKnown(value: Maybe): value is number {
  return typeof value === "number" && Number.isFinite(value);
}

/** Three digits that matter, as 9.42, 94.2 or 942. */
export function digits(value: number): string {
  const size = Math.abs(value);
  if (size >= 99.95 || value === 0) return value.toFixed(0);
  return size >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}

function scaled(value: number, base: number, units: readonly string[]): string {
  let at = 0;
  let rest = value;
  // 999.5 would be written 1000.
  while (Math.abs(rest) >= base - 0.5 && at < units.length - 1) {
    rest /= base;
    at += 1;
  }
  return `${at === 0 ? rest.toFixed(0) : digits(rest)} ${units[at]}`;
}

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const DECIMAL = ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"];
const BITS = ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"];

/** Memory: 31.5 GiB. */
export function bytes(value: Maybe): string {
  return isKnown(value) ? scaled(value, 1024, BINARY) : UNKNOWN;
}

/** A whole amount of memory, as somebody gave it: 32 GiB. */
export function wholeBytes(value: Maybe): string {
  return bytes(value).replace(/\.0+ /, " ");
}

/** What disks and guests move: 310 MB/s. */
export function bytesPerS(value: Maybe): string {
  return isKnown(value) ? scaled(value, 1000, DECIMAL) : UNKNOWN;
}

/** What links carry: 9.42 Gbit/s. */
export function bitsPerS(value: Maybe): string {
  return isKnown(value) ? scaled(value, 1000, BITS) : UNKNOWN;
}

/** A link's speed: 10 Gbit/s, 2.5 Gbit/s. */
export function speed(value: Maybe): string {
  if (!isKnown(value)) return UNKNOWN;
  return bitsPerS(value)
    .replace(/(\.\d*?)0+ /, "$1 ")
    .replace(". ", " ");
}

export function percent(share: Maybe): string {
  return isKnown(share) ? `${(share * 100).toFixed(share < 0.0995 && share > 0 ? 1 : 0)} %` : UNKNOWN;
}

/** 48 cores' worth of CPU time: 12.3. */
export function cores(millicores: Maybe): string {
  return isKnown(millicores) ? (millicores / 1000).toFixed(millicores < 9950 ? 2 : 1) : UNKNOWN;
}

export function count(value: Maybe): string {
  return isKnown(value) ? value.toLocaleString("en-GB") : UNKNOWN;
}

/** 1 guest, 2 guests. */
export function several(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** A length of time: 61 ms, 7.3 s, 2 min 05 s, 3 h 04 min, 2 d 3 h. */
export function duration(ms: Maybe): string {
  if (!isKnown(ms)) return UNKNOWN;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 9.95) return `${s.toFixed(1)} s`;
  const whole = Math.round(s);
  if (whole < 60) return `${whole} s`;
  const pad = (value: number): string => String(value).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${pad(whole % 60)} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h ${pad(minutes % 60)} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

/** About how long: a forecast has no tenths of a second. */
export function about(ms: Maybe): string {
  if (!isKnown(ms)) return UNKNOWN;
  if (ms < 1000) return "1 s";
  return duration(Math.round(ms / 1000) * 1000).replace(".0 s", " s");
}

/** A forecast with its uncertainty: 32 to 58 s. */
export function range(low: Maybe, high: Maybe): string {
  if (!isKnown(low) || !isKnown(high)) return UNKNOWN;
  const [from, to] = [about(low), about(high)];
  if (from === to) return from;
  const unit = / (s|h)$/;
  const same = unit.exec(from)?.[1] === unit.exec(to)?.[1] && !from.includes("min") && !to.includes("min");
  return same ? `${from.replace(unit, "")} to ${to}` : `${from} to ${to}`;
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });

export type Instant = number | string | null | undefined;

/** Milliseconds since 1970 of either form in which the API says times. */
export function instant(at: Instant): number | undefined {
  if (at === null || at === undefined || at === "") return undefined;
  const ms = typeof at === "number" ? at : Date.parse(at);
  return Number.isFinite(ms) ? ms : undefined;
}

export function clockTime(at: Instant): string {
  const ms = instant(at);
  return ms === undefined ? UNKNOWN : clock.format(ms);
}

/** 14:03:22 today, with the day before it otherwise. */
export function time(at: Instant, now = Date.now()): string {
  const ms = instant(at);
  if (ms === undefined) return UNKNOWN;
  return day.format(ms) === day.format(now) ? clock.format(ms) : `${day.format(ms)}, ${clock.format(ms)}`;
}

/** A clock's time with milliseconds, for what happens close together. */
export function preciseTime(at: Instant): string {
  const ms = instant(at);
  return ms === undefined ? UNKNOWN : `${clock.format(ms)}.${String(ms % 1000).padStart(3, "0")}`;
}

export function ago(at: Instant, now = Date.now()): string {
  const ms = instant(at);
  if (ms === undefined) return UNKNOWN;
  const s = Math.max(0, now - ms) / 1000;
  if (s < 60) return "just now";
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ago`;
  return `${Math.floor(s / 86_400)} d ago`;
}

/** For how long it has been so. */
export function forHowLong(since: Instant, now = Date.now()): string {
  const words = ago(since, now);
  return words.endsWith(" ago") ? `for ${words.slice(0, -" ago".length)}` : words;
}

/** How long until then. */
export function until(at: Instant, now = Date.now()): string {
  const ms = instant(at);
  if (ms === undefined) return UNKNOWN;
  return ms <= now ? "now" : `in ${about(ms - now)}`;
}

/** The rate that somebody wrote, in bit/s: 2.5 Gbit/s, 800M, 4000000. */
export function readRate(text: string): number | undefined {
  const found = /^\s*([\d.]+)\s*([kmgt]?)(?:bit\/s|bit|b\/s|bps)?\s*$/i.exec(text);
  if (!found) return undefined;
  const power = { "": 1, k: 1e3, m: 1e6, g: 1e9, t: 1e12 }[(found[2] ?? "").toLowerCase()] ?? 1;
  const value = Number(found[1]) * power;
  return Number.isFinite(value) ? Math.round(value) : undefined;
}
