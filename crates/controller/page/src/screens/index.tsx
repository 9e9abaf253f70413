// Which screen an address shows.
import type { ComponentChildren } from "preact";
import { Empty, Title } from "../components/basics";
import type { Route } from "../router";
import { Access } from "./access";
import { Audit } from "./audit";
import { ConsolePage } from "./console";
import { Explain } from "./explain";
import { GuestPage } from "./guest";
import { Guests } from "./guests";
import { HostPage } from "./host";
import { Hosts } from "./hosts";
import { MigrationPage } from "./migration";
import { Migrations } from "./migrations";
import { MigrationPair } from "./migration_pair";
import { OperationPage } from "./operation";
import { Operations } from "./operations";
import { Optimize } from "./optimize";
import { Overview } from "./overview";
import { Rules } from "./rules";
import { Settings } from "./settings";
import { Update } from "./update";

export interface Screen {
  title: string;
  screen: ComponentChildren;
  /** Names the screen: another one begins anew. */
  key: string;
}

export function screenOf({ path, query }: Route): Screen {
  const [place = "", first, second] = path;
  const of = (title: string, screen: ComponentChildren): Screen => ({ title, screen, key: path.join("/") });
  switch (place) {
    case "":
      return of("Overview", <Overview />);
    case "hosts":
      return first ? of(first, <HostPage name={first} />) : of("Hosts", <Hosts query={query} />);
    case "guests":
      if (first && second === "console") return of(`Console of ${first}`, <ConsolePage name={first} />);
      if (first && second === "explain") return of(`Where ${first} may run`, <Explain name={first} />);
      return first ? of(first, <GuestPage name={first} />) : of("Guests", <Guests query={query} />);
    case "migrations":
      if (first && second) return of("Two migrations", <MigrationPair first={first} second={second} />);
      return first ? of("Migration", <MigrationPage id={first} />) : of("Migrations", <Migrations query={query} />);
    case "operations":
      return first ? of("Operation", <OperationPage id={first} />) : of("Operations", <Operations query={query} />);
    case "optimize":
      return of("Optimise", <Optimize />);
    case "update":
      return of("Update hosts", <Update />);
    case "rules":
      return of("Rules", <Rules />);
    case "settings":
      return of("Settings", <Settings />);
    case "access":
      return of("Access", <Access />);
    case "audit":
      return of("Audit log", <Audit query={query} />);
    default:
      return of(
        "Nothing here",
        <>
          <Title>Nothing here</Title>
          <Empty>There is no such place.</Empty>
        </>,
      );
  }
}
