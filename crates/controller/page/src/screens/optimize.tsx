export function Optimize(_: { query?: URLSearchParams; id?: string; name?: string }) { return null; }
