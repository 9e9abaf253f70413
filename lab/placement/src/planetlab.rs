//! Traces of PlanetLab's machines as CloudSim has them (github.com/beloglazov/planetlab-workload-traces): one file for
//! each machine and day. Each line is the CPU that the machine used over five minutes, in whole per cent.

use thiserror::Error;

/// The samples of a day.
pub const SAMPLES: usize = 288;
/// The seconds from one sample to the next.
pub const SAMPLE_S: u32 = 300;

/// What a machine used: per cent of its CPU in each of [`SAMPLES`] intervals.
pub type Trace = [u8; SAMPLES];

/// Why a file is not a trace.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FileError {
    /// A line is not a share of a CPU.
    #[error("line {line} is '{text}' instead of a whole number of per cent, 0 to 100")]
    Sample {
        /// The line, from 1 on.
        line: usize,
        /// The beginning of the line.
        text: String,
    },
    /// The file is not of one day.
    #[error("it has {lines} lines instead of the {SAMPLES} of a day of five minutes each")]
    Length {
        /// How many lines the file has. If it has more than a day, this is one more than those of a day.
        lines: usize,
    },
}

/// Reads a machine's day.
///
/// # Errors
///
/// [`FileError`] if the text is not a trace of a day.
pub fn read_trace(text: &str) -> Result<Trace, FileError> {
    let mut trace = [0; SAMPLES];
    let mut lines = 0;
    for (n, line) in text.trim_end().lines().enumerate() {
        let sample = line.trim().parse().ok().filter(|percent| *percent <= 100);
        let Some(sample) = sample else {
            return Err(FileError::Sample { line: n + 1, text: line.trim().chars().take(20).collect() });
        };
        let Some(slot) = trace.get_mut(n) else { return Err(FileError::Length { lines: n + 1 }) };
        *slot = sample;
        lines = n + 1;
    }
    if lines < SAMPLES { Err(FileError::Length { lines }) } else { Ok(trace) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(samples: &[u8]) -> String {
        samples.iter().map(|sample| format!("{sample}\n")).collect()
    }

    #[test]
    fn a_day_is_read() {
        let mut day = [7; SAMPLES];
        (day[0], day[287]) = (100, 0);
        assert_eq!(read_trace(&text(&day)), Ok(day));
        assert_eq!(
            read_trace(text(&day).replace('\n', "\r\n").trim_end()),
            Ok(day),
            "other line ends, none at the last"
        );
    }

    #[test]
    fn what_is_no_day_is_told_with_its_line() {
        let error = |text: &str| read_trace(text).expect_err("it is none").to_string();
        assert_eq!(error(""), "it has 0 lines instead of the 288 of a day of five minutes each");
        assert_eq!(error(&text(&[1; 287])), "it has 287 lines instead of the 288 of a day of five minutes each");
        assert_eq!(error(&text(&[1; 400])), "it has 289 lines instead of the 288 of a day of five minutes each");
        assert_eq!(error("24\n101\n"), "line 2 is '101' instead of a whole number of per cent, 0 to 100");
        assert_eq!(error("24\n\n3"), "line 2 is '' instead of a whole number of per cent, 0 to 100");
        assert_eq!(error("24\n-1"), "line 2 is '-1' instead of a whole number of per cent, 0 to 100");
        assert_eq!(error("NaN"), "line 1 is 'NaN' instead of a whole number of per cent, 0 to 100");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(day in prop::collection::vec(0u8..=100, SAMPLES)) {
            prop_assert_eq!(read_trace(&text(&day)).unwrap().to_vec(), day);
        }

        #[test]
        fn no_text_makes_it_panic(text in "[0-9a-z\\-\n\r .]{0,2000}") {
            let _ = read_trace(&text);
        }
    }
}
