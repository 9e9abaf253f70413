export function Update(_: { query?: URLSearchParams; id?: string; name?: string }) { return null; }
