// The navigation, the banner of a lost connection, and who is signed in.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { problemOf } from "../api/problem";
import { signOut } from "../api/session";
import { about } from "../format";
import { PLACES } from "../keys";
import { link, type Route } from "../router";
import { end, hurry, readCluster } from "../store/follow";
import { store } from "../store/store";
import { useNow, useRepeated, useStore } from "../store/use";
import { choose, chosen, type Theme } from "../theme";
import { roleWords } from "../words";
import { Button, classes } from "./basics";
import { allows } from "./access";

/** How often the cluster as a whole is asked for: what needs attention is in no event. */
const CLUSTER_MS = 5000;

export function Frame({ route, help, children }: { route: Route; help: () => void; children: ComponentChildren }) {
  const [isOpen, setOpen] = useState(false);
  useEffect(() => setOpen(false), [route.path.join("/")]);
  useRepeated(readCluster, CLUSTER_MS, []);
  return (
    <div class="frame">
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          document.getElementById("main")?.focus();
        }}
      >
        To the content
      </a>
      <header class="side">
        <Brand />
        <Button look="quiet" class="menu" aria-expanded={isOpen} aria-controls="nav" onClick={() => setOpen(!isOpen)}>
          Menu
        </Button>
        <div id="nav" class={classes("nav", isOpen && "open")}>
          <Places route={route} />
          <Foot help={help} />
        </div>
      </header>
      <div class="content">
        <LinkBanner />
        {children}
      </div>
    </div>
  );
}

function Brand() {
  const name = useStore(() => store.cluster?.name);
  return (
    <a class="brand" href="#/">
      <img src="/icon.svg" width="22" height="22" alt="" />
      <span>
        <b>Skein</b>
        <span class="cluster">{name ?? " "}</span>
      </span>
    </a>
  );
}

function Places({ route }: { route: Route }) {
  const role = useStore(() => store.session?.role);
  const attention = useStore(() => store.cluster?.attention.length ?? 0);
  const running = useStore(() => store.cluster?.operations_running ?? 0);
  const here = route.path[0] ?? "";
  const seen = PLACES.filter((place) => (place.key !== "a" && place.key !== "t") || allows(role, "admin"));
  return (
    <nav aria-label="Places">
      <ul>
        {seen.map((place) => (
          <li key={place.key}>
            <a href={link(...place.path)} aria-current={here === (place.path[0] ?? "") ? "page" : undefined}>
              {place.name}
              {place.key === "o" && attention > 0 && (
                <span class="badge warn" title={`${attention} to attend to`}>
                  {attention}
                </span>
              )}
              {place.key === "p" && running > 0 && (
                <span class="badge" title={`${running} under way`}>
                  {running}
                </span>
              )}
              <kbd aria-hidden="true">g {place.key}</kbd>
            </a>
          </li>
        ))}
      </ul>
    </nav>
  );
}

function Foot({ help }: { help: () => void }) {
  const session = useStore(() => store.session);
  const [theme, setTheme] = useState(chosen());
  const out = (): void => {
    void signOut().then(
      () => {
        end();
        store.tables.clear();
        store.isLoaded = false;
        store.session = null;
        store.hasExpired = false;
        store.changed();
      },
      // The cookie is there still: whoever sits down here next would be signed in.
      (error: unknown) => store.notify(`You are still signed in: ${problemOf(error).detail}`, "bad"),
    );
  };
  return (
    <div class="foot">
      <label class="theme">
        <span class="dim">Colours</span>
        <select
          value={theme}
          onChange={(event) => {
            const next = event.currentTarget.value as Theme;
            choose(next);
            setTheme(next);
          }}
        >
          <option value="system">system</option>
          <option value="dark">dark</option>
          <option value="light">light</option>
        </select>
      </label>
      <Button look="quiet" small onClick={help}>
        Keys <kbd>?</kbd>
      </Button>
      {session && (
        <p class="who">
          <b class="name" title={session.name}>
            {session.name}
          </b>
          <span class="dim" title={`${session.role}: ${roleWords[session.role]}`}>
            {session.role}
          </span>
          <Expires at={session.expires} />
          <Button look="quiet" small onClick={out}>
            Sign out
          </Button>
        </p>
      )}
    </div>
  );
}

function Expires({ at }: { at: number | null | undefined }) {
  const now = useNow(30_000);
  if (!at || at - now > 86_400_000) return null;
  return (
    <span class="dim">until {new Date(at).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })}</span>
  );
}

/** How long a connection may be lost before that is said: a controller that restarts is back by then. */
const QUIET_MS = 1500;

function LinkBanner() {
  const state = useStore(() => store.link);
  const now = useNow(1000);
  if (state.is !== "lost" || now - state.since < QUIET_MS) return <div class="banner-place" role="status" />;
  return (
    <div class="banner-place" role="status">
      <p class="banner">
        <span>
          No connection to the controller: what is shown is as it was. Guests and migrations go on without it.
        </span>
        <span class="dim num">Trying again {state.next > now ? `in ${about(state.next - now)}` : "now"}.</span>
        <Button small onClick={hurry}>
          Try now
        </Button>
      </p>
    </div>
  );
}
