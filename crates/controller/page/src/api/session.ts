// Who is signed in: the controller keeps the token behind a cookie that no script reads.
import type { Session } from "../types";
import { ask } from "./request";

export async function whoAmI(): Promise<Session> {
  return (await ask<Session>("GET", "/session")).value;
}

export async function signIn(token: string): Promise<Session> {
  return (await ask<Session>("POST", "/session", { body: { token: token.trim() } })).value;
}

export async function signOut(): Promise<void> {
  await ask("DELETE", "/session");
}
