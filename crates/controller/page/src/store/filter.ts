// Whether something is like what somebody searches for. Pure.

/** All words of the search have to be in one of the texts each; upper and lower case are the same. */
export function matches(search: string, texts: readonly string[]): boolean {
  const words = search
    .toLowerCase()
    .split(/\s+/)
    .filter((word) => word !== "");
  if (words.length === 0) return true;
  const all = texts.map((text) => text.toLowerCase());
  return words.every((word) => all.some((text) => text.includes(word)));
}
