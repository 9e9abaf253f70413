// Dark or light: as the system has it, unless somebody has chosen here.

export type Theme = "system" | "dark" | "light";

const KEY = "skein-theme";

export function chosen(): Theme {
  const kept = read();
  return kept === "dark" || kept === "light" ? kept : "system";
}

function read(): string | null {
  try {
    return localStorage.getItem(KEY);
  } catch {
    // A browser that keeps nothing for pages: then it is the system's.
    return null;
  }
}

export function choose(theme: Theme): void {
  try {
    if (theme === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // See above.
  }
  apply();
}

export function apply(): void {
  const theme = chosen();
  if (theme === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", theme);
  dispatchEvent(new Event("skein-theme"));
}

/** Calls when colours have changed: charts have them drawn. */
export function onTheme(call: () => void): () => void {
  const query = matchMedia("(prefers-color-scheme: dark)");
  addEventListener("skein-theme", call);
  query.addEventListener("change", call);
  return () => {
    removeEventListener("skein-theme", call);
    query.removeEventListener("change", call);
  };
}
