export function Audit(_: { query?: URLSearchParams; id?: string; name?: string }) { return null; }
