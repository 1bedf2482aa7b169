//! Tests of handles, versions, and the state after crashes.

mod adopted_files;
mod crash;
mod discovery;
mod expiry;
pub mod fixture;
mod gc;
mod layers;
mod lost_roots;
mod moved_lakehouse;
mod opening;
mod refresh;
mod rollback;
mod tree_compaction;
