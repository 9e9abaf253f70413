//! A cluster's CA and the identities it issues; TLS configurations made from them.
