//! Which copies go when memory is short.
