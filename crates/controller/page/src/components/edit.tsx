// A form for what is set of something: read with its ETag, and written only if nobody has changed it since.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { problemOf, type Problem } from "../api/problem";
import { ask } from "../api/request";
import { store } from "../store/store";
import type { Role } from "../types";
import { RoleNote, useMay } from "./access";
import { Button, Panel } from "./basics";
import { useWork } from "./dialog";
import { ProblemBox } from "./problem";

export interface Form<T> {
  value: T;
  set: (more: Partial<T>) => void;
  disabled: boolean;
}

export function EditPanel<R, T extends object>({
  title,
  note,
  read,
  pick,
  write,
  needs,
  check,
  done,
  children,
}: {
  title: string;
  note?: ComponentChildren;
  read: string;
  write: string;
  needs: Role;
  done: string;
  pick: (read: R) => T;
  /** What is wrong with a value, in words: it is not sent then. */
  check?: (value: T) => string | undefined;
  children: (form: Form<T>) => ComponentChildren;
}) {
  const may = useMay(needs);
  const [base, setBase] = useState<{ etag: string | undefined; value: T }>();
  const [value, setValue] = useState<T>();
  const [failed, setFailed] = useState<Problem>();
  const [times, setTimes] = useState(0);
  const { isBusy, problem, run, clear } = useWork();
  useEffect(() => {
    const stop = new AbortController();
    ask<R>("GET", read, { signal: stop.signal }).then(
      ({ value: of, etag }) => {
        const picked = pick(of);
        setBase({ etag, value: picked });
        setValue(picked);
        setFailed(undefined);
        clear();
      },
      (error: unknown) => {
        if (!stop.signal.aborted) setFailed(problemOf(error));
      },
    );
    return () => stop.abort();
  }, [read, times]);
  const again = (): void => setTimes(times + 1);
  if (!base || !value)
    return (
      <Panel title={title}>
        <ProblemBox of={failed} again={again} />
      </Panel>
    );
  const is_changed = JSON.stringify(value) !== JSON.stringify(base.value);
  const wrong = check?.(value);
  const submit = (event: Event): void => {
    event.preventDefault();
    if (!is_changed || wrong || isBusy) return;
    void run(async () => {
      await ask("PUT", write, { body: value, ifMatch: base.etag });
      store.notify(done);
      again();
    });
  };
  return (
    <Panel title={title} note={note}>
      <RoleNote needs={needs} to="change this" />
      <form class="form" onSubmit={submit}>
        <div class="fields">
          {children({ value, disabled: !may || isBusy, set: (more) => setValue({ ...value, ...more }) })}
        </div>
        <ProblemBox of={problem} />
        {problem?.status === 412 && (
          <p class="role-note">
            Somebody has changed it since it was read.{" "}
            <Button small onClick={again}>
              Read it again
            </Button>
          </p>
        )}
        {may && (
          <div class="buttons">
            <Button disabled={!is_changed || isBusy} onClick={() => setValue(base.value)}>
              Undo
            </Button>
            <Button type="submit" look="main" disabled={!is_changed || wrong !== undefined || isBusy} title={wrong}>
              {isBusy ? "Saving …" : "Save"}
            </Button>
          </div>
        )}
      </form>
    </Panel>
  );
}
