//! What a controller decides, with a store, a planner and agents that do at once what they are told.

mod attention;
mod audit;
mod bench;
mod by_hand;
mod certificates;
mod clashes;
mod cpu_baseline;
mod drain;
mod fence;
mod fencing;
mod life;
mod move_by_hand;
mod off;
mod pace;
mod power;
mod rates;
mod reasons;
mod remove;
mod restored;
mod start_by_hand;
mod starts;
mod unusable;
mod update;
mod waits;
mod watchdog;
mod whereabouts;
