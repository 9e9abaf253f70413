// Signing in with a token. The address stays as it is, so that one comes back to where one was.
import { useEffect, useRef, useState } from "preact/hooks";
import { signIn } from "../api/session";
import { Button } from "../components/basics";
import { useWork } from "../components/dialog";
import { TextField } from "../components/field";
import { ProblemBox } from "../components/problem";
import { store } from "../store/store";

export function SignIn() {
  const [token, setToken] = useState("");
  const { isBusy, problem, run } = useWork();
  const box = useRef<HTMLFormElement>(null);
  useEffect(() => {
    document.title = "Sign in · Skein";
    box.current?.querySelector("input")?.focus();
  }, []);
  const submit = (event: Event): void => {
    event.preventDefault();
    if (token.trim() === "" || isBusy) return;
    void run(async () => {
      store.session = await signIn(token);
      store.hasExpired = false;
      store.changed();
    });
  };
  return (
    <main class="alone">
      <form class="sign-in" onSubmit={submit} ref={box}>
        <h1>
          <img src="/icon.svg" width="32" height="32" alt="" /> Skein
        </h1>
        {store.hasExpired && (
          <p class="role-note" role="status">
            The token has ended, or was taken away. Sign in again to go on where you were.
          </p>
        )}
        <TextField
          label="Token"
          type="password"
          value={token}
          set={setToken}
          hint={
            <>
              An admin makes one: <code>skein token create NAME --role operator</code>
            </>
          }
        />
        <ProblemBox of={problem} />
        <Button type="submit" look="main" disabled={isBusy || token.trim() === ""}>
          {isBusy ? "Asking …" : "Sign in"}
        </Button>
      </form>
    </main>
  );
}
