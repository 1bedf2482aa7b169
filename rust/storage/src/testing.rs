//! Storage for tests: that fails, that is slow, and whose files can be looked at.

pub mod faulty;
pub mod latency;
pub mod memory_files;
