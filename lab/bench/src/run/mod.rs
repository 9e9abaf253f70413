//! One run: all guests of a scene move once, by one mover, while everything is watched.
//!
//! | module | what it does |
//! |---|---|
//! | `setting` | what a run is of, and how long it may take |
//! | `by_bench`, `by_agents` | sets a run up and ends it: the bench does that itself, or agents do everything |
//! | `direction` | the guests that move from one host to the other, and what carries them |
//! | `course` | lets the migrations run side by side, and disturbs them |
//! | `observers` | watches all of it |
//! | `fill_in` | makes results of what was seen |

mod by_agents;
mod by_bench;
mod course;
mod direction;
mod fill_in;
mod observers;
mod setting;

pub use setting::{Outcome, Setting};
