// What a controller says beside what openapi.json has: to be deleted once it is there.
import type { CopyProgress, HoldView, RateLimit, Role } from "./api.d";

export interface Session {
  name: string;
  role: Role;
  /** Milliseconds since 1970. */
  expires?: number | null;
}

/** A NIC of a host. Only NICs that have a link are told, unless `has_link` says otherwise. */
export interface NicLoad {
  name: string;
  speed_bits_per_s?: number | null;
  receive_bits_per_s: number;
  send_bits_per_s: number;
  has_link?: boolean;
  /** Whether migrations may use it; where that is not told it is not shown. */
  is_migration?: boolean;
}

export interface MigrationView {
  id: string;
  vm: string;
  source: string;
  target: string;
  /** RFC 3339. */
  begun: string;
  in_doubt?: boolean;
  /** The milliseconds from then until its outcome, or until it was last told of. */
  elapsed_ms: number;
  stage?: Stage | null;
  outcome?: string | null;
  why?: string | null;
  detail: string;
  downtime_ms?: number | null;
  operation?: string | null;
  copy?: CopyProgress | null;
  hold?: HoldView | null;
  rate_limit?: RateLimit | null;
}

/** `queued`, or the phase of an end. */
export type Stage = "queued" | { source: string } | { target: string };

export interface PathView {
  nic: string;
  remote: string;
  usable: boolean;
  sent_bytes: number;
  bits_per_s: number;
  note?: string;
  connections?: string;
  rdma_connections?: number;
}

export interface Attempt {
  number: number;
  of: number;
  not_begun?: number | null;
  next_in_ms?: number | null;
}

export type MigrationEvent =
  | { kind: "queued" | "in-doubt" | "recovered" | "write-failed" }
  | { kind: "phase"; stage: Stage }
  | { kind: "reported"; report: string; detail?: string }
  | { kind: "called-off"; why: string; detail?: string }
  | { kind: "over"; outcome: string };

export type LogEntry =
  | { entry: "begun"; vm: string; role: string; source: string; target: string }
  | { entry: "handover"; event: MigrationEvent }
  | { entry: "note"; text: string }
  | { entry: "copied"; copy: CopyProgress }
  | { entry: "downtime"; ms: number };

export type LoggedEvent = { time: string } & LogEntry;

export interface Migration {
  id: string;
  vm: string;
  role: "source" | "target";
  source: string;
  target: string;
  stage?: Stage | null;
  outcome?: string | null;
  why?: string | null;
  detail: string;
  in_doubt: boolean;
  begun: string;
  elapsed_ms: number;
  downtime_ms?: number | null;
  copy?: CopyProgress | null;
  paths: PathView[];
  rate_limit?: RateLimit | null;
  attempt?: Attempt | null;
  hold?: HoldView | null;
  events?: LoggedEvent[];
}

export type NicSample = Pick<NicLoad, "name" | "speed_bits_per_s" | "send_bits_per_s" | "receive_bits_per_s">;

export interface Forecast {
  done_permille: number;
  left_ms: number;
  left_low_ms: number;
  left_high_ms: number;
}

export interface MigrationSample {
  /** Milliseconds since 1970, by the host's clock. */
  at: number;
  migration: Migration;
  nics: NicSample[];
  cores_permille: number[];
  mover_millicores: number;
  forecast?: Forecast | null;
}

export interface MigrationEnd {
  migration: Migration;
  samples: MigrationSample[];
}

export interface MigrationRecord {
  source?: MigrationEnd | null;
  target?: MigrationEnd | null;
  /** Why an end did not tell. Empty: both did. */
  note?: string;
}

export interface History {
  step_ms: number;
  until: number;
  series: Record<string, (number | null)[]>;
}
