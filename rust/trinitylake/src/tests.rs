//! Handles, versions over time, and what crashes leave behind.

mod crash;
mod discovery;
mod expiry;
mod layers;
mod opening;
mod placement;
mod rollback;
