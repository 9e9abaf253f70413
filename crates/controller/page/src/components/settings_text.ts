// Lists and properties as somebody writes them in a field. Pure.

/** `group=web` a line, or several parted by commas. What has no `=` is named in `wrong`. */
export function readProperties(text: string): { properties: Record<string, string>; wrong: string | undefined } {
  const properties: Record<string, string> = {};
  for (const part of text
    .split(/[\n,]/)
    .map((part) => part.trim())
    .filter((part) => part !== "")) {
    const at = part.indexOf("=");
    if (at <= 0) return { properties, wrong: `“${part}” is no NAME=VALUE` };
    properties[part.slice(0, at).trim()] = part.slice(at + 1).trim();
  }
  return { properties, wrong: undefined };
}

export function writeProperties(of: Record<string, string> | null | undefined): string {
  return Object.entries(of ?? {})
    .map(([key, value]) => `${key}=${value}`)
    .join("\n");
}

/** Names parted by commas or spaces, each once, in their order. */
export function readNames(text: string): string[] {
  return [...new Set(text.split(/[\s,]+/).filter((name) => name !== ""))];
}

export function writeNames(of: readonly string[] | null | undefined): string {
  return (of ?? []).join(", ");
}
