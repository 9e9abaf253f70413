// The names of what the API says, in one place: what is generated, with what is to come.
import type { Host as ApiHost, Vm as ApiVm } from "./api.d";
import type { NicLoad } from "./contract";

export type * from "./contract";
export type {
  AuditRecord, ClusterSettings, ClusterStatus, Complaint, Contact, ControllerView, Convergence, CopyProgress,
  Explanation, FencingDevice, HoldView, HostLoad, HostMode, HostSettings, HostUpdate, JoinTicket, Move, Operation,
  OperationKind, OperationState, OptimizeRequest, PageCounts, PageFigures, PowerReading, ProblemDetails, RateLimit,
  Role, Rule, Token, TokenSecret, UpdateRequest, VmLoad, VmMigration, VmRunState, VmSettings,
} from "./api.d";

export type Vm = ApiVm;
export type Host = ApiHost & { nics?: NicLoad[] | null };

/** A part of a list, by name. */
export interface Page<T> {
  items: T[];
  next?: string | null;
}
