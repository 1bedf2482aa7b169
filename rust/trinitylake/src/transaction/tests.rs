//! Concurrent transactions: which of them may commit, which must not, and their outcomes.

mod abort;
mod append_queue;
mod background_uploads;
mod bulk_registration;
mod chosen_ids;
mod companions;
mod expired_root_names;
mod groups;
mod inline_definitions;
mod intent_queue;
mod isolation;
mod limits;
mod new_paths;
mod object_rollback;
mod races;
mod requirements;
mod restart;
mod saved;
mod saved_cleanup;
mod statements;
mod summaries;
mod turns;
mod unknown_outcome;
mod watched_reads;
