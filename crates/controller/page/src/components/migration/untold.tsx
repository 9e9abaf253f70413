// A migration of which neither host tells: what the controller itself knows.
import { bitsPerS, bytes, duration, time } from "../../format";
import { ofCopy } from "../../migration/progress";
import { whyWords } from "../../migration/words";
import { link } from "../../router";
import { useRead } from "../../store/use";
import type { MigrationRecord, MigrationView, Page } from "../../types";
import { Empty, Facts, GuestLink, HostLink, Meter, Panel } from "../basics";
import { MigrationState, migrationTook } from "../migration_rows";
import { ProblemBox, sentence } from "../problem";

/** The id before, so that a page of one has this migration. */
function before(id: string): string {
  const number = BigInt(`0x${id}`);
  return (number > 0n ? number - 1n : 0n).toString(16).padStart(16, "0");
}

export function UntoldMigration({ id, record }: { id: string; record: MigrationRecord }) {
  const path = /^[0-9a-f]{16}$/.test(id) ? `/migrations?limit=1&after=${before(id)}` : undefined;
  const { value, problem } = useRead<Page<MigrationView>>(path, 2500);
  const of = value?.items.find((one) => one.id === id);
  const far = ofCopy(of?.copy);
  return (
    <div class="stack untold">
      <div class="callout warn" role="status">
        <p>{sentence(record.note || "neither host tells of this migration")} There are no rates and no events.</p>
      </div>
      <ProblemBox of={problem} />
      {!of ? (
        <Empty>{value ? "The controller does not know it any more." : "Reading …"}</Empty>
      ) : (
        <Panel isPart title="What the controller knows">
          <Facts
            of={[
              ["Guest", <GuestLink name={of.vm} />],
              ["From", <HostLink name={of.source} />],
              ["To", <HostLink name={of.target} />],
              ["State", <MigrationState of={of} />],
              ["Why", of.outcome === "moved" ? undefined : of.detail || whyWords(of.why) || undefined],
              ["Begun", time(of.begun)],
              ["Took", of.outcome ? duration(migrationTook(of)) : undefined],
              ["Downtime", duration(of.downtime_ms)],
              [
                "This pass",
                far.share !== undefined && !of.outcome ? (
                  <Meter label="Of this pass" value={far.share} of={1} tone="busy" />
                ) : undefined,
              ],
              ["Rate", of.copy && !of.outcome ? bitsPerS(of.copy.bits_per_s) : undefined],
              ["Memory", of.copy ? bytes(of.copy.total_bytes) : undefined],
              ["Operation", of.operation ? <a href={link("operations", of.operation)}>{of.operation}</a> : undefined],
            ]}
          />
        </Panel>
      )}
    </div>
  );
}
