//! Reports a plan and its outcome in the words of a cluster file.

use anyhow::anyhow;
use serde_json::{Value, json};
use skein_placement::problem::GuestId;
use skein_placement::schedule::simulate::{Lapse, Outcome, Violation};
use skein_placement::schedule::{Action, Job, JobFlaw, Left, Obstacle, Plan, ROUNDS_MAX, Step, StepId, StepReason};
use skein_placement_model::cluster::{Complaint, Names};

use crate::commands::text::{count, table};

/// What is reported.
pub struct ScheduleReport<'a> {
    pub job: &'a Job,
    pub plan: &'a Plan,
    pub outcome: &'a Outcome,
    pub names: &'a Names,
    /// What is broken where guests are to be.
    pub then: &'a [Complaint],
}

/// Returns why a job is not valid, with the names of its guests and hosts.
pub fn flaw(names: &Names, flaw: JobFlaw) -> anyhow::Error {
    match flaw {
        JobFlaw::Off { guest, host } => {
            let (guest, host) = (names.guest(guest as GuestId), names.host(host));
            anyhow!("'{guest}' is to be on '{host}', which is offline then: name another host, or none (null)")
        }
        other => other.into(),
    }
}

impl ScheduleReport<'_> {
    /// Returns whether all guests get to where they are to be, and nothing goes wrong on the way.
    pub fn is_good(&self) -> bool {
        self.plan.is_complete() && self.outcome.violations.is_empty() && self.then.is_empty()
    }

    pub fn text(&self) -> String {
        let row = |(n, step): (usize, &Step)| {
            let waits: Vec<String> = step.waits.iter().map(|step| (step + 1).to_string()).collect();
            let seconds = |at: f64| format!("{at:.1} s");
            let why = step.why.map_or("", why).to_owned();
            [
                (n + 1).to_string(),
                seconds(step.start),
                seconds(step.end),
                waits.join(","),
                why,
                self.action(step.action),
            ]
        };
        let rows: Vec<[String; 6]> = self.plan.steps.iter().enumerate().map(row).collect();
        let mut text = if rows.is_empty() {
            String::new()
        } else {
            table(["STEP", "START", "END", "AFTER", "WAITED FOR", "WHAT"], &rows)
        };
        text += &format!(
            "{}: {:.1} s planned, {:.1} s simulated, longest downtime {:.0} ms\n",
            count(rows.len(), "step"),
            self.plan.makespan(),
            self.outcome.makespan,
            self.outcome.downtime_max * 1000.0,
        );
        self.plan.left.iter().for_each(|left| text += &format!("left undone: {}\n", self.left(left)));
        if !self.plan.helps.is_empty() {
            text += &format!("what helps: {}\n", self.helps());
        }
        for lapse in &self.outcome.lapses {
            let (rule, start, end) = (self.names.group(lapse.group), lapse.start, lapse.end);
            text += &format!("on the way {rule} is broken from {start:.1} s to {end:.1} s: no order keeps it\n");
        }
        if !self.plan.exchanged.is_empty() {
            text += "on the way no more hard rules are broken at once than now\n";
        }
        self.then.iter().for_each(|of| text += &format!("broken in the end: {}\n", of.what));
        for (at, violation) in &self.outcome.violations {
            text += &format!("wrong at {at:.1} s: {}\n", self.violation(violation));
        }
        text
    }

    pub fn json(&self) -> Value {
        let step = |step: &Step| {
            json!({
                "action": verb(step.action),
                "guest": step.action.guest().map(|guest| self.names.guest(guest)),
                "hosts": step.action.hosts().map(|host| self.names.host(host)).collect::<Vec<_>>(),
                "start_s": step.start,
                "end_s": step.end,
                "bytes_per_s_max": step.rate,
                "waits": step.waits,
                "waited_for": step.why,
            })
        };
        let violation = |(at, violation): &(f64, Violation)| json!({ "at_s": at, "what": self.violation(violation) });
        let lapse = |lapse: &Lapse| {
            let rule = self.names.group(lapse.group).to_string();
            json!({ "rule": rule, "start_s": lapse.start, "end_s": lapse.end })
        };
        json!({
            "steps": self.plan.steps.iter().map(step).collect::<Vec<_>>(),
            "left": self.plan.left.iter().map(|left| self.left(left)).collect::<Vec<_>>(),
            "helps": (!self.plan.helps.is_empty()).then(|| self.helps()),
            "broken_on_the_way": self.outcome.lapses.iter().map(lapse).collect::<Vec<_>>(),
            "broken_then": self.then.iter().map(|of| &of.what).collect::<Vec<_>>(),
            "makespan_s": self.plan.makespan(),
            "simulated": {
                "makespan_s": self.outcome.makespan,
                "mean_completion_s": self.outcome.mean_completion,
                "downtime_max_s": self.outcome.downtime_max,
                "violations": self.outcome.violations.iter().map(violation).collect::<Vec<_>>(),
            },
        })
    }

    fn action(&self, action: Action) -> String {
        let (guest, host) = (|of| self.names.guest(of), |of| self.names.host(of));
        match action {
            Action::Migrate { guest: who, from, to } => {
                let aside = if self.job.goal[who as usize] == to { "" } else { ", aside" };
                format!("'{}' moves from '{}' to '{}'{aside}", guest(who), host(from), host(to))
            }
            Action::Start { guest: who, on } => format!("'{}' starts on '{}'", guest(who), host(on)),
            Action::Stop { guest: who, on } => format!("'{}' stops on '{}'", guest(who), host(on)),
            Action::Boot { host: which } => format!("'{}' boots", host(which)),
            Action::Shutdown { host: which } => format!("'{}' shuts down", host(which)),
        }
    }

    fn left(&self, left: &Left) -> String {
        match left {
            Left::Host { host } => format!("'{}' is not shut down: guests stay on it", self.names.host(*host)),
            Left::Guest { guest, from, to, obstacle, behind } => {
                let place = |host| match host {
                    skein_placement::problem::NOWHERE => "nowhere".to_owned(),
                    host => format!("on '{}'", self.names.host(host)),
                };
                let behind = match behind.is_empty() {
                    true => String::new(),
                    false => format!("; {} should leave before, and cannot", self.names.list(behind)),
                };
                let (who, why) = (self.names.guest(*guest), self.obstacle(*obstacle));
                format!("'{who}' stays {} and is to be {}: {why}{behind}", place(*from), place(*to))
            }
        }
    }

    /// Returns what would bring more guests to where they are to be.
    fn helps(&self) -> String {
        let mut rules: Vec<String> = self.plan.helps.iter().map(|group| self.names.group(*group).to_string()).collect();
        rules.sort();
        rules.dedup();
        format!(
            "make {} soft until all are where they are to be: more of it is broken on the way than now",
            rules.join(", ")
        )
    }

    fn obstacle(&self, obstacle: Obstacle) -> String {
        let rate = |rate: f64| format!("{:.0} MB/s", rate / 1e6);
        match obstacle {
            Obstacle::Room { resource, short } => {
                let row = &self.names.rows[resource];
                format!("{} of {row} too little there", row.text(short))
            }
            Obstacle::Rule { group } => format!("{} would not hold on the way", self.names.group(group)),
            Obstacle::Limit { host } => format!("too many migrate at '{}'", self.names.host(host)),
            Obstacle::Bandwidth { needs: Some(needs), has } => {
                format!("it needs {}, the links have {}", rate(needs), rate(has))
            }
            Obstacle::Bandwidth { needs: None, has } => {
                format!("it writes so fast that {ROUNDS_MAX} rounds at {} leave too much to send", rate(has))
            }
            Obstacle::Off { host } => format!("'{}' is off", self.names.host(host)),
            Obstacle::Aside => "no order was found in which it gets there".into(),
        }
    }

    fn violation(&self, violation: &Violation) -> String {
        let (guest, host) = (|of: &GuestId| self.names.guest(*of), |of| self.names.host(of));
        match violation {
            Violation::NotThere { step } => format!("step {} finds no guest", step + 1),
            Violation::Overload { host: at, resource, over } => {
                let row = &self.names.rows[*resource];
                format!("{row} of '{}': {} too much", host(*at), row.text(*over))
            }
            Violation::Apart { group, host: at } => {
                format!("{} is broken on '{}' on the way", self.names.group(*group), host(*at))
            }
            Violation::Owner { guest: who, host: at } => format!("'{}' may not be on '{}'", guest(who), host(*at)),
            Violation::Rule { breach, group } => {
                format!("{} is broken on the way ({breach})", self.names.group(*group))
            }
            Violation::Worse { broken, before } => format!("{broken} breaches of hard rules, and {before} before"),
            Violation::Limit { host: at } => format!("too many migrate at '{}'", host(*at)),
            Violation::Off { host: at, guest: who } => format!("'{}' is on '{}', which is off", guest(who), host(*at)),
            Violation::Downtime { guest: who } => format!("'{}' stands still for too long", guest(who)),
            Violation::Stalled { steps } => format!("never done: {}", numbers(steps)),
            Violation::NotArrived { guest: who } => format!("'{}' is not where it is to be in the end", guest(who)),
            Violation::Power { host: at } => format!("'{}' is not on or off as it is to be", host(*at)),
        }
    }
}

fn numbers(steps: &[StepId]) -> String {
    let numbers: Vec<String> = steps.iter().map(|step| (step + 1).to_string()).collect();
    format!("steps {}", numbers.join(", "))
}

fn verb(action: Action) -> &'static str {
    match action {
        Action::Migrate { .. } => "migrate",
        Action::Start { .. } => "start",
        Action::Stop { .. } => "stop",
        Action::Boot { .. } => "boot",
        Action::Shutdown { .. } => "shutdown",
    }
}

/// Returns what kept a step from starting earlier.
fn why(why: StepReason) -> &'static str {
    match why {
        StepReason::Memory => "room",
        StepReason::Rule => "a rule",
        StepReason::Limit => "the limit",
        StepReason::Bandwidth => "the links",
        StepReason::Power => "power",
    }
}
