export function Rules(_: { query?: URLSearchParams; id?: string; name?: string }) { return null; }
