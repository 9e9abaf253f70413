// A guest's serial console. Its session begins with the screen and ends with it; it goes on while a guest moves.
import { useEffect, useMemo, useState } from "preact/hooks";
import { ask, newKey, part } from "../api/request";
import { RoleNote, useMay } from "../components/access";
import { Button, Empty, Facts, HostLink, Key, Panel, Title } from "../components/basics";
import { ProblemBox } from "../components/problem";
import { Terminal, TerminalView } from "../components/terminal";
import { link } from "../router";
import { readVm } from "../store/follow";
import { store } from "../store/store";
import { useRepeated, useStore } from "../store/use";
import { ConsoleSession, type Status } from "../terminal/session";
import type { ConsoleAnswer } from "../types";

const READ_MS = 2000;
/** After how long without a word it is said what may be the reason. */
const SILENT_MS = 6000;

function focus(selector: string): void {
  document.querySelector<HTMLElement>(selector)?.focus();
}

/** The console of a guest, for as long as its screen is shown. */
class Opened {
  readonly terminal: Terminal;
  readonly session: ConsoleSession;
  hasSpoken = false;

  constructor(name: string, status: (status: Status) => void, bell: () => void) {
    const bytes = new TextEncoder();
    this.terminal = new Terminal((text) => this.session.type(bytes.encode(text)), bell);
    this.session = new ConsoleSession({
      ask: async (body, signal) => {
        const isEnd = body.step === "end";
        const path = `/vms/${part(name)}/console`;
        return (await ask<ConsoleAnswer>("POST", path, { body, signal, keepalive: isEnd })).value;
      },
      output: (bytes) => {
        this.hasSpoken = true;
        this.terminal.write(bytes);
      },
      note: (words) => this.terminal.note(words),
      status,
      bell,
      newId: newKey,
    });
  }
}

export function ConsolePage({ name }: { name: string }) {
  const may = useMay("operator");
  const guest = useStore(() => store.tables.vms.get(name));
  useRepeated((signal) => readVm(name, signal), READ_MS, [name]);
  return (
    <>
      <Title
        crumbs={[
          ["Guests", link("guests")],
          [name, link("guests", name)],
        ]}
        kind="Console of"
        state={
          guest && (
            <>
              <span class="dim">{guest.state} on</span> <HostLink name={guest.host} />
            </>
          )
        }
      >
        {name}
      </Title>
      <RoleNote needs="operator" to="open its console" />
      {may && <OpenConsole name={name} />}
    </>
  );
}

function OpenConsole({ name }: { name: string }) {
  const [status, setStatus] = useState<Status>({ kind: "opening" });
  const [hasRung, setRung] = useState(false);
  const [text, setText] = useState<string>();
  const opened = useMemo(() => new Opened(name, setStatus, () => setRung(true)), [name]);
  const where = useStore(() => {
    const of = store.tables.vms.get(name);
    return of?.state === "running" || of?.state === "paused" ? `${of.host ?? ""} ${of.state}` : "";
  });
  useEffect(() => {
    opened.session.begin();
    const end = (): void => opened.session.end();
    // The next one need not wait until the host notices that nobody asks.
    const back = (event: PageTransitionEvent): void => {
      if (event.persisted) opened.session.begin();
    };
    addEventListener("pagehide", end);
    addEventListener("pageshow", back);
    return () => {
      removeEventListener("pagehide", end);
      removeEventListener("pageshow", back);
      end();
    };
  }, [opened]);
  useEffect(() => {
    // It runs again, or elsewhere.
    if (where !== "") opened.session.revive();
  }, [where, opened]);
  useEffect(() => {
    // That it runs elsewhere may be known before its end here has closed.
    const isElsewhere = where !== "" && where.split(" ")[0] !== opened.session.lastHost;
    if (status.kind === "closed" && isElsewhere) opened.session.revive();
  }, [status.kind, opened]);
  useEffect(() => {
    if (!hasRung) return;
    const timer = setTimeout(() => setRung(false), 400);
    return () => clearTimeout(timer);
  }, [hasRung]);
  useEffect(() => {
    const isElsewhere = !["MAIN", "BODY"].includes(document.activeElement?.tagName ?? "BODY");
    if (status.kind === "open" && !isElsewhere) focus(".terminal-keys");
  }, [status.kind]);
  return (
    <Panel
      title="Serial console"
      note={hasRung ? "the bell rings" : undefined}
      actions={
        <>
          <Button small onClick={() => setText(text === undefined ? opened.terminal.screen.text() : undefined)}>
            {text === undefined ? "As text" : "As a terminal"}
          </Button>
          <Button
            small
            onClick={() => {
              opened.terminal.screen.erase(3);
              opened.terminal.screen.reset();
              opened.terminal.changed();
            }}
          >
            Clear
          </Button>
        </>
      }
    >
      <StatusLine of={status} opened={opened} name={name} />
      <div class={text === undefined ? undefined : "is-away"}>
        <TerminalView of={opened.terminal} name={name} leave={() => focus(".terminal-help button")} />
      </div>
      {text !== undefined && (
        <pre class="code" tabIndex={0} aria-label={`Text of ${name}'s console`}>
          {text}
        </pre>
      )}
      <div class="terminal-help">
        <Button small onClick={() => focus(".terminal-keys")}>
          To the keyboard
        </Button>
        <p class="dim">
          All keys are the guest's, Tab too. <Key>Ctrl</Key> <Key>]</Key> leaves the terminal, <Key>Ctrl</Key>{" "}
          <Key>V</Key> pastes.
        </p>
      </div>
      <Facts
        of={[
          ["Size", "80 columns, 24 lines; a serial line does not tell the guest of another"],
          ["In a shell", <code>skein vm console {name}</code>],
        ]}
      />
    </Panel>
  );
}

function StatusLine({ of, opened, name }: { of: Status; opened: Opened; name: string }) {
  const [isSilent, setSilent] = useState(false);
  useEffect(() => {
    setSilent(false);
    if (of.kind !== "open") return;
    const timer = setTimeout(() => setSilent(!opened.hasSpoken), SILENT_MS);
    return () => clearTimeout(timer);
  }, [of.kind, opened]);
  switch (of.kind) {
    case "opening":
      return <Empty>Opening the console …</Empty>;
    case "open":
      return isSilent && !opened.hasSpoken ? (
        <p class="callout plain" role="status">
          {name} has written nothing yet. Press Enter. If nothing comes, its system may not use its serial port, or{" "}
          <code>skein vm console</code> has it on {of.host}: QEMU serves one at a time.
        </p>
      ) : null;
    case "held":
      return (
        <div class="callout warn" role="alert">
          <p>
            <b>{of.holder}</b> has this console. Only one can have it at a time.
          </p>
          <p>
            <Button small onClick={() => opened.session.begin(true)}>
              Take it over
            </Button>{" "}
            <Button small look="quiet" onClick={() => opened.session.begin()}>
              Try again
            </Button>
          </p>
        </div>
      );
    case "lost":
      return (
        <div class="callout warn" role="status">
          <p>
            <b>The console is not connected.</b> It comes back by itself: {of.problem.detail}.
          </p>
        </div>
      );
    case "closed":
      return (
        <div class="callout plain" role="status">
          <p>The guest was stopped, or moved. Its console opens again once it runs.</p>
          <p>
            <Button small onClick={() => opened.session.begin()}>
              Open it now
            </Button>
          </p>
        </div>
      );
    case "refused":
      return <ProblemBox of={of.problem} again={() => opened.session.begin()} />;
  }
}
