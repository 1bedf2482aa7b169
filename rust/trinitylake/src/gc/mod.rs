//! Garbage collection (format §7): deletes files that no retained version reaches, and never a file that one reaches.
//!
//! 1. *Roots* (`roots`): everything that must stay readable, in one list.
//! 2. *Mark* (`mark`): every file that a root reaches. Each file is read once, however many roots share it.
//! 3. *Fence*: a version whose root records a time of the store; older files are deleted. It is published only if no
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
pub mod contents;
pub mod distributed;
pub mod kind;
mod mark;
mod marker;
mod roots;
mod sweep;
pub mod usage;
pub mod walk;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::node::draft::Draft;
use crate::transaction::Note;
use crate::transaction::commit::inline_definitions::write_definitions_of;
use crate::transaction::file_age::STORE_CLOCK_STEP_MILLIS;
use crate::transaction::saved::cleanup::{abort_abandoned, forget_before};
use crate::version::root_metadata::{COLLECTION_PROPERTY, CommittedTransaction};
use crate::version::store_time::StoreTime;
use crate::version::summary::Summary;
use crate::version::{Version, boundary};
use classify::Known;
use contents::Contents;
use kind::Kind;
use mark::Marks;
use marker::GcMarker;
use sweep::{Sweep, has_roots};

pub use sweep::MAX_REPORTED_FOLDERS;

/// Restarts of a collection when versions expire while it reads them.
const LOOKS: u32 = 5;
/// Attempts to publish the fence while other writers commit.
const ATTEMPTS: u32 = 1000;
/// Message of the version that a collection makes.
pub const COLLECT_MESSAGE: &str = "collect files that no version reaches";

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Age by the store's clock at which a file may be deleted: `txn_ttl_millis` by default.
    pub grace_millis: Option<u64>,
    /// Delete nothing.
    pub dry_run: bool,
    /// Number of example paths of each sort in the report.
    pub examples: usize,
    /// Message and author for the log.
    pub note: Note,
}

/// Files, and their size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub files: u64,
    pub size_bytes: u64,
}

impl Count {
    pub(crate) fn add(&mut self, size_bytes: u64) {
        self.files += 1;
        self.size_bytes += size_bytes;
    }
}

/// Result of a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Version of the fence; `None` without anything to delete, or in a dry run.
    pub version: Option<u64>,
    /// By the store's clock: older files were deleted.
    pub before_millis: u64,
    /// Deleted, or in a dry run what would be, by the kind of file.
    pub deleted: BTreeMap<Kind, Count>,
    /// The same of files of tables, by the folder of the table.
    pub deleted_by_folder: BTreeMap<String, Count>,
    /// Reached by a root, or a file of the format itself.
    pub kept: BTreeMap<Kind, Count>,
    /// Not reached, and too young.
    pub young: Count,
    /// Not a file of this format.
    pub unknown: Count,
    /// Belongs to an external or federated table.
    pub foreign: Count,
    /// Some of the paths: deleted, or to be deleted.
    pub deleted_paths: Vec<String>,
    pub unknown_paths: Vec<String>,
    /// Roots that were read.
    pub roots: u64,
}

impl Report {
    pub fn total_deleted(&self) -> Count {
        self.deleted.values().fold(Count::default(), |sum, one| Count {
            files: sum.files + one.files,
            size_bytes: sum.size_bytes + one.size_bytes,
        })
    }

    /// Whether every file was recognised as the lakehouse's own.
    fn knows_all(&self) -> bool {
        self.unknown.files == 0 && self.foreign.files == 0
    }
}

/// Progress of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Marked(u64),
    Swept(u64),
}

/// Callback for progress.
pub type OnProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// Callback that does nothing.
pub fn no_progress() -> OnProgress {
    Arc::new(|_| {})
}

/// Deletes files that no retained version reaches. `CorruptFile` if a reached file cannot be read, `VersionExpired` if
/// versions expired while they were read; no reached file was deleted then.
pub async fn vacuum(
    lakehouse: &Arc<Lakehouse>,
    contents: &dyn Contents,
    options: Options,
    on_progress: &OnProgress,
) -> Result<Report> {
    let oldest = boundary::boundary(lakehouse.storage().as_ref()).await?;
    match collect(lakehouse, contents, options, on_progress).await {
        // Another collection may have deleted what was being read.
        Err(error @ (Error::CorruptFile { .. } | Error::FileNotFound { .. })) => {
            let oldest_now = boundary::boundary(lakehouse.storage().as_ref()).await?;
            if oldest_now == oldest {
                return Err(error);
            }
            Err(Error::VersionExpired(format!(
                "versions below {oldest_now} expired while this garbage collection read them; try again"
            )))
        }
        collected => collected,
    }
}

async fn collect(
    lakehouse: &Arc<Lakehouse>,
    contents: &dyn Contents,
    options: Options,
    on_progress: &OnProgress,
) -> Result<Report> {
    let prepared = prepare(lakehouse, &options).await?;
    let mut under_way = GcMarker::begin(lakehouse.storage().clone(), prepared.before_millis).await?;
    let collected =
        run_collection(lakehouse, contents, &options, prepared, &mut under_way, on_progress).await;
    if !options.dry_run {
        under_way.end(collected.as_ref().is_ok_and(Report::knows_all)).await;
    }
    collected
}

async fn run_collection(
    lakehouse: &Arc<Lakehouse>,
    contents: &dyn Contents,
    options: &Options,
    Prepared { time, asked_elapsed_millis, before_millis }: Prepared,
    under_way: &mut GcMarker,
    on_progress: &OnProgress,
) -> Result<Report> {
    let (mut marks, mut marked) = marked(lakehouse, contents, on_progress).await?;
    let mut report = Report { before_millis, roots: marks.roots, ..Report::default() };
    let mut sweep = Sweep::begin(lakehouse, before_millis, marks.oldest, asked_elapsed_millis);
    let mut swept = 0;
    while let Some(files) = sweep.next().await? {
        swept += files.len() as u64;
        let mut doomed = sweep.classify_all(files, &marks, &mut report, options.examples).await?;
        if !doomed.is_empty() && !options.dry_run {
            // Before reading what was committed meanwhile, which must be fresh.
            sweep.wait_for_all_looks(has_roots(&doomed)).await;
            sweep.check_clock(time).await?;
            // First publish the fence; from then on read what was committed meanwhile.
            let newer = match report.version {
                None => {
                    under_way.announce(lakehouse.environment().as_ref()).await?;
                    let fence =
                        fence(lakehouse, contents, &mut marks, marked.clone(), before_millis, &options.note)
                            .await?;
                    report.version = Some(fence.number);
                    fence
                }
                Some(_) => {
                    let latest = lakehouse.latest().await?;
                    mark_since(lakehouse, contents, &mut marks, &marked, &latest).await?;
                    latest
                }
            };
            marked = newer;
            doomed.retain(|(_, file)| !marks.contains(&file.path));
            under_way.deletes();
            sweep.delete(&doomed).await?;
            under_way.has_deleted();
        }
        report.count_deleted(&doomed, options.examples);
        on_progress(Progress::Swept(swept));
    }
    Ok(report)
}

/// Times fixed at the beginning of a collection.
#[derive(Clone, Copy, Debug)]
struct Prepared {
    time: StoreTime,
    /// When the store was asked for it.
    asked_elapsed_millis: u64,
    /// By the store's clock: older files may go.
    before_millis: u64,
}

/// Reads the clock of the store, and completes an interrupted expiry.
async fn prepare(lakehouse: &Arc<Lakehouse>, options: &Options) -> Result<Prepared> {
    lakehouse.latest().await?;
    lakehouse.check_intact()?;
    lakehouse.placement().check_writable()?;
    let storage = lakehouse.storage().clone();
    // Partial readers find every named definition file in its place.
    let written = write_definitions_of(storage.as_ref(), &lakehouse.known()).await;
    if !options.dry_run {
        written?;
    }
    let time = StoreTime::ask(storage.as_ref(), lakehouse.environment().as_ref()).await?;
    let asked_elapsed_millis = lakehouse.environment().elapsed_millis();
    let oldest = boundary::boundary(storage.as_ref()).await?;
    if !options.dry_run && oldest > 0 {
        forget_before(lakehouse, oldest, &options.note).await?;
        abort_abandoned(lakehouse, oldest, time, &options.note).await?;
    }
    let grace_millis = options.grace_millis.unwrap_or(lakehouse.known().definition.transaction_ttl_millis());
    let graced_millis = time.millis_before(grace_millis.max(STORE_CLOCK_STEP_MILLIS));
    let before_millis = graced_millis.min(roots::open_transactions_since(lakehouse, time).await?);
    Ok(Prepared { time, asked_elapsed_millis, before_millis })
}

/// Marks all files that the roots reach; returns the version up to which that holds.
async fn marked(
    lakehouse: &Arc<Lakehouse>,
    contents: &dyn Contents,
    on_progress: &OnProgress,
) -> Result<(Marks, Arc<Version>)> {
    let mut look = 1;
    loop {
        let latest = lakehouse.latest().await?;
        let oldest = boundary::boundary(lakehouse.storage().as_ref()).await?;
        let mut marks = Marks::new(oldest);
        let roots = roots::of(&latest, oldest);
        match marks.mark(lakehouse, contents, roots, on_progress).await {
            Ok(()) => return Ok((marks, latest)),
            // The version may have expired meanwhile, and another collection may have deleted its files.
            Err(
                error @ (Error::CorruptFile { .. } | Error::FileNotFound { .. } | Error::VersionExpired(_)),
            ) => {
                let has_risen = boundary::boundary(lakehouse.storage().as_ref()).await? > oldest;
                if !has_risen || look == LOOKS {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        look += 1;
    }
}

/// Marks what was committed after `marked`, up to `latest`.
async fn mark_since(
    lakehouse: &Arc<Lakehouse>,
    contents: &dyn Contents,
    marks: &mut Marks,
    marked: &Arc<Version>,
    latest: &Arc<Version>,
) -> Result<()> {
    if latest.number <= marked.number {
        return Ok(());
    }
    let roots = roots::between(marked.number + 1, latest);
    marks.mark(lakehouse, contents, roots, &no_progress()).await
}

/// Publishes the version of the fence, after every version before it was marked.
async fn fence(
    lakehouse: &Arc<Lakehouse>,
    contents: &dyn Contents,
    marks: &mut Marks,
    mut marked: Arc<Version>,
    before_millis: u64,
    note: &Note,
) -> Result<Arc<Version>> {
    for _ in 0..ATTEMPTS {
        let latest = lakehouse.latest().await?;
        mark_since(lakehouse, contents, marks, &marked, &latest).await?;
        marked = latest.clone();
        let transaction = CommittedTransaction {
            id: lakehouse.environment().uuid().to_string(),
            isolation: "serializable".into(),
            message: note.message_or(COLLECT_MESSAGE),
            author: note.author.clone(),
            began_at_version: latest.number,
            properties: [(COLLECTION_PROPERTY.to_string(), before_millis.to_string())].into(),
            summary: Summary::plain("vacuum files that no version reaches"),
        };
        let mut metadata = lakehouse.publisher().next_metadata(&latest, vec![transaction]);
        metadata.gc_before_millis = metadata.gc_before_millis.max(Some(before_millis));
        let draft = Draft::of(&latest.root, lakehouse.nodes().height_of(&latest.root).await?);
        match lakehouse.publisher().publish_alone(&latest, metadata, draft, "the collection").await {
            Err(Error::CommitConflict { .. }) => {}
            published => return published,
        }
    }
    Err(Error::CommitConflict {
        message: format!(
            "no garbage was collected: other writers committed first {ATTEMPTS} times; try again"
        ),
        keys: Vec::new(),
        winners: Vec::new(),
    })
}
