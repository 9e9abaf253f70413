// A terminal's screen, its keys, and how lines become pieces.
import assert from "node:assert/strict";
import { test } from "node:test";
import { added } from "../src/components/terminal";
import { keyText, leaves, pasted, type KeyPressed } from "../src/terminal/keys";
import { paletteColour, pieces } from "../src/terminal/paint";
import { Parser } from "../src/terminal/parser";
import { HISTORY_MAX, PLAIN, RGB, Screen } from "../src/terminal/screen";

function shown(text: string | Uint8Array, columns = 10, rows = 4) {
  const screen = new Screen(columns, rows);
  const answers: string[] = [];
  let bells = 0;
  const parser = new Parser(
    screen,
    (answer) => answers.push(answer),
    () => (bells += 1),
  );
  parser.write(typeof text === "string" ? new TextEncoder().encode(text) : text);
  const lines = screen.lines.map((line) =>
    line
      .map((cell) => cell.text)
      .join("")
      .trimEnd(),
  );
  return { screen, parser, answers, bells: () => bells, lines, at: [screen.x, screen.y] };
}

test("lines wrap, scroll and are kept", () => {
  assert.deepEqual(shown("login: root\r\nhi").lines, ["login: roo", "t", "hi", ""]);
  assert.deepEqual(shown("0123456789\r\nx").lines.slice(0, 2), ["0123456789", "x"], "no line between");
  const scrolled = shown("a\r\nb\r\nc\r\nd\r\ne\r\nf");
  assert.deepEqual(scrolled.lines, ["c", "d", "e", "f"]);
  assert.equal(scrolled.screen.text(), "a\nb\nc\nd\ne\nf");
  const flood = shown("x\r\n".repeat(HISTORY_MAX + 50));
  assert.equal(flood.screen.history.length, HISTORY_MAX);
  assert.equal(flood.screen.scrolled, HISTORY_MAX + 50 - 3);
});

test("controls move the cursor", () => {
  assert.deepEqual(shown("abc\b\bX\rY").lines[0], "YXc");
  assert.deepEqual(shown("a\tb").at, [9, 0]);
  assert.deepEqual(shown("\x1b[2;3HX\x1b[AY\x1b[5DZ\x1b[9;99H").at, [9, 3]);
  assert.deepEqual(shown("\x1b[2;3HX").lines, ["", "  X", "", ""]);
  assert.equal(shown("\x07").bells(), 1);
  assert.deepEqual(shown("ab\x1b7\x1b[4;4Hx\x1b8c").lines[0], "abc");
  assert.deepEqual(shown("\x1b[3;1H\x1bMa\x1b[1;1H\x1bMb").lines, ["b", "", "a", ""]);
});

test("a sequence and a character may come in parts, and controls count within one", () => {
  const bytes = new TextEncoder().encode("\x1b[31mgrün ✓\x1b[0m");
  const { screen, parser } = shown("");
  for (const byte of bytes) parser.write(Uint8Array.of(byte));
  assert.equal(screen.text(), "grün ✓");
  assert.deepEqual(shown("a\x1b[2\rCb").lines[0], "a b");
  assert.equal(shown(Uint8Array.of(0x61, 0xff, 0x62)).lines[0], "a\ufffdb");
});

test("erasing, inserting and deleting", () => {
  assert.deepEqual(shown("abcdef\x1b[3D\x1b[K").lines[0], "abc");
  assert.deepEqual(shown("abcdef\x1b[3D\x1b[1K").lines[0], "    ef");
  assert.deepEqual(shown("a\r\nb\r\nc\x1b[2;1H\x1b[J").lines, ["a", "", "", ""]);
  assert.deepEqual(shown("a\r\nb\r\nc\x1b[2;1H\x1b[1J").lines, ["", "", "c", ""]);
  assert.deepEqual(shown("a\r\nb\x1b[2J\x1b[Hc").lines, ["c", "", "", ""]);
  assert.deepEqual(shown("abcdef\x1b[1;2H\x1b[2P").lines[0], "adef");
  assert.deepEqual(shown("abcdef\x1b[1;2H\x1b[2@").lines[0], "a  bcdef");
  assert.deepEqual(shown("abcdef\x1b[1;2H\x1b[2X").lines[0], "a  def");
  assert.deepEqual(shown("a\r\nb\r\nc\x1b[2;1H\x1b[L").lines, ["a", "", "b", "c"]);
  assert.deepEqual(shown("a\r\nb\r\nc\x1b[2;1H\x1b[M").lines, ["a", "c", "", ""]);
  assert.deepEqual(shown("ab\x1b[1;1H\x1b[4hX\x1b[4lY").lines[0], "XYb");
  assert.deepEqual(shown("ab\x1b[3b").lines[0], "abbbb");
});

test("a region scrolls and the rest stays, and a full-screen program leaves nothing", () => {
  assert.deepEqual(shown("a\r\nb\r\nc\r\nd\x1b[2;3r\x1b[3;1H\nX").lines, ["a", "c", "X", "d"]);
  const { screen, lines } = shown("shell\x1b[?1049h\x1b[2J\x1b[Hvim\r\n\r\n\r\n\r\n\r\n\x1b[?1049l$");
  assert.deepEqual([lines[0], screen.history.length], ["shell$", 0]);
  assert.equal(shown("\x1b[?25l").screen.isCursorShown, false);
});

test("colours and styles", () => {
  const style = (text: string) => shown(`${text}x`).screen.lines[0]?.[0]?.style;
  assert.deepEqual(style("\x1b[1;31;42m"), { ...PLAIN, bold: true, fg: 1, bg: 2 });
  assert.deepEqual(style("\x1b[97;100m"), { ...PLAIN, fg: 15, bg: 8 });
  assert.deepEqual(style("\x1b[38;5;208;4m"), { ...PLAIN, fg: 208, underline: true });
  assert.deepEqual(style("\x1b[38;2;1;2;3m"), { ...PLAIN, fg: RGB | 0x010203 });
  assert.deepEqual(style("\x1b[38:5:9m"), { ...PLAIN, fg: 9 });
  assert.deepEqual(style("\x1b[1;7m\x1b[m"), PLAIN);
  assert.deepEqual(style("\x1b[38;5;999m"), PLAIN);
  assert.equal(paletteColour(208), "rgb(255 135 0)");
  assert.equal(paletteColour(232), "rgb(8 8 8)");
});

test("wide characters take two cells, marks none", () => {
  const wide = shown("日本x");
  assert.deepEqual([wide.lines[0], wide.at], ["日本x", [5, 0]]);
  assert.deepEqual(shown("012345678日").lines.slice(0, 2), ["012345678", "日"]);
  const marked = shown("e\u0301x");
  assert.deepEqual([marked.lines[0], marked.at], ["e\u0301x", [2, 0]]);
  assert.ok((shown(`e${"\u0301".repeat(1000)}`).lines[0]?.length ?? 0) < 20, "a heap of marks is none");
});

test("what is no text shows nothing, and questions are answered", () => {
  assert.equal(shown("\x1b]0;a title\x07b\x1bP1$q\x1b\\c\x1b(0q\x1b(Bd\x1b[?2004hz").lines[0], "bc─dz");
  assert.equal(shown("\x1b[>c\x1b[!p\x1b[5 qx").lines[0], "x");
  assert.deepEqual(shown("\x1b[c\x1b[5n\x1b[2;3H\x1b[6n").answers, ["\x1b[?1;2c", "\x1b[0n", "\x1b[2;3R"]);
  // A title that never ends becomes text again.
  const endless = shown(`\x1b]${"x".repeat(5000)}\r\nhere`);
  assert.ok(endless.screen.text().includes("here"));
});

test("whatever bytes come, the screen stays a screen", () => {
  let seed = 7;
  const random = (below: number): number => {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    return seed % below;
  };
  const parts = ["\x1b[", "\x1b", ";", "?", "999999", "H", "J", "K", "L", "M", "P", "@", "r", "m", "S", "T", "b", "日"];
  const { screen, parser } = shown("");
  for (let times = 0; times < 20_000; times += 1) {
    const part = random(3) === 0 ? String.fromCharCode(random(256)) : (parts[random(parts.length)] as string);
    parser.write(new TextEncoder().encode(part));
    assert.ok(screen.x >= 0 && screen.x < 10 && screen.y >= 0 && screen.y < 4);
  }
  assert.equal(screen.lines.length, 4);
  assert.ok(screen.lines.every((line) => line.length === 10 && line.every((cell) => cell !== undefined)));
});

test("keys become what a terminal sends", () => {
  const key = (name: string, more: Partial<KeyPressed> = {}, isApplication = false) =>
    keyText({ key: name, ctrlKey: false, altKey: false, shiftKey: false, metaKey: false, ...more }, isApplication);
  assert.equal(key("a"), "a");
  assert.equal(key("Enter"), "\r");
  assert.equal(key("Tab"), "\t");
  assert.equal(key("Tab", { shiftKey: true }), "\x1b[Z");
  assert.equal(key("Backspace"), "\x7f");
  assert.equal(key("c", { ctrlKey: true }), "\x03");
  assert.equal(key(" ", { ctrlKey: true }), "\0");
  assert.equal(key("ArrowUp"), "\x1b[A");
  assert.equal(key("ArrowUp", {}, true), "\x1bOA");
  assert.equal(key("ArrowRight", { ctrlKey: true }, true), "\x1b[1;5C");
  assert.equal(key("Delete"), "\x1b[3~");
  assert.equal(key("F1"), "\x1bOP");
  assert.equal(key("F12"), "\x1b[24~");
  assert.equal(key("b", { altKey: true }), "\x1bb");
  assert.equal(key("@", { altKey: true, ctrlKey: true }), "\x1b\0");
  assert.equal(key("€", { altKey: true, ctrlKey: true }), "€");
  for (const own of ["v", "V"]) assert.equal(key(own, { ctrlKey: true }), undefined, "the browser pastes");
  for (const none of ["Shift", "Dead", "Unidentified", "CapsLock"]) assert.equal(key(none), undefined);
  assert.equal(key("r", { metaKey: true }), undefined);
  assert.ok(leaves({ key: "]", ctrlKey: true, altKey: false, shiftKey: false, metaKey: false }));
});

test("what is pasted is typed, and ends no brackets", () => {
  assert.equal(pasted("ls\r\npwd\n", false), "ls\rpwd\r");
  assert.equal(pasted("a\x1b[201~b", true), "\x1b[200~a[201~b\x1b[201~");
});

test("a line becomes pieces of one style, without its end", () => {
  const { screen } = shown("ab\x1b[31mcd\x1b[m  ");
  const texts = (cursor?: number) => pieces(screen.lines[0] ?? [], cursor).map((piece) => piece.text);
  assert.deepEqual(texts(), ["ab", "cd"]);
  assert.deepEqual(texts(0), ["a", "b", "cd"]);
  assert.deepEqual(texts(6), ["ab", "cd", "  ", " "]);
});

test("only what is new is said", () => {
  assert.equal(added("a\nb", "a\nb\nc"), "c");
  assert.equal(added("a\n$ l", "a\n$ ls"), "$ ls");
  assert.equal(added("", "1\n".repeat(100)).split("\n").length, 12);
});
