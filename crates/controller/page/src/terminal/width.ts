// How many cells a character takes: wide ones of East Asia and pictures two, marks on another one none.

const NONE = /^[\p{Mn}\p{Me}\u200b-\u200f\ufe00-\ufe0f]$/u;
/** From East Asian Width of Unicode, in ranges that have hardly any others in them. */
const WIDE: readonly [number, number][] = [
  [0x1100, 0x115f],
  [0x2e80, 0x303e],
  [0x3041, 0x33ff],
  [0x3400, 0x4dbf],
  [0x4e00, 0x9fff],
  [0xa000, 0xa4cf],
  [0xac00, 0xd7a3],
  [0xf900, 0xfaff],
  [0xfe30, 0xfe6f],
  [0xff00, 0xff60],
  [0xffe0, 0xffe6],
  [0x1f300, 0x1f64f],
  [0x1f680, 0x1f6ff],
  [0x1f900, 0x1f9ff],
  [0x20000, 0x3fffd],
];

export function width(code: number): 0 | 1 | 2 {
  // Most of what a console says.
  if (code < 0x300) return 1;
  if (NONE.test(String.fromCodePoint(code))) return 0;
  return WIDE.some(([from, to]) => code >= from && code <= to) ? 2 : 1;
}
