//! Handles, versions over time, and what crashes leave behind.

mod collection;
mod crash;
mod discovery;
mod expiry;
mod files_found;
mod layers;
mod lost_roots;
mod moved_lakehouse;
mod opening;
mod refresh;
mod rollback;
mod tree_compaction;
