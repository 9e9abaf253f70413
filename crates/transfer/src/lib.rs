//! The data plane: plain threads that join unix sockets, the session core and the links.
