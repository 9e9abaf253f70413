//! What a QEMU's command line asks for, as far as a migration has to know.
//!
//! QEMU takes `-x` and `--x`, values as `key=value,key=value` with doubled commas for single ones, the first key left
//! out for some, or as JSON (util/keyval.c, util/qemu-option.c; JSON for `-device`, `-blockdev`, `-netdev`, `-object`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use serde_json::Value;

/// The options whose value is a file of the block layer, and nothing else.
const SHORT_DRIVES: [&str; 11] =
    ["hda", "hdb", "hdc", "hdd", "cdrom", "fda", "fdb", "pflash", "sd", "mtdblock", "drive"];
/// The keys whose value is a file descriptor that QEMU was born with.
const DESCRIPTORS: [&str; 4] = ["fd", "fds", "vhostfd", "vhostfds"];

/// An option with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOption<'a> {
    /// The name without dashes: `device`.
    pub name: &'a str,
    /// The word after the option. Empty if none follows.
    pub value: &'a str,
    /// The value's place among the arguments.
    pub at: usize,
}

impl CommandOption<'_> {
    /// Returns whether what the guest writes is thrown away at QEMU's end: to all drives (`-snapshot`), or to this
    /// drive.
    pub fn is_temporary(&self) -> bool {
        let of_drive = || self.name == "drive" && keys(self.value).get("snapshot").is_some_and(|on| on == "on");
        self.name == "snapshot" || of_drive()
    }
}

/// Returns all options of a command line. A word that begins with a dash is an option. The word after it is its value,
/// if the word has no dash or the option is always followed by a value.
pub fn options(args: &[String]) -> Vec<CommandOption<'_>> {
    let mut options = Vec::new();
    for (at, word) in args.iter().enumerate() {
        let Some(name) = word.strip_prefix('-').map(|word| word.strip_prefix('-').unwrap_or(word)) else { continue };
        let value = args.get(at + 1).map(String::as_str).filter(|value| !value.starts_with('-')).unwrap_or_default();
        options.push(CommandOption { name, value, at: at + 1 });
    }
    options
}

/// Returns the keys of an option's value. Keys of JSON have dots (`file.filename`). A first word without `=` has the
/// key ``.
pub fn keys(value: &str) -> BTreeMap<String, String> {
    if value.trim_start().starts_with('{') {
        let mut keys = BTreeMap::new();
        if let Ok(json) = serde_json::from_str::<Value>(value) {
            flatten("", &json, &mut keys);
        }
        return keys;
    }
    let parts = split(value);
    let key = |(number, part): (usize, &String)| match part.split_once('=') {
        Some((key, value)) => (key.to_owned(), value.to_owned()),
        None if number == 0 => (String::new(), part.clone()),
        None => (part.clone(), "on".to_owned()),
    };
    parts.iter().enumerate().map(key).collect()
}

/// Returns the kind of device that a `-device` with these keys makes. Empty: the keys name none.
pub(crate) fn driver(keys: &BTreeMap<String, String>) -> &str {
    keys.get("driver").or(keys.get("")).map_or("", String::as_str)
}

fn flatten(prefix: &str, json: &Value, keys: &mut BTreeMap<String, String>) {
    match json {
        Value::Object(object) => {
            for (key, value) in object {
                let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&key, value, keys);
            }
        }
        Value::String(text) => drop(keys.insert(prefix.to_owned(), text.clone())),
        other => drop(keys.insert(prefix.to_owned(), other.to_string())),
    }
}

/// Splits at single commas, and makes a single comma of a doubled one.
fn split(value: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut letters = value.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter != ',' {
            parts.last_mut().expect("there is one").push(letter);
        } else if letters.next_if_eq(&',').is_some() {
            parts.last_mut().expect("there is one").push(',');
        } else {
            parts.push(String::new());
        }
    }
    parts
}

/// Puts parts together again.
fn join(parts: &[String]) -> String {
    parts.iter().map(|part| part.replace(',', ",,")).collect::<Vec<_>>().join(",")
}

/// Returns the files that drives and block nodes of the command line name.
pub fn drive_files(args: &[String]) -> BTreeSet<String> {
    let file = |option: &CommandOption| -> Vec<String> {
        let keys = keys(option.value);
        match option.name {
            "drive" | "blockdev" => {
                // `file` of a -blockdev names a node.
                let names = |key: &&String| {
                    let last = key.rsplit('.').next().unwrap_or_default();
                    last == "filename" || (*key == "file" && option.name == "drive")
                };
                keys.keys().filter(names).map(|key| keys[key].clone()).collect()
            }
            name if SHORT_DRIVES.contains(&name) => vec![option.value.replace(",,", ",")],
            _ => Vec::new(),
        }
    };
    options(args).iter().flat_map(file).filter(|file| !file.is_empty()).collect()
}

/// Returns the files that QEMU reads as it starts and shows the guest later, none of which moves: the kernel, the
/// initramfs, files behind fw_cfg, tables. RAM, ROMs and firmware images do move.
pub fn loaded_files(args: &[String]) -> BTreeSet<PathBuf> {
    let file = |option: &CommandOption| -> Vec<String> {
        let keys = keys(option.value);
        let get = |names: &[&str]| names.iter().filter_map(|name| keys.get(*name).cloned()).collect();
        match option.name {
            "kernel" | "initrd" | "dtb" | "shim" => vec![option.value.to_owned()],
            "fw_cfg" | "smbios" => get(&["file"]),
            // The value may hold several files, with colons between them.
            "acpitable" => {
                let named: Vec<String> = get(&["file", "data"]);
                named.iter().flat_map(|files| files.split(':')).map(str::to_owned).collect()
            }
            "device" if driver(&keys) == "loader" => get(&["file"]),
            _ => Vec::new(),
        }
    };
    options(args).iter().flat_map(file).filter(|file| !file.is_empty()).map(PathBuf::from).collect()
}

/// Returns the directories of the host that the guest can mount (9p). QEMU refuses to move a guest only while the guest
/// has one mounted.
pub fn host_directories(args: &[String]) -> Vec<String> {
    let is_one = |option: &&CommandOption| {
        let keys = keys(option.value);
        matches!(option.name, "virtfs" | "fsdev") || option.name == "device" && driver(&keys).starts_with("virtio-9p-")
    };
    options(args).iter().filter(is_one).map(|option| format!("-{} {}", option.name, option.value)).collect()
}

/// Returns the devices that each QEMU gives another identity, which does not move: a VM generation ID that QEMU chooses
/// (`guid=auto`, also the default of hw/acpi/vmgenid.c).
pub fn devices_of_chance(args: &[String]) -> Vec<String> {
    let is_one = |option: &&CommandOption| {
        let keys = keys(option.value);
        option.name == "device" && driver(&keys) == "vmgenid" && keys.get("guid").is_none_or(|guid| guid == "auto")
    };
    options(args).iter().filter(is_one).map(|option| format!("-device {}", option.value)).collect()
}

/// Returns the ids that `-device` gives, with the kinds of those devices.
pub fn devices(args: &[String]) -> BTreeMap<String, String> {
    let device = |option: &CommandOption| {
        let keys = keys(option.value);
        let kind = Some(driver(&keys)).filter(|kind| !kind.is_empty())?;
        Some((keys.get("id")?.clone(), kind.to_owned()))
    };
    options(args).iter().filter(|option| option.name == "device").filter_map(device).collect()
}

/// Returns what a command line takes from the process that started QEMU and no other QEMU can have again: file
/// descriptors.
pub fn descriptors(args: &[String]) -> Vec<String> {
    let takes = |option: &CommandOption| {
        let keys = keys(option.value);
        let names = |key: &String| DESCRIPTORS.contains(&key.rsplit('.').next().unwrap_or_default());
        let passed = keys.values().any(|value| value.contains("/dev/fdset/") || value.starts_with("/dev/fd/"));
        let takes = option.name == "add-fd" || keys.keys().any(names) || passed;
        takes.then(|| format!("-{} {}", option.name, option.value))
    };
    options(args).iter().filter_map(takes).collect()
}

/// Returns the files that say more of the machine (`-readconfig`), which the target reads anew.
pub fn config_files(args: &[String]) -> Vec<String> {
    let options = options(args);
    let files = options.iter().filter(|option| option.name == "readconfig").map(|option| option.value.to_owned());
    files.filter(|file| !file.is_empty()).collect()
}

/// Returns whether what the guest writes is thrown away at QEMU's end.
pub fn is_temporary(args: &[String]) -> bool {
    options(args).iter().any(CommandOption::is_temporary)
}

/// Returns whether QEMU's name of an image leads to a server that each host has for itself: a unix socket, or an
/// address of this host.
pub fn is_of_this_host(filename: &str) -> bool {
    let is_own = |host: &str| {
        let host = host.trim_matches(['[', ']']);
        host == "localhost"
            || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback() || address.is_unspecified())
    };
    if let Some(options) = filename.strip_prefix("json:") {
        let keys = keys(options);
        return keys.iter().any(|(key, value)| match key.rsplit('.').next().unwrap_or_default() {
            "host" => is_own(value),
            "type" => value == "unix",
            "filename" => !value.starts_with("json:") && is_of_this_host(value),
            // A path is a server's where no type is given.
            "path" => keys.values().any(|driver| driver == "nbd"),
            _ => false,
        });
    }
    let Some((scheme, rest)) = filename.split_once(':') else { return false };
    if scheme.ends_with("+unix") || rest.starts_with("unix:") {
        return true;
    }
    // The forms are nbd:HOST:PORT, as QEMU once had it, and SCHEME://USER@HOST:PORT/.
    let authority = match rest.strip_prefix("//") {
        Some(rest) => rest.split(['/', '?']).next().unwrap_or_default(),
        None if scheme == "nbd" => rest,
        None => return false,
    };
    let host = authority.rsplit('@').next().unwrap_or_default();
    let host = match host.starts_with('[') {
        true => host.split(']').next().unwrap_or_default(),
        false => host.split(':').next().unwrap_or_default(),
    };
    is_own(host)
}

/// Returns the file of the `-drive` with this id.
pub fn drive_file(args: &[String], id: &str) -> Option<String> {
    let drives = options(args).into_iter().filter(|option| option.name == "drive").map(|option| keys(option.value));
    let mut files =
        drives.filter(|keys| keys.get("id").is_some_and(|own| own == id)).filter_map(|keys| keys.get("file").cloned());
    files.next()
}

/// Returns the same command line with another image, or without an image, in the `-drive` that has the file `old`, and
/// the id `name` if it gives an id.
///
/// `None`: there is no such `-drive`, or more than one, so what to change is not certain.
pub fn with_drive(args: &[String], name: &str, old: &str, new: Option<(&str, &str)>) -> Option<Vec<String>> {
    let is_it = |option: &&CommandOption| {
        let keys = keys(option.value);
        let has_file = keys.get("file").is_some_and(|file| file == old) && !option.value.starts_with('{');
        option.name == "drive" && has_file && keys.get("id").is_none_or(|id| id == name)
    };
    let options = options(args);
    let mut found = options.iter().filter(is_it);
    let (option, None) = (found.next()?, found.next()) else { return None };
    let mut parts = split(option.value);
    parts.retain(|part| !part.starts_with("file=") && !part.starts_with("format="));
    if let Some((file, format)) = new {
        parts.insert(0, format!("file={file}"));
        parts.push(format!("format={format}"));
    }
    if parts.is_empty() {
        return None;
    }
    let mut args = args.to_vec();
    args[option.at] = join(&parts);
    Some(args)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn args(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn what_is_read_at_the_start_and_does_not_move_is_found() {
        let line = args(
            "-kernel /k --initrd /i -append file=/no -fw_cfg name=opt/a,file=/f,,1 -fw_cfg name=opt/b,string=x \
             -smbios type=1,uuid=u \
             -acpitable data=/t1:/t2 -device loader,file=/l,addr=0 -device virtio-net-pci,romfile=/rom -bios /bios \
             -drive file=/d",
        );
        let found: Vec<String> = loaded_files(&line).iter().map(|file| file.display().to_string()).collect();
        assert_eq!(found, ["/f,1", "/i", "/k", "/l", "/t1", "/t2"]);
        let line = args("-device vmgenid,guid=auto -device vmgenid -device {\"driver\":\"vmgenid\",\"guid\":\"1-2\"}");
        assert_eq!(devices_of_chance(&line), ["-device vmgenid,guid=auto", "-device vmgenid"]);
    }

    #[test]
    fn servers_of_one_host_are_known() {
        let own = [
            "nbd://127.0.0.1:10809/disk",
            "nbd://localhost",
            "nbd+unix:///disk?socket=/run/n.sock",
            "nbd:unix:/run/n.sock:exportname=d",
            "nbd:localhost:10809",
            "iscsi://me%pw@[::1]:3260/iqn/0",
            concat!(
                r#"json:{"driver": "raw", "file": {"driver": "nbd", "#,
                r#""server": {"type": "inet", "host": "::1", "port": "1"}}}"#
            ),
            r#"json:{"driver": "nbd", "path": "/run/n.sock"}"#,
            r#"json:{"driver": "nbd", "server.type": "unix", "server.path": "/n"}"#,
        ];
        for name in own {
            assert!(is_of_this_host(name), "{name}");
        }
        let shared = [
            "/srv/localhost",
            "nbd://10.0.0.1/d",
            "rbd:pool/image",
            "file:/a:b",
            "https://h/127.0.0.1",
            "nbd://[fd00::1]:1/x",
            r#"json:{"driver": "qcow2", "file": {"driver": "file", "filename": "/a"}}"#,
        ];
        for name in shared {
            assert!(!is_of_this_host(name), "{name}");
        }
    }

    #[test]
    fn a_node_is_no_file() {
        let line = args(
            "-blockdev {\"driver\":\"qcow2\",\"file\":\"libvirt-2-storage\",\"node-name\":\"n\"} -blockdev \
             driver=raw,file.filename=/x",
        );
        assert_eq!(drive_files(&line).into_iter().collect::<Vec<_>>(), ["/x"]);
    }

    #[test]
    fn libvirts_words_and_others_are_read() {
        let line = args(
            "-name guest=a -drive file=/s/a,,b.qcow2,if=virtio,id=d0 --cdrom /s/cd.iso \
             -blockdev {\"driver\":\"file\",\"filename\":\"/s/x.qcow2\",\"node-name\":\"s1\"} \
             -blockdev driver=qcow2,file.driver=file,file.filename=/s/y.qcow2,node-name=n -device \
             virtio-blk-pci,drive=n,id=v1 \
             -device {\"driver\":\"virtio-net-pci\",\"netdev\":\"h0\",\"id\":\"net0\"} -netdev \
             {\"type\":\"tap\",\"fds\":\"23:24\",\"id\":\"h0\"} \
             -readconfig /s/more.cfg -device virtio-rng-pci",
        );
        let files: Vec<String> = drive_files(&line).into_iter().collect();
        assert_eq!(files, ["/s/a,b.qcow2", "/s/cd.iso", "/s/x.qcow2", "/s/y.qcow2"]);
        assert_eq!(
            devices(&line).into_iter().map(|(id, kind)| id + "=" + &kind).collect::<Vec<_>>(),
            ["net0=virtio-net-pci", "v1=virtio-blk-pci"]
        );
        assert_eq!(descriptors(&line), ["-netdev {\"type\":\"tap\",\"fds\":\"23:24\",\"id\":\"h0\"}"]);
        assert_eq!(descriptors(&args("-add-fd fd=3,set=2 -drive file=/dev/fdset/2 -m 64")).len(), 2);
        assert_eq!(config_files(&line), ["/s/more.cfg"]);
        assert!(
            !is_temporary(&line)
                && is_temporary(&args("-snapshot"))
                && is_temporary(&args("-drive file=a,snapshot=on"))
        );
    }

    #[test]
    fn a_drive_gets_another_image() {
        let line = args("-m 64 -drive file=/s/a,,b,if=virtio,format=raw,id=d0 -cdrom /x");
        let new = with_drive(&line, "d0", "/s/a,b", Some(("/s/n,w", "qcow2"))).unwrap();
        assert_eq!(new.join(" "), "-m 64 -drive file=/s/n,,w,if=virtio,id=d0,format=qcow2 -cdrom /x");
        let empty = with_drive(&line, "d0", "/s/a,b", None).unwrap();
        assert_eq!(empty.join(" "), "-m 64 -drive if=virtio,id=d0 -cdrom /x");
        assert_eq!(with_drive(&line, "d1", "/s/a,b", None), None, "another drive's");
        assert_eq!(with_drive(&line, "d0", "/s/c", None), None);
        let twice = args("-drive file=/s/a -drive file=/s/a");
        assert_eq!(with_drive(&twice, "", "/s/a", None), None, "which of the two?");
    }

    proptest! {
        #[test]
        fn no_value_is_too_odd(value in "[-{}a-z=,.\":\\[\\]]{0,40}") {
            let line = ["-drive".to_owned(), value.clone(), "-device".into(), value.clone(), "-blockdev".into(), value];
            let _ = (drive_files(&line), devices(&line), descriptors(&line), with_drive(&line, "", "a", None));
        }

        #[test]
        fn what_is_split_is_joined_again(parts in proptest::collection::vec("[a-z=][a-z=,]{0,7}", 1..5)) {
            prop_assert_eq!(split(&join(&parts)), parts);
        }
    }
}
