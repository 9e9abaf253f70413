//! Who may do what; ETags; what is noted.
