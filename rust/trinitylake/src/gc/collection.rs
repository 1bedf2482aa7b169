//! Runs one garbage collection: mark, fence and sweep, in this order.

use std::sync::Arc;

use super::file_classifier::Known;
use super::file_references::Contents;
use super::mark::Marks;
use super::marker::GcMarker;
use super::report::{OnProgress, Options, Progress, Report, no_progress};
use super::roots;
use super::sweep::{Sweep, has_roots};
use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::node::mutable_node::MutableNode;
use crate::transaction::Note;
use crate::transaction::commit::inline_definitions::write_definitions_of;
use crate::transaction::saved::cleanup::{abort_abandoned, forget_before};
use crate::version::root_metadata::{COLLECTION_PROPERTY, CommittedTransaction};
use crate::version::store_clock::{ClockCheck, FILE_TIME_PRECISION_MILLIS};
use crate::version::summary_format::Summary;
use crate::version::{Version, expiry_boundary};

/// Maximum number of attempts to mark while versions expire.
const MAX_MARK_ATTEMPTS: u32 = 5;
/// Maximum number of attempts to publish the fence while other writers commit.
const ATTEMPTS: u32 = 1000;
/// Default commit message of the fence.
pub const COLLECT_MESSAGE: &str = "collect files that no version reaches";

/// Deletes files that no retained version references. `CorruptFile` if a referenced file cannot be read,
/// `VersionExpired` if versions expired during the mark. After an error, all referenced files still exist.
pub async fn vacuum(
    lakehouse: &Arc<Lakehouse>,
    contents: &dyn Contents,
    options: Options,
    on_progress: &OnProgress,
) -> Result<Report> {
    let oldest = expiry_boundary::boundary(lakehouse.storage().as_ref()).await?;
    match collect(lakehouse, contents, options, on_progress).await {
        // An expiry and another collection may have deleted the file during the mark.
        Err(error @ (Error::CorruptFile { .. } | Error::FileNotFound { .. })) => {
            let oldest_now = expiry_boundary::boundary(lakehouse.storage().as_ref()).await?;
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
    let collected = run_collection(lakehouse, contents, &options, prepared, &mut under_way, on_progress).await;
    if !options.dry_run {
        under_way.end(collected.as_ref().is_ok_and(Report::knows_all)).await;
    }
    collected
}

async fn run_collection(
    lakehouse: &Arc<Lakehouse>,
    contents: &dyn Contents,
    options: &Options,
    Prepared { clock, before_millis }: Prepared,
    under_way: &mut GcMarker,
    on_progress: &OnProgress,
) -> Result<Report> {
    let (mut marks, mut marked) = marked(lakehouse, contents, on_progress).await?;
    let mut report = Report { before_millis, roots: marks.roots, ..Report::default() };
    let mut sweep = Sweep::begin(lakehouse, before_millis, marks.oldest, clock);
    let mut swept = 0;
    while let Some(files) = sweep.next().await? {
        swept += files.len() as u64;
        let mut garbage = sweep.classify_all(files, &marks, &mut report, options.examples).await?;
        if !garbage.is_empty() && !options.dry_run {
            // Wait before marking the newest versions, because more versions may be committed during the wait.
            sweep.wait_for_older_observations(has_roots(&garbage)).await;
            sweep.check_clock().await?;
            // Publish the fence before the first deletion; before later ones, mark the versions committed since.
            let newer = match report.version {
                None => {
                    under_way.announce(lakehouse.environment().as_ref()).await?;
                    let fence =
                        fence(lakehouse, contents, &mut marks, marked.clone(), before_millis, &options.note).await?;
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
            garbage.retain(|(_, file)| !marks.contains(&file.path));
            under_way.deletes();
            sweep.delete(&garbage).await?;
            under_way.has_deleted();
        }
        report.count_deleted(&garbage, options.examples);
        on_progress(Progress::Swept(swept));
    }
    Ok(report)
}

/// Times that are fixed at the beginning of a collection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prepared {
    pub(super) clock: ClockCheck,
    /// Unreferenced files older than this time of the store are garbage.
    pub(super) before_millis: u64,
}

/// Reads the clock of the store, and completes an interrupted expiry.
pub(super) async fn prepare(lakehouse: &Arc<Lakehouse>, options: &Options) -> Result<Prepared> {
    lakehouse.latest().await?;
    lakehouse.check_intact()?;
    lakehouse.placement().check_writable()?;
    let storage = lakehouse.storage().clone();
    // An erasure may have replaced a metadata file by one with other references: do not use the cached one.
    storage.forget_cached();
    // Some readers ignore inline definitions, so every definition file has to exist.
    let written = write_definitions_of(storage.as_ref(), &lakehouse.known()).await;
    if !options.dry_run {
        written?;
    }
    let clock = ClockCheck::begin(storage.as_ref(), lakehouse.environment().as_ref()).await?;
    let time = clock.begun;
    let oldest = expiry_boundary::boundary(storage.as_ref()).await?;
    if !options.dry_run && oldest > 0 {
        forget_before(lakehouse, oldest, &options.note).await?;
        abort_abandoned(lakehouse, oldest, time, &options.note).await?;
    }
    let grace_millis = options.grace_millis.unwrap_or(lakehouse.known().definition.transaction_ttl_millis());
    let graced_millis = time.millis_before(grace_millis.max(FILE_TIME_PRECISION_MILLIS));
    let before_millis = graced_millis.min(roots::open_transactions_since(lakehouse, time).await?);
    Ok(Prepared { clock, before_millis })
}

/// Marks all files that the roots reference. Returns the marks, and the latest version that they include.
async fn marked(
    lakehouse: &Arc<Lakehouse>,
    contents: &dyn Contents,
    on_progress: &OnProgress,
) -> Result<(Marks, Arc<Version>)> {
    let mut look = 1;
    loop {
        let latest = lakehouse.latest().await?;
        let oldest = expiry_boundary::boundary(lakehouse.storage().as_ref()).await?;
        let mut marks = Marks::new(oldest);
        let roots = roots::of(&latest, oldest);
        match marks.mark(lakehouse, contents, roots, on_progress).await {
            Ok(()) => return Ok((marks, latest)),
            // If a version expired during the mark, another collection may have deleted its files: begin again.
            Err(error @ (Error::CorruptFile { .. } | Error::FileNotFound { .. } | Error::VersionExpired(_))) => {
                let has_risen = expiry_boundary::boundary(lakehouse.storage().as_ref()).await? > oldest;
                if !has_risen || look == MAX_MARK_ATTEMPTS {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        look += 1;
    }
}

/// Marks the versions after `marked`, up to `latest`.
pub(super) async fn mark_since(
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

/// Publishes the fence as the version after the latest one. All versions up to that one are marked before.
pub(super) async fn fence(
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
        let draft = MutableNode::of(&latest.root, lakehouse.nodes().height_of(&latest.root).await?);
        match lakehouse.publisher().publish_alone(&latest, metadata, draft, "the collection").await {
            Err(Error::CommitConflict { .. }) => {}
            published => return published,
        }
    }
    Err(Error::conflict(format!("no garbage was collected: other writers committed first {ATTEMPTS} times; try again")))
}
