//! Garbage collection (format §7): deletes files that no retained version references, and never a referenced file.
//!
//! 1. *Roots* (`roots`): everything that must stay readable, in one list.
//! 2. *Mark* (`mark`): every file that a root references. Each file is read once, however many roots share it.
//! 3. *Fence* (`collection`): a version whose root records a time of the store; unreferenced files older than it are
//!    deleted. The fence is published only if no version was committed since the mark; otherwise the new versions are
//!    marked, and the fence is tried again. Therefore every later commit is based on the fence, and has to prove that
//!    its own files are younger than that time (`transaction::gc_fence`). From before the fence until the last
//!    deletion, a marker file shows that a collection is running (`marker`).
//! 4. *Sweep* (`sweep`): lists all files below the root, and deletes those that are not marked, are older than that
//!    time, and have a name that only this format creates (`file_classifier`, `file_kind`).
//!
//! Invariants:
//! - No file is deleted before the whole mark has succeeded. A file that cannot be read may reference others, so it
//!   ends the collection with an error.
//! - A file younger than the grace period by the clock of the store is never deleted, nor a file that is not recognised
//!   as the lakehouse's own.
//! - A collector that dies leaves garbage, but never a missing file. Concurrent collectors do not disturb each other.

mod collection;
pub mod disk_usage;
pub mod distributed;
pub mod file_classifier;
pub mod file_kind;
pub mod file_references;
mod mark;
mod marker;
mod report;
mod roots;
mod sweep;
pub mod walk;

pub use collection::{COLLECT_MESSAGE, vacuum};
pub use report::{Count, OnProgress, Options, Progress, Report, no_progress};
pub use sweep::MAX_REPORTED_FOLDERS;
