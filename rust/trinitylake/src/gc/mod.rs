//! Garbage collection (format §7): deletes files that no retained version references, and never a referenced file.
//!
//! 1. *Roots* (`roots`): everything that must stay readable, in one list.
//! 2. *Mark* (`mark`): every file that a root references. Each file is read once, however many roots share it.
//! 3. *Fence* (`collection`): a version whose root records a time of the store. Unreferenced files older than this time
//!    are deleted. The fence is the version after the last marked one: if other versions were committed meanwhile, they
//!    are marked, and the fence is tried again. Every later commit follows the fence, and has to prove that its own
//!    files are younger than this time (`transaction::gc_fence`). From before the fence until the last deletion, a
//!    marker file shows that a collection is running (`marker`).
//! 4. *Sweep* (`sweep`): lists all files of the lakehouse, and deletes files that are not marked, are older than this
//!    time, and have a name that only this format creates (`file_classifier`, `file_kind`).
//!
//! Invariants:
//! - No file is deleted before the whole mark has succeeded. If a file cannot be read, the collection ends with an
//!   error, because the file may reference others.
//! - Neither a file younger than the grace period, by the clock of the store, nor a file that is not recognised as the
//!   lakehouse's own is ever deleted.
//! - If a collector dies, garbage remains, but no referenced file is missing. Collections may run concurrently.

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
