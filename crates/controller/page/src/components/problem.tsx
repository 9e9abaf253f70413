// Why something was not done: what is wrong, and what to do about it, where it happened.
import type { Problem } from "../api/problem";
import { Button } from "./basics";

export function ProblemBox({ of, again }: { of: Problem | undefined; again?: () => void }) {
  if (!of) return null;
  const there = of.leader && `${of.leader.url.replace(/\/$/, "")}/${location.hash}`;
  return (
    <div class="problem" role="alert">
      <p>{sentence(of.detail)}</p>
      {of.cure && <p class="cure">{sentence(of.cure)}</p>}
      {of.leader && (
        <p class="cure">
          The controller <b>{of.leader.name}</b> leads: <a href={there}>this page there</a>. Sign in there as here.
        </p>
      )}
      {again && (
        <Button small onClick={again}>
          Try again
        </Button>
      )}
    </div>
  );
}

/** The API's texts begin small, as parts of lines; here they are sentences. */
export function sentence(text: string): string {
  const trimmed = text.trim();
  if (trimmed === "") return "";
  // A command is written as it is given.
  const is_command = /^skein[ -]/.test(trimmed);
  const begun = is_command ? trimmed : trimmed.charAt(0).toUpperCase() + trimmed.slice(1);
  return /[.!?]$/.test(begun) || is_command ? begun : `${begun}.`;
}
