// The hosts of an update, in their order, and how far each is.
import { clockTime, time, UNKNOWN, until } from "../format";
import { link } from "../router";
import { useNow } from "../store/use";
import type { Operation } from "../types";
import { updateStateNames } from "../words";
import { HostLink, State } from "./basics";
import { sentence } from "./problem";

export function UpdateTable({ of }: { of: NonNullable<Operation["update"]> }) {
  const now = useNow(5000);
  return (
    <>
      {of.waits_until != null && of.waits_until > now && (
        <p class="dim">The next host waits until another is well, {until(of.waits_until, now)} at most.</p>
      )}
      <div class="scroll" tabIndex={0} role="group" aria-label="Hosts, in their order">
        <table class="table stacks">
          <thead>
            <tr>
              <th scope="col" class="number">
                No.
              </th>
              <th scope="col">Host</th>
              <th scope="col">State</th>
              <th scope="col">Begun</th>
              <th scope="col">Ended</th>
              <th scope="col">Agent</th>
              <th scope="col">What is to be said</th>
            </tr>
          </thead>
          <tbody>
            {(of.hosts ?? []).map((host, index) => {
              const [name, tone] = updateStateNames[host.state ?? "unchecked"];
              return (
                <tr key={host.host}>
                  <td class="number num">{index + 1}</td>
                  <td>
                    <HostLink name={host.host} />
                  </td>
                  <td>
                    {host.drain && host.state === "emptying" ? (
                      <a class="plain" href={link("operations", host.drain)}>
                        <State name={name} tone={tone} />
                      </a>
                    ) : (
                      <State name={name} tone={host.blocks ? "bad" : tone} />
                    )}
                  </td>
                  <td class="num no-wrap" data-label="begun">
                    {time(host.begun)}
                  </td>
                  <td class="num no-wrap" data-label="ended">
                    {clockTime(host.ended)}
                  </td>
                  <td data-label="agent">
                    {host.release_before ? `${host.release_before} → ${host.release_after ?? UNKNOWN}` : UNKNOWN}
                  </td>
                  <td>
                    {sentence(host.detail ?? "")}
                    {host.blocks && <b> It keeps the update from being begun.</b>}
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </>
  );
}
