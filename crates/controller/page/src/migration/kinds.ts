// What became of a guest's pages, in bytes. Pure.
import type { PageFigures } from "../types";

const PAGE_BYTES = 4096;

export interface Kind {
  key: "zero" | "unchanged" | "delta" | "compressed" | "stored" | "written";
  name: string;
  about: string;
  /** The bytes of the guest. */
  bytes: number;
  /** The bytes on the wire; `undefined`: not told for this kind alone. */
  wire: number | undefined;
}

export function kindsOf(pages: PageFigures): Kind[] {
  const of = (count: number | undefined): number => (count ?? 0) * PAGE_BYTES;
  const packed_deltas = (pages.packed_delta_bytes ?? 0) > 0;
  return [
    { key: "zero", name: "zero", about: "pages of zeros", bytes: of(pages.zero_pages), wire: 0 },
    {
      key: "unchanged",
      name: "unchanged",
      about: "written to, and the target has the same",
      bytes: of(pages.unchanged_pages),
      wire: 0,
    },
    {
      key: "delta",
      name: "delta",
      about: "only the changed parts went",
      bytes: of(pages.delta_pages),
      wire: packed_deltas ? undefined : (pages.delta_bytes ?? 0),
    },
    {
      key: "compressed",
      name: "compressed",
      about: "",
      bytes: of(pages.packed_pages),
      wire: packed_deltas ? undefined : (pages.packed_bytes ?? 0),
    },
    {
      key: "stored",
      name: "as is",
      about: "uncompressed",
      bytes: of(pages.stored_pages),
      wire: of(pages.stored_pages),
    },
    {
      key: "written",
      name: "written by NICs",
      about: "straight into the guest's RAM at the target, by RDMA, not encrypted",
      bytes: of(pages.written_pages),
      wire: of(pages.written_pages),
    },
  ];
}

export function guestBytes(kinds: readonly Kind[]): number {
  return kinds.reduce((sum, kind) => sum + kind.bytes, 0);
}

/** The bytes on the wire, without framing and encryption, as `PageCounts::wire_bytes`. */
export function wireBytes(pages: PageFigures): number {
  const of_pages = (pages.packed_bytes ?? 0) + (pages.stored_pages ?? 0) * PAGE_BYTES + (pages.delta_bytes ?? 0);
  return of_pages + (pages.written_pages ?? 0) * PAGE_BYTES + (pages.other_bytes ?? 0);
}
