// The frame around all screens: who is signed in, where one can go, how the connection is.
import { useEffect, useState } from "preact/hooks";
import { whoAmI } from "./api/session";
import { problemOf, type Problem } from "./api/problem";
import { Boundary } from "./components/boundary";
import { Frame } from "./components/frame";
import { KeyHelp } from "./components/key_help";
import { Notices } from "./components/notices";
import { ProblemBox } from "./components/problem";
import { listen } from "./keys";
import { useRoute } from "./router";
import { screenOf } from "./screens";
import { SignIn } from "./screens/sign_in";
import { begin } from "./store/follow";
import { store } from "./store/store";
import { useStore } from "./store/use";

export function App() {
  const session = useStore(() => store.session);
  const [problem, setProblem] = useState<Problem>();
  const [tries, setTries] = useState(0);
  useEffect(() => {
    whoAmI().then(
      (found) => {
        store.session = found;
        setProblem(undefined);
        store.changed();
      },
      (error: unknown) => {
        const of = problemOf(error);
        if (of.status === 401) store.session = null;
        else setProblem(of);
        store.changed();
      },
    );
  }, [tries]);
  useEffect(() => {
    if (session) begin();
  }, [session?.name, session?.role]);
  if (session === undefined) {
    return (
      <main class="alone">
        {problem ? (
          <ProblemBox of={problem} again={() => setTries(tries + 1)} />
        ) : (
          <p class="dim" role="status">
            Asking the controller …
          </p>
        )}
      </main>
    );
  }
  return session === null ? <SignIn /> : <Inside />;
}

function Inside() {
  const route = useRoute();
  const [isHelp, setHelp] = useState(false);
  useEffect(() => listen(() => setHelp(true)), []);
  const { title, screen, key } = screenOf(route);
  const cluster = useStore(() => store.cluster?.name);
  useEffect(() => {
    document.title = cluster ? `${title} · ${cluster} · Skein` : `${title} · Skein`;
  }, [title, cluster]);
  useEffect(() => {
    // A new screen begins at its top, and who reads by ear hears its title.
    document.querySelector<HTMLElement>("main")?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [key]);
  return (
    <>
      <Frame route={route} help={() => setHelp(true)}>
        <main id="main" tabIndex={-1} key={key}>
          <Boundary>{screen}</Boundary>
        </main>
      </Frame>
      <Notices />
      {isHelp && <KeyHelp close={() => setHelp(false)} />}
    </>
  );
}
