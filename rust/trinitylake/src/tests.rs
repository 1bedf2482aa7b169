//! Handles, versions over time, and what crashes leave behind.

mod collection;
mod crash;
mod discovery;
mod expiry;
mod layers;
mod lost_roots;
mod opening;
mod placement;
mod refresh;
mod rollback;
