// A long list of which only the rows that are seen are drawn: 20,000 guests cost as much as 40.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { go } from "../router";
import { classes } from "./basics";
import { step, windowOf } from "./window";

const ROW_PX = 36;

export interface Column<T> {
  name: string;
  /** The width, as in `grid-template-columns`. */
  width: string;
  cell: (item: T) => ComponentChildren;
  /** The width on the smallest of screens, of 360 px, where no meter is drawn. */
  smallest?: string;
  /** On how narrow a page it is left out. */
  from?: "medium" | "wide";
  isNumber?: boolean;
  sort?: (a: T, b: T) => number;
}

export interface Sort {
  column: string;
  isDown: boolean;
}

export function List<T>({
  label,
  items,
  columns,
  keyOf,
  href,
  sort,
  setSort,
  seen,
  empty,
  tall,
}: {
  label: string;
  items: readonly T[];
  columns: readonly Column<T>[];
  keyOf: (item: T) => string;
  href: (item: T) => string;
  sort?: Sort;
  setSort?: (sort: Sort) => void;
  /** Is told which items are seen. */
  seen?: (items: readonly T[]) => void;
  empty: ComponentChildren;
  tall?: boolean;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [at, setAt] = useState(-1);
  const id = useId();
  useLayoutEffect(() => {
    const of = box.current;
    if (!of) return;
    const measure = (): void => setView({ top: of.scrollTop, height: of.clientHeight });
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(of);
    of.addEventListener("scroll", measure, { passive: true });
    return () => {
      observer.disconnect();
      of.removeEventListener("scroll", measure);
    };
  }, []);
  const shown = windowOf(items.length, ROW_PX, view.top, view.height);
  const rows = items.slice(shown.first, shown.end);
  useEffect(() => seen?.(rows), [shown.first, shown.end, items]);
  const keyed = (event: KeyboardEvent): void => {
    if (event.target !== box.current) return;
    const item = items[at];
    if (event.key === "Enter" && item) return go(href(item));
    const to = step(event.key, at, items.length, Math.max(1, Math.floor(view.height / ROW_PX) - 1));
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    setAt(to);
    const of = box.current;
    if (!of) return;
    const header = 34;
    if (to * ROW_PX < of.scrollTop) of.scrollTop = to * ROW_PX;
    else if ((to + 1) * ROW_PX + header > of.scrollTop + of.clientHeight) {
      of.scrollTop = (to + 1) * ROW_PX + header - of.clientHeight;
    }
  };
  const widths = (least: Column<T>["from"][], width = (column: Column<T>): string => column.width): string =>
    columns
      .filter((column) => least.includes(column.from))
      .map(width)
      .join(" ");
  const style = {
    "--columns": widths([undefined, "medium", "wide"]),
    "--columns-medium": widths([undefined, "medium"]),
    "--columns-narrow": widths([undefined]),
    "--columns-smallest": widths([undefined], (column) => column.smallest ?? column.width),
  };
  const is_at = at >= shown.first && at < shown.end;
  return (
    <div
      class={classes("list", tall && "tall")}
      ref={box}
      role="grid"
      aria-label={label}
      tabIndex={0}
      style={style}
      aria-rowcount={items.length + 1}
      onKeyDown={keyed}
      aria-activedescendant={is_at ? `${id}-${at}` : undefined}
      onFocus={(event) => event.target === box.current && at < 0 && setAt(0)}
    >
      <div class="row head" role="row" aria-rowindex={1}>
        {columns.map((column) => (
          <HeadCell key={column.name} column={column} sort={sort} setSort={setSort} />
        ))}
      </div>
      {items.length === 0 ? (
        <div role="row" class="none">
          <div role="gridcell">{empty}</div>
        </div>
      ) : (
        <div role="rowgroup" class="rows" style={{ height: `${items.length * ROW_PX}px` }}>
          <div role="presentation" style={{ transform: `translateY(${shown.first * ROW_PX}px)` }}>
            {rows.map((item, index) => {
              const place = shown.first + index;
              return (
                <div
                  key={keyOf(item)}
                  id={`${id}-${place}`}
                  role="row"
                  aria-rowindex={place + 2}
                  class={classes("row", place === at && "at")}
                  aria-selected={place === at}
                  onClick={(event) => open(event, href(item))}
                >
                  {columns.map((column) => (
                    <div key={column.name} role="gridcell" class={cellClass(column)}>
                      {column.cell(item)}
                    </div>
                  ))}
                </div>
              );
            })}
          </div>
        </div>
      )}
    </div>
  );
}

function cellClass<T>(column: Column<T>): string {
  return classes("cell", column.from, column.isNumber && "number");
}

/** The whole row leads where its link does. What is a link itself, or text that is being selected, does not. */
function open(event: MouseEvent, href: string): void {
  const is_own = event.target instanceof Element && event.target.closest("a, button, input");
  if (is_own || event.ctrlKey || event.metaKey || (getSelection()?.toString() ?? "") !== "") return;
  go(href);
}

function HeadCell<T>({
  column,
  sort,
  setSort,
}: {
  column: Column<T>;
  sort: Sort | undefined;
  setSort: ((sort: Sort) => void) | undefined;
}) {
  const is_by = sort?.column === column.name;
  const way = is_by ? (sort.isDown ? "descending" : "ascending") : undefined;
  const turned = { column: column.name, isDown: is_by ? !sort.isDown : column.isNumber === true };
  return (
    <div role="columnheader" class={cellClass(column)} aria-sort={way}>
      {column.sort && setSort ? (
        <button type="button" onClick={() => setSort(turned)}>
          {column.name}
          <span aria-hidden="true">{is_by ? (sort.isDown ? " ↓" : " ↑") : ""}</span>
        </button>
      ) : (
        column.name
      )}
    </div>
  );
}

/** The items in the order that somebody chose; those that are as good stand in the order of the first column. */
export function sorted<T>(items: readonly T[], columns: readonly Column<T>[], by: Sort): T[] {
  const first = columns[0]?.sort ?? (() => 0);
  const compare = columns.find((column) => column.name === by.column)?.sort ?? first;
  const way = by.isDown ? -1 : 1;
  return [...items].sort(compare === first ? (a, b) => way * first(a, b) : (a, b) => way * compare(a, b) || first(a, b));
}

/** For columns: what is not known comes last when the greatest comes first. */
export function byNumber<T>(of: (item: T) => number | null | undefined): (a: T, b: T) => number {
  return (a, b) => (of(a) ?? -1) - (of(b) ?? -1);
}

const collator = new Intl.Collator("en", { numeric: true });

export function byText<T>(of: (item: T) => string | null | undefined): (a: T, b: T) => number {
  return (a, b) => collator.compare(of(a) ?? "", of(b) ?? "");
}
