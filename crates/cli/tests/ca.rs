//! Tests `skein ca` as a person uses it: the program itself, its output and its exit status.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn skein(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_skein")).current_dir(dir).args(args).stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn works(dir: &Path, args: &[&str]) -> String {
    let output = skein(dir, args);
    assert!(output.status.success(), "skein {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn fails(dir: &Path, args: &[&str]) -> String {
    let output = skein(dir, args);
    assert!(!output.status.success(), "skein {args:?} must fail");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!said.contains("panicked"), "{said}");
    said
}

#[test]
fn from_init_to_renew() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path();
    let mode = |path: &str| std::fs::metadata(dir.join(path)).unwrap().permissions().mode() & 0o777;

    assert!(fails(dir, &["ca", "issue", "node1", "--dir", "ca"]).contains("skein ca init"));
    let said = works(dir, &["ca", "init", "--dir", "ca", "--name", "rack 7"]);
    assert!(said.contains("rack 7") && said.contains("skein ca issue HOST --dir ca"), "{said}");
    assert_eq!((mode("ca"), mode("ca/ca.key"), mode("ca/ca.pem")), (0o700, 0o600, 0o644));
    assert!(fails(dir, &["ca", "init", "--dir", "ca"]).contains("exists already"));

    let said = works(dir, &["ca", "issue", "Node1", "--dir", "ca", "--days", "20"]);
    assert!(said.contains("ca/hosts/node1/host.key root@node1:/etc/skein/identity/"), "{said}");
    assert_eq!((mode("ca/hosts/node1/host.key"), mode("ca/hosts/node1/host.pem")), (0o600, 0o644));
    assert!(fails(dir, &["ca", "issue", "node1", "--dir", "ca"]).contains("skein ca renew node1"));
    let said = works(dir, &["ca", "issue", "node1", "--dir", "ca", "--out", "second"]);
    assert!(said.contains("skein ca renew second/ --dir ca"), "the CA holds another identity of node1: {said}");

    let key = std::fs::read(dir.join("ca/hosts/node1/host.key")).unwrap();
    let show = || -> serde_json::Value {
        serde_json::from_str(&works(dir, &["ca", "show", "ca/hosts/node1", "--json"])).unwrap()
    };
    let before = show();
    assert_eq!(before[0]["kind"], "host");
    assert_eq!(before[0]["names"], serde_json::json!(["node1", "member.skein.internal"]));
    assert!(before[0]["warning"].as_str().unwrap().contains("skein ca renew node1"));
    assert_eq!((&before[1]["kind"], &before[1]["subject"]), (&"ca".into(), &"CN=rack 7".into()));
    assert_eq!(before[1]["warning"], serde_json::Value::Null);

    works(dir, &["ca", "renew", "node1", "--dir", "ca"]);
    let after = show();
    assert_eq!(after[0]["warning"], serde_json::Value::Null);
    assert!(after[0]["days_left"].as_i64().unwrap() >= 364);
    assert_ne!(after[0]["fingerprint_sha256"], before[0]["fingerprint_sha256"]);
    assert_eq!(std::fs::read(dir.join("ca/hosts/node1/host.key")).unwrap(), key);
    works(dir, &["ca", "renew", "./second", "--dir", "ca", "--days", "3652"]);

    let text = works(dir, &["ca", "show", "ca"]);
    assert!(text.contains("CN=rack 7") && text.contains("node1, member.skein.internal"), "{text}");
}

#[test]
fn an_identity_written_elsewhere_is_known() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path();
    works(dir, &["ca", "init", "--dir", "ca"]);
    let said = works(dir, &["ca", "issue", "node1", "--dir", "ca", "--out", "node1", "--days", "20"]);
    assert!(said.contains("skein ca renew node1 --dir ca"), "{said}");
    let certificate = |dir: &Path| std::fs::read(dir.join("host.pem")).unwrap();
    let (out, copy) = (dir.join("node1"), dir.join("ca/hosts/node1"));
    assert_eq!(certificate(&out), certificate(&copy));
    assert_eq!(std::fs::read_dir(&copy).unwrap().count(), 1, "no key, nor anything else");

    // A file in the way is not replaced, and what is known is not forgotten.
    fails(dir, &["ca", "issue", "node1", "--dir", "ca", "--out", "node1"]);
    assert_eq!(certificate(&out), certificate(&copy));
    assert!(fails(dir, &["ca", "issue", "node1", "--dir", "ca"]).contains("skein ca renew node1"));

    let text = works(dir, &["ca", "show", "ca"]);
    assert!(text.contains("node1, member") && text.contains("renew it with `skein ca renew node1`"), "{text}");
    let said = works(dir, &["ca", "renew", "node1", "--dir", "ca"]);
    assert!(said.contains("scp ca/hosts/node1/host.pem root@node1:"), "{said}");
    assert_ne!(certificate(&out), certificate(&copy));
    let text = works(dir, &["ca", "show", "ca/hosts/node1"]);
    assert!(text.contains("node1, member") && !text.contains("WARNING"), "{text}");
    std::fs::copy(copy.join("host.pem"), out.join("host.pem")).unwrap();
    assert!(!works(dir, &["ca", "show", "node1"]).contains("WARNING"), "it fits the key");

    works(dir, &["ca", "renew", "./node1", "--dir", "ca"]);
    assert_eq!(certificate(&out), certificate(&copy), "renewed where it lies, the CA knows");
    works(dir, &["ca", "issue", "node1", "--dir", "ca", "--out", "again"]);
    assert_eq!(certificate(&dir.join("again")), certificate(&copy), "with another key, the last one counts");
}

#[test]
fn a_key_that_is_made_on_its_host_stays_there() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path();
    works(dir, &["ca", "init", "--dir", "ca"]);
    let said = works(dir, &["ca", "request", "Node1", "--out", "node1"]);
    assert!(said.contains("skein ca sign host.csr --host node1"), "{said}");
    let key = std::fs::read(dir.join("node1/host.key")).unwrap();
    assert_eq!(std::fs::metadata(dir.join("node1/host.key")).unwrap().permissions().mode() & 0o777, 0o600);
    works(dir, &["ca", "request", "node1", "--out", "node1"]);
    assert_eq!(std::fs::read(dir.join("node1/host.key")).unwrap(), key, "asked again, it has the same key");

    let refused = fails(dir, &["ca", "sign", "node1/host.csr", "--host", "node2", "--dir", "ca"]);
    assert!(refused.contains("node1") && refused.contains("node2"), "{refused}");
    assert!(!dir.join("ca/hosts").exists(), "nothing was signed");
    let said = works(dir, &["ca", "sign", "node1/host.csr", "--host", "node1", "--dir", "ca", "--days", "20"]);
    assert!(said.contains("scp ca/ca.pem ca/hosts/node1/host.pem root@node1:"), "{said}");
    assert_eq!(std::fs::read_dir(dir.join("ca/hosts/node1")).unwrap().count(), 1, "no key, nor anything else");
    for (from, to) in [("ca/ca.pem", "node1/ca.pem"), ("ca/hosts/node1/host.pem", "node1/host.pem")] {
        std::fs::copy(dir.join(from), dir.join(to)).unwrap();
    }
    let text = works(dir, &["ca", "show", "node1"]);
    assert!(text.contains("node1, member") && !text.contains("copy"), "{text}");
    works(dir, &["ca", "renew", "node1", "--dir", "ca"]);
    let said = works(dir, &["ca", "sign", "node1/host.csr", "--host", "node1", "--dir", "ca", "--out", "signed"]);
    assert!(said.contains("scp signed/ca.pem signed/host.pem root@node1:"), "{said}");

    // The CA has a whole identity of that name, whose certificate stays.
    works(dir, &["ca", "issue", "node3", "--dir", "ca"]);
    works(dir, &["ca", "request", "node3", "--out", "node3"]);
    assert!(fails(dir, &["ca", "sign", "node3/host.csr", "--host", "node3", "--dir", "ca"]).contains("--out"));
    std::fs::write(dir.join("garbage"), "garbage").unwrap();
    let refused = fails(dir, &["ca", "sign", "garbage", "--host", "node1", "--dir", "ca"]);
    assert!(refused.contains("no request for a certificate"), "{refused}");
    assert!(fails(dir, &["ca", "request", "10.0.0.1", "--out", "x"]).contains("give its name"));
    assert!(!dir.join("x").exists());
}

#[test]
fn bad_input_is_told() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path();
    works(dir, &["ca", "init", "--dir", "ca"]);
    works(dir, &["ca", "init", "--dir", "other"]);
    assert!(fails(dir, &["ca", "issue", "10.0.0.1", "--dir", "ca"]).contains("give its name"));
    assert!(fails(dir, &["ca", "issue", "../x", "--dir", "ca"]).contains("no host name"));
    assert!(fails(dir, &["ca", "issue", "x", "--dir", "ca", "--days", "0"]).contains("1..=3652"));
    assert!(fails(dir, &["ca", "init", "--dir", "third", "--name", "a\nb"]).contains("no name for a CA"));
    assert!(!dir.join("third").exists());
    assert!(fails(dir, &["ca", "renew", "nobody", "--dir", "ca"]).contains("no identity to renew"));
    works(dir, &["ca", "issue", "x", "--dir", "ca"]);
    assert!(fails(dir, &["ca", "renew", "ca/hosts/x", "--dir", "other"]).contains("not issued by this CA"));

    std::fs::write(dir.join("garbage"), "garbage").unwrap();
    assert!(fails(dir, &["ca", "show", "garbage"]).contains("no PEM certificate"));
    assert!(fails(dir, &["ca", "show", "nothing"]).contains("cannot show nothing"));
    std::fs::create_dir(dir.join("empty")).unwrap();
    assert!(fails(dir, &["ca", "show", "empty"]).contains("neither an identity"));

    // An identity that peers would refuse, because another cluster's CA is beside it.
    std::fs::copy(dir.join("other/ca.pem"), dir.join("ca/hosts/x/ca.pem")).unwrap();
    let said = works(dir, &["ca", "show", "ca/hosts/x"]);
    assert!(said.contains("WARNING") && said.contains("is not signed by the CA"), "{said}");
}
