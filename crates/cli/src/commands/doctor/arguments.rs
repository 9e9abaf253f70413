//! Reads what the agent that runs was told on its command line.

use std::fs;

/// The words of a process's command line.
#[derive(Debug, Default)]
pub struct Arguments(Vec<String>);

impl Arguments {
    /// Reads those of a process; without one, or where its command line may not be read, there are none. Another
    /// finding says that.
    pub fn of_process(pid: Option<i32>) -> Arguments {
        let words = pid.and_then(|pid| fs::read(format!("/proc/{pid}/cmdline")).ok()).unwrap_or_default();
        let words = words.split(|byte| *byte == 0);
        Arguments(words.map(|word| String::from_utf8_lossy(word).into_owned()).collect())
    }

    /// Returns the values of an option, which stand apart or behind an equals sign, in their order.
    pub fn values<'a>(&'a self, option: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().enumerate().filter_map(move |(nth, word)| match word.strip_prefix(option)? {
            "" => self.0.get(nth + 1).map(String::as_str),
            rest => rest.strip_prefix('='),
        })
    }
}

#[cfg(test)]
impl Arguments {
    /// Returns the words of a line.
    pub fn of_line(line: &str) -> Arguments {
        Arguments(line.split(' ').map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_apart_or_behind_an_equals_sign() {
        let arguments = Arguments::of_line("skein agent --nic eth0 --nics=x --nic=eth1 --rdma off --nic");
        assert_eq!(arguments.values("--nic").collect::<Vec<_>>(), ["eth0", "eth1"]);
        assert_eq!(arguments.values("--cipher").count(), 0);
        assert_eq!(Arguments::of_process(None).values("--nic").count(), 0);
    }
}
