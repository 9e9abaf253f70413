// The rules about where guests run, what is broken, and what is wrong with the rules themselves.
import { useState } from "preact/hooks";
import { ask, part } from "../api/request";
import { problemOf, type Problem } from "../api/problem";
import { Button, Empty, GuestLink, HostLink, Panel, State, Title } from "../components/basics";
import { RoleButton, RoleNote } from "../components/access";
import { AskDialog } from "../components/dialog";
import { AreaField, SelectField, TextField } from "../components/field";
import { ProblemBox, sentence } from "../components/problem";
import { several } from "../format";
import { go, link } from "../router";
import { KIND_ABOUT, kindOf, readRule, RULE_KINDS, ruleWords, templateOf, type RuleKind } from "../store/rule_words";
import { store } from "../store/store";
import { useComputed, useRead } from "../store/use";
import type { Complaint, Page, Rule } from "../types";

type Asked = { is: "add" } | { is: "edit"; name: string } | { is: "remove"; name: string };

export function Rules() {
  const rules = useRead<Page<Rule>>("/rules?limit=500", 30_000);
  const complaints = useRead<Page<Complaint>>("/complaints", 15_000);
  const [asked, setAsked] = useState<Asked>();
  const close = (): void => setAsked(undefined);
  const done = (words: string): void => {
    store.notify(words);
    rules.again();
    complaints.again();
  };
  const items = rules.value?.items ?? [];
  return (
    <>
      <Title
        actions={
          <RoleButton needs="admin" look="main" onClick={() => setAsked({ is: "add" })}>
            Add a rule …
          </RoleButton>
        }
      >
        Rules
      </Title>
      <RoleNote needs="admin" to="change rules" />
      <Panel
        title="Broken"
        note={complaints.value ? several(complaints.value.items.length, "complaint") : undefined}
        actions={
          <a class="button small" href={link("optimize")}>
            What would repair it
          </a>
        }
      >
        <ProblemBox of={complaints.problem} again={complaints.again} />
        <Complaints of={complaints.value?.items} />
      </Panel>
      <Panel title="Rules" note={rules.value ? several(items.length, "rule") : undefined}>
        <ProblemBox of={rules.problem} again={rules.again} />
        {rules.value && items.length === 0 && (
          <Empty>There is no rule: guests may run anywhere where there is room.</Empty>
        )}
        {items.length > 0 && (
          <div class="scroll" tabIndex={0} role="group" aria-label="Rules">
            <table class="table stacks">
              <thead>
                <tr>
                  <th scope="col">Name</th>
                  <th scope="col">Kind</th>
                  <th scope="col">What it says</th>
                  <th scope="col">
                    <span class="visually-hidden">What to do</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {items.map((rule) => (
                  <tr key={rule.name}>
                    <th scope="row" class="name">
                      {rule.name}
                    </th>
                    <td title={KIND_ABOUT[kindOf(rule.rule) as RuleKind]}>{kindOf(rule.rule)}</td>
                    <td>
                      {ruleWords(rule.rule)}
                      {(rule.warnings ?? []).map((words) => (
                        <div key={words}>
                          <State name={sentence(words)} tone="warn" />
                        </div>
                      ))}
                    </td>
                    <td>
                      <div class="actions end">
                        <RoleButton needs="admin" small onClick={() => setAsked({ is: "edit", name: rule.name })}>
                          Edit …
                        </RoleButton>
                        <RoleButton needs="admin" small onClick={() => setAsked({ is: "remove", name: rule.name })}>
                          Remove …
                        </RoleButton>
                      </div>
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </Panel>
      <ExplainPanel />
      {asked?.is === "add" && <AddDialog close={close} done={done} names={items.map((rule) => rule.name)} />}
      {asked?.is === "edit" && <EditDialog name={asked.name} close={close} done={done} />}
      {asked?.is === "remove" && (
        <AskDialog
          title={`Remove the rule ${asked.name}`}
          verb="Remove"
          danger
          close={close}
          work={async () => {
            await ask("DELETE", `/rules/${part(asked.name)}`);
            done(`The rule ${asked.name} is removed`);
          }}
        >
          <p>It holds nothing back any more. No guest is moved by that.</p>
        </AskDialog>
      )}
    </>
  );
}

function Complaints({ of }: { of: readonly Complaint[] | undefined }) {
  if (!of) return <Empty>Reading …</Empty>;
  if (of.length === 0) return <Empty>Nothing is broken.</Empty>;
  return (
    <ul class="rows-list">
      {of.map((complaint) => (
        <li key={complaint.what}>
          <State name={complaint.hard ? "must not be" : "should not be"} tone={complaint.hard ? "bad" : "warn"} />{" "}
          {sentence(complaint.what)} {complaint.rule && <span class="dim">[{complaint.rule}]</span>}
          <div class="dim">
            {complaint.vms.slice(0, 12).map((vm) => (
              <span key={vm}>
                <GuestLink name={vm} />{" "}
              </span>
            ))}
            {complaint.vms.length > 12 && `and ${complaint.vms.length - 12} more `}
            {complaint.hosts.length > 0 && "on "}
            {complaint.hosts.slice(0, 12).map((host) => (
              <span key={host}>
                <HostLink name={host} />{" "}
              </span>
            ))}
          </div>
          {(complaint.clashes ?? []).map((words) => (
            <p key={words}>{sentence(words)}</p>
          ))}
        </li>
      ))}
    </ul>
  );
}

function ExplainPanel() {
  const [vm, setVm] = useState("");
  const names = useComputed(["vms"], () => [...store.tables.vms.keys()].sort(), [], 5000);
  const submit = (event: Event): void => {
    event.preventDefault();
    if (vm.trim() !== "") go(link("guests", vm.trim(), "explain"));
  };
  return (
    <Panel title="Where may a guest run, and why not elsewhere?">
      <form class="ask-line" onSubmit={submit}>
        <TextField label="Guest" value={vm} set={setVm} list={names.slice(0, 500)} />
        <Button type="submit" disabled={vm.trim() === ""}>
          Explain
        </Button>
      </form>
    </Panel>
  );
}

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;

function pretty(rule: unknown): string {
  return JSON.stringify(rule, undefined, 2);
}

function AddDialog({ close, done, names }: { close: () => void; done: (words: string) => void; names: string[] }) {
  const [name, setName] = useState("");
  const [kind, setKind] = useState<RuleKind>("apart");
  const [text, setText] = useState(pretty(templateOf("apart")));
  const read = readRule(text);
  const wrong =
    name === ""
      ? undefined
      : !NAME.test(name)
        ? "Letters, digits and . _ -, a letter or digit first"
        : names.includes(name)
          ? "There is such a rule already: edit it"
          : undefined;
  return (
    <AskDialog
      title="Add a rule"
      verb="Add"
      close={close}
      ready={name !== "" && !wrong && !read.wrong}
      work={async () => {
        await ask("PUT", `/rules/${part(name)}`, { body: read.rule });
        done(`The rule ${name} holds from now on`);
      }}
    >
      <div class="fields">
        <TextField label="Name" value={name} set={setName} wrong={wrong} autofocus />
        <SelectField
          label="Kind"
          value={kind}
          options={RULE_KINDS.map((key) => [key, key] as const)}
          hint={KIND_ABOUT[kind]}
          set={(next) => {
            setKind(next);
            setText(pretty(templateOf(next)));
          }}
        />
      </div>
      <RuleField text={text} setText={setText} wrong={read.wrong} />
    </AskDialog>
  );
}

function RuleField({
  text,
  setText,
  wrong,
}: {
  text: string;
  setText: (text: string) => void;
  wrong: string | undefined;
}) {
  return (
    <AreaField
      label="Rule, as JSON"
      value={text}
      set={setText}
      rows={10}
      wrong={wrong}
      hint={
        <>
          Who: <code>{'{"guests": [..]}'}</code>, <code>{'{"tag": T}'}</code>, <code>{'{"set": S}'}</code> or{" "}
          <code>{'{"tenant": T}'}</code>; hosts: <code>{'{"hosts": [..]}'}</code> or <code>{'{"group": G}'}</code>
        </>
      }
    />
  );
}

function EditDialog({ name, close, done }: { name: string; close: () => void; done: (words: string) => void }) {
  const [base, setBase] = useState<{ etag: string | undefined }>();
  const [text, setText] = useState("");
  const [problem, setProblem] = useState<Problem>();
  const [warnings, setWarnings] = useState<string[]>([]);
  useOnce(async () => {
    try {
      const { value, etag } = await ask<Rule>("GET", `/rules/${part(name)}`);
      setText(pretty(value.rule));
      setWarnings(value.warnings ?? []);
      setBase({ etag });
    } catch (error) {
      setProblem(problemOf(error));
    }
  });
  const read = readRule(text);
  return (
    <AskDialog
      title={`Edit the rule ${name}`}
      verb="Save"
      close={close}
      ready={base !== undefined && !read.wrong}
      work={async () => {
        await ask("PUT", `/rules/${part(name)}`, { body: read.rule, ifMatch: base?.etag });
        done(`The rule ${name} is changed`);
      }}
    >
      <ProblemBox of={problem} />
      {base && <RuleField text={text} setText={setText} wrong={read.wrong} />}
      {warnings.map((words) => (
        <State key={words} name={sentence(words)} tone="warn" />
      ))}
    </AskDialog>
  );
}

function useOnce(work: () => Promise<void>): void {
  useState(() => void work());
}
