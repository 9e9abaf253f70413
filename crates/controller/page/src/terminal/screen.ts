// What a terminal shows: cells, a cursor, what has scrolled away. It knows neither bytes nor the page.
import { width } from "./width";

/** Colours: -1 the terminal's own, 0 to 255 of the palette, from RGB on 0xRRGGBB. */
export const RGB = 0x1000000;

export interface Style {
  readonly fg: number;
  readonly bg: number;
  readonly bold: boolean;
  readonly dim: boolean;
  readonly italic: boolean;
  readonly underline: boolean;
  readonly inverse: boolean;
  readonly hidden: boolean;
}

export const PLAIN: Style = {
  fg: -1,
  bg: -1,
  bold: false,
  dim: false,
  italic: false,
  underline: false,
  inverse: false,
  hidden: false,
};

export interface Cell {
  /** The character with its marks; empty behind a wide one. */
  readonly text: string;
  readonly style: Style;
}

const BLANK: Cell = { text: " ", style: PLAIN };
/** How many marks a character may have: a guest that sends more of them fills no memory. */
const MARKS_MAX = 8;
/** How many lines that have scrolled away are kept. */
export const HISTORY_MAX = 2000;

interface Cursor {
  x: number;
  y: number;
  style: Style;
  isDrawing: boolean;
}

/** DEC's line drawing, from ` to ~. */
const DRAWING = "◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·";

export class Screen {
  lines: Cell[][];
  /** Lines that have scrolled away, the oldest first. */
  history: Cell[][] = [];
  /** How many lines were ever added to the history. */
  scrolled = 0;
  x = 0;
  y = 0;
  style = PLAIN;
  isCursorShown = true;
  isCursorKeysApplication = false;
  isPasteBracketed = false;
  isWrapping = true;
  isInserting = false;
  isDrawing = false;
  /** A line feed goes to the line's begin, too. */
  isNewLine = false;
  private isOriginAtTop = false;
  /** The last column was written: the next character begins a line. */
  private isAtEdge = false;
  private top = 0;
  private bottom: number;
  private saved: Cursor = { x: 0, y: 0, style: PLAIN, isDrawing: false };
  private main: { lines: Cell[][]; cursor: Cursor } | undefined;
  private last = "";

  constructor(
    readonly columns = 80,
    readonly rows = 24,
  ) {
    this.lines = this.blanks();
    this.bottom = rows - 1;
  }

  private blanks(): Cell[][] {
    return Array.from({ length: this.rows }, () => this.blank());
  }

  private blank(): Cell[] {
    return Array.from({ length: this.columns }, () => BLANK);
  }

  /** What is erased has the ground that is set. */
  private erased(): Cell {
    return this.style.bg === -1 ? BLANK : { text: " ", style: { ...PLAIN, bg: this.style.bg } };
  }

  private line(y = this.y): Cell[] {
    return this.lines[y] as Cell[];
  }

  print(character: string): void {
    const text = this.isDrawing ? (DRAWING[(character.codePointAt(0) ?? 0) - 0x60] ?? character) : character;
    const wide = width(text.codePointAt(0) ?? 0);
    if (wide === 0) return this.mark(text);
    if ((this.isAtEdge || this.x + wide > this.columns) && this.isWrapping) {
      this.x = 0;
      this.feed();
    }
    const x = Math.min(this.x, this.columns - wide);
    const line = this.line();
    if (this.isInserting) {
      line.splice(x, 0, ...Array.from({ length: wide }, () => BLANK));
      line.length = this.columns;
    }
    line[x] = { text, style: this.style };
    if (wide === 2) line[x + 1] = { text: "", style: this.style };
    this.last = character;
    this.isAtEdge = x + wide >= this.columns;
    this.x = Math.min(x + wide, this.columns - 1);
  }

  /** Adds a mark, such as an accent, to the character before. */
  private mark(text: string): void {
    let x = this.isAtEdge ? this.x : this.x - 1;
    if (x > 0 && this.line()[x]?.text === "") x -= 1;
    const before = this.line()[x];
    if (before && [...before.text].length <= MARKS_MAX) this.line()[x] = { ...before, text: before.text + text };
  }

  repeat(count: number): void {
    for (let times = 0; times < Math.min(count, this.columns) && this.last !== ""; times += 1) this.print(this.last);
  }

  feed(): void {
    this.isAtEdge = false;
    if (this.y === this.bottom) this.scrollUp(1);
    else if (this.y < this.rows - 1) this.y += 1;
    if (this.isNewLine) this.x = 0;
  }

  back(): void {
    this.isAtEdge = false;
    if (this.y === this.top) this.scrollDown(1);
    else if (this.y > 0) this.y -= 1;
  }

  carriageReturn(): void {
    this.isAtEdge = false;
    this.x = 0;
  }

  backspace(): void {
    this.isAtEdge = false;
    this.x = Math.max(0, this.x - 1);
  }

  tab(count = 1): void {
    this.isAtEdge = false;
    this.x = Math.max(0, Math.min(this.columns - 1, (Math.floor(this.x / 8) + count) * 8));
  }

  scrollUp(count: number): void {
    for (let times = 0; times < Math.min(count, this.rows); times += 1) {
      const [gone] = this.lines.splice(this.top, 1);
      this.lines.splice(this.bottom, 0, this.filled());
      // What a full-screen program scrolls is nobody's history.
      if (gone && this.top === 0 && !this.main) this.remember(gone);
    }
  }

  private remember(line: Cell[]): void {
    this.history.push(line);
    this.scrolled += 1;
    if (this.history.length > HISTORY_MAX) this.history.shift();
  }

  scrollDown(count: number): void {
    for (let times = 0; times < Math.min(count, this.rows); times += 1) {
      this.lines.splice(this.bottom, 1);
      this.lines.splice(this.top, 0, this.filled());
    }
  }

  private filled(): Cell[] {
    const cell = this.erased();
    return Array.from({ length: this.columns }, () => cell);
  }

  move(x: number, y: number): void {
    this.isAtEdge = false;
    const [top, bottom] = this.isOriginAtTop ? [this.top, this.bottom] : [0, this.rows - 1];
    this.x = Math.max(0, Math.min(this.columns - 1, x));
    this.y = Math.max(top, Math.min(bottom, y + (this.isOriginAtTop ? this.top : 0)));
  }

  /** Moves by a step, and not out of the region that scrolls if the cursor is in it. */
  step(dx: number, dy: number): void {
    this.isAtEdge = false;
    const isInside = this.y >= this.top && this.y <= this.bottom;
    const [top, bottom] = isInside ? [this.top, this.bottom] : [0, this.rows - 1];
    this.x = Math.max(0, Math.min(this.columns - 1, this.x + dx));
    this.y = Math.max(top, Math.min(bottom, this.y + dy));
  }

  /** Erases in the line: 0 from the cursor on, 1 up to it, 2 all. */
  eraseInLine(how: number, y = this.y): void {
    this.isAtEdge = false;
    const [from, to] = how === 0 ? [this.x, this.columns] : how === 1 ? [0, this.x + 1] : [0, this.columns];
    this.line(y).fill(this.erased(), from, to);
  }

  /** Erases in the screen: 0 from the cursor on, 1 up to it, 2 all, 3 what has scrolled away. */
  erase(how: number): void {
    if (how === 3) {
      this.history = [];
      return;
    }
    if (how < 2) this.eraseInLine(how);
    const isErased = (y: number): boolean => how === 2 || (how === 0 ? y > this.y : y < this.y);
    for (let y = 0; y < this.rows; y += 1) if (isErased(y)) this.eraseInLine(2, y);
  }

  eraseCharacters(count: number): void {
    this.isAtEdge = false;
    this.line().fill(this.erased(), this.x, Math.min(this.columns, this.x + count));
  }

  deleteCharacters(count: number): void {
    this.isAtEdge = false;
    const line = this.line();
    const gone = line.splice(this.x, Math.min(count, this.columns - this.x)).length;
    line.push(...Array.from({ length: gone }, () => this.erased()));
  }

  insertCharacters(count: number): void {
    this.isAtEdge = false;
    const line = this.line();
    const come = Math.min(count, this.columns - this.x);
    line.splice(this.x, 0, ...Array.from({ length: come }, () => this.erased()));
    line.length = this.columns;
  }

  /** Inserts lines at the cursor, or deletes them. */
  moveLines(count: number, isInsert: boolean): void {
    if (this.y < this.top || this.y > this.bottom) return;
    this.carriageReturn();
    for (let times = 0; times < Math.min(count, this.bottom - this.y + 1); times += 1) {
      this.lines.splice(isInsert ? this.bottom : this.y, 1);
      this.lines.splice(isInsert ? this.y : this.bottom, 0, this.filled());
    }
  }

  setRegion(top: number, bottom: number): void {
    if (top < 0 || bottom >= this.rows || top >= bottom) return;
    this.top = top;
    this.bottom = bottom;
    this.move(0, 0);
  }

  setOrigin(isAtTop: boolean): void {
    this.isOriginAtTop = isAtTop;
    this.move(0, 0);
  }

  private cursor(): Cursor {
    return { x: this.x, y: this.y, style: this.style, isDrawing: this.isDrawing };
  }

  private place(cursor: Cursor): void {
    this.isAtEdge = false;
    Object.assign(this, cursor);
  }

  save(): void {
    this.saved = this.cursor();
  }

  restore(): void {
    this.place(this.saved);
  }

  /** Shows the screen of full-screen programs, or the one of before. */
  alternate(isOn: boolean): void {
    if (isOn && !this.main) {
      this.main = { lines: this.lines, cursor: this.cursor() };
      this.lines = this.blanks();
    } else if (!isOn && this.main) {
      const { lines, cursor } = this.main;
      this.main = undefined;
      this.lines = lines;
      this.place(cursor);
    }
  }

  /** As it was at the begin; what has scrolled away stays. */
  reset(): void {
    const { history, scrolled } = this;
    Object.assign(this, new Screen(this.columns, this.rows), { history, scrolled });
    this.main = undefined;
  }

  /** All text, with what has scrolled away. */
  text(): string {
    const words = (line: Cell[]): string =>
      line
        .map((cell) => cell.text)
        .join("")
        .trimEnd();
    return [...this.history, ...this.lines].map(words).join("\n").trimEnd();
  }
}
