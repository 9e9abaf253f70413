//! Tests guests as people have them: moved between releases of QEMU, started by libvirt-like command lines, with disks
//! that lie on more than images. Needs root.
// Timeout: 300 s
// QEMU: 7.2 10
// Cores: 0.8

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use skein_api::{ProblemKind, Reply, Request};
use skein_lab_cluster::{Cluster, Settings, Start, configuration, until};

/// The time for anything that has to happen at all.
const DEADLINE: Duration = Duration::from_secs(60);

/// Returns the other of the two releases with which Skein is tried. `None`: it is not available here.
fn other_release(qemu: &Path) -> Option<PathBuf> {
    let path = qemu.display().to_string();
    let other = match path.contains("qemu-7.2/") {
        true => path.replace("qemu-7.2/", "qemu-10/"),
        false => path.replace("qemu-10/", "qemu-7.2/"),
    };
    Some(PathBuf::from(&other)).filter(|program| other != path && program.exists())
}

fn image(dir: &Path, args: &[&str]) {
    let status = Command::new("qemu-img").args(args).current_dir(dir).status().unwrap();
    assert!(status.success(), "qemu-img {args:?}");
}

fn runs_on(cluster: &Cluster, vm: &str, host: &str) {
    cluster.wait(DEADLINE, &format!("{vm} runs on {host}"), || cluster.where_runs(vm) == [host]);
}

#[test]
fn a_guest_moves_to_another_release_and_back() {
    let mut cluster = Cluster::idle(Settings::new(env!("CARGO_BIN_EXE_skein").into()));
    let Some(other) = other_release(&cluster.settings().qemu.clone()) else {
        return println!("skipped: no other release of QEMU is below target/");
    };
    cluster.start("a");
    cluster.settings().qemu = other;
    cluster.start("b");
    image(cluster.dir(), &["create", "-q", "-f", "qcow2", "v.qcow2", "64M"]);
    let disk = format!(
        "[[disk]]\npath = '{}'\nformat = 'qcow2'\nbus = 'virtio-scsi'\n",
        cluster.dir().join("v.qcow2").display()
    );
    let more = "'-device', 'pcie-root-port,id=rp1,chassis=1', '-device', 'virtio-rng-pci,bus=rp1,id=rng', \
                '-netdev', 'hubport,id=n0,hubid=0', '-device', 'virtio-net-pci,netdev=n0,id=net0', '-device', \
                'qemu-xhci', ";
    let definition = cluster.bare("v1").replace("args = [", &format!("args = [{more}"));
    let definition =
        definition.replace("[qemu]\n", &format!("machine = 'pc-q35-7.2'\ncpu = 'qemu64'\n{disk}[[cdrom]]\n[qemu]\n"));
    cluster.start_vm("a", &definition);
    runs_on(&cluster, "v1", "a");
    cluster.moved("v1", "a", "b");
    runs_on(&cluster, "v1", "b");
    cluster.moved("v1", "b", "a");
    runs_on(&cluster, "v1", "a");
    cluster.wait_clean(DEADLINE);
    cluster.check();
}

/// Tests a guest as libvirt makes it: nodes by name, JSON, root ports, an empty CD drive; and a disk that keeps its
/// data in another file.
#[test]
fn a_libvirt_like_guest_moves_and_a_replaced_data_file_blocks_it() {
    let mut cluster = Cluster::idle(Settings::new(env!("CARGO_BIN_EXE_skein").into()));
    let program = cluster.settings().qemu.clone();
    cluster.witness().watch(&cluster.sockets(), "lv");
    let dir = cluster.dir().to_owned();
    let at = |name: &str| dir.join(name).display().to_string();
    image(&dir, &["create", "-q", "-f", "qcow2", "base.qcow2", "64M"]);
    image(&dir, &["create", "-q", "-f", "qcow2", "-b", &at("base.qcow2"), "-F", "qcow2", "vm.qcow2"]);
    let data = format!("data_file={}", at("data.raw"));
    image(&dir, &["create", "-q", "-f", "qcow2", "-o", &data, "data.qcow2", "16M"]);
    fs::write(at("lv.cfg"), configuration(&cluster.sockets(), "lv")).unwrap();
    let words: Vec<String> = [
        "-name",
        "lv",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-accel",
        "tcg",
        "-machine",
        "pc-q35-7.2,usb=off,dump-guest-core=off,memory-backend=pc.ram",
        "-m",
        "size=65536k",
        "-object",
        concat!(
            r#"{"qom-type":"memory-backend-memfd","id":"pc.ram","share":true,"#,
            r#""x-use-canonical-path-for-ramblock-id":false,"size":67108864}"#
        ),
        "-device",
        concat!(
            r#"{"driver":"pcie-root-port","port":16,"chassis":1,"id":"pci.1","bus":"pcie.0","#,
            r#""multifunction":true,"addr":"0x2"}"#
        ),
        "-device",
        r#"{"driver":"pcie-root-port","port":17,"chassis":2,"id":"pci.2","bus":"pcie.0","addr":"0x2.0x1"}"#,
        "-blockdev",
        &format!(
            r#"{{"driver":"file","filename":"{}","node-name":"libvirt-3-storage","auto-read-only":true}}"#,
            at("base.qcow2")
        ),
        "-blockdev",
        concat!(
            r#"{"node-name":"libvirt-3-format","read-only":true,"driver":"qcow2","#,
            r#""file":"libvirt-3-storage","backing":null}"#
        ),
        "-blockdev",
        &format!(
            r#"{{"driver":"file","filename":"{}","node-name":"libvirt-2-storage","auto-read-only":true}}"#,
            at("vm.qcow2")
        ),
        "-blockdev",
        concat!(
            r#"{"node-name":"libvirt-2-format","read-only":false,"driver":"qcow2","#,
            r#""file":"libvirt-2-storage","backing":"libvirt-3-format"}"#
        ),
        "-device",
        concat!(
            r#"{"driver":"virtio-blk-pci","bus":"pci.1","addr":"0x0","drive":"libvirt-2-format","#,
            r#""id":"virtio-disk0","bootindex":1}"#
        ),
        "-drive",
        &format!("file={},if=none,id=drive1,format=qcow2", at("data.qcow2")),
        "-device",
        "virtio-blk-pci,drive=drive1,id=virtio-disk1,addr=0x6",
        "-device",
        r#"{"driver":"ide-cd","bus":"ide.0","id":"sata0-0-0"}"#,
        "-netdev",
        r#"{"type":"user","id":"hostnet0"}"#,
        "-device",
        concat!(
            r#"{"driver":"virtio-net-pci","netdev":"hostnet0","id":"net0","mac":"52:54:00:7c:e4:f0","#,
            r#""bus":"pci.2","addr":"0x0"}"#
        ),
        "-nic",
        "user,model=virtio-net-pci,restrict=on",
        "-device",
        r#"{"driver":"virtio-balloon-pci","id":"balloon0","bus":"pcie.0","addr":"0x5"}"#,
        "-qmp",
        &format!("unix:{},server=on,wait=off", at("lv.qmp")),
        "-readconfig",
        &at("lv.cfg"),
    ]
    .map(str::to_owned)
    .into();
    let mut child = cluster.spawn("a", &program, &words);
    runs_on(&cluster, "lv", "a");
    let start = Start::with_libraries_of(child.id());
    for host in cluster.hosts() {
        cluster.start_as(&host, &start);
    }
    let Reply::Vm(vm) = cluster.asked("a", &Request::VmAdopt { qmp: at("lv.qmp").into(), name: None }) else {
        panic!()
    };
    assert_eq!(vm.name, "lv");
    let problems = cluster.check_move("lv", "a", "b").problems;
    assert_eq!(
        problems.iter().filter(|problem| problem.severity == skein_api::Severity::Blocks).count(),
        0,
        "{problems:#?}"
    );
    cluster.moved("lv", "a", "b");
    runs_on(&cluster, "lv", "b");
    assert!(until(DEADLINE, || child.try_wait().unwrap().is_some()), "the old QEMU is gone");
    child.wait().unwrap();
    cluster.moved("lv", "b", "a");
    runs_on(&cluster, "lv", "a");

    // Another file now has the name of the file with the guest's data.
    fs::copy(at("data.raw"), at("new.raw")).unwrap();
    fs::rename(at("new.raw"), at("data.raw")).unwrap();
    let problems = cluster.check_move("lv", "a", "b").problems;
    let told: Vec<_> = problems.iter().filter(|problem| problem.kind == ProblemKind::DiskChanged).collect();
    assert!(
        matches!(&told[..], [one] if one.what.contains("data.raw") && one.what.contains("replaced")),
        "{problems:#?}"
    );
    runs_on(&cluster, "lv", "a");
    assert!(until(DEADLINE, || cluster.where_runs("lv") == ["a"]));
    cluster.check();
}
