// The names of what the API says, in one place: what is generated, with what is to come.
import type { Host as ApiHost, HostLoad as ApiHostLoad, Vm as ApiVm, VmLoad as ApiVmLoad } from "./api.d";
import type { NicLoad } from "./contract";

export type * from "./contract";
export type {
  AuditRecord,
  ClusterSettings,
  ClusterStatus,
  Complaint,
  ConsoleAsk,
  ConsoleAnswer,
  Contact,
  ControllerView,
  Convergence,
  CopyProgress,
  Explanation,
  FencingDevice,
  HoldView,
  HostMode,
  HostSettings,
  HostUpdate,
  JoinTicket,
  Move,
  Operation,
  OperationKind,
  OperationState,
  OptimizeRequest,
  PageCounts,
  PageFigures,
  PowerReading,
  ProblemDetails,
  RateLimit,
  Role,
  Rule,
  Token,
  TokenSecret,
  UpdateRequest,
  VmMigration,
  VmRunState,
  VmSettings,
} from "./api.d";

// A load is told whole; that its fields have defaults is for agents of other releases.
export type HostLoad = Required<ApiHostLoad>;
export type VmLoad = Required<ApiVmLoad>;
export type Vm = Omit<ApiVm, "load"> & { load?: VmLoad | null };
export type Host = Omit<ApiHost, "load" | "last_load" | "nics"> & {
  load?: HostLoad | null;
  last_load?: HostLoad | null;
  nics?: NicLoad[] | null;
};

/** A part of a list, by name. */
export interface Page<T> {
  items: T[];
  next?: string | null;
}
