// Why a request was not done, in words.
import type { ProblemDetails } from "../types";

export class Problem extends Error {
  constructor(
    /** The HTTP status; 0: no answer came. */
    readonly status: number,
    readonly detail: string,
    readonly cure = "",
    /** Where the controller is that leads, if that is another one: this page there. */
    readonly leader?: { name: string; url: string },
  ) {
    super(detail);
  }
}

export function problemOf(error: unknown): Problem {
  if (error instanceof Problem) return error;
  const words = error instanceof Error ? error.message : String(error);
  return new Problem(0, `this page made a mistake: ${words}`, "reload the page, and report this as a mistake in Skein");
}

export const noAnswer = (): Problem =>
  new Problem(0, "the controller does not answer", "see that it runs and that this machine reaches it");

export async function refusal(response: Response): Promise<Problem> {
  const said = (await response.json().catch(() => undefined)) as Partial<ProblemDetails> | undefined;
  const words = said?.detail ?? `the controller answers ${response.status} ${response.statusText}`.trim();
  return new Problem(response.status, words, said?.cure ?? "");
}
