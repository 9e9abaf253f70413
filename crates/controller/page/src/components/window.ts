// Which rows of a long list are to be drawn. Pure.

export interface Window {
  first: number;
  /** The one behind the last. */
  end: number;
}

/** The rows that are seen, and some above and below, so that a scroll does not show nothing. */
export function windowOf(rows: number, rowPx: number, scrollPx: number, heightPx: number, spare = 8): Window {
  const first = Math.max(0, Math.floor(scrollPx / rowPx) - spare);
  const end = Math.min(rows, Math.ceil((scrollPx + heightPx) / rowPx) + spare);
  return { first: Math.min(first, Math.max(0, end - 1)), end };
}

/** Where a key leads in a list; `undefined`: nowhere. */
export function step(key: string, at: number, rows: number, page: number): number | undefined {
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: rows - 1 }[
    key
  ];
  return to === undefined || rows === 0 ? undefined : Math.max(0, Math.min(rows - 1, to));
}
