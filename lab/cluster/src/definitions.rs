//! Makes VMs' files for guests that are more than a machine.

use std::fs;
use std::path::{Path, PathBuf};

/// A disk's first sector: it writes back each byte that comes by the first serial port. Between bytes it waits for the
/// timer's interrupt, so that the guest takes no CPU.
const ECHO: [u8; 34] = [
    0xfb, // sti
    0xba, 0xfd, 0x03, // next: mov dx, 0x3fd
    0xec, // wait: in al, dx
    0xa8, 0x01, // test al, 1
    0x75, 0x03, // jnz come
    0xf4, // hlt
    0xeb, 0xf8, // jmp wait
    0xba, 0xf8, 0x03, // come: mov dx, 0x3f8
    0xec, // in al, dx
    0x88, 0xc4, // mov ah, al
    0xba, 0xfd, 0x03, // mov dx, 0x3fd
    0xec, // full: in al, dx
    0xa8, 0x20, // test al, 0x20
    0x74, 0xfb, // jz full
    0xba, 0xf8, 0x03, // mov dx, 0x3f8
    0x88, 0xe0, // mov al, ah
    0xee, // out dx, al
    0xeb, 0xdf, // jmp next
];

/// Makes a file of `mib` MiB that does not compress.
pub fn noise(dir: &Path, mib: u64) -> PathBuf {
    let path = dir.join(format!("noise{mib}"));
    let urandom = fs::File::open("/dev/urandom").expect("each Linux has it");
    let mut file = fs::File::create(&path).expect("the directory takes files");
    std::io::copy(&mut std::io::Read::take(urandom, mib << 20), &mut file).expect("the disk has room");
    path
}

/// Returns a VM's file whose guest has this file in its memory, above what firmware looks at.
pub fn filled(definition: &str, file: &Path) -> String {
    let loader = format!("'-device', 'loader,file={},addr=0x1000000,force-raw=on'", file.display());
    definition.replace("args = [", &format!("args = [{loader}, "))
}

/// Returns a VM's file whose guest writes back what is typed at its console. `dir` takes the image of its disk.
pub fn echoing(bare: &str, dir: &Path) -> String {
    let mut image = vec![0; 1 << 20];
    image[..ECHO.len()].copy_from_slice(&ECHO);
    image[510..512].copy_from_slice(&[0x55, 0xaa]);
    let path = dir.join("echo.img");
    fs::write(&path, image).expect("the directory takes files");
    format!("{bare}[[disk]]\npath = '{}'\nformat = 'raw'\ncache = 'writeback'\n", path.display())
}
