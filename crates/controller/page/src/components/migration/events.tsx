// What happened, when, and at which end.
import { useState } from "preact/hooks";
import { instant, preciseTime, several } from "../../format";
import { eventWords } from "../../migration/words";
import type { End } from "../../migration/phases";
import type { LoggedEvent, MigrationRecord } from "../../types";
import { Button, Empty, Tag } from "../basics";
import { sentence } from "../problem";

/** How many are shown at first. */
const FIRST = 14;

export interface PlacedEvent {
  end: End;
  of: LoggedEvent;
}

/** The events of both ends, newest first. Clocks of hosts may differ: each time is that of the host which says it. */
export function allEvents(record: MigrationRecord | undefined): PlacedEvent[] {
  const of = (end: End): PlacedEvent[] => (record?.[end]?.migration.events ?? []).map((event) => ({ end, of: event }));
  return [...of("source"), ...of("target")].sort((a, b) => (instant(b.of.time) ?? 0) - (instant(a.of.time) ?? 0));
}

export function Events({ record, hosts }: { record: MigrationRecord | undefined; hosts: Record<End, string> }) {
  const [isAll, setAll] = useState(false);
  const events = allEvents(record);
  if (events.length === 0) return <Empty>{record ? "Nothing has happened yet." : "Reading …"}</Empty>;
  const shown = isAll ? events : events.slice(0, FIRST);
  return (
    <>
      <ol class="events">
        {shown.map(({ end, of }, index) => {
          const { words, tone } = eventWords(of, end);
          return (
            <li key={`${of.time}${end}${index}`}>
              <time class="num dim">{preciseTime(of.time)}</time>
              <Tag title={`The ${end}, by its own clock`}>{hosts[end]}</Tag>
              <span class={`tone ${tone}`}>{sentence(words)}</span>
            </li>
          );
        })}
      </ol>
      {events.length > shown.length && (
        <Button small onClick={() => setAll(true)}>
          All {several(events.length, "event")}
        </Button>
      )}
    </>
  );
}
