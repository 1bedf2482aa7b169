//! Garbage collection (format §7): deletes files that no retained version reaches, and never a file that one reaches.
//!
//! 1. *Roots* (`roots`): everything that must stay readable, in one list.
//! 2. *Mark* (`mark`): every file that a root reaches. Each file is read once, however many roots share it.
//! 3. *Fence* (`collection`): a version whose root records a time of the store; older files are deleted. It is published only if no
//!    version was committed since the mark; else the new versions are marked and the fence is tried again. So every
//!    later commit has seen it, and proves that its own files are younger (`transaction::gc_fence`). From before the
//!    fence until the last deletion, a marker file says that a collection is running (`marker`).
//! 4. *Sweep* (`sweep`): of all files below the root, those are deleted that are not marked, are older than that time,
//!    and have a name that only this format gives (`classify`, `kind`).
//!
//! Invariants:
//! - No file is deleted before the whole mark has succeeded. A file that cannot be read may name others, so it ends the
//!   collection.
//! - A file younger than the grace period by the clock of the store is never deleted, nor a file that is not recognised
//!   as the lakehouse's own.
//! - A collector that dies at any point leaves garbage and nothing else. Several collectors do not disturb each other.

pub mod classify;
mod collection;
pub mod contents;
pub mod distributed;
pub mod kind;
mod mark;
mod marker;
mod report;
mod roots;
mod sweep;
pub mod usage;
pub mod walk;

pub use collection::{COLLECT_MESSAGE, vacuum};
pub use report::{Count, OnProgress, Options, Progress, Report, no_progress};
pub use sweep::MAX_REPORTED_FOLDERS;
