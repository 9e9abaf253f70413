//! Transports: one TCP connection on one path, plain or TLS.
