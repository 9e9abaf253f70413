// Rules in words, and what a new rule of each kind begins with. Pure. The kinds are those of docs/cluster-file.md.

export type RuleBody = Record<string, Record<string, unknown>>;

export const RULE_KINDS = ["apart", "together", "spread", "owners", "preferred", "among", "needs", "match"] as const;
export type RuleKind = (typeof RULE_KINDS)[number];

export const KIND_ABOUT: Record<RuleKind, string> = {
  apart: "no two of them are on one host",
  together: "all of them are on one host",
  spread: "they are in several areas, as evenly as is said",
  owners: "they are on these hosts only",
  preferred: "they should be on the first of these hosts",
  among: "all of them are within one of these sets of hosts",
  needs: "where one is, one of the others is near",
  match: "a guest's property is, or is not, that of its host",
};

export function templateOf(kind: RuleKind): RuleBody {
  const of = { tag: "web" };
  switch (kind) {
    case "apart":
      return { apart: { of, force: "hard" } };
    case "together":
      return { together: { of, force: "soft" } };
    case "spread":
      return { spread: { of, level: "rack", areas_min: 2 } };
    case "owners":
      return { owners: { of, within: { group: "gold" } } };
    case "preferred":
      return { preferred: { of, within: { hosts: [] } } };
    case "among":
      return { among: { of, within: [{ group: "gold" }] } };
    case "needs":
      return { needs: { of, near: { tag: "db" }, level: "rack" } };
    case "match":
      return { match: { property: "disk", relation: "must" } };
  }
}

export function kindOf(rule: unknown): string {
  return typeof rule === "object" && rule !== null ? (Object.keys(rule)[0] ?? "") : "";
}

/** Who a rule is about: `tag web`, `v1, v2`. */
export function whoWords(of: unknown): string {
  if (Array.isArray(of)) return of.map(whoWords).join(" or ");
  if (typeof of !== "object" || of === null) return String(of ?? "");
  return Object.entries(of)
    .map(([key, value]) => {
      const words = Array.isArray(value) ? value.join(", ") : String(value);
      return key === "guests" || key === "hosts" ? words || "nobody" : `${key} ${words}`;
    })
    .join(", ");
}

/** A rule in a line. What is not known here is shown as it is written. */
export function ruleWords(rule: unknown): string {
  const kind = kindOf(rule);
  const body = (rule as RuleBody)[kind];
  if (!body) return JSON.stringify(rule);
  const parts: string[] = [];
  const add = (before: string, value: unknown): void => {
    if (value !== undefined && value !== null) parts.push(`${before}${whoWords(value)}`);
  };
  add("", body.of);
  add("from ", body.from);
  add("near ", body.near);
  add("within ", body.within);
  add("property ", body.property);
  add("", body.relation);
  add("by ", body.level);
  add("at least ", body.areas_min);
  add("skew at most ", body.skew_max);
  add("", body.force);
  add("weight ", body.weight);
  return parts.join("; ");
}

/** Reads what somebody wrote; what is wrong is said in words. */
export function readRule(text: string): { rule?: RuleBody; wrong?: string } {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return { wrong: `This is no JSON: ${error instanceof Error ? error.message : ""}` };
  }
  const keys = typeof value === "object" && value !== null && !Array.isArray(value) ? Object.keys(value) : [];
  if (keys.length !== 1) return { wrong: 'A rule is an object with its kind as the only key: {"apart": {…}}' };
  return { rule: value as RuleBody };
}
