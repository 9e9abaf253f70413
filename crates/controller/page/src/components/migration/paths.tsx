// The paths between the two hosts, as the source sees them.
import { bitsPerS, bytes } from "../../format";
import type { PathView } from "../../types";
import { Empty, State } from "../basics";

export function Paths({ of, isOver }: { of: readonly PathView[]; isOver: boolean }) {
  if (of.length === 0) return <Empty>No path is known.</Empty>;
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label="Paths">
      <table class="table tight stacks">
        <thead>
          <tr>
            <th scope="col">NIC</th>
            <th scope="col">To</th>
            {!isOver && (
              <th scope="col" class="number">
                Rate
              </th>
            )}
            <th scope="col" class="number">
              Sent
            </th>
            <th scope="col">State</th>
          </tr>
        </thead>
        <tbody>
          {of.map((path) => (
            <tr key={`${path.nic}${path.remote}`}>
              <th scope="row" class="name">
                {path.nic}
              </th>
              <td class="mono" data-label="to">
                {path.remote}
              </td>
              {!isOver && (
                <td class="number num" data-label="rate">
                  {bitsPerS(path.bits_per_s)}
                </td>
              )}
              <td class="number num" data-label="sent">
                {bytes(path.sent_bytes)}
              </td>
              <td>
                <State
                  name={path.usable ? (isOver ? "carried data" : "carries data") : "carries none"}
                  tone={path.usable && !isOver ? "good" : "plain"}
                />
                <div class="dim">
                  {[path.note, path.connections, path.rdma_connections ? `${path.rdma_connections} by RDMA` : ""]
                    .filter(Boolean)
                    .join("; ")}
                </div>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
