// Who may do what: tokens; and tickets, by which hosts join.
import { useState } from "preact/hooks";
import { ask, part } from "../api/request";
import { Button, Empty, Panel, State, Title } from "../components/basics";
import { RoleButton, RoleNote, useMay } from "../components/access";
import { AskDialog, Dialog } from "../components/dialog";
import { NumberField, SelectField, TextField } from "../components/field";
import { ProblemBox } from "../components/problem";
import { several, time, until } from "../format";
import { store } from "../store/store";
import { useNow, useRead } from "../store/use";
import type { JoinTicket, Page, Role, Token, TokenSecret } from "../types";
import { roleWords } from "../words";

export function Access() {
  const may = useMay("admin");
  return (
    <>
      <Title>Access</Title>
      <RoleNote needs="admin" to="see and change who may do what" />
      {may && (
        <>
          <Tokens />
          <Tickets />
        </>
      )}
    </>
  );
}

function Tokens() {
  const { value, problem, again } = useRead<Page<Token>>("/tokens?limit=500");
  const [isAdding, setAdding] = useState(false);
  const [removing, setRemoving] = useState<string>();
  const [made, setMade] = useState<TokenSecret>();
  const now = useNow(30_000);
  const items = value?.items ?? [];
  return (
    <Panel
      title="Tokens"
      note={value ? several(items.length, "token") : undefined}
      actions={
        <RoleButton needs="admin" small onClick={() => setAdding(true)}>
          Make one …
        </RoleButton>
      }
    >
      <ProblemBox of={problem} again={again} />
      {value && items.length === 0 && <Empty>There is none.</Empty>}
      {items.length > 0 && (
        <div class="scroll" tabIndex={0} role="group" aria-label="Tokens">
          <table class="table stacks">
            <thead>
              <tr>
                <th scope="col">Name</th>
                <th scope="col">Role</th>
                <th scope="col">Made</th>
                <th scope="col">Ends</th>
                <th scope="col">
                  <span class="visually-hidden">What to do</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {items.map((token) => (
                <tr key={token.name}>
                  <th scope="row" class="name">
                    {token.name}
                  </th>
                  <td title={roleWords[token.role]}>{token.role}</td>
                  <td class="num no-wrap" data-label="made">
                    {time(token.created)}
                  </td>
                  <td class="num no-wrap" data-label="ends">
                    {token.expires == null ? (
                      "never"
                    ) : token.expires < now ? (
                      <State name="has ended" tone="plain" />
                    ) : (
                      <span title={time(token.expires)}>{until(token.expires, now)}</span>
                    )}
                  </td>
                  <td>
                    <div class="actions end">
                      <RoleButton needs="admin" small onClick={() => setRemoving(token.name)}>
                        Take away …
                      </RoleButton>
                    </div>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {isAdding && (
        <TokenDialog
          close={() => setAdding(false)}
          made={(secret) => {
            setMade(secret);
            again();
          }}
        />
      )}
      {made && (
        <SecretDialog
          title={`The token ${made.token.name}`}
          secret={made.secret}
          close={() => setMade(undefined)}
          words="It is shown this once: nobody can read it later."
        />
      )}
      {removing !== undefined && (
        <AskDialog
          title={`Take the token ${removing} away`}
          verb="Take it away"
          danger
          close={() => setRemoving(undefined)}
          work={async () => {
            await ask("DELETE", `/tokens/${part(removing)}`);
            store.notify(`The token ${removing} is taken away`);
            again();
          }}
        >
          <p>Whoever uses it is signed out at once.</p>
        </AskDialog>
      )}
    </Panel>
  );
}

const ROLES = [
  ["viewer", "viewer"],
  ["operator", "operator"],
  ["admin", "admin"],
] as const;

function TokenDialog({ close, made }: { close: () => void; made: (secret: TokenSecret) => void }) {
  const [name, setName] = useState("");
  const [role, setRole] = useState<Role>("viewer");
  const [days, setDays] = useState<number | null>(90);
  const wrong =
    name !== "" && !/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/.test(name)
      ? "Letters, digits and . _ -, a letter or digit first"
      : undefined;
  return (
    <AskDialog
      title="Make a token"
      verb="Make it"
      close={close}
      ready={name !== "" && !wrong}
      work={async () => {
        const body = { name, role, expires_s: days === null ? null : Math.max(1, Math.round(days * 86_400)) };
        made((await ask<TokenSecret>("POST", "/tokens", { body })).value);
      }}
    >
      <TextField label="Name" value={name} set={setName} wrong={wrong} hint="The audit log has it" autofocus />
      <SelectField label="Role" value={role} set={setRole} options={ROLES} hint={`Who has it ${roleWords[role]}`} />
      <NumberField label="Ends after" unit="days" value={days} set={setDays} min={0} hint="Empty: never" />
    </AskDialog>
  );
}

function SecretDialog({
  title,
  secret,
  words,
  close,
}: {
  title: string;
  secret: string;
  words: string;
  close: () => void;
}) {
  const [isCopied, setCopied] = useState(false);
  const copy = (): void =>
    void navigator.clipboard?.writeText(secret).then(
      () => setCopied(true),
      () => undefined,
    );
  return (
    <Dialog title={title} close={close}>
      <p>{words}</p>
      <pre class="code wrap" tabIndex={0} aria-label={title}>
        {secret}
      </pre>
      <div class="buttons">
        <Button onClick={copy}>{isCopied ? "Copied" : "Copy"}</Button>
        <Button look="main" onClick={close}>
          I have it
        </Button>
      </div>
    </Dialog>
  );
}

function Tickets() {
  const [host, setHost] = useState("");
  const [minutes, setMinutes] = useState<number | null>(60);
  const [isAsking, setAsking] = useState(false);
  const [ticket, setTicket] = useState<JoinTicket>();
  return (
    <Panel
      title="A host joins"
      note="each host needs a ticket of its own, once"
      actions={
        <RoleButton needs="admin" small onClick={() => setAsking(true)}>
          Make a ticket …
        </RoleButton>
      }
    >
      <p class="dim">
        A ticket is a command for the host that is to join: it makes the host's key there, has it signed, and starts its
        agent.
      </p>
      {isAsking && (
        <AskDialog
          title="Make a ticket"
          verb="Make it"
          close={() => setAsking(false)}
          work={async () => {
            const body = {
              host: host.trim() || null,
              expires_s: minutes === null ? null : Math.max(1, Math.round(minutes * 60)),
            };
            setTicket((await ask<JoinTicket>("POST", "/tickets", { body })).value);
          }}
        >
          <TextField label="Only for the host" value={host} set={setHost} hint="Empty: any host whose name is free" />
          <NumberField label="Ends after" unit="minutes" value={minutes} set={setMinutes} min={1} />
        </AskDialog>
      )}
      {ticket && (
        <SecretDialog
          title="Give this on the host, as root"
          secret={ticket.command}
          words={`It is good once, until ${time(ticket.expires)}.`}
          close={() => setTicket(undefined)}
        />
      )}
    </Panel>
  );
}
