// What a guest writes: text and the sequences of a VT100 and its descendants (ECMA-48, and xterm's ctlseqs), as far as
// a login shell and full-screen programs use them. What is not known is passed over, and shows nothing.
import { PLAIN, RGB, type Screen, type Style } from "./screen";

/** How many parameters of a sequence are kept, and how large one may be: more is no sequence that means anything. */
const PARAMETERS_MAX = 32;
const PARAMETER_MAX = 9999;
/** How many characters of a string, as a window's title, are passed over before it is taken for text again. */
const STRING_MAX = 4096;

type State = "text" | "escape" | "charset" | "skip" | "sequence" | "string" | "string-escape";

export class Parser {
  private state: State = "text";
  private decoder = new TextDecoder();
  private parameters = "";
  private mark = "";
  private length = 0;

  constructor(
    private readonly screen: Screen,
    /** Sends the guest what it asked the terminal. */
    private readonly answer: (text: string) => void = () => undefined,
    private readonly bell: () => void = () => undefined,
  ) {}

  /** Takes bytes, which may end within a character or a sequence. */
  write(bytes: Uint8Array): void {
    for (const character of this.decoder.decode(bytes, { stream: true })) this.take(character);
  }

  private take(character: string): void {
    const code = character.codePointAt(0) ?? 0;
    if (this.state === "string" || this.state === "string-escape") return this.string(character, code);
    // Controls count within sequences, too.
    if (code < 0x20 || code === 0x7f) return this.control(code);
    switch (this.state) {
      case "text":
        if (code >= 0xa0 || code < 0x7f) this.screen.print(character);
        return;
      case "escape":
        return this.escape(character);
      case "charset":
        this.state = "text";
        if (this.mark === "(") this.screen.isDrawing = character === "0";
        return;
      case "skip":
        this.state = "text";
        return;
      case "sequence":
        return this.sequence(character, code);
    }
  }

  private control(code: number): void {
    const screen = this.screen;
    switch (code) {
      case 0x07:
        return this.bell();
      case 0x08:
        return screen.backspace();
      case 0x09:
        return screen.tab();
      case 0x0a:
      case 0x0b:
      case 0x0c:
        return screen.feed();
      case 0x0d:
        return screen.carriageReturn();
      case 0x18:
      case 0x1a:
        this.state = "text";
        return;
      case 0x1b:
        this.state = "escape";
        return;
    }
  }

  /** A string goes on until BEL or ESC \; what is in it is nothing to be shown. */
  private string(character: string, code: number): void {
    this.length += 1;
    if (code === 0x07 || code === 0x18 || code === 0x1a || this.length > STRING_MAX) this.state = "text";
    else if (code === 0x1b) this.state = "string-escape";
    else if (this.state === "string-escape") {
      this.state = character === "\\" ? "text" : "escape";
      if (this.state === "escape") this.take(character);
    }
  }

  private escape(character: string): void {
    const screen = this.screen;
    this.state = "text";
    switch (character) {
      case "[":
        this.state = "sequence";
        this.parameters = "";
        this.mark = "";
        return;
      case "]":
      case "P":
      case "X":
      case "^":
      case "_":
        this.state = "string";
        this.length = 0;
        return;
      case "(":
      case ")":
      case "*":
      case "+":
        this.state = "charset";
        this.mark = character;
        return;
      case "#":
      case "%":
      case " ":
        this.state = "skip";
        return;
      case "7":
        return screen.save();
      case "8":
        return screen.restore();
      case "D":
        return screen.feed();
      case "E":
        screen.carriageReturn();
        return screen.feed();
      case "M":
        return screen.back();
      case "c":
        return screen.reset();
    }
  }

  private sequence(character: string, code: number): void {
    if ((code >= 0x30 && code <= 0x3b) || code === 0x3a) {
      if (this.parameters.length < PARAMETERS_MAX * 5) this.parameters += character === ":" ? ";" : character;
    } else if (code < 0x40) {
      this.mark = (this.mark + character).slice(0, 2);
    } else {
      this.state = "text";
      this.run(character);
    }
  }

  private numbers(): number[] {
    const parts = this.parameters.split(";").slice(0, PARAMETERS_MAX);
    return parts.map((part) => Math.min(PARAMETER_MAX, Number(part) || 0));
  }

  private run(final: string): void {
    const of = this.numbers();
    const first = of[0] ?? 0;
    const count = Math.max(1, first);
    if (this.mark === "?") return this.mode(final, of);
    // A question such as "which terminal", or what only newer ones know.
    if (this.mark !== "") return;
    const screen = this.screen;
    switch (final) {
      case "A":
        return screen.step(0, -count);
      case "B":
      case "e":
        return screen.step(0, count);
      case "C":
      case "a":
        return screen.step(count, 0);
      case "D":
        return screen.step(-count, 0);
      case "E":
        screen.carriageReturn();
        return screen.step(0, count);
      case "F":
        screen.carriageReturn();
        return screen.step(0, -count);
      case "G":
      case "`":
        return screen.step(count - 1 - screen.x, 0);
      case "d":
        return screen.move(screen.x, count - 1);
      case "H":
      case "f":
        return screen.move(Math.max(1, of[1] ?? 1) - 1, count - 1);
      case "I":
        return screen.tab(count);
      case "Z":
        return screen.tab(screen.x % 8 === 0 ? -count : 1 - count);
      case "J":
        return screen.erase(first);
      case "K":
        return screen.eraseInLine(first);
      default:
        return this.change(final, of, count);
    }
  }

  private change(final: string, of: number[], count: number): void {
    const screen = this.screen;
    switch (final) {
      case "L":
        return screen.moveLines(count, true);
      case "M":
        return screen.moveLines(count, false);
      case "P":
        return screen.deleteCharacters(count);
      case "@":
        return screen.insertCharacters(count);
      case "X":
        return screen.eraseCharacters(count);
      case "S":
        return screen.scrollUp(count);
      case "T":
        return screen.scrollDown(count);
      case "b":
        return screen.repeat(count);
      case "m":
        screen.style = styled(screen.style, of);
        return;
      case "r":
        return screen.setRegion(count - 1, (of[1] || screen.rows) - 1);
      case "s":
        return screen.save();
      case "u":
        return screen.restore();
      case "h":
      case "l":
        if (of.includes(4)) screen.isInserting = final === "h";
        if (of.includes(20)) screen.isNewLine = final === "h";
        return;
      case "c":
        // A VT100 with advanced video.
        return this.answer("\x1b[?1;2c");
      case "n":
        if (of[0] === 5) this.answer("\x1b[0n");
        if (of[0] === 6) this.answer(`\x1b[${screen.y + 1};${screen.x + 1}R`);
        return;
    }
  }

  /** Modes of DEC's terminals and of xterm. */
  private mode(final: string, of: number[]): void {
    if (final !== "h" && final !== "l") return;
    const isOn = final === "h";
    const screen = this.screen;
    for (const mode of of) {
      if (mode === 1) screen.isCursorKeysApplication = isOn;
      else if (mode === 6) screen.setOrigin(isOn);
      else if (mode === 7) screen.isWrapping = isOn;
      else if (mode === 25) screen.isCursorShown = isOn;
      else if (mode === 47 || mode === 1047 || mode === 1049) screen.alternate(isOn);
      else if (mode === 1048 && isOn) screen.save();
      else if (mode === 1048) screen.restore();
      else if (mode === 2004) screen.isPasteBracketed = isOn;
    }
  }
}

/** Returns the style that "select graphic rendition" makes of another one. */
export function styled(before: Style, of: number[]): Style {
  let style = { ...before };
  for (let at = 0; at < of.length; at += 1) {
    const code = of[at] ?? 0;
    if (code === 38 || code === 48) {
      const [colour, used] = colourOf(of.slice(at + 1));
      at += used;
      if (colour !== undefined) style = code === 38 ? { ...style, fg: colour } : { ...style, bg: colour };
    } else style = { ...style, ...CODES.get(code) };
  }
  return style;
}

/** The colour that begins here, and how many parameters it takes. */
function colourOf([kind, first = 0, second = 0, third = 0]: number[]): [number | undefined, number] {
  if (kind === 5) return [first <= 255 ? first : undefined, 2];
  if (kind !== 2) return [undefined, 0];
  const is_colour = [first, second, third].every((part) => part <= 255);
  return [is_colour ? RGB | (first << 16) | (second << 8) | third : undefined, 4];
}

const CODES: ReadonlyMap<number, Partial<Style>> = new Map<number, Partial<Style>>([
  [0, PLAIN],
  [1, { bold: true }],
  [2, { dim: true }],
  [3, { italic: true }],
  [4, { underline: true }],
  [7, { inverse: true }],
  [8, { hidden: true }],
  [21, { underline: true }],
  [22, { bold: false, dim: false }],
  [23, { italic: false }],
  [24, { underline: false }],
  [27, { inverse: false }],
  [28, { hidden: false }],
  [39, { fg: -1 }],
  [49, { bg: -1 }],
  ...Array.from({ length: 8 }, (_, n): [number, Partial<Style>] => [30 + n, { fg: n }]),
  ...Array.from({ length: 8 }, (_, n): [number, Partial<Style>] => [40 + n, { bg: n }]),
  ...Array.from({ length: 8 }, (_, n): [number, Partial<Style>] => [90 + n, { fg: 8 + n }]),
  ...Array.from({ length: 8 }, (_, n): [number, Partial<Style>] => [100 + n, { bg: 8 + n }]),
]);
