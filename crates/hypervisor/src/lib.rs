//! QMP and QEMU processes.
