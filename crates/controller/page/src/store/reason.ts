// Why a move is planned, and what it costs and saves, from the controller's sentence. Pure.

export interface Reason {
  why: string;
  /** `undefined`: the sentence does not say it. */
  costs: string | undefined;
  saves: string | undefined;
}

/** A sentence that is made otherwise is shown as it is. */
export function readReason(text: string): Reason {
  const found = /^(.*?); costs ([^,;]+), saves ([^,;]+)$/s.exec(text);
  return found
    ? { why: found[1] ?? "", costs: found[2], saves: found[3] }
    : { why: text, costs: undefined, saves: undefined };
}
