//! Tests `skein net qos` with a kernel's queues: what it makes is what it shows, what is marked is counted as marked,
//! and what others configured stays. Needs root.
// Cores: 0.3
// Timeout: 120 s

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Output;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use skein_lab_hosts::{Lab, Spec};
use socket2::{Domain, Socket, Type};

/// How many bytes are sent with a mark, and without.
const MARKED_BYTES: usize = 3_000_000;
const OTHER_BYTES: usize = 1_000_000;
/// AF11 in the byte that IPv4 has it in.
const AF11: u32 = 10 << 2;

struct World {
    lab: Lab,
}

impl World {
    fn new(name: &str) -> World {
        World { lab: Lab::up(Spec::pairs(&format!("{name}{}", std::process::id()), 2, None)).unwrap() }
    }

    fn qos(&self, words: &[&str]) -> Output {
        let mut skein = self.lab.command("a", env!("CARGO_BIN_EXE_skein")).unwrap();
        skein.args(["net", "qos"]).args(words).output().unwrap()
    }

    fn said(&self, words: &[&str]) -> String {
        let out = self.qos(words);
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    fn refused(&self, words: &[&str]) -> String {
        let out = self.qos(words);
        assert!(!out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stdout));
        String::from_utf8(out.stderr).unwrap()
    }

    /// Returns what is shown of a NIC.
    fn shown(&self, nic: &str) -> Value {
        let shown: Value = serde_json::from_str(&self.said(&["show", "--json"])).unwrap();
        shown.as_array().unwrap().iter().find(|of| of["nic"] == nic).cloned().unwrap()
    }

    fn tc(&self, words: &str) -> String {
        let out = self.lab.command("a", "tc").unwrap().args(words.split(' ')).output().unwrap();
        assert!(out.status.success(), "tc {words}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// Returns each queueing discipline's name, handle and NIC.
    fn qdiscs(&self) -> Vec<String> {
        let words = |line: &str| line.split(' ').take(5).collect::<Vec<_>>().join(" ");
        self.tc("qdisc show").lines().map(words).collect()
    }

    /// Returns how many packets the first NIC has sent of a class.
    fn packets(&self, class: &str) -> usize {
        let shown = self.tc("-s class show dev nic0");
        let mut lines = shown.lines().skip_while(|line| !line.starts_with(&format!("class htb {class} ")));
        let sent = lines.nth(1).unwrap().trim_start().strip_prefix("Sent ").unwrap();
        sent.split(' ').nth(2).unwrap().parse().unwrap()
    }

    /// Sends bytes from a to b over the first NIC, with this type of service.
    fn send(&self, bytes: usize, type_of_service: u32) {
        self.send_from("a", "b", bytes, type_of_service);
    }

    fn send_from(&self, from: &str, to: &str, bytes: usize, type_of_service: u32) {
        let at = SocketAddr::new(self.lab.ip(to, 0).unwrap(), 0);
        let listener = self.lab.enter(to, || TcpListener::bind(at)).unwrap().unwrap();
        let to = listener.local_addr().unwrap();
        let heard = thread::spawn(move || {
            let mut heard = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut heard).unwrap();
            heard.len()
        });
        let mut socket: TcpStream = self
            .lab
            .enter(from, || {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                socket.set_tos_v4(type_of_service).unwrap();
                socket.connect_timeout(&to.into(), Duration::from_secs(20)).unwrap();
                socket.into()
            })
            .unwrap();
        socket.write_all(&vec![7; bytes]).unwrap();
        drop(socket);
        assert_eq!(heard.join().unwrap(), bytes);
    }
}

#[test]
fn a_share_is_made_counted_changed_and_removed_exactly() {
    let world = World::new("qs");
    let before = world.qdiscs();
    assert!(world.refused(&["apply"]).contains("name the NICs"), "a veth is no hardware");
    assert!(world.refused(&["apply", "nic9"]).contains("there is no NIC nic9"));
    assert_eq!(world.qdiscs(), before);

    world.said(&["apply", "--share", "90", "--rate", "1Gbit/s", "nic0", "nic1"]);
    world.send(MARKED_BYTES, AF11);
    world.send(OTHER_BYTES, 0);
    let shown = world.shown("nic0");
    assert_eq!((&shown["queue"], &shown["scheduler"], &shown["percent"]), (&"share".into(), &"htb".into(), &90.into()));
    assert_eq!(shown["rate_bps"], 1_000_000_000);
    let counted = |of: &str, bytes: usize| {
        let counted = shown[of].as_u64().unwrap() as usize;
        assert!((bytes..bytes + bytes / 5).contains(&counted), "{of}: {shown}");
    };
    counted("migrations_bytes", MARKED_BYTES);
    counted("others_bytes", OTHER_BYTES);
    assert_eq!(shown["small_first"], true);
    let small = world.packets("5ce1:4");
    world.send_from("b", "a", OTHER_BYTES, 0);
    assert!(world.packets("5ce1:4") > small, "what acknowledges the opposite direction is small");

    world.said(&["apply", "--share", "25", "--rate", "2Gbit/s", "nic0"]);
    assert_eq!((&world.shown("nic0")["percent"], &world.shown("nic1")["percent"]), (&25.into(), &90.into()));
    world.said(&["remove", "nic0"]);
    assert_eq!(world.shown("nic0")["queue"], "default");
    assert_eq!(world.shown("nic1")["queue"], "share");
    world.said(&["remove"]);
    assert_eq!(world.qdiscs(), before);
    assert!(world.said(&["remove"]).contains("no NIC had a share"));
}

#[test]
fn a_share_of_an_earlier_release_is_known_changed_and_removed() {
    let world = World::new("qe");
    let before = world.qdiscs();
    let make = || {
        world.tc("qdisc add dev nic0 root handle 5ce1: htb default 2");
        let class = |parent: &str, minor: &str, rate: &str| {
            let class = format!("class add dev nic0 parent 5ce1:{parent} classid 5ce1:{minor}");
            world.tc(&format!("{class} htb rate {rate} ceil 1000mbit quantum 30000 burst 190536 cburst 190536"));
        };
        class("", "f", "1000mbit");
        class("f", "2", "200mbit");
        for matches in ["match u8 0x40 0xf0 at 0 match u8 0x28 0xfc at 1", "match u16 0x6280 0xffc0 at 0"] {
            let filter = "filter add dev nic0 parent 5ce1: protocol all prio 1 u32";
            world.tc(&format!("{filter} {matches} flowid 5ce1:1"));
        }
        assert_eq!(world.shown("nic0")["queue"], "incomplete");
        class("f", "1", "800mbit");
    };
    make();
    let shown = world.shown("nic0");
    assert_eq!((&shown["queue"], &shown["percent"], &shown["dscp"]), (&"share".into(), &80.into(), &10.into()));
    assert_eq!(shown["small_first"], false);
    assert!(!world.said(&["show"]).contains("small packets"));
    world.said(&["remove"]);
    assert_eq!(world.qdiscs(), before);
    make();
    world.said(&["apply", "--share", "70", "--rate", "1Gbit/s", "nic0"]);
    let shown = world.shown("nic0");
    assert_eq!((&shown["percent"], &shown["small_first"]), (&70.into(), &true.into()));
    assert!(world.said(&["show"]).contains("small packets of others first"));
    world.tc("class del dev nic0 classid 5ce1:1");
    assert_eq!(world.shown("nic0")["queue"], "incomplete");
    world.said(&["remove"]);
    assert_eq!(world.qdiscs(), before);
}

#[test]
fn a_share_outlives_what_cannot_be_made_in_its_place() {
    let world = World::new("qk");
    world.said(&["apply", "--share", "70", "--rate", "1Gbit/s", "--dscp", "12", "nic0"]);
    let stood = |world: &World| {
        let shown = world.shown("nic0");
        let figures = ["queue", "percent", "rate_bps", "dscp"].map(|figure| shown[figure].to_string());
        assert_eq!(figures, ["\"share\"", "70", "1000000000", "12"], "{shown}");
    };
    stood(&world);
    assert!(world.said(&["show"]).contains("by the code point 12 (DSCP)"));
    let refused = world.refused(&["apply", "--rate", "100000Gbit/s", "nic0"]);
    assert!(refused.contains("nothing was changed: tc takes rates of at most 34359 Gbit/s"), "{refused}");
    assert!(world.refused(&["apply", "--rate", "1Gbit/s", "--dscp", "0", "nic0"]).contains("--dscp 1 to 63"));
    stood(&world);
    // The highest that is taken.
    world.said(&["apply", "--share", "99", "--rate", "34359Gbit/s", "nic1"]);
    world.said(&["remove", "nic1"]);
    // A program tc that fails once a share is to be made, not when the old one is removed or put back.
    let programs = std::env::temp_dir().join(format!("skein-qos-{}", std::process::id()));
    std::fs::create_dir_all(&programs).unwrap();
    let script = format!(
        "#!/bin/sh\nlines=$(cat)\ncase $lines in *'rate 40000000bit'*) echo 'Illegal \"burst\"' >&2; \
         echo 'Usage: x' >&2; exit 1;; esac\necho \"$lines\" | exec {} \"$@\"\n",
        which("tc")
    );
    let tc = programs.join("tc");
    std::fs::write(&tc, script).unwrap();
    std::fs::set_permissions(&tc, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut skein = world.lab.command("a", env!("CARGO_BIN_EXE_skein")).unwrap();
    let apply = ["net", "qos", "apply", "--share", "50", "--rate", "80Mbit/s", "nic0"];
    let out = skein.env("PATH", path).args(apply).output().unwrap();
    std::fs::remove_dir_all(&programs).unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && errors.contains("the one of 70 % from before is there again"), "{errors}");
    assert!(errors.contains("Illegal \"burst\"") && !errors.contains("Usage"), "{errors}");
    stood(&world);
}

/// Returns where a program is.
fn which(program: &str) -> String {
    let path = std::env::var("PATH").unwrap();
    let found = path.split(':').map(|dir| format!("{dir}/{program}")).find(|path| std::fs::exists(path).unwrap());
    found.unwrap()
}

#[test]
fn commands_side_by_side_take_turns() {
    let world = World::new("qp");
    thread::scope(|scope| {
        for share in 41..47 {
            let world = &world;
            scope.spawn(move || world.said(&["apply", "--rate", "1Gbit/s", "--share", &share.to_string(), "nic0"]));
        }
    });
    let shown = world.shown("nic0");
    assert!(shown["queue"] == "share" && (41..47).contains(&shown["percent"].as_u64().unwrap()), "{shown}");
}

#[test]
fn what_others_configured_and_what_is_half_made_is_known() {
    let world = World::new("qo");
    world.tc("qdisc add dev nic1 root handle 1: htb");
    let before = world.qdiscs();
    let refused = world.refused(&["apply", "--rate", "1Gbit/s", "nic0", "nic1"]);
    assert!(refused.contains("nothing was changed: nic1 has htb, which somebody else configured"), "{refused}");
    assert!(world.said(&["remove"]).contains("no NIC had a share"));
    assert_eq!(world.qdiscs(), before);
    assert_eq!(world.shown("nic1")["queue"], "foreign");
    let refused = world.refused(&["remove", "nic1"]);
    assert!(refused.contains("nothing was changed: nic1 has htb, which somebody else configured"), "{refused}");
    assert_eq!(world.qdiscs(), before);

    // As a command that was killed leaves it: the class of migrations comes last.
    world.said(&["apply", "--rate", "1Gbit/s", "nic0"]);
    world.tc("filter del dev nic0 parent 5ce1:");
    assert_eq!(world.shown("nic0")["queue"], "incomplete", "nothing is led to the class of migrations");
    world.tc("class del dev nic0 classid 5ce1:1");
    assert_eq!(world.shown("nic0")["queue"], "incomplete");
    world.send(OTHER_BYTES, AF11);
    world.said(&["apply", "--rate", "1Gbit/s", "nic0"]);
    assert_eq!(world.shown("nic0")["queue"], "share");
}
