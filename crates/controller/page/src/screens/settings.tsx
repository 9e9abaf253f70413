export function Settings(_: { query?: URLSearchParams; id?: string; name?: string }) { return null; }
