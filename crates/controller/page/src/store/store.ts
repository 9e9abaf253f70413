// What all screens share: the tables, who is signed in, how the connection is. Whoever listens is told once a frame.
import type { ClusterStatus, Session } from "../types";
import { Tables } from "./tables";

export type Link = { is: "connecting" } | { is: "live" } | { is: "lost"; since: number; detail: string; next: number };

export interface Notice {
  id: number;
  words: string;
  tone: "good" | "bad";
  href?: string | undefined;
}

class Store {
  readonly tables = new Tables();
  /** `undefined`: not known yet; `null`: nobody. */
  session: Session | null | undefined;
  /** Whether somebody was signed in, and the token ended meanwhile. */
  hasExpired = false;
  cluster: ClusterStatus | undefined;
  link: Link = { is: "connecting" };
  /** Whether all hosts and guests have been read. */
  isLoaded = false;
  notices: Notice[] = [];

  private readonly listeners = new Set<() => void>();
  private isScheduled = false;

  listen(call: () => void): () => void {
    this.listeners.add(call);
    return () => this.listeners.delete(call);
  }

  /** Tells all listeners, with all else that changes until the next frame. A page that is not seen has no frames. */
  changed(): void {
    if (this.isScheduled) return;
    this.isScheduled = true;
    const tell = (): void => {
      this.isScheduled = false;
      for (const call of [...this.listeners]) call();
    };
    if (document.visibilityState === "visible") requestAnimationFrame(tell);
    else setTimeout(tell, 1000);
  }

  notify(words: string, tone: Notice["tone"] = "good", href?: string): void {
    const notice = { id: Date.now() + Math.random(), words, tone, href };
    this.notices = [...this.notices.slice(-2), notice];
    this.changed();
    setTimeout(() => this.dismiss(notice.id), tone === "good" ? 6000 : 15_000);
  }

  dismiss(id: number): void {
    this.notices = this.notices.filter((notice) => notice.id !== id);
    this.changed();
  }
}

export const store = new Store();
