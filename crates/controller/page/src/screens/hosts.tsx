// All hosts.
import { Title } from "../components/basics";
import { HostTable } from "../components/host_table";
import { replace, withQuery } from "../router";
import { readHosts } from "../store/follow";
import { store } from "../store/store";
import { useRepeated, useStore } from "../store/use";
import { hostsEveryMs } from "./overview";

export function Hosts({ query }: { query: URLSearchParams }) {
  const hosts = useStore(() => store.tables.hosts.size);
  useRepeated(readHosts, hostsEveryMs(hosts), [hosts > 300]);
  return (
    <>
      <Title
        actions={
          <a class="button" href="#/update">
            Update hosts …
          </a>
        }
      >
        Hosts
      </Title>
      <HostTable
        tall
        search={query.get("q") ?? ""}
        state={query.get("state") ?? ""}
        changed={(q, state) => replace(withQuery(["hosts"], { q, state }))}
      />
    </>
  );
}
