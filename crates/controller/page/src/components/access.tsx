// What the role of who is signed in allows.
import type { ComponentChildren } from "preact";
import { useStore } from "../store/use";
import { store } from "../store/store";
import type { Role } from "../types";
import { Button } from "./basics";

const ORDER: Record<Role, number> = { viewer: 0, operator: 1, admin: 2 };

export function allows(role: Role | undefined, needed: Role): boolean {
  return role !== undefined && ORDER[role] >= ORDER[needed];
}

export function useMay(needed: Role): boolean {
  return allows(
    useStore(() => store.session?.role),
    needed,
  );
}

/** A button for who has the role. Others see it, and why it does nothing. */
export function RoleButton({
  needs,
  children,
  onClick,
  why,
  look,
  small,
}: {
  needs: Role;
  children: ComponentChildren;
  onClick: () => void;
  look?: "main" | "danger" | "quiet";
  small?: boolean;
  /** Why it is of no use now, whoever asks. */
  why?: string | undefined | false;
}) {
  const may = useMay(needs);
  const reason = may ? why || undefined : `Needs the role ${needs}.`;
  return (
    <Button
      look={look}
      small={small}
      aria-disabled={reason ? "true" : undefined}
      title={reason}
      aria-description={reason}
      onClick={() => reason === undefined && onClick()}
    >
      {children}
    </Button>
  );
}

/** Says once what a role may not do on a screen, so that nobody has to find it out. */
export function RoleNote({ needs, to }: { needs: Role; to: string }) {
  const may = useMay(needs);
  const role = useStore(() => store.session?.role);
  if (may || !role) return null;
  return (
    <p class="role-note">
      You are signed in as {role}. To {to} takes the role {needs}.
    </p>
  );
}
