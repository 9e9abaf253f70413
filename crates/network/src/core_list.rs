//! Lists of cores, as the kernel writes them: `0-3,8`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// No core has this number or a higher one: Linux allows 8192 at most (`NR_CPUS_RANGE_END` of arch/x86/Kconfig).
const CORE_NUMBER_END: u32 = 8192;

/// Cores, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreList(pub BTreeSet<u32>);

/// The reason why words are no [`CoreList`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no list of cores such as 0-3,8")]
pub struct CoreListError(String);

impl FromStr for CoreList {
    type Err = CoreListError;

    /// Reads a list. White space around the list has no meaning, and an empty list has no cores.
    fn from_str(text: &str) -> Result<CoreList, CoreListError> {
        let error = || CoreListError(text.trim().to_owned());
        let number = |text: &str| text.parse::<u32>().ok().filter(|core| *core < CORE_NUMBER_END).ok_or_else(error);
        let mut cores = BTreeSet::new();
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return Err(error());
            }
            cores.extend(first..=last);
        }
        Ok(CoreList(cores))
    }
}

impl fmt::Display for CoreList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for &core in &self.0 {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == core => *last = core,
                _ => ranges.push((core, core)),
            }
        }
        for (nth, (first, last)) in ranges.iter().enumerate() {
            let comma = if nth > 0 { "," } else { "" };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        let cores = |text: &str| text.parse::<CoreList>().map(|list| list.0.into_iter().collect::<Vec<u32>>());
        assert_eq!(cores("0-3,8\n"), Ok(vec![0, 1, 2, 3, 8]));
        assert_eq!((cores("5"), cores("\n")), (Ok(vec![5]), Ok(vec![])));
        for bad in ["a", "3-1", "-1", "0-9999999", "1-", "0,x"] {
            assert_eq!(cores(bad), Err(CoreListError(bad.into())), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_list_is_read_as_it_was_written(cores in proptest::collection::btree_set(0..CORE_NUMBER_END, 0..40)) {
            let list = CoreList(cores);
            prop_assert_eq!(list.to_string().parse::<CoreList>(), Ok(list));
        }

        #[test]
        fn no_words_break_it(text in "[0-9,-]{0,12}") {
            let _ = text.parse::<CoreList>();
        }
    }
}
