//! Has the system give shared memory huge pages while something is measured, as `docs/rdma.md` says for hosts whose
//! guests have shared RAM.

use std::{fs, io};

const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// Shared memory that asks for huge pages gets some, until this is dropped.
#[derive(Debug)]
pub struct HugeSharedMemory {
    before: String,
}

impl HugeSharedMemory {
    /// Sets that. `None`: the system does so already.
    ///
    /// # Errors
    /// The kernel has no such setting, or refuses.
    pub fn ask() -> io::Result<Option<HugeSharedMemory>> {
        let text = fs::read_to_string(SETTING)?;
        let before = chosen(&text).ok_or(io::ErrorKind::InvalidData)?.to_owned();
        if !matches!(&before[..], "never" | "deny") {
            return Ok(None);
        }
        fs::write(SETTING, "advise")?;
        Ok(Some(HugeSharedMemory { before }))
    }
}

impl Drop for HugeSharedMemory {
    fn drop(&mut self) {
        let _ = fs::write(SETTING, &self.before);
    }
}

/// Returns the value in brackets.
fn chosen(text: &str) -> Option<&str> {
    text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_in_brackets_is_the_one() {
        assert_eq!(chosen("always within_size advise [never] deny force\n"), Some("never"));
        assert_eq!(chosen(""), None);
    }
}
