//! Garbage collection (format §7): deleting files that no kept version reaches, and never one that some version does.
//!
//! 1. *Roots* (`roots`): all that must stay readable, in one list.
//! 2. *Mark* (`mark`): every file that a root reaches, each read once however many roots share it.
//! 3. *Fence*: a version whose root says before which time of the store files are deleted. It is published only if
//!    nobody committed since the mark; else what was committed is marked, too, and it is tried again. So whatever
//!    commits later has seen it, and proves that its own files are younger (`transaction::fence`). From before it until
//!    the last file is gone, a file says that a collection is under way (`under_way`).
//! 4. *Sweep* (`sweep`): of all files below the root, those are deleted that are not marked, are older than that time,
//!    and have a name that only this format gives (`kind`).
//!
//! Invariants:
//! - Nothing is deleted before all of the mark succeeded. What cannot be read may name files, so it ends the collection.
//! - A file younger than the grace by the store's clock is never deleted; one that the collection does not know as the
//!   lakehouse's own, neither.
//! - A collector that dies at any point leaves garbage, nothing else. Several do not disturb each other.

pub mod contents;
pub mod judge;
pub mod kind;
mod mark;
mod roots;
pub mod shared;
mod sweep;
mod under_way;
pub mod usage;
pub mod walk;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::node::draft::Draft;
use crate::transaction::Note;
use crate::transaction::fence::STORE_CLOCK_STEP_MILLIS;
use crate::transaction::inline_definitions::write_definitions_of;
use crate::transaction::records::forget_before;
use crate::transaction::saved_files::give_up_abandoned;
use crate::version::root_metadata::{COLLECTION_PROPERTY, CommittedTransaction};
use crate::version::store_time::StoreTime;
use crate::version::summary::Summary;
use crate::version::{Version, boundary};
use contents::Contents;
use judge::Known;
use kind::Kind;
use mark::Marks;
use sweep::{Sweep, has_roots};
use under_way::UnderWay;

pub use sweep::MAX_TOLD_FOLDERS;

/// How often a collection begins anew where versions expire while it reads them.
const LOOKS: u32 = 5;
/// How often it tries to be a version, among others who commit.
const ATTEMPTS: u32 = 1000;
/// Message of the version that a collection makes.
pub const COLLECT_MESSAGE: &str = "collect files that no version reaches";

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How old a file must be, by the store's clock, before it is deleted: `txn_ttl_millis` if not given.
    pub grace_millis: Option<u64>,
    /// Look, and delete nothing.
    pub dry_run: bool,
    /// So many paths of each sort are kept in the report.
    pub examples: usize,
    /// What the log has of the versions that it makes.
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

/// What a collection found, and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The version of the fence; `None` if there was nothing to delete, or in a dry run.
    pub version: Option<u64>,
    /// By the store's clock: older files were deleted.
    pub before_millis: u64,
    /// Deleted, or in a dry run what would be, by the kind of file.
    pub deleted: BTreeMap<Kind, Count>,
    /// The same of files of tables, by the folder of the table.
    pub deleted_by_folder: BTreeMap<String, Count>,
    /// Reached by a version, a snapshot or what else is kept, or the format's own.
    pub kept: BTreeMap<Kind, Count>,
    /// Not reached, and too young.
    pub young: Count,
    /// Below the root, and nothing that this format makes.
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

    /// Was each file known for one of the lakehouse's own?
    fn knows_all(&self) -> bool {
        self.unknown.files == 0 && self.foreign.files == 0
    }
}

/// What a collection is doing: told to whoever waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Marked(u64),
    Swept(u64),
}

/// Who is told.
pub type OnProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// Nobody.
pub fn silently() -> OnProgress {
    Arc::new(|_| {})
}

/// Deletes what no kept version reaches. `CorruptFile` if something that is reached cannot be read, `VersionExpired` if
/// versions expired while they were read: then nothing that is reached was deleted.
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
                "versions below {oldest_now} expired while files were looked for; try again"
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
    let mut under_way = UnderWay::begin(lakehouse.storage().clone(), prepared.before_millis).await?;
    let collected =
        collect_under_way(lakehouse, contents, &options, prepared, &mut under_way, on_progress).await;
    if !options.dry_run {
        under_way.end(collected.as_ref().is_ok_and(Report::knows_all)).await;
    }
    collected
}

async fn collect_under_way(
    lakehouse: &Arc<Lakehouse>,
    contents: &dyn Contents,
    options: &Options,
    Prepared { time, asked_elapsed_millis, before_millis }: Prepared,
    under_way: &mut UnderWay,
    on_progress: &OnProgress,
) -> Result<Report> {
    let (mut marks, mut marked) = marked(lakehouse, contents, on_progress).await?;
    let mut report = Report { before_millis, roots: marks.roots, ..Report::default() };
    let mut sweep = Sweep::begin(lakehouse, before_millis, marks.oldest, asked_elapsed_millis);
    let mut swept = 0;
    while let Some(files) = sweep.next().await? {
        swept += files.len() as u64;
        let mut doomed = sweep.judge(files, &marks, &mut report, options.examples).await?;
        if !doomed.is_empty() && !options.dry_run {
            // Before the look at what was committed meanwhile, which is to be fresh.
            sweep.wait_for_all_looks(has_roots(&doomed)).await;
            sweep.check_clock(time).await?;
            // The first time with a version of its own; then to see what was committed meanwhile.
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

/// What holds for a collection from its beginning.
#[derive(Clone, Copy, Debug)]
struct Prepared {
    time: StoreTime,
    /// When the store was asked for it.
    asked_elapsed_millis: u64,
    /// By the store's clock: older files may go.
    before_millis: u64,
}

/// Asks for the time, and finishes what an expiry that was interrupted has left.
async fn prepare(lakehouse: &Arc<Lakehouse>, options: &Options) -> Result<Prepared> {
    lakehouse.latest().await?;
    lakehouse.check_intact()?;
    lakehouse.placement().check_writable()?;
    let storage = lakehouse.storage().clone();
    // Whoever looks at a part of the files finds all that is named in place.
    let written = write_definitions_of(storage.as_ref(), &lakehouse.known()).await;
    if !options.dry_run {
        written?;
    }
    let time = StoreTime::ask(storage.as_ref(), lakehouse.environment().as_ref()).await?;
    let asked_elapsed_millis = lakehouse.environment().elapsed_millis();
    let oldest = boundary::boundary(storage.as_ref()).await?;
    if !options.dry_run && oldest > 0 {
        forget_before(lakehouse, oldest, &options.note).await?;
        give_up_abandoned(lakehouse, oldest, time, &options.note).await?;
    }
    let grace_millis = options.grace_millis.unwrap_or(lakehouse.known().definition.transaction_ttl_millis());
    let graced_millis = time.millis_before(grace_millis.max(STORE_CLOCK_STEP_MILLIS));
    let before_millis = graced_millis.min(roots::open_transactions_since(lakehouse, time).await?);
    Ok(Prepared { time, asked_elapsed_millis, before_millis })
}

/// All that the roots reach, and the version up to which that holds.
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
        let roots = roots::of(lakehouse, &latest, oldest).await?;
        match marks.mark(lakehouse, contents, roots, on_progress).await {
            Ok(()) => return Ok((marks, latest)),
            // What was read may have expired meanwhile, and another collection may have deleted it.
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
    marks.mark(lakehouse, contents, roots, &silently()).await
}

/// Publishes the version that says what is collected, after all that it follows was marked.
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
        message: format!("nothing was collected: others committed first {ATTEMPTS} times; try again"),
        keys: Vec::new(),
        winners: Vec::new(),
    })
}
