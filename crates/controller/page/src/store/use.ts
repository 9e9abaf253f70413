// Hooks by which components see the store.
import { useEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
import { problemOf, type Problem } from "../api/problem";
import { get } from "../api/request";
import { store } from "./store";
import type { TableName } from "./tables";

/** Renders again when what `pick` returns is another. */
export function useStore<T>(pick: () => T): T {
  const [, render] = useReducer((count: number) => count + 1, 0);
  const now = useRef<T | undefined>(undefined);
  const picked = pick();
  now.current = picked;
  const picks = useRef(pick);
  picks.current = pick;
  useEffect(
    () =>
      store.listen(() => {
        if (!Object.is(picks.current(), now.current)) render(0);
      }),
    [],
  );
  return picked;
}

/** Grows with each change of a table. */
export function useRevision(table: TableName): number {
  return useStore(() => store.tables.revision[table]);
}

/**
 * What is computed from a whole table: at once, and then at most so often, as thousands of rows are not sorted at each
 * event.
 */
export function useComputed<T>(
  tables: readonly TableName[],
  compute: () => T,
  keys: readonly unknown[],
  everyMs = 300,
): T {
  const [tick, setTick] = useState(0);
  useEffect(() => {
    const sum = (): number => tables.reduce((all, table) => all + store.tables.revision[table], 0);
    let seen = sum();
    let last = -Infinity;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const anew = (): void => {
      timer = undefined;
      seen = sum();
      last = performance.now();
      setTick((before) => before + 1);
    };
    const stop = store.listen(() => {
      if (timer !== undefined || sum() === seen) return;
      const wait = last + everyMs - performance.now();
      if (wait <= 0) anew();
      else timer = setTimeout(anew, wait);
    });
    setTick((before) => before + 1);
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [tables.join(), everyMs]);
  return useMemo(compute, [tick, ...keys]);
}

/** Does something now and then while the page is seen, one after the other. A failure is left to what shows it. */
export function useRepeated(
  work: (signal: AbortSignal) => Promise<void>,
  everyMs: number,
  keys: readonly unknown[],
  isOn = true,
): void {
  useEffect(() => {
    if (!isOn) return;
    const stop = new AbortController();
    const run = async (): Promise<void> => {
      while (!stop.signal.aborted) {
        if (document.visibilityState === "visible") await work(stop.signal).catch(() => undefined);
        await new Promise((resolve) => setTimeout(resolve, everyMs));
      }
    };
    void run();
    return () => stop.abort();
  }, [...keys, isOn, everyMs]);
}

export interface Read<T> {
  value: T | undefined;
  problem: Problem | undefined;
  isReading: boolean;
  again(): void;
}

/**
 * Reads something once, again when it is asked to, and every so often while the page is seen. What was read stays until
 * there is newer.
 */
export function useRead<T>(
  path: string | undefined,
  everyMs?: number,
  read: (path: string, signal: AbortSignal) => Promise<T> = get,
): Read<T> {
  const [state, set] = useState<{ path?: string | undefined; value?: T; problem?: Problem; isReading: boolean }>({
    isReading: true,
  });
  const [times, again] = useReducer((count: number) => count + 1, 0);
  useEffect(() => {
    if (path === undefined) return;
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const next = (): void => {
      if (everyMs === undefined || stop.signal.aborted) return;
      timer = setTimeout(() => (document.visibilityState === "visible" ? void once() : next()), everyMs);
    };
    const once = async (): Promise<void> => {
      try {
        const value = await read(path, stop.signal);
        set({ path, value, isReading: false });
      } catch (error) {
        if (stop.signal.aborted) return;
        const problem = problemOf(error);
        set((before) => ({ ...(before.path === path ? before : {}), path, problem, isReading: false }));
      }
      next();
    };
    void once();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [path, times, everyMs]);
  const is_same = state.path === path;
  return {
    value: is_same ? state.value : undefined,
    problem: is_same ? state.problem : undefined,
    isReading: !is_same || state.isReading,
    again: () => again(0),
  };
}

/** The time, so often: for how long ago something was. */
export function useNow(everyMs = 1000): number {
  const [now, set] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => set(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}
