//! Asks this host's kernel about the network, and programs that configure it.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use skein_network::{Answer, Ask, ENOENT, EtsHost, IeeeEts, Source, dcb_question, dcb_set_answer};

use crate::ethtool::Ethtool;
use crate::local_program;
use crate::netlink::{ask, ask_within, dump, generic};

/// Bounds the size of a file of `/proc` or `/sys`: `/proc/interrupts` of a host with 256 cores and 2,000 interrupts.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Holds the size of `struct ifinfomsg`.
const LINK_FIXED_BYTES: usize = 16;
/// Holds the size of `struct ifaddrmsg`.
const ADDRESS_FIXED_BYTES: usize = 8;
/// Holds the size of `struct tcmsg`.
const QDISC_FIXED_BYTES: usize = 20;
/// Says how long a driver may take to set ETS. Some reset the NIC for that.
const ETS_SECONDS: i64 = 30;
// `linux/if_team.h`.
const TEAM_CMD_OPTIONS_GET: u8 = 2;
const TEAM_ATTR_TEAM_IFINDEX: u16 = 1;

/// This host's kernel, in the network namespace of the thread that made this.
pub struct Kernel {
    ethtool: Option<Ethtool>,
}

impl Kernel {
    /// Opens a socket for questions to drivers. Without one, drivers say nothing.
    pub fn new() -> Kernel {
        Kernel { ethtool: Ethtool::open().ok() }
    }
}

impl Default for Kernel {
    fn default() -> Kernel {
        Kernel::new()
    }
}

impl Source for Kernel {
    fn ask(&self, question: &Ask) -> Answer {
        match question {
            Ask::Links => payloads(libc::RTM_GETLINK, LINK_FIXED_BYTES, libc::RTM_NEWLINK),
            Ask::Addresses => payloads(libc::RTM_GETADDR, ADDRESS_FIXED_BYTES, libc::RTM_NEWADDR),
            Ask::Qdiscs => payloads(libc::RTM_GETQDISC, QDISC_FIXED_BYTES, libc::RTM_NEWQDISC),
            Ask::Classes(index) => {
                let mut body = [0; QDISC_FIXED_BYTES];
                body[4..8].copy_from_slice(&index.to_ne_bytes());
                answer(dump(libc::RTM_GETTCLASS, &body, libc::RTM_NEWTCLASS).map(Answer::Messages))
            }
            Ask::Filters(index, handle) => {
                let mut body = [0; QDISC_FIXED_BYTES];
                body[4..8].copy_from_slice(&index.to_ne_bytes());
                body[12..16].copy_from_slice(&handle.to_ne_bytes());
                answer(dump(libc::RTM_GETTFILTER, &body, libc::RTM_NEWTFILTER).map(Answer::Messages))
            }
            Ask::Dcb(nic) => answer(ask(libc::RTM_GETDCB, &dcb_question(nic)).map(Answer::Bytes)),
            Ask::Driver(nic, what) => match &self.ethtool {
                Some(ethtool) => answer(ethtool.ask(nic, *what).map(Answer::Bytes).map_err(io::Error::from)),
                None => Answer::Refused(ENOENT),
            },
            Ask::Counters(nic) => match &self.ethtool {
                Some(ethtool) => answer(ethtool.counters(nic).map(Answer::Text).map_err(io::Error::from)),
                None => Answer::Refused(ENOENT),
            },
            Ask::Team(index) => answer(team(*index).map(Answer::Messages)),
            Ask::Teamd(team) => local_program::teamd(team),
            Ask::Ovs => local_program::ovs(),
            Ask::File(path) => answer(read(path).map(Answer::Text)),
            Ask::Directory(path) => answer(names(path).map(Answer::Names)),
            Ask::Link(path) => {
                answer(fs::read_link(path).map(|target| Answer::Text(target.to_string_lossy().into_owned())))
            }
        }
    }
}

impl EtsHost for Kernel {
    fn set_ets(&self, nic: &str, ets: &IeeeEts) -> io::Result<()> {
        let answer = ask_within(libc::RTM_SETDCB, &ets.setting(nic), ETS_SECONDS)?;
        let said = dcb_set_answer(&answer).ok_or(io::ErrorKind::InvalidData)?;
        said.map_err(io::Error::from_raw_os_error)
    }

    fn keep(&self, path: &str, text: &str) -> io::Result<()> {
        Path::new(path).parent().map_or(Ok(()), fs::create_dir_all)?;
        let new = format!("{path}.new");
        let mut file = File::create(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    }

    fn forget(&self, path: &str) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Asks the team driver for the options of a team.
fn team(index: u32) -> io::Result<Vec<Vec<u8>>> {
    let mut body = Vec::from(8u16.to_ne_bytes());
    body.extend(TEAM_ATTR_TEAM_IFINDEX.to_ne_bytes());
    body.extend(index.to_ne_bytes());
    generic("team", TEAM_CMD_OPTIONS_GET, &body)
}

fn answer(result: io::Result<Answer>) -> Answer {
    result.unwrap_or_else(|error| Answer::Refused(error.raw_os_error().unwrap_or(libc::EIO)))
}

fn payloads(request: u16, fixed_bytes: usize, kind: u16) -> Answer {
    answer(dump(request, &vec![0; fixed_bytes], kind).map(Answer::Messages))
}

fn read(path: &str) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn names(path: &str) -> io::Result<Vec<String>> {
    let mut names: Vec<String> =
        fs::read_dir(path)?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_refused_with_the_systems_reason() {
        let kernel = Kernel::new();
        assert_eq!(kernel.ask(&Ask::File("/sys/no-such-file".into())), Answer::Refused(ENOENT));
        assert_eq!(kernel.ask(&Ask::Directory("/sys/no-such-directory".into())), Answer::Refused(ENOENT));
        // Loopback has no Data Center Bridging, and a NIC that is not there even less.
        for nic in ["lo", "no-such-nic"] {
            assert!(matches!(kernel.ask(&Ask::Dcb(nic.into())), Answer::Refused(_)), "{nic}");
        }
        let ets = serde_json::from_str(&format!("\"{}\"", "00".repeat(59))).unwrap();
        assert!(kernel.set_ets("lo", &ets).unwrap_err().raw_os_error().is_some(), "nor can it be given any");
        // Loopback is no team; most kernels have no team driver at all.
        assert!(matches!(kernel.ask(&Ask::Team(1)), Answer::Refused(_)));
        for odd in ["../teamd/x", ".", "no-such-team"] {
            assert!(matches!(kernel.ask(&Ask::Teamd(odd.into())), Answer::Refused(_)), "{odd}");
        }
        assert!(kernel.ask(&Ask::File("/proc/interrupts".into())).text().unwrap().contains("CPU0"));
        assert!(!kernel.ask(&Ask::Links).messages().is_empty());
    }
}
