//! The files of the ROADEF/EURO challenge 2012 (problem_definition_v1.pdf, section 4): whole numbers, separated by
//! white space.

use std::collections::BTreeMap;

use thiserror::Error;

use skein_placement::problem::{
    Balance, Group, Guest, Host, HostId, HostMoves, NeedsRule, Problem, Resource, Spread, Strength, Weights,
};

/// The indices of the area levels.
const LOCATION: usize = 0;
const NEIGHBOURHOOD: usize = 1;

/// Why a file is not of the format.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {what}")]
pub struct FileError {
    /// The line, from 1 on.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

/// The integers of a file one after the other, and the line of each.
struct Numbers<'a> {
    words: Box<dyn Iterator<Item = (usize, &'a str)> + 'a>,
    line: usize,
}

impl<'a> Numbers<'a> {
    fn new(text: &'a str) -> Self {
        let words =
            text.lines().enumerate().flat_map(|(n, line)| line.split_ascii_whitespace().map(move |w| (n + 1, w)));
        Numbers { words: Box::new(words), line: 1 }
    }

    fn error(&self, what: impl Into<String>) -> FileError {
        FileError { line: self.line, what: what.into() }
    }

    fn number(&mut self, what: &str, most: i64) -> Result<i64, FileError> {
        let Some((line, word)) = self.words.next() else {
            return Err(self.error(format!("{what} is missing: the file ends here")));
        };
        self.line = line;
        match word.parse::<i64>() {
            Ok(n) if (0..=most).contains(&n) => Ok(n),
            Ok(n) => Err(self.error(format!("{what} is {n}, which is not within 0 to {most}"))),
            Err(_) => Err(self.error(format!("{what} is '{word}', which is no whole number"))),
        }
    }

    fn numbers(&mut self, count: usize, what: &str, most: i64) -> Result<Vec<i64>, FileError> {
        (0..count).map(|_| self.number(what, most)).collect()
    }

    fn end(mut self) -> Result<(), FileError> {
        match self.words.next() {
            None => Ok(()),
            Some((line, word)) => Err(FileError { line, what: format!("'{word}' follows where the file should end") }),
        }
    }
}

/// The numbers that the file uses as names, mapped to indices from 0 on.
#[derive(Default)]
struct Names(BTreeMap<i64, u32>);

impl Names {
    fn number(&mut self, name: i64) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(name).or_insert(next)
    }
}

/// The largest amount and the largest count: sums of products of these stay within 63 bits.
const MOST: i64 = 1 << 40;
const COUNT: i64 = 1 << 20;

/// Reads a model. [`Problem::initial`] is empty.
///
/// # Errors
///
/// [`FileError`] if the text is not a model.
pub fn read_model(text: &str) -> Result<Problem, FileError> {
    let mut n = Numbers::new(text);
    let count = n.number("the number of resources", COUNT)? as usize;
    let mut resources = Vec::new();
    for _ in 0..count {
        let transient = n.number("whether a resource is transient", 1)? == 1;
        resources.push(Resource { transient, load_weight: n.number("a load cost's weight", MOST)? });
    }
    let machines = n.number("the number of machines", COUNT)? as usize;
    let (mut hosts, mut host_moves) = (Vec::new(), Vec::new());
    let (mut locations, mut neighbourhoods) = (Names::default(), Names::default());
    for _ in 0..machines {
        let neighbourhood = neighbourhoods.number(n.number("a machine's neighbourhood", COUNT)?);
        let location = locations.number(n.number("a machine's location", COUNT)?);
        let capacity = n.numbers(count, "a capacity", MOST)?;
        let safe = n.numbers(count, "a safety capacity", MOST)?;
        hosts.push(Host { areas: vec![location, neighbourhood], capacity, safe });
        for _ in 0..machines {
            host_moves.push(n.number("a machine move cost", i64::from(u32::MAX))? as u32);
        }
    }
    let services = n.number("the number of services", COUNT)? as usize;
    let mut groups = Vec::new();
    for _ in 0..services {
        let areas_min = n.number("a spread", COUNT)? as u32;
        let needs = n.number("a number of dependencies", COUNT)? as usize;
        let needs = n.numbers(needs, "a service that is depended on", services as i64 - 1)?;
        groups.push(Group {
            apart: Some(Strength::Hard),
            spread: (areas_min > 0).then_some(Spread { level: LOCATION, areas_min, strength: Strength::Hard }),
            needs: needs
                .into_iter()
                .map(|of| NeedsRule { level: NEIGHBOURHOOD, of: of as u32, strength: Strength::Hard })
                .collect(),
            counts_moves: true,
            ..Group::default()
        });
    }
    let processes = n.number("the number of processes", COUNT)? as usize;
    let mut guests = Vec::new();
    for _ in 0..processes {
        let group = n.number("a process's service", services as i64 - 1)? as u32;
        let demand = n.numbers(count, "a requirement", MOST)?;
        let move_cost = n.number("a process's move cost", MOST)?;
        guests.push(Guest { demand, groups: vec![group], move_cost, owners: None, preference: None });
    }
    let balances = n.number("the number of balance costs", COUNT)? as usize;
    let mut balance = Vec::new();
    for _ in 0..balances {
        let first = n.number("a balance's resource", count as i64 - 1)? as usize;
        let second = n.number("a balance's resource", count as i64 - 1)? as usize;
        let target = n.number("a balance's target", MOST)?;
        balance.push(Balance { first, second, ratio: target, weight: n.number("a balance's weight", MOST)? });
    }
    let weights = Weights {
        guest_move: n.number("the weight of process moves", MOST)?,
        group_move: n.number("the weight of service moves", MOST)?,
        host_move: n.number("the weight of machine moves", MOST)?,
    };
    n.end()?;
    Ok(Problem {
        resources,
        levels: vec![locations.0.len() as u32, neighbourhoods.0.len() as u32],
        hosts,
        groups,
        guests,
        balances: balance,
        weights,
        host_moves: HostMoves::Matrix(host_moves),
        owners: Vec::new(),
        preferences: Vec::new(),
        initial: Vec::new(),
    })
}

/// Reads an assignment: a machine for each process of a model.
///
/// # Errors
///
/// [`FileError`] if the text is not an assignment of the model.
pub fn read_assignment(text: &str, problem: &Problem) -> Result<Vec<HostId>, FileError> {
    let mut n = Numbers::new(text);
    let all = n.numbers(problem.guests.len(), "a process's machine", problem.hosts.len() as i64 - 1)?;
    n.end()?;
    Ok(all.into_iter().map(|m| m as u32).collect())
}

/// Writes an assignment.
pub fn write_assignment(assignment: &[HostId]) -> String {
    let words: Vec<String> = assignment.iter().map(u32::to_string).collect();
    words.join(" ") + "\n"
}
