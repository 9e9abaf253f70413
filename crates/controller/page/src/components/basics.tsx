// Small parts that all screens use.
import type { ComponentChildren, JSX } from "preact";
import { useId } from "preact/hooks";
import { UNKNOWN, bytes, digits } from "../format";
import { link } from "../router";
import type { Tone } from "../words";

export function classes(...names: (string | false | undefined)[]): string {
  return names.filter(Boolean).join(" ");
}

/** A word for a state, with a sign of its own, so that it is read without colour. */
export function State({ name, tone, title }: { name: string; tone: Tone; title?: string | undefined }) {
  return (
    <span class={`state ${tone}`} title={title}>
      <i aria-hidden="true" />
      {name}
    </span>
  );
}

export function Tag({ children, title }: { children: ComponentChildren; title?: string }) {
  return (
    <span class="tag" title={title}>
      {children}
    </span>
  );
}

export function HostLink({ name }: { name: string | null | undefined }) {
  return name ? (
    <a href={link("hosts", name)} class="name">
      {name}
    </a>
  ) : (
    <span class="dim">{UNKNOWN}</span>
  );
}

export function GuestLink({ name }: { name: string }) {
  return (
    <a href={link("guests", name)} class="name">
      {name}
    </a>
  );
}

/** A part of a whole as a bar with its figures. Without a whole there is no bar. */
export function Meter({
  label,
  value,
  of,
  text,
  tone,
}: {
  label: string;
  value: number | null | undefined;
  of: number | null | undefined;
  text?: string;
  tone?: Tone;
}) {
  const share = value != null && of ? Math.max(0, Math.min(1, value / of)) : undefined;
  const words = text ?? (share === undefined ? UNKNOWN : `${digits(share * 100)} %`);
  const level = tone ?? (share !== undefined && share >= 0.9 ? "warn" : "plain");
  return (
    <span class={`meter ${level}`} title={`${label}: ${words}`}>
      <span class="track" aria-hidden="true">
        <i style={{ transform: `scaleX(${(share ?? 0).toFixed(3)})` }} />
      </span>
      <span class="num">{words}</span>
    </span>
  );
}

export function RamMeter({ used, all }: { used: number | undefined; all: number | null | undefined }) {
  const text = used === undefined ? UNKNOWN : `${bytes(used)}`;
  return <Meter label="Memory in use" value={used} of={all} text={text} />;
}

export function Panel({
  title,
  note,
  actions,
  children,
  isPart,
}: {
  title: string;
  note?: ComponentChildren;
  actions?: ComponentChildren;
  children: ComponentChildren;
  /** It is a part of a section that is a landmark itself: there may be others of its title. */
  isPart?: boolean;
}) {
  const heading = useId();
  return (
    <section class="panel" role={isPart ? "group" : undefined} aria-labelledby={heading}>
      <header>
        <h2 id={heading}>{title}</h2>
        {note !== undefined && <span class="note">{note}</span>}
        {actions && <div class="actions">{actions}</div>}
      </header>
      {children}
    </section>
  );
}

/** Facts: a name and what is known of it, a line each. What is left out is not shown. */
export function Facts({ of }: { of: [string, ComponentChildren][] }) {
  const shown = of.filter(([, value]) => value !== undefined && value !== null && value !== false);
  return (
    <dl class="facts">
      {shown.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

export function Title({
  children,
  kind,
  state,
  actions,
  crumbs,
}: {
  children: ComponentChildren;
  kind?: string;
  state?: ComponentChildren;
  actions?: ComponentChildren;
  crumbs?: [string, string][];
}) {
  return (
    <div class="title">
      <div>
        {crumbs && (
          <nav class="crumbs" aria-label="Where this is">
            {crumbs.map(([name, href]) => (
              <a key={href} href={href}>
                {name}
              </a>
            ))}
          </nav>
        )}
        <h1>
          {kind && <span class="kind">{kind} </span>}
          {children}
        </h1>
        {state && <div class="states">{state}</div>}
      </div>
      {actions && <div class="actions">{actions}</div>}
    </div>
  );
}

type ButtonProps = Omit<JSX.IntrinsicElements["button"], "ref" | "class"> & {
  look?: "main" | "danger" | "quiet";
  small?: boolean;
  class?: string;
};

export function Button({ look, small, class: more, ...rest }: ButtonProps) {
  return <button type="button" {...rest} class={classes("button", look, small && "small", more)} />;
}

export function Key({ children }: { children: string }) {
  return <kbd>{children}</kbd>;
}
