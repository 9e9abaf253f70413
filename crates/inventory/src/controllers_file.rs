//! The controllers of the cluster, as a TOML file (`/etc/skein/controllers.toml`).
//!
//! ```toml
//! controllers = ["10.0.0.1:7443", "ctl2.example"]
//! ```

use crate::hosts_file::HostAddress;
use crate::toml_reader::{ParseError, Table, Value, quote, read};

/// The most controllers: a store has three or five members, and each may be named by several addresses.
pub const CONTROLLERS_MAX: usize = 16;

/// The controllers that an agent dials.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ControllersFile {
    /// Where the controllers listen, each address once. No port: the usual one.
    pub addresses: Vec<HostAddress>,
}

impl ControllersFile {
    /// Reads the file. `file_name` is for messages.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with the file, at once.
    pub fn parse(text: &str, file_name: &str) -> Result<ControllersFile, ParseError> {
        read(text, file_name, |reader, mut root: Table| {
            let value = root.require(reader, "controllers", "controllers = [\"10.0.0.1:7443\"]");
            root.finish(reader, &[]);
            let strings = value.as_ref().map(|value: &Value| value.strings(reader, CONTROLLERS_MAX, 512));
            let mut addresses = Vec::new();
            for (value, text) in strings.iter().flatten() {
                let Some(address) = value.parsed(reader, 512, |text| text.parse::<HostAddress>()) else { continue };
                if addresses.contains(&address) {
                    value.report_at(reader, format!("{} is there already", quote(text)), "keep it once");
                } else {
                    addresses.push(address);
                }
            }
            ControllersFile { addresses }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read() {
        let read = |text: &str| ControllersFile::parse(text, "controllers.toml");
        let addresses = read("controllers = ['10.0.0.1:7443', 'ctl2.example', 'fd00::1']").unwrap().addresses;
        let shown: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["10.0.0.1:7443", "ctl2.example", "fd00::1"]);
        assert_eq!(read("controllers = []"), Ok(ControllersFile::default()));
    }

    #[test]
    fn each_fault_is_told_with_its_place_and_cure() {
        let many = format!("controllers = [{}]", (0..17).map(|n| format!("'c{n}', ")).collect::<String>());
        for (text, line, column, says) in [
            ("", 1, 1, "controllers is missing"),
            ("controllers = ['a', 'a']", 1, 21, "\"a\" is there already"),
            ("controllers = ['a:0']", 1, 16, "1 to 65535"),
            ("controllers = 'a'", 1, 15, "must be an array"),
            ("controllers = [1]", 1, 16, "must be a string"),
            ("controllers = []\ncontroler = 1", 2, 1, "did you mean controllers"),
            (&many, 1, 118, "16 are the most"),
        ] {
            let error = ControllersFile::parse(text, "controllers.toml").expect_err(text);
            let [fault] = &error.diagnostics[..] else { panic!("{text}: {error}") };
            assert_eq!((fault.line, fault.column), (line, column), "{error}");
            let told = format!("{} {}", fault.reason, fault.cure);
            assert!(told.contains(says), "{says} in {told}");
        }
    }
}
