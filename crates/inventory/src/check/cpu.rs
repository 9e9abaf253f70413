//! Whether the target can give the guest its CPU.

use std::collections::BTreeSet;

use super::checker::{Checker, list};
use crate::cpu_baseline::cpu_baseline;
use crate::definition::Accel;
use crate::facts::AccelFacts;
use crate::problem::ProblemKind;

impl Checker<'_> {
    /// Checks that the target can give the guest its CPU.
    pub(super) fn cpu(&mut self, there: &AccelFacts) {
        let (guest, source, target) = (self.guest, self.source, self.target);
        let model = guest.cpu.split(',').next().unwrap_or_default();
        let is_host = guest.accel == Accel::Kvm && matches!(model, "host" | "max");
        let such_as = self.common_cpu(there).map_or(String::new(), |model| format!(", such as cpu = \"{model}\""));
        let named = &format!("stop the guest and start it with a CPU model that both hosts have{such_as}");
        let known = !source.cpu_vendor.is_empty() && !target.cpu_vendor.is_empty();
        if guest.accel == Accel::Kvm && known && source.cpu_vendor != target.cpu_vendor {
            let (from, to) = (&source.cpu_vendor, &target.cpu_vendor);
            let what = format!("the CPU of {} is {to}, that of {} {from}", target.name, source.name);
            if is_host {
                // The flags differ, too, and are not worth a problem of their own.
                return self.blocks(
                    ProblemKind::CpuVendor,
                    format!("{what}, and the guest has cpu = \"{model}\""),
                    named,
                );
            }
            self.warns(
                ProblemKind::CpuVendor,
                what,
                "try it with a guest that matters less, or choose a host of that vendor",
            );
        }
        let found = there.cpu_models.iter().find(|known| known.name == model);
        if found.is_none() && !is_host && !matches!(model, "host" | "max") {
            let what = format!("QEMU on {} has no CPU model {model}", target.name);
            return self.blocks(ProblemKind::CpuModel, what, format!("install QEMU {} there, or {named}", guest.qemu));
        }
        // The flags that the guest really has are known best. Without them, what its model asks for counts, or the two
        // hosts' own flags.
        let missing: Vec<String> = match (&there.features, found) {
            (Some(features), _) if !guest.cpu_features.is_empty() => lacking(&guest.cpu_features, features),
            (_, Some(found)) if !is_host => found.missing.clone(),
            _ if is_host && !source.cpu_flags.is_empty() && !target.cpu_flags.is_empty() => {
                lacking(&source.cpu_flags, &target.cpu_flags)
            }
            _ => {
                let what = format!("whether {} has all flags of {}'s CPU is not known", target.name, guest.name);
                return self.warns(ProblemKind::CpuUnknown, what, named);
            }
        };
        if !missing.is_empty() {
            let what =
                format!("{} lacks flags of {}'s CPU ({}): {}", target.name, guest.name, guest.cpu, list(&missing));
            self.blocks(ProblemKind::CpuFlags, what, named);
            return;
        }
        let more = lacking(&target.cpu_flags, &source.cpu_flags);
        if is_host && !source.cpu_flags.is_empty() && !more.is_empty() {
            let what = format!(
                "{} has cpu = \"{model}\", and the CPU of {} has more flags than that of {}: started anew there, the \
                 guest \
                 would not come back ({})",
                guest.name,
                target.name,
                source.name,
                list(&more)
            );
            self.warns(ProblemKind::CpuDiffers, what, named);
        }
    }

    /// Returns a CPU model that both hosts can give a guest whole.
    fn common_cpu(&self, there: &AccelFacts) -> Option<String> {
        let here = self.source.qemu.as_ref().ok()?.accels.iter().find(|accel| accel.accel == there.accel)?;
        cpu_baseline([&here.whole_models(), &there.whole_models()]).map(str::to_owned)
    }
}

/// Returns the flags of `wanted` that `given` lacks. QEMU and Linux write dashes, underscores and dots in them as they
/// like.
fn lacking(wanted: &BTreeSet<String>, given: &BTreeSet<String>) -> Vec<String> {
    let plain = |flag: &String| flag.replace(['_', '.'], "-");
    let given: BTreeSet<String> = given.iter().map(plain).collect();
    wanted.iter().filter(|flag| !given.contains(&plain(flag))).cloned().collect()
}

#[cfg(test)]
pub(super) mod tests {
    use crate::check::world::Case;
    use crate::check::world::{names, qemu};
    use crate::definition::Accel;
    use crate::problem::ProblemKind as K;
    use crate::problem::Severity::{Blocks, Warns};

    pub(in crate::check) const CASES: &[Case] = &[
        (
            |w| {
                w.guest.cpu = "host".into();
                w.target.cpu_vendor = "GenuineIntel".into();
                w.target.cpu_flags = names(&["avx512f"]);
            },
            K::CpuVendor,
            Blocks,
            &["hostb is GenuineIntel, that of hosta AuthenticAMD", "cpu = \"host\""],
        ),
        (|w| w.target.cpu_vendor = "GenuineIntel".into(), K::CpuVendor, Warns, &["GenuineIntel", "that vendor"]),
        (|w| w.guest.cpu = "Genoa".into(), K::CpuModel, Blocks, &["QEMU on hostb has no CPU model Genoa"]),
        (
            |w| w.guest.cpu_features.extend(names(&["avx512f", "vaes"])),
            K::CpuFlags,
            Blocks,
            &["hostb lacks flags of web1's CPU (EPYC-v4,+avx2): avx512f, vaes", "CPU model that both hosts have"],
        ),
        (
            |w| {
                w.guest.cpu_features.clear();
                qemu(&mut w.target).accels[0].cpu_models[2].missing = vec!["clwb".into()];
            },
            K::CpuFlags,
            Blocks,
            &["clwb"],
        ),
        (
            |w| {
                w.guest.cpu = "host".into();
                qemu(&mut w.target).accels[0].features = None;
                w.target.cpu_flags.remove("avx2");
            },
            K::CpuFlags,
            Blocks,
            &["(host): avx2"],
        ),
        (
            |w| {
                (w.guest.accel, w.guest.cpu) = (Accel::Tcg, "max".into());
                w.target.cpu_vendor = "GenuineIntel".into();
            },
            K::CpuFlags,
            Blocks,
            &["(max): avx2"],
        ),
        (
            |w| {
                w.guest.cpu = "host,-svm".into();
                w.target.cpu_flags.extend(names(&["avx512f"]));
            },
            K::CpuDiffers,
            Warns,
            &["more flags than that of hosta", "avx512f"],
        ),
        (
            |w| {
                w.guest.cpu = "host".into();
                w.guest.cpu_features.clear();
                w.source.cpu_flags.clear();
            },
            K::CpuUnknown,
            Warns,
            &["not known"],
        ),
    ];
}
