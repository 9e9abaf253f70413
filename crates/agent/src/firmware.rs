//! Finds UEFI images of this host, by QEMU's descriptors of them (its docs/interop/firmware.json).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Names the directories of descriptors. A descriptor in the first directory hides one of that name in the second.
const DIRS: [&str; 2] = ["/etc/qemu/firmware", "/usr/share/qemu/firmware"];
/// Bounds the descriptors of a host: distributions have some twenty.
const DESCRIPTORS_MAX: usize = 256;

/// An image, and the file that a new variable store of the image is a copy of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) code: PathBuf,
    pub(crate) template: PathBuf,
}

/// The properties of the wanted image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// Whether the image is for a q35 machine; else it is for an i440FX machine.
    pub(crate) is_q35: bool,
    /// Whether the image has secure boot, and the keys of the software that may boot.
    pub(crate) secure_boot: bool,
    /// The path of the image, if a certain image is wanted.
    pub(crate) code: Option<&'a Path>,
}

/// Returns the first of this host's images, in the order of their descriptors' names, that is what is wanted.
pub(crate) fn find(wanted: Wanted) -> Option<Image> {
    find_in(&DIRS.map(Path::new), wanted)
}

fn find_in(dirs: &[&Path], wanted: Wanted) -> Option<Image> {
    let mut files = BTreeMap::new();
    for dir in dirs {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten().take(DESCRIPTORS_MAX) {
            let is_json = entry.path().extension().is_some_and(|extension| extension == "json");
            if is_json {
                files.entry(entry.file_name()).or_insert_with(|| entry.path());
            }
        }
    }
    // An empty descriptor hides another and describes nothing.
    let descriptors = files.into_values().filter_map(|path| serde_json::from_slice(&fs::read(path).ok()?).ok());
    descriptors.filter_map(|descriptor: Value| image(&descriptor, wanted)).find(|image| image.code.exists())
}

fn image(descriptor: &Value, wanted: Wanted) -> Option<Image> {
    let has = |key: &str, word: &str| descriptor[key].as_array().is_some_and(|all| all.iter().any(|item| item == word));
    let mapping = &descriptor["mapping"];
    let family = if wanted.is_q35 { "pc-q35-" } else { "pc-i440fx-" };
    let suits = |target: &Value| {
        let machines = target["machines"].as_array();
        let mut machines = machines.into_iter().flatten().filter_map(Value::as_str);
        target["architecture"] == "x86_64" && machines.any(|machine| machine.starts_with(family))
    };
    let raw = |file: &Value| (file["format"] == "raw").then(|| file["filename"].as_str().map(PathBuf::from)).flatten();
    let (code, template) = (raw(&mapping["executable"])?, raw(&mapping["nvram-template"])?);
    // Without a mode the image is split: code and variables are apart.
    let is_split = mapping["device"] == "flash" && matches!(mapping["mode"].as_str(), None | Some("split"));
    let fits = match wanted.code {
        Some(path) => path == code,
        None => {
            let secure = has("features", "secure-boot") && has("features", "enrolled-keys");
            // An image that needs system management mode and has no secure boot is of no use to anybody.
            let plain = !has("features", "requires-smm") && !has("features", "enrolled-keys");
            descriptor["targets"].as_array()?.iter().any(suits) && if wanted.secure_boot { secure } else { plain }
        }
    };
    (has("interface-types", "uefi") && is_split && fits).then_some(Image { code, template })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_image_that_is_wanted_is_found() {
        let (dir, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = |name: &str| dir.path().join(name);
        let describe = |to: &Path, name: &str, code: &str, machines: &[&str], features: &[&str]| {
            fs::write(file(code), "").unwrap();
            let descriptor = json!({
                "interface-types": ["uefi"],
                "mapping": {
                    "device": "flash",
                    "executable": { "filename": file(code), "format": "raw" },
                    "nvram-template": { "filename": file("vars"), "format": "raw" },
                },
                "targets": [{ "architecture": "x86_64", "machines": machines }],
                "features": features,
            });
            fs::write(to.join(name), descriptor.to_string()).unwrap();
        };
        let smm = ["secure-boot", "requires-smm"];
        let enrolled = ["secure-boot", "requires-smm", "enrolled-keys"];
        describe(dir.path(), "40.json", "ms", &["pc-q35-*"], &enrolled);
        describe(dir.path(), "50.json", "secboot", &["pc-q35-*"], &smm);
        describe(dir.path(), "60.json", "plain", &["pc-i440fx-*", "pc-q35-*"], &["acpi-s3"]);
        describe(dir.path(), "70.json", "other", &["pc-i440fx-*", "pc-q35-*"], &[]);
        fs::write(file("80.json"), "no JSON").unwrap();
        let found = |is_q35, secure_boot, code: Option<&str>| {
            let code = code.map(file);
            let wanted = Wanted { is_q35, secure_boot, code: code.as_deref() };
            let image = find_in(&[own.path(), dir.path()], wanted)?;
            Some(image.code.strip_prefix(dir.path()).unwrap().to_str().unwrap().to_owned())
        };
        assert_eq!(found(true, false, None).as_deref(), Some("plain"));
        assert_eq!(found(true, true, None).as_deref(), Some("ms"));
        assert_eq!(found(false, false, None).as_deref(), Some("plain"));
        assert_eq!(found(false, true, None), None);
        assert_eq!(found(true, false, Some("secboot")).as_deref(), Some("secboot"));
        assert_eq!(found(true, false, Some("nothing")), None);
        // An administrator's own descriptor hides the distribution's.
        fs::write(own.path().join("60.json"), "").unwrap();
        assert_eq!(found(true, false, None).as_deref(), Some("other"));
        fs::remove_file(file("other")).unwrap();
        assert_eq!(found(true, false, None), None);
    }
}
