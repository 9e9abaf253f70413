export function Operations(_: { query?: URLSearchParams; id?: string; name?: string }) { return null; }
