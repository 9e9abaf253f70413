export function Access(_: { query?: URLSearchParams; id?: string; name?: string }) { return null; }
