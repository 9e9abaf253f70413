//! What a host is: NICs, addresses, links, counters, CPU load.
