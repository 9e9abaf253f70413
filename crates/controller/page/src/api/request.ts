// Asks the controller. Each request has a deadline, and each refusal becomes a Problem.
import type { ClusterStatus, Page } from "../types";
import { Problem, noAnswer, refusal } from "./problem";

/** The controller itself gives up after 30 s, and says so. */
const DEADLINE_MS = 35_000;

export interface Asked {
  body?: unknown;
  /** The ETag of what was read: the change is refused if it has changed since. */
  ifMatch?: string | undefined;
  /** Names the request, so that it is done once however often it is sent. */
  once?: string | undefined;
  signal?: AbortSignal | undefined;
  /** It is sent even if the page is about to go. */
  keepalive?: boolean | undefined;
}

export interface Answer<T> {
  status: number;
  value: T;
  etag?: string | undefined;
}

let whenSignedOut: () => void = () => undefined;

/** Has somebody called when the controller does not know any more who asks. */
export function onSignedOut(call: () => void): void {
  whenSignedOut = call;
}

export function signedOut(): void {
  whenSignedOut();
}

export function newKey(): string {
  const random = crypto.getRandomValues(new Uint8Array(16));
  return [...random].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function deadline(signal?: AbortSignal, ms = DEADLINE_MS): AbortSignal {
  const end = AbortSignal.timeout(ms);
  return signal ? AbortSignal.any([signal, end]) : end;
}

export async function ask<T>(method: string, path: string, asked: Asked = {}): Promise<Answer<T>> {
  const headers: Record<string, string> = { accept: "application/json" };
  if (method !== "GET") headers["x-skein-page"] = "1";
  if (asked.body !== undefined) headers["content-type"] = "application/json";
  if (asked.ifMatch) headers["if-match"] = asked.ifMatch;
  if (asked.once) headers["idempotency-key"] = asked.once;
  let response: Response;
  try {
    response = await fetch(`/api/v1${path}`, {
      method,
      headers,
      redirect: "manual",
      credentials: "same-origin",
      cache: "no-store",
      signal: deadline(asked.signal),
      keepalive: asked.keepalive ?? false,
      ...(asked.body === undefined ? {} : { body: JSON.stringify(asked.body) }),
    });
  } catch (error) {
    if (asked.signal?.aborted) throw error;
    throw noAnswer();
  }
  if (response.type === "opaqueredirect") throw await elsewhere();
  if (response.status === 401 && path !== "/session") signedOut();
  if (!response.ok) throw await refusal(response);
  const etag = response.headers.get("etag") ?? undefined;
  const is_empty = response.status === 204;
  try {
    return { status: response.status, value: (is_empty ? undefined : await response.json()) as T, etag };
  } catch {
    throw noAnswer();
  }
}

/** Another controller leads: the browser does not say which, so the one that answers is asked. */
async function elsewhere(): Promise<Problem> {
  const detail = "another controller leads, and only that one changes anything";
  const status = await ask<ClusterStatus>("GET", "/cluster").catch(() => undefined);
  const leader = status?.value.controllers.find((controller) => controller.leads);
  const cure = leader ? "" : "ask again in some seconds";
  return new Problem(307, detail, cure, leader && { name: leader.name, url: leader.url });
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await ask<T>("GET", path, { signal })).value;
}

/** How many pages a list may have: a controller that never ends one must not hang the page. */
export const PAGES_MAX = 400;

/** Reads a list whole, page after page. `path` has a query. */
export async function getAll<T>(path: string, signal?: AbortSignal): Promise<T[]> {
  const all: T[] = [];
  let after = "";
  for (let page = 0; page < PAGES_MAX; page += 1) {
    const { items, next } = await get<Page<T>>(`${path}${after && `&after=${part(after)}`}`, signal);
    all.push(...items);
    if (!next) break;
    after = next;
  }
  return all;
}

/** A part of a path, from a name. */
export const part = encodeURIComponent;
