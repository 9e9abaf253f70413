export function Explain(_: { query?: URLSearchParams; id?: string; name?: string }) { return null; }
