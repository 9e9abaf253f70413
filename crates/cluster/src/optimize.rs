//! Optimisation: samples what guests use, and begins rounds.

use std::collections::BTreeMap;

use skein_api::cluster::{OperationKind, OperationState, OptimizeSettings, VmRunState};
use skein_placement::policy::forecast::{Expected, LoadForecast};

use crate::state::Controller;
use crate::time::Now;
use crate::words::NOBODY;

/// How often what guests use is sampled, in milliseconds: the forecast's constants are for this.
const SAMPLE_MS: u64 = 300_000;
impl Controller {
    /// Samples what guests use, and begins an automatic round when its time has come.
    pub(crate) fn tick_optimizer(&mut self, now: Now) {
        if self.optimizer.sampled_ms.is_none_or(|sampled| now.ms_since(sampled) >= SAMPLE_MS) {
            self.optimizer.sampled_ms = Some(now.mono_ms);
            self.sample_loads();
        }
        let OptimizeSettings { automatic, interval_s, aggressiveness, .. } = self.tables.settings.value.optimize;
        let begun_ms = *self.optimizer.begun_ms.get_or_insert(now.mono_ms);
        let is_due = now.ms_since(begun_ms) >= u64::from(interval_s) * 1000;
        // What is under way changes the loads: a round waits for it.
        if automatic && is_due && self.runs.is_empty() {
            self.optimizer.begun_ms = Some(now.mono_ms);
            let kind = OperationKind::Optimize { automatic: true, aggressiveness };
            self.begin_operation(now, kind, OperationState::Planning, NOBODY);
        }
    }

    fn sample_loads(&mut self) {
        let running = self.tables.vms.iter().filter(|(_, vm)| vm.value.state == VmRunState::Running);
        let mut loads: BTreeMap<String, LoadForecast> = BTreeMap::new();
        for (name, vm) in running {
            let host = vm.value.host.as_deref().and_then(|host| self.observed.get(host));
            let used = host.and_then(|host| host.vm_loads.get(name)).map(|load| load.cpu_millicores as f64);
            let like = Expected { mean: used.unwrap_or(0.0), variance: 0.0 };
            let mut load = self.optimizer.loads.remove(name).unwrap_or_else(|| LoadForecast::new(like));
            // What is no amount was refused when the report was read.
            let _ = load.sample(used);
            loads.insert(name.clone(), load);
        }
        self.optimizer.loads = loads;
    }
}
