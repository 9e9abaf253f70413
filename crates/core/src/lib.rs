//! Pure session core: frames, streams, paths, credit, scheduling, resend, reassembly. No sockets, threads, clocks or randomness.
