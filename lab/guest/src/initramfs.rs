//! The initramfs: a cpio archive ("newc" format) with the workload as `/init` and the modules it loads.
//!
//! <https://docs.kernel.org/driver-api/early-userspace/buffer-format.html>

/// The mode bits of a directory, of an executable, of a plain file, and of a character device (inode(7)).
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;
const DEVICE: u32 = 0o020_600;

/// Builds the archive. `program` becomes pid 1. It finds the modules in `/modules`, in the order of `/modules/order`.
pub fn build(program: &[u8], modules: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Archive::default();
    archive.entry("dev", DIRECTORY, (0, 0), b"");
    // Without this node the kernel starts pid 1 without standard error.
    archive.entry("dev/console", DEVICE, (5, 1), b"");
    archive.entry("init", PROGRAM, (0, 0), program);
    archive.entry("modules", DIRECTORY, (0, 0), b"");
    let order: String = modules.iter().map(|(name, _)| format!("{name}.ko\n")).collect();
    archive.entry("modules/order", FILE, (0, 0), order.as_bytes());
    for (name, content) in modules {
        archive.entry(&format!("modules/{name}.ko"), FILE, (0, 0), content);
    }
    archive.finish()
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

impl Archive {
    fn entry(&mut self, name: &str, mode: u32, (major, minor): (u32, u32), content: &[u8]) {
        self.inode += 1;
        let size = u32::try_from(content.len()).expect("files of an initramfs are small");
        let name_size = name.len() as u32 + 1;
        // The fields are inode, mode, uid, gid, links, mtime, size, device, special device, name size, and checksum
        // (unused).
        let fields = [self.inode, mode, 0, 0, 1, 0, size, 0, 0, major, minor, name_size, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), b"");
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_as_the_kernel_wants_them() {
        let archive = build(b"#!abc", &[]);
        // The header is "070701" and 13 fields of 8 digits. Then come the name and its NUL, all padded to 4.
        let (header, rest) = archive.split_at(110);
        assert!(header.starts_with(b"07070100000001000041ed"), "{}", String::from_utf8_lossy(header));
        assert!(rest.starts_with(b"dev\0\0\x00"));
        let init = archive.windows(5).position(|w| w == b"init\0").unwrap();
        assert_eq!((init + 6) % 4, 0, "110 + 5 is one short of a multiple of 4");
        assert_eq!(&archive[init + 6..init + 14], b"#!abc\0\0\0");
        assert!(archive.windows(11).any(|w| w == b"TRAILER!!!\0"));
        assert_eq!(archive.len() % 4, 0);
    }
}
