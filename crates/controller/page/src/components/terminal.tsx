// A terminal: what a guest wrote, and a field that takes the keys. Who reads by ear hears the lines that are finished.
import { useEffect, useRef } from "preact/hooks";
import { keyText, leaves, pasted } from "../terminal/keys";
import { Painter } from "../terminal/paint";
import { Parser } from "../terminal/parser";
import { Screen } from "../terminal/screen";

/** How often lines are said that are finished, and how many at most: nobody listens to a whole boot. */
const SAID_EVERY_MS = 1000;
const SAID_MAX = 12;

/** A terminal apart from the page: what is written to it stays when it is not shown. */
export class Terminal {
  readonly screen = new Screen();
  private readonly parser: Parser;
  /** Called when there is something to paint. */
  changed: () => void = () => undefined;

  constructor(
    readonly type: (text: string) => void,
    bell: () => void,
  ) {
    this.parser = new Parser(this.screen, type, bell);
  }

  write(bytes: Uint8Array): void {
    this.parser.write(bytes);
    this.changed();
  }

  /** Adds a line that is not the guest's. */
  note(words: string): void {
    this.write(new TextEncoder().encode(`\x1b[0m\r\n[${words}]\r\n`));
  }
}

export function TerminalView({ of, name, leave }: { of: Terminal; name: string; leave: () => void }) {
  const shown = useRef<HTMLDivElement>(null);
  const field = useRef<HTMLTextAreaElement>(null);
  const said = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!shown.current) return;
    const painter = new Painter(shown.current, of.screen);
    let frame = 0;
    let spoken = of.screen.text();
    const paint = (): void => {
      frame = 0;
      painter.paint();
    };
    of.changed = () => {
      // A page that is not seen has no frames.
      frame ||= document.hidden ? Number(setTimeout(paint, 500)) : requestAnimationFrame(paint);
    };
    const say = (): void => {
      const text = of.screen.text();
      if (said.current && text !== spoken) said.current.textContent = added(spoken, text);
      spoken = text;
    };
    const timer = setInterval(say, SAID_EVERY_MS);
    paint();
    return () => {
      clearInterval(timer);
      of.changed = () => undefined;
    };
  }, [of]);

  const pressed = (event: KeyboardEvent): void => {
    if (event.isComposing || event.key === "Process") return;
    if (leaves(event)) leave();
    else {
      const text = keyText(event, of.screen.isCursorKeysApplication);
      if (text === undefined) return;
      of.type(text);
    }
    // No key of the page's own, and no leaving by Tab: Ctrl+] does that.
    event.preventDefault();
    event.stopPropagation();
  };
  const typed = (event: InputEvent): void => {
    // What has no keys: a phone's keyboard, an input method, a letter with an accent.
    const target = event.currentTarget as HTMLTextAreaElement;
    if (event.isComposing) return;
    of.type(target.value.replace(/\r?\n/g, "\r"));
    target.value = "";
  };
  const paste = (event: ClipboardEvent): void => {
    event.preventDefault();
    const text = event.clipboardData?.getData("text") ?? "";
    if (text !== "") of.type(pasted(text, of.screen.isPasteBracketed));
  };
  const focus = (): void => {
    // Whoever selects wants to copy.
    if (getSelection()?.isCollapsed !== false) field.current?.focus({ preventScroll: true });
  };
  return (
    <div class="terminal" onMouseUp={focus}>
      <textarea
        ref={field}
        class="terminal-keys"
        aria-label={`Keyboard of ${name}'s console`}
        aria-description="All keys are the guest's, Tab among them. Control and right bracket leave it."
        autocapitalize="off"
        autocomplete="off"
        spellcheck={false}
        rows={1}
        onKeyDown={pressed}
        onInput={typed}
        onCompositionEnd={(event) => typed(event as unknown as InputEvent)}
        onPaste={paste}
      />
      <div ref={shown} class="terminal-screen" tabIndex={-1} aria-hidden="true" />
      <div ref={said} class="visually-hidden" role="log" aria-live="polite" aria-label={`What ${name} writes`} />
    </div>
  );
}

/** The lines that a text has more than before, the last ones. */
export function added(before: string, now: string): string {
  const [old, lines] = [before.split("\n"), now.split("\n")];
  let same = 0;
  while (same < old.length && same < lines.length && old[same] === lines[same]) same += 1;
  return lines.slice(same).slice(-SAID_MAX).join("\n");
}
