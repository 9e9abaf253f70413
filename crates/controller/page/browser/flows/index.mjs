// All flows, in the order in which they are run.
import * as access from "./access.mjs";
import * as consoles from "./console.mjs";
import * as guests from "./guests.mjs";
import * as hosts from "./hosts.mjs";
import * as link from "./link.mjs";
import * as looks from "./looks.mjs";
import * as rules from "./rules.mjs";
import * as session from "./session.mjs";

export const flows = {
  ...session.flows,
  ...hosts.flows,
  ...guests.flows,
  ...consoles.flows,
  ...rules.flows,
  ...access.flows,
  ...link.flows,
  ...looks.flows,
};
