//! Tests UEFI, TPM, controllers and CDs from VM files, started and moved; and that a VM which cannot be moved is
//! refused. Needs root.
// Timeout: 300 s
// Cores: 0.5

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use skein_api::{Outcome, ProblemKind, Request, VmOrigin};
use skein_lab_cluster::{Cluster, Settings, until};

/// The time within which everything is tidied up.
const SOON: Duration = Duration::from_secs(60);
/// The time in which OVMF boots on a busy machine without KVM.
const BOOT_TIME: Duration = Duration::from_secs(150);
/// The time in which UEFI's shell carries out a command.
const COMMAND_TIME: Duration = Duration::from_secs(30);
const PROMPT: &str = "Shell> ";

fn cluster() -> Cluster {
    Cluster::up(Settings::new(env!("CARGO_BIN_EXE_skein").into()))
}

/// UEFI's shell on a guest's serial console.
struct Shell {
    console: UnixStream,
}

impl Shell {
    fn of(cluster: &Cluster, host: &str, vm: &str) -> Shell {
        let path = cluster.run_dir(host).join("vms").join(vm).join("console");
        let console = UnixStream::connect(&path).unwrap();
        console.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        Shell { console }
    }

    /// Returns what comes up to `end`.
    fn until(&mut self, end: &str, time: Duration) -> String {
        let (deadline, mut said) = (Instant::now() + time, String::new());
        while !said.contains(end) {
            assert!(Instant::now() < deadline, "no {end:?} in {said:?}");
            let mut bytes = [0; 4096];
            match self.console.read(&mut bytes) {
                Ok(0) => panic!("the console ended after {said:?}"),
                Ok(count) => said.push_str(&String::from_utf8_lossy(&bytes[..count])),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => panic!("{error}"),
            }
        }
        said
    }

    /// Waits until the firmware has come to its shell.
    fn boot(cluster: &Cluster, host: &str, vm: &str) -> Shell {
        let mut shell = Shell::of(cluster, host, vm);
        // The shell looks for a script for five seconds, or until a key is pressed.
        shell.until("startup.nsh", BOOT_TIME);
        shell.console.write_all(b"\x1b").unwrap();
        shell.until(PROMPT, BOOT_TIME);
        shell
    }

    /// Runs a command. Returns what follows its own echo.
    fn run(&mut self, command: &str) -> String {
        for key in command.as_bytes() {
            // The serial port has no flow control.
            self.console.write_all(&[*key]).unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
        self.console.write_all(b"\r").unwrap();
        let said = self.until(PROMPT, COMMAND_TIME);
        said.split_once('\n').map_or("", |(_, rest)| rest).to_owned()
    }

    /// Reads or writes four bytes of the TPM's command response buffer (TCG PC Client Platform TPM Profile, 6.5.3).
    fn tpm(&mut self, register: u32, value: Option<u32>) -> u32 {
        let address = 0xfed4_0000 + register;
        let value = value.map(|value| format!("{value:08X} ")).unwrap_or_default();
        let said = self.run(&format!("mm {address:08X} {value}-w 4 -MMIO -n"));
        let read = said.split(" : 0x").nth(1).and_then(|digits| u32::from_str_radix(digits.get(..8)?, 16).ok());
        read.unwrap_or_default()
    }

    /// Returns a part of PCR 0 (SHA-256), into which the firmware has measured itself, by a TPM2_PCR_Read written by
    /// hand.
    fn pcr(&mut self) -> Vec<u32> {
        self.tpm(0x08, Some(1)); // Requests the locality.
        self.tpm(0x40, Some(1)); // Makes the TPM ready for a command.
        let command = [
            [0x80, 0x01, 0, 0],       // tag, size...
            [0, 0x14, 0, 0],          // command code...
            [0x01, 0x7e, 0, 0],       // one selection...
            [0, 0x01, 0, 0x0b],       // of SHA-256
            [0x03, 0x01, 0x00, 0x00], // three bytes, PCR 0
        ];
        for (number, bytes) in command.into_iter().enumerate() {
            self.tpm(0x80 + 4 * number as u32, Some(u32::from_le_bytes(bytes)));
        }
        self.tpm(0x4c, Some(1));
        assert!(until(COMMAND_TIME, || self.tpm(0x4c, None) == 0), "the TPM does not answer");
        // The code, success, is in bytes 6 to 9. The digest begins at byte 30.
        let words: Vec<u32> = [1, 2, 8, 9, 10].map(|number| self.tpm(0x80 + 4 * number, None)).into();
        assert_eq!((words[0] >> 16, words[1] & 0xffff), (0, 0), "the TPM refuses: {words:x?}");
        words[2..].to_vec()
    }
}

/// Checks that what a guest with UEFI has written into its variable store and measured into its TPM is there after
/// moves, and what is kept on storage is there after a cold start, too.
#[test]
fn firmware_and_tpm_move_with_their_guest() {
    let swtpm = std::process::Command::new("swtpm").arg("--version").output();
    if !std::path::Path::new("/usr/share/OVMF/OVMF_CODE_4M.fd").exists() || swtpm.is_err() {
        return println!("skipped: needs Debian's ovmf and swtpm");
    }
    let cluster = cluster();
    let definition = "name = 'u'\nmemory = '256 MiB'\naccel = 'tcg'\n[firmware]\n[tpm]\n";
    cluster.start_vm("a", definition);
    let mut shell = Shell::boot(&cluster, "a", "u");
    let variable = "setvar Witness -guid 11111111-2222-3333-4444-555555555555";
    shell.run(&format!("{variable} -bs -nv =0x1234"));
    assert!(shell.run(variable).contains("34 12"));
    let measured = shell.pcr();
    assert!(measured.iter().any(|word| *word != 0), "nothing was measured");
    let own = |host: &str| cluster.state_dir(host).join("own").join("u");
    for (from, to) in [("a", "b"), ("b", "a")] {
        drop(shell);
        let moved = cluster.moved("u", from, to);
        assert_eq!(moved.outcome, Some(Outcome::Moved));
        shell = Shell::of(&cluster, to, "u");
        assert_eq!(shell.pcr(), measured, "the TPM on {to}");
        assert!(shell.run(variable).contains("34 12"), "the variable on {to}");
        cluster.wait_clean(SOON);
        assert!(own(to).join("vars.fd").exists() && !own(from).exists(), "one host has it");
        assert!(fs::read_dir(own(to).join("tpm")).unwrap().count() > 0);
    }
    drop(shell);
    // What is on storage now was written by QEMU when the guest arrived.
    cluster.asked("a", &Request::VmStop { name: "u".into(), timeout_s: 0, force: true });
    // On the other host it would begin with nothing.
    let from = VmOrigin::Definition { file: "u.toml".into(), text: definition.into() };
    let told = cluster.refused("b", &Request::VmStart { from, options: Default::default() });
    assert!(told.contains("a has a VM of that name, stopped") && told.contains("--new-state"), "{told}");
    assert!(!own("b").exists(), "and nothing is made for it");
    cluster.asked("a", &Request::VmStart { from: VmOrigin::Name("u".into()), options: Default::default() });
    let mut shell = Shell::boot(&cluster, "a", "u");
    assert!(shell.run(variable).contains("34 12"), "the variable after a cold start");
    assert_eq!(shell.pcr(), measured, "the same firmware is measured");
    cluster.asked("a", &Request::VmStop { name: "u".into(), timeout_s: 0, force: true });
    let ended = || ["a", "b"].iter().all(|host| UnixStream::connect(cluster.run_dir(host).join("vms/u/tpm")).is_err());
    assert!(until(SOON, ended), "a TPM outlives its guest");
    cluster.check();
}

/// Makes an image of one MiB.
fn image(cluster: &Cluster, name: &str) -> String {
    let path = cluster.dir().join(name);
    fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    path.display().to_string()
}

/// Tests controllers of all kinds, CDs, and devices from `[qemu] args`.
#[test]
fn devices_of_a_vm_file_move() {
    let cluster = cluster();
    let disk = |name: &str, more: &str| {
        let path = image(&cluster, name);
        format!("[[disk]]\npath = '{path}'\nformat = 'raw'\ncache = 'writeback'\n{more}\n")
    };
    let args = format!(
        "args = ['-drive', 'if=pflash,unit=0,format=raw,readonly=on,file={}', '-drive', \
         'if=none,id=x,format=raw,file={}', \
         '-device', 'virtio-scsi-pci,id=mine', '-device', 'scsi-hd,bus=mine.0,drive=x', ",
        image(&cluster, "code"),
        image(&cluster, "x")
    );
    let sections = [
        disk("0", "bus = 'virtio-scsi'\nserial = 'S0'\nwwn = '0x5000c50015ea71ac'\nssd = true\niothread = true"),
        disk("1", "bus = 'virtio-scsi'\ncontroller = 1\ndiscard = true\nboot_index = 1"),
        disk("2", "bus = 'sata'\nserial = 'S2'"),
        disk("3", "iothread = true\nio = 'threads'\nserial = 'S3'"),
        format!("[[cdrom]]\n[[cdrom]]\nbus = 'virtio-scsi'\npath = '{}'\n", image(&cluster, "iso")),
        "[system]\nserial = 'a, b'\nuuid = '4dea22b3-1d52-d8f3-2516-782e98ab3fa0'\n".into(),
        "[rtc]\nbase = 'localtime'\nslew = true\n[display]\n".into(),
    ];
    let definition = format!("{}{}", cluster.bare("d").replace("args = [", &args), sections.concat());
    cluster.start_vm("a", &definition);
    for (from, to) in [("a", "b"), ("b", "a")] {
        let problems = cluster.check_move("d", from, to).problems;
        // The medium could be a copy. Here hosts share a kernel, and it is the same.
        assert!(problems.is_empty(), "{problems:?}");
        cluster.moved("d", from, to);
    }
    cluster.wait_clean(SOON);
    cluster.check();
}

/// Checks that a VM which could never be moved is refused when it is started, and leaves nothing behind, unless its
/// file says that it is to stay on its host.
#[test]
fn what_cannot_be_moved_is_refused_at_its_start() {
    let cluster = cluster();
    let refused = |args: &str| {
        let text = cluster.bare("r").replace("args = [", &format!("args = [{args}, "));
        let request = Request::VmStart {
            from: VmOrigin::Definition { file: "r.toml".into(), text: text.clone() },
            options: Default::default(),
        };
        (cluster.refused("a", &request), text)
    };
    let nvme = format!(
        "'-drive', 'if=none,id=n,format=raw,file={}', '-device', 'nvme,serial=n,drive=n'",
        image(&cluster, "n")
    );
    let (said, text) = refused(&nvme);
    assert!(
        said.contains("could never be moved") && said.contains("nvme") && said.contains("allowed = false"),
        "{said}"
    );
    let (said, _) = refused("'-virtfs', 'local,path=/,mount_tag=x,security_model=none'");
    assert!(said.contains("-virtfs"), "{said}");
    let snapshot = format!("'-drive', 'if=virtio,format=raw,snapshot=on,file={}'", image(&cluster, "s"));
    assert!(refused(&snapshot).0.contains("snapshot=on"));
    cluster.wait_clean(SOON);
    assert!(cluster.vms("a").is_empty() && cluster.qemus("a").is_empty());
    cluster.start_vm("a", &format!("{text}[migration]\nallowed = false\n"));
    let kinds: Vec<_> = cluster.check_move("r", "a", "b").problems.iter().map(|problem| problem.kind).collect();
    assert!(kinds.contains(&ProblemKind::NotAllowed), "{kinds:?}");
    cluster.asked("a", &Request::VmStop { name: "r".into(), timeout_s: 0, force: true });
}
