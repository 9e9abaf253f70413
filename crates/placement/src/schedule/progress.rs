//! Carrying a plan out, step by step.

use thiserror::Error;

use super::{Action, Job, Plan, Running, StepId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    Done,
    Failed,
}

/// What of a plan is done, and what may start now. A step is waiting, then running, and then done or failed; those that
/// wait for one that failed never start.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress<'a> {
    plan: &'a Plan,
    states: Vec<State>,
}

/// Why something cannot be so of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StepError {
    /// There is none.
    #[error("there is no step {0} in the plan")]
    Unknown(StepId),
    /// It may not start.
    #[error("step {0} cannot start: it has started before, or waits for a step that is not done")]
    NotReady(StepId),
    /// It does not run.
    #[error("step {0} cannot end, since it does not run")]
    NotRunning(StepId),
}

impl<'a> Progress<'a> {
    /// Of a plan of which nothing is done but what was under way.
    pub fn new(plan: &'a Plan) -> Progress<'a> {
        let state = |under_way| if under_way { State::Running } else { State::Waiting };
        Progress { plan, states: plan.steps.iter().map(|step| state(step.under_way)).collect() }
    }

    /// The steps that may start now.
    pub fn ready(&self) -> Vec<StepId> {
        (0..self.states.len()).filter(|step| self.is_ready(*step)).collect()
    }

    /// The steps that run.
    pub fn running(&self) -> Vec<StepId> {
        (0..self.states.len()).filter(|step| self.states[*step] == State::Running).collect()
    }

    /// The steps that failed.
    pub fn failed(&self) -> Vec<StepId> {
        (0..self.states.len()).filter(|step| self.states[*step] == State::Failed).collect()
    }

    /// Whether nothing runs, and nothing can start any more.
    pub fn is_over(&self) -> bool {
        self.running().is_empty() && self.ready().is_empty()
    }

    /// A step has started.
    ///
    /// # Errors
    /// It may not, or there is none.
    pub fn start(&mut self, step: StepId) -> Result<(), StepError> {
        self.known(step)?;
        if !self.is_ready(step) {
            return Err(StepError::NotReady(step));
        }
        self.states[step] = State::Running;
        Ok(())
    }

    /// A step is done.
    ///
    /// # Errors
    /// It does not run, or there is none.
    pub fn done(&mut self, step: StepId) -> Result<(), StepError> {
        self.end(step, State::Done)
    }

    /// A step has failed: all is as it was before it.
    ///
    /// # Errors
    /// It does not run, or there is none.
    pub fn fail(&mut self, step: StepId) -> Result<(), StepError> {
        self.end(step, State::Failed)
    }

    /// What is left of a job of which this is a plan: guests are where they are now, and what runs is under way and
    /// takes so many seconds more.
    pub fn rest(&self, job: &Job, seconds_left: impl Fn(StepId) -> f64) -> Job {
        let mut rest = job.clone();
        rest.running.clear();
        for (id, (step, state)) in self.plan.steps.iter().zip(&self.states).enumerate() {
            match state {
                State::Running => {
                    let seconds_left = seconds_left(id);
                    rest.running.push(Running { action: step.action, rate: step.rate, seconds_left });
                }
                State::Done => match step.action {
                    Action::Boot { host } => rest.power[host as usize].on = true,
                    Action::Shutdown { host } => rest.power[host as usize].on = false,
                    Action::Migrate { guest, .. } | Action::Start { guest, .. } | Action::Stop { guest, .. } => {
                        rest.problem.initial[guest as usize] = step.action.ends().1;
                    }
                },
                State::Waiting | State::Failed => {}
            }
        }
        rest
    }

    fn known(&self, step: StepId) -> Result<(), StepError> {
        if step < self.states.len() { Ok(()) } else { Err(StepError::Unknown(step)) }
    }

    fn is_ready(&self, step: StepId) -> bool {
        self.states[step] == State::Waiting
            && self.plan.steps[step].waits.iter().all(|other| self.states[*other] == State::Done)
    }

    fn end(&mut self, step: StepId, state: State) -> Result<(), StepError> {
        self.known(step)?;
        if self.states[step] != State::Running {
            return Err(StepError::NotRunning(step));
        }
        self.states[step] = state;
        Ok(())
    }
}
