// All guests.
import { Title } from "../components/basics";
import { GuestTable } from "../components/guest_table";
import { replace, withQuery } from "../router";

export function Guests({ query }: { query: URLSearchParams }) {
  const of = (name: string): string => query.get(name) ?? "";
  return (
    <>
      <Title>Guests</Title>
      <GuestTable
        tall
        filter={{ q: of("q"), state: of("state"), host: of("host"), tag: of("tag") }}
        changed={(filter) => replace(withQuery(["guests"], { ...filter }))}
      />
    </>
  );
}
