//! The lab: hosts in network namespaces around a switch that shapes, cuts and heals their links.
