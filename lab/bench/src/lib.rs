//! Named benchmark cases, the movers they compare, statistics and the report.
