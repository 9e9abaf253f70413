//! Reads the policies of Ganeti's htools: the fifth section of their text files, with a line for the cluster and one
//! for each group.
//!
//! `serializeIPolicy` of `Ganeti.HTools.Backend.Text` writes such a line, which has had two layouts:
//!
//! | Ganeti | fields, separated by `|` |
//! |---|---|
//! | 2.6 and 2.7 | owner, standard spec, least spec, most spec, disk templates, vCPU ratio, spindle ratio |
//! | from 2.8 on | owner, standard spec, pairs `least;most;...`, disk templates, vCPU ratio, spindle ratio |
//!
//! A spec is six whole numbers, separated by commas: memory, vCPUs, disk, disks, NICs, spindles. Ganeti 2.15 and later
//! ignore what follows the last field, and the last number.

use super::ImportError;

/// How often a core can be reserved if the file does not say it (`ipolicyDefaultsVcpuRatio` of `Ganeti.ConstantUtils`).
pub(super) const VCPU_RATIO: f64 = 4.0;
/// The largest ratio that is accepted, as for `overcommit` in a cluster file.
const RATIO_MAX: f64 = 1000.0;

/// All disk templates (`DiskTemplate` of `Ganeti.Types`).
const TEMPLATES: [&str; 9] = ["diskless", "file", "sharedfile", "plain", "blockdev", "drbd", "rbd", "ext", "gluster"];

/// What a policy line says about cores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Policy<'a> {
    /// The name of the group. Empty: the policy is the cluster's.
    pub(super) owner: &'a str,
    /// How many vCPUs a core carries.
    pub(super) vcpu_ratio: f64,
}

/// Reads a line, by the layout that it has.
///
/// # Errors
///
/// [`ImportError`] if the line has neither layout, or its ratio is not a number that is accepted.
pub(super) fn read(line: usize, text: &str) -> Result<Policy<'_>, ImportError> {
    let wrong = |what: String| ImportError::Line { line, what };
    let fields: Vec<&str> = text.split('|').collect();
    let (owner, vcpus, spindles) = match fields[..] {
        [owner, standard, least, most, templates, vcpus, spindles]
            if [standard, least, most].into_iter().all(is_spec) && are_templates(templates) =>
        {
            (owner, vcpus, spindles)
        }
        [owner, standard, pairs, templates, vcpus, spindles, ..]
            if is_spec(standard) && are_pairs(pairs) && are_templates(templates) =>
        {
            (owner, vcpus, spindles)
        }
        _ => {
            return Err(wrong(
                "it is no policy that Ganeti writes: OWNER|SPEC|LEAST;MOST|TEMPLATES|VCPU RATIO|SPINDLE RATIO, or \
                 OWNER|SPEC|LEAST|MOST|TEMPLATES|VCPU RATIO|SPINDLE RATIO before 2.8, where a spec is six whole \
                 numbers, which commas divide"
                    .to_owned(),
            ));
        }
    };
    let number = |field: &str| field.parse::<f64>().ok();
    if !number(spindles).is_some_and(f64::is_finite) {
        return Err(wrong(format!("a spindle ratio is '{spindles}', which is no number")));
    }
    let vcpu_ratio = number(vcpus).filter(|ratio| (0.0..=RATIO_MAX).contains(ratio));
    let vcpu_ratio = vcpu_ratio.ok_or_else(|| wrong(format!("a vCPU ratio is '{vcpus}', not 0 to {RATIO_MAX}")))?;
    Ok(Policy { owner, vcpu_ratio })
}

/// Returns whether a field is six whole numbers. Ganeti 2.15 and later ignore what follows.
fn is_spec(field: &str) -> bool {
    let numbers: Vec<&str> = field.split(',').collect();
    numbers.len() >= 6 && numbers[..6].iter().all(|number| number.parse::<u64>().is_ok())
}

fn are_pairs(field: &str) -> bool {
    let specs: Vec<&str> = field.split(';').collect();
    specs.len().is_multiple_of(2) && specs.into_iter().all(is_spec)
}

/// Returns whether a field is a list of disk templates. An empty field is one, too.
fn are_templates(field: &str) -> bool {
    field.is_empty() || field.split(',').all(|template| TEMPLATES.contains(&template))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: &str = "128,1,1024,1,1,1";

    fn ratio(text: &str) -> Result<f64, String> {
        read(3, text).map(|policy| policy.vcpu_ratio).map_err(|error| error.to_string())
    }

    #[test]
    fn each_layout_has_its_own_ratio() {
        // As Ganeti's own `test/data/htools` has it, then with pairs for two kinds of instances, and with fields of
        // later versions.
        let pairs = format!("{SPEC};32768,8,1048576,16,8,12");
        assert_eq!(ratio(&format!("|{SPEC}|{pairs}|drbd,plain|4.0|32.0")), Ok(4.0));
        assert_eq!(ratio(&format!("one|{SPEC}|{pairs};{pairs}|diskless,ext|2.5|32.0")), Ok(2.5));
        assert_eq!(ratio(&format!("|{SPEC}|{pairs}|drbd,plain|4.0|32.0|7.0")), Ok(4.0));
        assert_eq!(ratio(&format!("|{SPEC}|{pairs}|drbd,plain|4.0|32.0|7.0|8.0")), Ok(4.0));
        assert_eq!(ratio(&format!("|{SPEC}|{SPEC},9;{SPEC}|drbd|4.0|32.0")), Ok(4.0));
        // Lines of 2.6 and 2.7.
        assert_eq!(ratio(&format!("|{SPEC}|{SPEC}|{SPEC}|drbd,plain|4.0|32.0")), Ok(4.0));
        assert_eq!(ratio(&format!("|{SPEC}|{pairs}||1.0e-2|32.0")), Ok(0.01));
    }

    #[test]
    fn what_is_neither_is_refused() {
        let pairs = format!("{SPEC};{SPEC}");
        for text in [
            String::new(),
            "|".to_owned(),
            format!("|{SPEC}|{pairs}|drbd|4.0"),
            format!("|{SPEC}|{SPEC}|drbd|4.0|32.0"),
            format!("|{SPEC}|{pairs};{SPEC}|drbd|4.0|32.0"),
            format!("|{SPEC}|{pairs}|drbd,tape|4.0|32.0"),
            format!("|{SPEC}|{pairs}|4.0|32.0|drbd"),
            format!("|{SPEC}|{SPEC}|{SPEC}|drbd|4.0|32.0|1.0"),
            format!("|{SPEC}|{SPEC}|{SPEC}|drbd|4.0"),
            format!("|1,2,3|{pairs}|drbd|4.0|32.0"),
        ] {
            let error = ratio(&text).unwrap_err();
            assert!(error.starts_with("line 3: it is no policy that Ganeti writes: OWNER|"), "{text}: {error}");
        }
        assert_eq!(
            ratio(&format!("|{SPEC}|{pairs}|drbd|2000|32.0")),
            Err("line 3: a vCPU ratio is '2000', not 0 to 1000".to_owned())
        );
        assert_eq!(
            ratio(&format!("|{SPEC}|{pairs}|drbd|4.0|many")),
            Err("line 3: a spindle ratio is 'many', which is no number".to_owned())
        );
        assert!(ratio(&format!("|{SPEC}|{pairs}|drbd|NaN|32.0")).is_err());
    }
}
