// What became of the guest's bytes, by kind, and how many were on the wire.
import { bytes, percent, UNKNOWN } from "../../format";
import { guestBytes, kindsOf, wireBytes } from "../../migration/kinds";
import type { CopyProgress } from "../../types";
import { Empty } from "../basics";

export function Kinds({ of }: { of: CopyProgress | null | undefined }) {
  const pages = of?.pages;
  if (!pages) return <Empty>What became of its bytes is not told yet.</Empty>;
  const kinds = kindsOf(pages);
  const [guest, wire] = [guestBytes(kinds), wireBytes(pages)];
  const again = pages.again_bytes ?? 0;
  return (
    <div class="kinds">
      <div class="stacked" aria-hidden="true">
        {kinds
          .filter((kind) => kind.bytes > 0)
          .map((kind) => (
            <span
              key={kind.key}
              class={kind.key}
              title={`${kind.name}: ${bytes(kind.bytes)}`}
              style={{ flexGrow: kind.bytes }}
            />
          ))}
      </div>
      <div class="scroll" tabIndex={0} role="group" aria-label="Bytes by kind">
        <table class="table tight stacks">
          <thead>
            <tr>
              <th scope="col">Kind</th>
              <th scope="col" class="number">
                Of the guest
              </th>
              <th scope="col" class="number">
                Share
              </th>
              <th scope="col" class="number">
                On the wire
              </th>
            </tr>
          </thead>
          <tbody>
            {kinds.map((kind) => (
              <tr key={kind.key} class={kind.bytes === 0 ? "none" : ""}>
                <th scope="row">
                  <i class={`swatch ${kind.key}`} aria-hidden="true" />
                  {kind.name}
                  {kind.about && <span class="dim about"> {kind.about}</span>}
                </th>
                <td class="number num" data-label="of the guest">
                  {bytes(kind.bytes)}
                </td>
                <td class="number num">{guest > 0 ? percent(kind.bytes / guest) : UNKNOWN}</td>
                <td class="number num" data-label="on the wire">
                  {kind.wire === undefined
                    ? "with others"
                    : kind.wire === 0 && kind.bytes > 0
                      ? "next to nothing"
                      : bytes(kind.wire)}
                </td>
              </tr>
            ))}
          </tbody>
          <tfoot>
            <tr>
              <th scope="row">All</th>
              <td class="number num" data-label="of the guest">
                {bytes(guest)}
              </td>
              <td class="number num" />
              <td class="number num" data-label="on the wire">
                {bytes(wire)}
              </td>
            </tr>
            <tr>
              <th scope="row">
                of it sent again <span class="dim about">as the guest wrote to it</span>
              </th>
              <td class="number num" data-label="of the guest">
                {bytes(again)}
              </td>
              <td class="number num">{guest > 0 ? percent(again / guest) : UNKNOWN}</td>
              <td />
            </tr>
          </tfoot>
        </table>
      </div>
      <p class="dim">
        {guest > 0
          ? `${percent(wire / guest)} of the guest's bytes were on the wire, without framing and ` + "encryption. "
          : ""}
        {pages.direct === true
          ? "The target's agent writes the guest's memory itself, and both ends compare it. "
          : pages.why_not_direct
            ? `Not compared by the agents: ${pages.why_not_direct}. `
            : ""}
        {(pages.repaired_pages ?? 0) > 0
          ? `${bytes((pages.repaired_pages ?? 0) * 4096)} differed and were repaired.`
          : ""}
      </p>
    </div>
  );
}
