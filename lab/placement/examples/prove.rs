//! Proves the least cost of a placement of the ROADEF/EURO challenge 2012: `prove MODEL ASSIGNMENT SECONDS`.
//!
//! ASSIGNMENT is where processes are at first, as in the challenge's files.

#![expect(clippy::disallowed_types, reason = "an example is a program: it measures how long the proof takes")]
#![expect(clippy::disallowed_methods, reason = "an example is a program: it reads files")]

use std::time::{Duration, Instant};

use skein_exact::prove;
use skein_lab_placement::roadef;
use skein_placement::verdict;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, assignment, seconds] = &args[..] else { return Err("usage: prove MODEL ASSIGNMENT SECONDS".into()) };
    let mut problem = roadef::read_model(&std::fs::read_to_string(model)?)?;
    problem.initial = roadef::read_assignment(&std::fs::read_to_string(assignment)?, &problem)?;
    println!("now {}", verdict::judge(&problem, &problem.initial).cost.total());
    let begin = Instant::now();
    let proof = prove(&problem, &problem.initial, Duration::try_from_secs_f64(seconds.parse()?)?)?;
    match proof.bound {
        None => println!("infeasible"),
        Some(bound) => {
            let proven = if proof.is_optimal() { "optimal" } else { "perhaps not optimal" };
            println!("found {:?}, at least {bound}: {proven}", proof.score);
        }
    }
    println!("after {:.2} s", begin.elapsed().as_secs_f64());
    Ok(())
}
