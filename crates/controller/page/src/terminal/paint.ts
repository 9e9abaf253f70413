// Paints a screen as elements: a line each, and in it a piece for each style. Colours that have no class are set by
// script, as the page has no style in its markup.
import { RGB, type Cell, type Screen, type Style } from "./screen";

const CUBE = [0, 95, 135, 175, 215, 255];

/** The colour of a palette of 256, from 16 on; those below have classes. */
export function paletteColour(of: number): string {
  if (of >= 232) {
    const grey = 8 + (of - 232) * 10;
    return `rgb(${grey} ${grey} ${grey})`;
  }
  const part = (by: number): number => CUBE[Math.floor((of - 16) / by) % 6] ?? 0;
  return `rgb(${part(36)} ${part(6)} ${part(1)})`;
}

function colour(of: number): string {
  return of >= RGB ? `rgb(${(of >> 16) & 255} ${(of >> 8) & 255} ${of & 255})` : paletteColour(of);
}

interface Piece {
  text: string;
  style: Style;
  isCursor: boolean;
}

/** The pieces of a line, without what is blank at its end. */
export function pieces(line: readonly Cell[], cursor: number | undefined): Piece[] {
  let end = line.length;
  const isBlank = (cell: Cell | undefined): boolean =>
    cell?.text === " " && cell.style.bg === -1 && !cell.style.inverse && !cell.style.underline;
  while (end > 0 && isBlank(line[end - 1]) && end - 1 !== cursor) end -= 1;
  const found: Piece[] = [];
  for (let x = 0; x < end; x += 1) {
    const { text, style } = line[x] as Cell;
    const last = found.at(-1);
    const isCursor = x === cursor;
    if (last && last.style === style && !last.isCursor && !isCursor) last.text += text;
    else found.push({ text, style, isCursor });
  }
  return found;
}

function element({ text, style, isCursor }: Piece): Node {
  const names: string[] = [];
  const of = document.createElement("span");
  let [fg, bg] = [style.fg, style.bg];
  if (style.inverse) {
    [fg, bg] = [bg, fg];
    if (fg === -1) names.push("ink-ground");
    if (bg === -1) names.push("ground-ink");
  }
  if (fg >= 0 && fg < 16) names.push(`ink-${style.bold && fg < 8 ? fg + 8 : fg}`);
  else if (fg >= 16) of.style.color = colour(fg);
  if (bg >= 0 && bg < 16) names.push(`ground-${bg}`);
  else if (bg >= 16) of.style.backgroundColor = colour(bg);
  for (const name of ["bold", "dim", "italic", "underline", "hidden"] as const) {
    if (style[name]) names.push(`is-${name}`);
  }
  if (isCursor) names.push("cursor");
  if (names.length === 0 && of.style.length === 0) return document.createTextNode(text);
  of.className = names.join(" ");
  of.textContent = text;
  return of;
}

function fill(row: HTMLElement, line: readonly Cell[], cursor?: number): void {
  const found = pieces(line, cursor);
  row.replaceChildren(...(found.length === 0 ? [document.createTextNode("\u00a0")] : found.map(element)));
}

/** Keeps elements as a screen is. Only lines that have changed are made anew. */
export class Painter {
  private rows: HTMLElement[] = [];
  private shown: string[] = [];
  private scrolled = 0;

  constructor(
    private readonly into: HTMLElement,
    private readonly screen: Screen,
  ) {
    this.rows = screen.lines.map(() => this.row());
    into.replaceChildren(...this.rows);
  }

  private row(): HTMLElement {
    const row = document.createElement("div");
    row.className = "row";
    return row;
  }

  /** Paints what has changed; whoever was at the end stays there. */
  paint(): void {
    const { screen, into } = this;
    const isAtEnd = into.scrollHeight - into.scrollTop - into.clientHeight < 24;
    this.paintHistory();
    const cursor = screen.isCursorShown ? { x: screen.x, y: screen.y } : undefined;
    screen.lines.forEach((line, y) => {
      const at = cursor?.y === y ? cursor.x : undefined;
      const row = this.rows[y];
      const looks = fingerprint(line, at);
      if (!row || this.shown[y] === looks) return;
      this.shown[y] = looks;
      fill(row, line, at);
    });
    if (isAtEnd) into.scrollTop = into.scrollHeight;
  }

  private paintHistory(): void {
    const { screen, into } = this;
    const kept = screen.history.length;
    const fresh = Math.min(screen.scrolled - this.scrolled, kept);
    this.scrolled = screen.scrolled;
    const first = this.rows[0] ?? null;
    const added = document.createDocumentFragment();
    for (const line of screen.history.slice(kept - fresh)) {
      const row = this.row();
      fill(row, line);
      added.append(row);
    }
    into.insertBefore(added, first);
    while (into.childElementCount - this.rows.length > kept) into.firstElementChild?.remove();
  }
}

function fingerprint(line: readonly Cell[], cursor: number | undefined): string {
  return pieces(line, cursor)
    .map(({ text, style, isCursor }) => `${isCursor ? "\u0001" : ""}${text}\u0000${Object.values(style).join()}`)
    .join("\u0002");
}
