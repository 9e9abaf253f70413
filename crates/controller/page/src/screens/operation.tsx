export function OperationPage(_: { query?: URLSearchParams; id?: string; name?: string }) { return null; }
