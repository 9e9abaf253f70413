//! The lab's guest: kernel, initramfs, boot, and what the workload inside reports.
