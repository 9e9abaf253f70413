//! Tests what `make install` installs of a build: `skein` alone, without what only debuggers read, and nothing of the
//! lab.

use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The most that the installed program of a release build may take.
const PROGRAM_BYTES_MAX: u64 = 18_000_000;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A source tree whose release build is a program that the test chooses, and a staging tree to install it into.
struct Staging {
    dir: tempfile::TempDir,
}

impl Staging {
    fn of(program: &Path) -> Staging {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        std::fs::create_dir_all(tree.join("scripts")).unwrap();
        std::fs::create_dir_all(tree.join("target/release")).unwrap();
        std::fs::copy(Path::new(REPOSITORY).join("scripts/install.sh"), tree.join("scripts/install.sh")).unwrap();
        symlink(Path::new(REPOSITORY).join("systemd"), tree.join("systemd")).unwrap();
        symlink(program, tree.join("target/release/skein")).unwrap();
        Staging { dir }
    }

    fn run(&self, goal: &str, binary: Option<&Path>) {
        // What is executed itself must not be open for writing: another test's process may have been forked while the
        // copy was made.
        let mut script = Command::new("bash");
        script
            .arg(self.dir.path().join("tree/scripts/install.sh"))
            .arg(goal)
            .env("DESTDIR", self.path(""))
            .env_remove("PREFIX")
            .env_remove("BINARY");
        if let Some(binary) = binary {
            script.env("BINARY", binary);
        }
        let ran = script.output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    }

    /// Returns the path of something in the staging tree.
    fn path(&self, installed: &str) -> PathBuf {
        self.dir.path().join("staging").join(installed)
    }

    /// Returns all files in the staging tree, by their paths in it, in order.
    fn files(&self) -> Vec<String> {
        fn collect(dir: &Path, found: &mut Vec<PathBuf>) {
            for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
                match entry.file_type().unwrap().is_dir() {
                    true => collect(&entry.path(), found),
                    false => found.push(entry.path()),
                }
            }
        }
        let (root, mut found) = (self.path(""), Vec::new());
        collect(&root, &mut found);
        found.sort();
        found.iter().map(|path| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned()).collect()
    }
}

/// Returns the names of an ELF file's sections, as readelf lists them.
fn sections(file: &Path) -> String {
    let listed = Command::new("readelf").args(["--section-headers", "--wide"]).arg(file).output().unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    String::from_utf8(listed.stdout).unwrap()
}

#[test]
fn one_program_is_installed_and_stripped() {
    let program = Path::new(env!("CARGO_BIN_EXE_skein"));
    let staging = Staging::of(program);
    staging.run("install", None);
    let (files, installed) = (staging.files(), staging.path("usr/bin/skein"));
    let programs: Vec<&str> = files.iter().filter_map(|file| file.strip_prefix("usr/bin/")).collect();
    assert_eq!(programs, ["skein"]);
    assert!(!files.iter().any(|file| file.contains("skein-lab")), "{files:?}");
    for file in ["usr/share/man/man1/skein-migrate.1", "usr/lib/systemd/system/skein-agent.service"] {
        assert!(files.iter().any(|there| there == file), "{file} of {files:?}");
    }

    let (whole, stripped) = (sections(program), sections(&installed));
    let debug = sections(&staging.path("usr/lib/debug/usr/bin/skein.debug"));
    assert!(whole.contains(".symtab") && stripped.contains(".gnu_debuglink"), "{whole}{stripped}");
    // A build without line tables, as CI's is, has no section of lines.
    for section in [".debug_line", ".symtab"].into_iter().filter(|section| whole.contains(section)) {
        assert!(!stripped.contains(section) && debug.contains(section), "{section}: {stripped}{debug}");
    }
    let says = Command::new(&installed).arg("--version").output().unwrap();
    assert_eq!(says.stdout, Command::new(program).arg("--version").output().unwrap().stdout);

    staging.run("uninstall", None);
    assert_eq!(staging.files(), Vec::<String>::new());
}

#[test]
fn a_program_that_is_named_is_installed_as_it_is() {
    let staging = Staging::of(Path::new(env!("CARGO_BIN_EXE_skein")));
    staging.run("install", None);
    let named = staging.dir.path().join("named");
    // Has another process write the program, for the same reason as in `Staging::run`.
    let script = "cat \"$1\" >\"$2\" && printf 'another build' >>\"$2\" && chmod 755 \"$2\"";
    let made = Command::new("bash").args(["-c", script, "bash", env!("CARGO_BIN_EXE_skein")]).arg(&named).status();
    assert!(made.unwrap().success());
    let content = std::fs::read(&named).unwrap();
    staging.run("install", Some(&named));
    assert!(std::fs::read(staging.path("usr/bin/skein")).unwrap() == content);
    let debug = staging.path("usr/lib/debug/usr/bin/skein.debug");
    assert!(!debug.exists(), "that of the program before it");
}

#[test]
fn a_release_is_small() {
    let release = Path::new(env!("CARGO_BIN_EXE_skein")).parent().unwrap().with_file_name("release").join("skein");
    if !release.is_file() {
        // Past the capture of a test's output: a tier repeats what was skipped.
        writeln!(std::io::stdout(), "skipped: there is no {} to measure: make build", release.display()).unwrap();
        return;
    }
    // Another linker does not make functions of the same code one (crates/cli/build.rs).
    let program = std::fs::read(&release).unwrap();
    if !program.windows(11).any(|bytes| bytes == b"Linker: LLD") {
        writeln!(std::io::stdout(), "skipped: {} was not linked by LLD", release.display()).unwrap();
        return;
    }
    let staging = Staging::of(&release);
    staging.run("install", None);
    let bytes = staging.path("usr/bin/skein").metadata().unwrap().len();
    println!("the installed program has {bytes} bytes");
    assert!(bytes < PROGRAM_BYTES_MAX, "{bytes} bytes: make build; if that is so again, docs/decisions/0047-size.md");
}
