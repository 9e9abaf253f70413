// Shows what would be done before it is: each question is a dry run first.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { problemOf, type Problem } from "../api/problem";
import { ask } from "../api/request";
import { about, several } from "../format";
import { go, link } from "../router";
import { store } from "../store/store";
import type { Operation } from "../types";
import { operationTitle } from "../words";
import { Button } from "./basics";
import { Dialog, useWork } from "./dialog";
import { Plan } from "./plan";
import { ProblemBox, sentence } from "./problem";

/** How long somebody may type before what they ask for is looked at. */
const TYPED_MS = 350;

/** That nothing was begun is what a preview is; all else that is said is shown. */
const SAYS_NOTHING = /^(nothing was begun: this is what would be done)?$/;

export interface Preview {
  operation: Operation | undefined;
  problem: Problem | undefined;
  isReading: boolean;
}

/** Asks what would be done, again with each other question. */
export function usePreview(path: string, body: object): Preview {
  const [state, set] = useState<Preview>({ operation: undefined, problem: undefined, isReading: true });
  const asked = JSON.stringify({ ...body, dry_run: true });
  useEffect(() => {
    const stop = new AbortController();
    set((before) => ({ ...before, isReading: true }));
    const timer = setTimeout(() => {
      ask<Operation>("POST", path, { body: JSON.parse(asked), signal: stop.signal }).then(
        ({ value }) => set({ operation: value, problem: undefined, isReading: false }),
        (error: unknown) => {
          if (!stop.signal.aborted) set({ operation: undefined, problem: problemOf(error), isReading: false });
        },
      );
    }, TYPED_MS);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [path, asked]);
  return state;
}

export function PreviewDialog({
  title,
  path,
  body,
  verb,
  close,
  children,
  danger,
}: {
  title: string;
  path: string;
  body: object;
  verb: string;
  close: () => void;
  children?: ComponentChildren;
  danger?: boolean;
}) {
  const preview = usePreview(path, body);
  const { isBusy, problem, run } = useWork();
  const submit = (event: Event): void => {
    event.preventDefault();
    if (!isBusy)
      void run(async (once) => {
        const { value } = await ask<Operation | undefined>("POST", path, { body, once });
        close();
        if (value) {
          store.notify(`Begun: ${operationTitle(value.kind)}`, "good", link("operations", value.id));
          go(link("operations", value.id));
        } else store.notify(`Done: ${title}`);
      });
  };
  const { operation } = preview;
  const stays = operation?.moves.filter((move) => move.state === "left").length ?? 0;
  return (
    <Dialog title={title} close={close} wide>
      <form onSubmit={submit}>
        {children}
        <div class={preview.isReading ? "preview old" : "preview"} aria-live="polite" aria-busy={preview.isReading}>
          <ProblemBox of={preview.problem} />
          {!operation && !preview.problem && <p class="dim">Asking what would be done …</p>}
          {operation && (
            <>
              <PlanSummary of={operation} />
              {!SAYS_NOTHING.test(operation.message) && <p>{sentence(operation.message)}</p>}
              <Plan of={operation} />
            </>
          )}
        </div>
        <ProblemBox of={problem} />
        <div class="buttons">
          <Button onClick={close}>Leave it</Button>
          <Button type="submit" look={danger ? "danger" : "main"} disabled={isBusy || preview.problem !== undefined}>
            {isBusy ? "Asking …" : stays > 0 ? `${verb}, but for ${several(stays, "guest")}` : verb}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

function PlanSummary({ of }: { of: Operation }) {
  const going = of.moves.filter((move) => move.state !== "left").length;
  const forecast = of.progress.forecast_ms;
  return (
    <p class="plan-summary">
      <b>{several(going, "move")}</b>
      {forecast != null && (
        <>
          , in about <b>{about(forecast)}</b>
        </>
      )}
      .
    </p>
  );
}
