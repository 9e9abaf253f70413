//! Follows a plan while it is carried out, step by step.

use thiserror::Error;

use super::{Action, Job, Plan, Running, StepId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    Done,
    Failed,
}

/// Which steps of a plan are done, and which may start now. A step is waiting, then running, and then done or failed.
/// Steps that wait for a failed step never start.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress<'a> {
    plan: &'a Plan,
    states: Vec<State>,
}

/// Why a change of a step's state is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StepError {
    /// The plan has no such step.
    #[error("there is no step {0} in the plan")]
    Unknown(StepId),
    /// The step may not start.
    #[error("step {0} cannot start: it has started before, or waits for a step that is not done")]
    NotReady(StepId),
    /// The step does not run.
    #[error("step {0} cannot end, since it does not run")]
    NotRunning(StepId),
}

impl<'a> Progress<'a> {
    /// Begins a plan of which only what was under way has started.
    pub fn new(plan: &'a Plan) -> Progress<'a> {
        let state = |under_way| if under_way { State::Running } else { State::Waiting };
        Progress { plan, states: plan.steps.iter().map(|step| state(step.under_way)).collect() }
    }

    /// Returns the steps that may start now.
    pub fn ready(&self) -> Vec<StepId> {
        (0..self.states.len()).filter(|step| self.is_ready(*step)).collect()
    }

    /// Returns the steps that run.
    pub fn running(&self) -> Vec<StepId> {
        (0..self.states.len()).filter(|step| self.states[*step] == State::Running).collect()
    }

    /// Returns the steps that failed.
    pub fn failed(&self) -> Vec<StepId> {
        (0..self.states.len()).filter(|step| self.states[*step] == State::Failed).collect()
    }

    /// Returns whether nothing runs and nothing can start any more.
    pub fn is_over(&self) -> bool {
        self.running().is_empty() && self.ready().is_empty()
    }

    /// Records that a step has started.
    ///
    /// # Errors
    ///
    /// [`StepError`] if the step may not start, or does not exist.
    pub fn start(&mut self, step: StepId) -> Result<(), StepError> {
        self.known(step)?;
        if !self.is_ready(step) {
            return Err(StepError::NotReady(step));
        }
        self.states[step] = State::Running;
        Ok(())
    }

    /// Records that a step is done.
    ///
    /// # Errors
    ///
    /// [`StepError`] if the step does not run, or does not exist.
    pub fn done(&mut self, step: StepId) -> Result<(), StepError> {
        self.end(step, State::Done)
    }

    /// Records that a step has failed: everything is as it was before the step.
    ///
    /// # Errors
    ///
    /// [`StepError`] if the step does not run, or does not exist.
    pub fn fail(&mut self, step: StepId) -> Result<(), StepError> {
        self.end(step, State::Failed)
    }

    /// Returns what is left of the job from which this plan was made. Guests are where they are now. What runs is under
    /// way, and takes as many more seconds as `seconds_left` says.
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
