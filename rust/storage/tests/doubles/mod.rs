//! Storages for tests: one with injected faults, one with latency, and one in memory whose files can be inspected.

pub mod faulty;
pub mod latency;
pub mod memory_files;
