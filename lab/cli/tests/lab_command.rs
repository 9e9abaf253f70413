//! Tests labs as people use them: one invocation after the other. Needs root and iproute2.
// Cores: 0.3

use std::process::{Command, Output};

/// A lab that is removed with the test, however the test ends.
struct Named(String);

impl Named {
    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_skein-lab"));
        // Options come before the arguments of a program that is to be run.
        let (verb, rest) = args.split_first().unwrap();
        command.args([verb, "--name", &self.0]).args(rest).output().unwrap()
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn refused(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(!output.status.success(), "{args:?} should fail");
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        self.run(&["down"]);
    }
}

#[test]
fn a_lab_from_up_to_down() {
    let lab = Named(format!("cli{}", std::process::id()));
    let up = lab.ok(&["up", "--rate", "1000,unlimited", "--ipv4"]);
    assert!(up.contains("10.77.1.2/24") && up.contains("unlimited") && !up.contains("fd77"), "{up}");
    assert!(lab.refused(&["up"]).contains("skein-lab down --name"), "it stands already");

    let ping = ["exec", "a", "--", "ping", "-c1", "-W1", "10.77.1.2"];
    lab.ok(&ping);
    assert_eq!(lab.run(&["exec", "a", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    assert!(lab.refused(&["exec", "a", "no-such-program"]).contains("no-such-program"));

    lab.ok(&["cut", "b", "1", "--black-hole=to-host"]);
    lab.ok(&["rate", "a", "nic0", "250"]);
    lab.refused(&ping);
    let status: serde_json::Value = serde_json::from_str(&lab.ok(&["status", "--json"])).unwrap();
    let hosts = &status[0]["hosts"];
    assert_eq!(
        (&hosts[1]["nics"][1]["cut"], &hosts[0]["nics"][0]["rate_mbit"]),
        (&"black-hole-to-host".into(), &250.into())
    );
    lab.ok(&["heal"]);
    lab.ok(&["exec", "a", "--", "ping", "-c2", "-i0.2", "-W2", "10.77.1.2"]);

    assert!(lab.refused(&["cut", "z", "0"]).contains("its hosts are a, b"));
    assert!(lab.refused(&["heal", "a", "2"]).contains("its NICs are 0 to 1"));
    assert!(lab.refused(&["cut", "a", "eth0"]).contains("nic0, nic1"));
    assert!(lab.refused(&["rate", "a", "0", "fast"]).contains("unlimited"));
    assert!(lab.ok(&["down"]).contains("removed"));
    assert!(lab.ok(&["down"]).contains("no lab"), "once more is fine");
    assert!(lab.refused(&["status"]).contains("there is no lab"));
}

#[test]
fn of_two_that_build_the_same_lab_one_does() {
    let lab = Named(format!("cliboth{}", std::process::id()));
    for round in 0..4 {
        let build = || lab.run(&["up", "--hosts", "4"]);
        let (one, other) = std::thread::scope(|scope| {
            let other = scope.spawn(build);
            (build(), other.join().unwrap())
        });
        let (built, refused) = if one.status.success() { (one, other) } else { (other, one) };
        let says = String::from_utf8_lossy(&refused.stderr);
        assert!(built.status.success() && !refused.status.success(), "round {round}: {says}");
        assert!(says.contains(&format!("skein-lab down --name {}", lab.0)), "{says}");
        lab.ok(&["exec", "a", "--", "ping", "-c1", "-W2", "10.77.1.4"]);
        lab.ok(&["down"]);
    }
}

#[test]
fn a_damaged_state_hides_no_other_lab() {
    let (lab, other) =
        (Named(format!("clidam{}", std::process::id())), Named(format!("cliwell{}", std::process::id())));
    lab.ok(&["up", "--nics", "1"]);
    other.ok(&["up", "--nics", "1"]);
    std::fs::write(format!("/run/skein/lab/{}.json", lab.0), "{\"spec\": ").unwrap();
    let all = Command::new(env!("CARGO_BIN_EXE_skein-lab")).arg("status").output().unwrap();
    let (shown, says) = (String::from_utf8_lossy(&all.stdout), String::from_utf8_lossy(&all.stderr));
    assert!(all.status.success() && shown.contains(&format!("lab {}\n", other.0)), "{shown}{says}");
    let mend = format!("skein-lab down --name {}", lab.0);
    assert!(says.contains(&mend) && says.contains("EOF"), "{says}");
    assert!(lab.refused(&["status"]).contains(&mend));
    assert!(lab.refused(&["up"]).contains(&mend));
    lab.ok(&["down"]);
    lab.ok(&["up", "--nics", "1"]);
}

#[test]
fn what_cannot_be_built_is_refused_with_what_could() {
    let lab = Named(format!("clibad{}", std::process::id()));
    for (args, says) in [
        (&["up", "--hosts", "16"][..], "1 to 15"),
        (&["up", "--nics", "17"], "at most 16"),
        (&["up", "--rate", "0"], "1 to 100000"),
        (&["up", "--mtu", "100"], "1280 to 9216"),
        (&["up", "--ipv4", "--ipv6"], "cannot be used with"),
    ] {
        let error = lab.refused(args);
        assert!(error.contains(says), "{args:?}: {error}");
    }
    assert!(lab.ok(&["down"]).contains("no lab"), "nothing was left");
}
