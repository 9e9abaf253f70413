// Keys: `g` and a letter lead somewhere, `/` to the search, `?` shows them all.
import { go, link } from "./router";

export interface Place {
  key: string;
  name: string;
  path: string[];
}

export const PLACES: readonly Place[] = [
  { key: "o", name: "Overview", path: [] },
  { key: "h", name: "Hosts", path: ["hosts"] },
  { key: "v", name: "Guests", path: ["guests"] },
  { key: "m", name: "Migrations", path: ["migrations"] },
  { key: "p", name: "Operations", path: ["operations"] },
  { key: "b", name: "Optimise", path: ["optimize"] },
  { key: "r", name: "Rules", path: ["rules"] },
  { key: "s", name: "Settings", path: ["settings"] },
  { key: "t", name: "Access", path: ["access"] },
  { key: "a", name: "Audit log", path: ["audit"] },
];

/** How long after `g` the letter may come. */
const WITHIN_MS = 1500;

function isTyping(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName))
  );
}

/** Listens for keys until what is returned is called. */
export function listen(help: () => void): () => void {
  let begun = 0;
  const pressed = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (isTyping(event.target)) {
      if (event.key === "Escape") (event.target as HTMLElement).blur();
      return;
    }
    const is_second = event.timeStamp - begun < WITHIN_MS && begun > 0;
    begun = 0;
    const place = is_second ? PLACES.find((place) => place.key === event.key) : undefined;
    if (place) go(link(...place.path));
    else if (event.key === "g") begun = event.timeStamp;
    else if (event.key === "?") help();
    else if (event.key === "/") document.querySelector<HTMLElement>("[data-search]")?.focus();
    else if (event.key === "j") document.querySelector<HTMLElement>("[role=grid]")?.focus();
    else return;
    event.preventDefault();
  };
  addEventListener("keydown", pressed);
  return () => removeEventListener("keydown", pressed);
}
