// Where one is: the part of the address behind `#`, so that each view is a link that can be sent to others.
import { useEffect, useState } from "preact/hooks";

export interface Route {
  /** The parts of the path: `["hosts", "alpha"]`. */
  path: string[];
  query: URLSearchParams;
}

export function parseRoute(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path
    .split("/")
    .filter((part) => part !== "")
    .map(decode);
  return { path: parts, query: new URLSearchParams(query) };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function link(...parts: string[]): string {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

export function withQuery(path: readonly string[], query: Record<string, string>): string {
  const kept = Object.entries(query).filter(([, value]) => value !== "");
  const text = new URLSearchParams(kept).toString();
  return link(...path) + (text ? `?${text}` : "");
}

export function go(hash: string): void {
  location.hash = hash;
}

/** Changes the address without a step in the browser's history: a search is not undone letter by letter. */
export function replace(hash: string): void {
  history.replaceState(null, "", hash);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute(): Route {
  const [hash, set] = useState(location.hash);
  useEffect(() => {
    const changed = (): void => set(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return parseRoute(hash);
}
