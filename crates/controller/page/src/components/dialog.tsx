// A question in front of the page. The browser's own dialog keeps the focus in it, and gives it back.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { problemOf, type Problem } from "../api/problem";
import { newKey } from "../api/request";
import { Button } from "./basics";
import { ProblemBox } from "./problem";

export function Dialog({
  title,
  children,
  close,
  wide,
}: {
  title: string;
  children: ComponentChildren;
  close: () => void;
  wide?: boolean;
}) {
  const box = useRef<HTMLDialogElement>(null);
  const heading = useId();
  useEffect(() => {
    const before = document.activeElement;
    box.current?.showModal();
    return () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  const outside = (event: MouseEvent): void => {
    if (event.target === box.current) close();
  };
  return (
    <dialog ref={box} class={wide ? "wide" : ""} aria-labelledby={heading} onClose={close} onMouseDown={outside}>
      <div class="dialog">
        <header>
          <h2 id={heading}>{title}</h2>
          <Button look="quiet" small aria-label="Close" onClick={close}>
            ✕
          </Button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

export interface Work {
  isBusy: boolean;
  problem: Problem | undefined;
  run(work: (once: string) => Promise<void>): Promise<void>;
  clear(): void;
}

/** What got no answer, or one of these, may have been done all the same: a second try is the same request. */
const MAY_BE_DONE: ReadonlySet<number> = new Set([0, 408, 500, 502, 503, 504]);

/** Something that is asked for once: a second try after a lost answer is the same request. */
export function useWork(): Work {
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const key = useRef(newKey());
  const isThere = useRef(true);
  useEffect(
    () => () => {
      isThere.current = false;
    },
    [],
  );
  return {
    isBusy,
    problem,
    clear: () => setProblem(undefined),
    async run(work) {
      setBusy(true);
      setProblem(undefined);
      try {
        await work(key.current);
        key.current = newKey();
      } catch (error) {
        const of = problemOf(error);
        if (!MAY_BE_DONE.has(of.status)) key.current = newKey();
        if (isThere.current) setProblem(of);
      } finally {
        if (isThere.current) setBusy(false);
      }
    },
  };
}

/** Asks before something is done, and shows why it was not. */
export function AskDialog({
  title,
  children,
  verb,
  danger,
  close,
  work,
  typed,
  ready = true,
  wide,
  stays,
}: {
  title: string;
  children: ComponentChildren;
  verb: string;
  danger?: boolean;
  close: () => void;
  work: (once: string) => Promise<void>;
  ready?: boolean;
  wide?: boolean;
  /** What has to be typed before it is done. */
  typed?: string;
  /** The answer is to be read: the dialog stays open. */
  stays?: boolean;
}) {
  const { isBusy, problem, run } = useWork();
  const [text, setText] = useState("");
  const field = useId();
  const may = ready && !isBusy && (typed === undefined || text === typed);
  const submit = (event: Event): void => {
    event.preventDefault();
    if (may)
      void run(async (once) => {
        await work(once);
        if (!stays) close();
      });
  };
  return (
    <Dialog title={title} close={close} wide={wide ?? false}>
      <form onSubmit={submit}>
        {children}
        {typed !== undefined && (
          <div class="field">
            <label for={field}>
              Type <b class="name">{typed}</b> to go on
            </label>
            <input
              id={field}
              value={text}
              autocomplete="off"
              spellcheck={false}
              onInput={(event) => setText(event.currentTarget.value)}
            />
          </div>
        )}
        <ProblemBox of={problem} />
        <div class="buttons">
          <Button onClick={close}>Leave it</Button>
          <Button type="submit" look={danger ? "danger" : "main"} disabled={!may}>
            {isBusy ? "Asking …" : verb}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
