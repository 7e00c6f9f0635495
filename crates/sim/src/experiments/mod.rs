//! The published experiments of the systems that Larder joins, measured on Larder in virtual time.

pub mod buddycache;
