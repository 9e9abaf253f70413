//! Loads libfabric, and asks which rails it offers.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::net::IpAddr;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use crate::fabric::{Abilities, FabricError};
use crate::ffi::{
    FI_CONTEXT, FI_CONTEXT2, FI_EP_RDM, FI_MR_ALLOCATED, FI_MR_LOCAL, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_MSG, FI_READ,
    FI_RECV, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA, FI_RX_CQ_DATA, FI_SEND, FI_SOURCE, FI_THREAD_SAFE, FI_WRITE,
    fi_fabric_attr, fi_info, fid_fabric,
};

/// The name under which the dynamic linker finds the library. Releases 1 and 2 have the same.
const LIBRARY: &str = "libfabric.so.1";
/// The release whose interface is asked for: the oldest with all that is used, which Debian 12 has.
const VERSION: u32 = version(1, 17);
/// Bounds the offers that are looked at, should a list of the library's have no end.
const OFFERS_MAX: usize = 256;

const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

type GetInfo = unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int;

/// The library, loaded for good.
pub struct Library {
    getinfo: GetInfo,
    freeinfo: unsafe extern "C" fn(*mut fi_info),
    dupinfo: unsafe extern "C" fn(*const fi_info) -> *mut fi_info,
    pub(crate) fabric: unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int,
    version: unsafe extern "C" fn() -> u32,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl Library {
    /// Loads the library, once for this process. Nothing unloads it, because providers start threads.
    ///
    /// # Errors
    /// [`FabricError::NoLibrary`]: the library is not installed, too old, or lacks a symbol.
    pub fn get() -> Result<&'static Library, FabricError> {
        static LOADED: OnceLock<Result<Library, FabricError>> = OnceLock::new();
        LOADED.get_or_init(Library::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Library, FabricError> {
        let missing = |error: libloading::Error| {
            FabricError::NoLibrary(format!("{LIBRARY} cannot be loaded (Debian: apt install libfabric1): {error}"))
        };
        // SAFETY: libfabric's constructors only set the library up; the distribution's library is as trusted as libc.
        let library = unsafe { libloading::Library::new(LIBRARY) }.map_err(missing)?;
        // SAFETY: each symbol has the type that `rdma/fabric.h` and `rdma/fi_errno.h` give it, and is used as that.
        let loaded = unsafe {
            Library {
                getinfo: *library.get(c"fi_getinfo".to_bytes_with_nul()).map_err(missing)?,
                freeinfo: *library.get(c"fi_freeinfo".to_bytes_with_nul()).map_err(missing)?,
                dupinfo: *library.get(c"fi_dupinfo".to_bytes_with_nul()).map_err(missing)?,
                fabric: *library.get(c"fi_fabric".to_bytes_with_nul()).map_err(missing)?,
                version: *library.get(c"fi_version".to_bytes_with_nul()).map_err(missing)?,
                strerror: *library.get(c"fi_strerror".to_bytes_with_nul()).map_err(missing)?,
            }
        };
        std::mem::forget(library);
        check_release(loaded.version())?;
        Ok(loaded)
    }

    /// Returns the major and minor number of the library's release.
    pub fn version(&self) -> (u16, u16) {
        // SAFETY: takes nothing, and returns a number.
        let version = unsafe { (self.version)() };
        ((version >> 16) as u16, version as u16)
    }

    /// Returns the error of a call that returned `code`, a negative number.
    pub(crate) fn error(&self, call: &str, code: isize) -> FabricError {
        let code = i32::try_from(code.unsigned_abs()).unwrap_or(i32::MAX);
        // SAFETY: takes any number, and returns a string that is never freed.
        let words = unsafe { (self.strerror)(code) };
        // SAFETY: a string with its end, or null.
        let words = if words.is_null() { String::new() } else { unsafe { text(words) } };
        FabricError::Call { call: call.to_owned(), code, words }
    }

    /// Returns the rails that providers offer at a local address; `None`: wherever. `provider` as libfabric names
    /// providers; `None`: all providers.
    ///
    /// # Errors
    /// The library fails. That there is none is no error.
    pub fn offers(&'static self, provider: Option<&str>, at: Option<IpAddr>) -> Result<Vec<Offer>, FabricError> {
        const FI_ENODATA: c_int = 61;
        let hints = self.hints(provider)?;
        let node = at.map(|ip| CString::new(ip.to_string()).expect("an address has no zero byte"));
        let (node, flags) = node.as_ref().map_or((null(), 0), |node| (node.as_ptr(), FI_SOURCE));
        let mut list = null_mut();
        // SAFETY: the hints are the library's own object, with fields as their type says; the node is a string or null.
        let code = unsafe { (self.getinfo)(VERSION, node, null(), flags, hints.info, &mut list) };
        if code == -FI_ENODATA {
            return Ok(Vec::new());
        }
        if code < 0 {
            return Err(self.error("fi_getinfo", code as isize));
        }
        let list = OwnedInfo { info: list, library: self };
        let mut offers = Vec::new();
        let mut next = list.info;
        while !next.is_null() && offers.len() < OFFERS_MAX {
            // SAFETY: an element of the list, which lives; a copy of one element has no next.
            let copy = unsafe { (self.dupinfo)(next) };
            if !copy.is_null() {
                offers.extend(Offer::new(OwnedInfo { info: copy, library: self }));
            }
            // SAFETY: as above.
            next = unsafe { (*next).next };
        }
        Ok(offers)
    }

    /// Returns what is asked of a provider: messages and one-sided operations both ways.
    fn hints(&'static self, provider: Option<&str>) -> Result<OwnedInfo, FabricError> {
        let no_memory = || FabricError::NoMemory("for fi_allocinfo".into());
        // SAFETY: null asks for a new object, as `fi_allocinfo` does.
        let info = unsafe { (self.dupinfo)(null()) };
        if info.is_null() {
            return Err(no_memory());
        }
        let hints = OwnedInfo { info, library: self };
        // SAFETY: a new object has all its parts; the name is memory of malloc, which `fi_freeinfo` frees.
        unsafe {
            (*info).caps = FI_MSG | FI_RMA | FI_READ | FI_WRITE | FI_RECV | FI_SEND | FI_REMOTE_READ | FI_REMOTE_WRITE;
            (*info).mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
            (*(*info).ep_attr).type_ = FI_EP_RDM;
            (*(*info).domain_attr).mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
            (*(*info).domain_attr).threading = FI_THREAD_SAFE;
            if let Some(provider) = provider {
                let name = CString::new(provider).map_err(|_| FabricError::Misbehaves("a name with a zero".into()))?;
                (*(*info).fabric_attr).prov_name = nix::libc::strdup(name.as_ptr());
            }
        }
        Ok(hints)
    }
}

/// Checks that a release of the library, of this major and minor number, has all that is used.
///
/// # Errors
/// [`FabricError::NoLibrary`]: the release is too old.
fn check_release((major, minor): (u16, u16)) -> Result<(), FabricError> {
    if version(major.into(), minor.into()) < VERSION {
        let wanted = format!("{}.{}", VERSION >> 16, VERSION & 0xffff);
        return Err(FabricError::NoLibrary(format!("{LIBRARY} is {major}.{minor}: {wanted} or newer is needed")));
    }
    Ok(())
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (major, minor) = self.version();
        write!(f, "libfabric {major}.{minor}")
    }
}

/// # Safety
/// `at` is a string with its end.
unsafe fn text(at: *const c_char) -> String {
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

/// An object of the library's, freed when dropped.
struct OwnedInfo {
    info: *mut fi_info,
    library: &'static Library,
}

impl Drop for OwnedInfo {
    fn drop(&mut self) {
        // SAFETY: the library made it, and nothing else has it.
        unsafe { (self.library.freeinfo)(self.info) };
    }
}

// SAFETY: plain memory that nothing changes after it was made.
unsafe impl Send for OwnedInfo {}
// SAFETY: as above.
unsafe impl Sync for OwnedInfo {}

/// A rail that a provider offers.
pub struct Offer {
    info: OwnedInfo,
    abilities: Abilities,
}

impl Offer {
    /// Returns the offer, unless the provider left out what every offer has.
    fn new(info: OwnedInfo) -> Option<Offer> {
        // SAFETY: an element of `fi_getinfo`'s list, which has these parts; null where a provider misbehaves.
        let abilities = unsafe {
            let (ep, domain, fabric) = ((*info.info).ep_attr, (*info.info).domain_attr, (*info.info).fabric_attr);
            let (ep, domain, fabric) = (ep.as_ref()?, domain.as_ref()?, fabric.as_ref()?);
            let name = |at: *mut c_char| if at.is_null() { String::new() } else { text(at) };
            Abilities {
                provider: name(fabric.prov_name),
                protocol: (ep.protocol, ep.protocol_version),
                device: name(domain.name),
                immediate_bytes: domain.cq_data_size,
                operation_bytes_max: ep.max_msg_size,
            }
        };
        Some(Offer { info, abilities })
    }

    /// Returns what the rail's provider can do.
    pub fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.info.library
    }

    pub(crate) fn info(&self) -> *mut fi_info {
        self.info.info
    }
}

impl std::fmt::Debug for Offer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.abilities.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_that_is_too_old_is_told_and_newer_ones_are_used() {
        for (major, minor) in [(0, 0), (0, u16::MAX), (1, 0), (1, 16)] {
            let why = format!("libfabric.so.1 is {major}.{minor}: 1.17 or newer is needed");
            assert_eq!(check_release((major, minor)), Err(FabricError::NoLibrary(why)));
        }
        // Release 2 has the interface of release 1 as well, under the same name.
        for release in [(1, 17), (1, 18), (1, u16::MAX), (2, 0), (2, 6), (u16::MAX, u16::MAX)] {
            assert_eq!(check_release(release), Ok(()), "{release:?}");
        }
    }
}
