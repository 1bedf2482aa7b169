//! Transactions side by side: what may commit, what must not, and how it ends.

mod certainty;
mod distributed;
mod expired_slots;
mod giving_up;
mod groups;
mod inline_definitions;
mod isolation;
mod limits;
mod places;
mod queue;
mod races;
mod records;
mod register;
mod restore;
mod saved_files;
mod statements;
mod structure;
mod summaries;
mod watch;
mod written_behind;
