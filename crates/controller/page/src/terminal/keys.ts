// What a key is to a guest: the bytes that a terminal sends.

export interface KeyPressed {
  key: string;
  ctrlKey: boolean;
  altKey: boolean;
  shiftKey: boolean;
  metaKey: boolean;
}

const LETTERED: Readonly<Record<string, string>> = {
  ArrowUp: "A",
  ArrowDown: "B",
  ArrowRight: "C",
  ArrowLeft: "D",
  Home: "H",
  End: "F",
};
const NUMBERED: Readonly<Record<string, number>> = {
  Insert: 2,
  Delete: 3,
  PageUp: 5,
  PageDown: 6,
  F5: 15,
  F6: 17,
  F7: 18,
  F8: 19,
  F9: 20,
  F10: 21,
  F11: 23,
  F12: 24,
};
const FUNCTIONS: Readonly<Record<string, string>> = { F1: "P", F2: "Q", F3: "R", F4: "S" };
const PLAIN: Readonly<Record<string, string>> = { Enter: "\r", Backspace: "\x7f", Escape: "\x1b", Tab: "\t" };

/** Whether a key leaves the terminal: Ctrl+], as in `skein vm console`. */
export function leaves(of: KeyPressed): boolean {
  return of.ctrlKey && !of.altKey && !of.metaKey && of.key === "]";
}

/** What a key sends. `undefined`: it is the browser's. */
export function keyText(of: KeyPressed, isApplication: boolean): string | undefined {
  if (of.metaKey) return undefined;
  const { key } = of;
  // Pasting and copying are the browser's.
  if (of.ctrlKey && !of.altKey && (key === "v" || key === "V" || (of.shiftKey && key === "C"))) return undefined;
  if (of.shiftKey && key === "Insert") return undefined;
  const modifiers = (of.shiftKey ? 1 : 0) + (of.altKey ? 2 : 0) + (of.ctrlKey ? 4 : 0);
  const letter = LETTERED[key];
  if (letter) {
    if (modifiers > 0) return `\x1b[1;${modifiers + 1}${letter}`;
    return (isApplication ? "\x1bO" : "\x1b[") + letter;
  }
  const number = NUMBERED[key];
  if (number) return modifiers > 0 ? `\x1b[${number};${modifiers + 1}~` : `\x1b[${number}~`;
  const named = FUNCTIONS[key];
  if (named) return modifiers > 0 ? `\x1b[1;${modifiers + 1}${named}` : `\x1bO${named}`;
  if (key === "Tab" && of.shiftKey) return "\x1b[Z";
  const text = PLAIN[key] ?? ([...key].length === 1 ? key : undefined);
  if (text === undefined) return undefined;
  const sent = of.ctrlKey && PLAIN[key] === undefined ? controlled(text) : text;
  // On many keyboards a letter comes by both together.
  if (of.ctrlKey && of.altKey && sent === undefined) return text;
  return sent === undefined ? undefined : (of.altKey && !isTypedByAlt(of) ? "\x1b" : "") + sent;
}

/** Whether the character is one that Alt makes on this keyboard. */
function isTypedByAlt(of: KeyPressed): boolean {
  return (of.key.codePointAt(0) ?? 0) > 0x7f;
}

function controlled(text: string): string | undefined {
  if (text === " " || text === "2") return "\0";
  if (text === "/") return "\x1f";
  const code = text.toUpperCase().charCodeAt(0);
  return code >= 0x40 && code <= 0x5f ? String.fromCharCode(code - 0x40) : undefined;
}

/** What pasting a text sends: lines end as the Enter key has it. */
export function pasted(text: string, isBracketed: boolean): string {
  const lines = text.replace(/\r?\n/g, "\r");
  // Else what is pasted could end the brackets itself.
  return isBracketed ? `\x1b[200~${lines.replaceAll("\x1b", "")}\x1b[201~` : lines;
}
