//! Garbage collection shared among many machines. An engine distributes lists of files and decides nothing:
//!
//! 1. [`DistributedGc::begin`] names the roots, and the time before which files may go.
//! 2. [`links`] reads some files that are reached, and says what they reach. Each file is read once, level by level
//!    ([`Sort`]): so no list has to be searched for what was read before.
//! 3. [`Walk::divided`](super::walk::Walk::divided) takes the root apart; the files below the places are listed.
//! 4. [`Classifier::classify`](super::classify::Classifier) classifies each file, given its marks.
//! 5. [`DistributedGc::fence`] makes the version of the fence, and before each further lot of files marks what was committed
//!    since. That is little, so it is held here, with the nodes of the version that was marked: what is not among these
//!    is new. [`Fresh`] carries it to the machines that delete.
//! 6. [`DistributedGc::end`], once all of that was deleted.
//!
//! Here are the roots, the nodes of one version, and what is new: nothing that grows with the files of tables.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};

use super::collection::{Prepared, fence, mark_since, prepare};
use super::contents::{Contents, FileForm, Form};
use super::mark::{Found, InlineDefinitions, Item, Marks, Paths, hash, open};
use super::marker::GcMarker;
use super::report::Options;
use super::roots;
use super::sweep::{Sweep, delete_all};
use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::path::root_path;
use crate::storage::Storage;
use crate::transaction::Note;
use crate::tree::diff::new_nodes;
use crate::tree::nodes::PARALLEL_REQUESTS;
use crate::version::{Version, boundary};

/// What a file is, as far as others are found by it. In the order in which they are read: a file names only files of
/// later sorts, and a node also nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sort {
    Root,
    Node,
    Table,
    Metadata,
    ExternalMetadata,
    ManifestList,
    Manifest,
    /// It is kept, and names nothing.
    Kept,
    /// No file, but a folder of a managed table.
    Folder,
    /// No file, but a folder of a table that is somebody else's.
    Foreign,
}

/// All of them.
pub const SORTS: [Sort; 10] = [
    Sort::Root,
    Sort::Node,
    Sort::Table,
    Sort::Metadata,
    Sort::ExternalMetadata,
    Sort::ManifestList,
    Sort::Manifest,
    Sort::Kept,
    Sort::Folder,
    Sort::Foreign,
];

impl Sort {
    pub fn word(self) -> &'static str {
        match self {
            Sort::Root => "root",
            Sort::Node => "node",
            Sort::Table => "table",
            Sort::Metadata => "metadata",
            Sort::ExternalMetadata => "external metadata",
            Sort::ManifestList => "manifest list",
            Sort::Manifest => "manifest",
            Sort::Kept => "kept",
            Sort::Folder => "folder",
            Sort::Foreign => "foreign",
        }
    }

    pub fn of_word(word: &str) -> Result<Sort> {
        let found = SORTS.into_iter().find(|sort| sort.word() == word);
        found.ok_or_else(|| Error::InvalidArgument(format!("{word:?} is no sort of files")))
    }

    fn of_form(form: FileForm) -> Sort {
        match form {
            FileForm::Metadata => Sort::Metadata,
            FileForm::ExternalMetadata => Sort::ExternalMetadata,
            FileForm::Iceberg(Form::ManifestList) => Sort::ManifestList,
            FileForm::Iceberg(Form::Manifest) => Sort::Manifest,
            FileForm::Iceberg(Form::Content | Form::Deletes) => Sort::Kept,
        }
    }

    /// `None` for what is not read.
    fn item(self, name: String) -> Result<Option<Item>> {
        let form = match self {
            Sort::Root => {
                let number = name.parse();
                let wrong = |_| Error::InvalidArgument(format!("{name:?} is no version"));
                return Ok(Some(Item::Root(number.map_err(wrong)?)));
            }
            Sort::Node => return Ok(Some(Item::Node(name))),
            Sort::Table => return Ok(Some(Item::Table { location: name, key: String::new() })),
            Sort::Metadata => FileForm::Metadata,
            Sort::ExternalMetadata => FileForm::ExternalMetadata,
            Sort::ManifestList => FileForm::Iceberg(Form::ManifestList),
            Sort::Manifest => FileForm::Iceberg(Form::Manifest),
            Sort::Kept | Sort::Folder | Sort::Foreign => return Ok(None),
        };
        Ok(Some(Item::File(name, form)))
    }
}

/// A file or folder, and what it is.
pub type Named = (Sort, String);

/// What these reach by themselves; a root is named by its version. `CorruptFile` if one cannot be read.
pub async fn links(storage: &dyn Storage, contents: &dyn Contents, files: Vec<Named>) -> Result<Vec<Named>> {
    let inline = &InlineDefinitions::default();
    let read = |(sort, name): Named| async move {
        let Some(item) = sort.item(name)? else { return Ok(Vec::new()) };
        let found = open(storage, contents, inline, item).await?;
        found.into_iter().filter_map(named).map(|link| in_order(sort, link)).collect::<Result<Vec<Named>>>()
    };
    let found: Vec<Vec<Named>> =
        stream::iter(files).map(read).buffer_unordered(PARALLEL_REQUESTS).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

fn named(found: Found) -> Option<Named> {
    Some(match found {
        Found::Item(Item::Root(number)) => (Sort::Root, number.to_string()),
        Found::Item(Item::Node(path)) => (Sort::Node, path),
        Found::Item(Item::Table { location, .. }) => (Sort::Table, location),
        Found::Item(Item::File(path, form)) => (Sort::of_form(form), path),
        Found::Path(path) | Found::Deletes(path) => (Sort::Kept, path),
        Found::Folder(folder) => (Sort::Folder, folder),
        Found::Foreign(folder) => (Sort::Foreign, folder),
        Found::Named { .. } => return None,
    })
}

/// A file that names one of a sort that was read before would be left out.
fn in_order(by: Sort, link: Named) -> Result<Named> {
    if link.0 > by || (by, link.0) == (Sort::Node, Sort::Node) {
        return Ok(link);
    }
    Err(Error::corrupt(link.1, format!("a {} names this {}", by.word(), link.0.word())))
}

/// The part of a distributed collection that runs on one machine.
#[derive(Debug)]
pub struct DistributedGc {
    lakehouse: Arc<Lakehouse>,
    pub oldest: u64,
    pub before_millis: u64,
    /// Versions that are roots.
    pub roots: Vec<u64>,
    prepared: Prepared,
    note: Note,
    /// Other machines mark what this version reaches; later commits are marked here.
    marked: Arc<Version>,
    fresh: Marks,
    sweep: Sweep,
    fence_version: Option<u64>,
    under_way: GcMarker,
}

impl DistributedGc {
    pub async fn begin(lakehouse: &Arc<Lakehouse>, options: Options) -> Result<DistributedGc> {
        let prepared = prepare(lakehouse, &options).await?;
        let under_way = GcMarker::begin(lakehouse.storage().clone(), prepared.before_millis).await?;
        let marked = lakehouse.latest().await?;
        let oldest = boundary::boundary(lakehouse.storage().as_ref()).await?;
        let roots = roots::of(&marked, oldest);
        let mut fresh = Marks::new(oldest);
        let roots: Vec<u64> = roots.into_iter().map(roots::Root::version).collect();
        fresh.extend(roots.iter().map(|number| root_path(*number)));
        Ok(DistributedGc {
            sweep: Sweep::begin(lakehouse, prepared.before_millis, oldest, prepared.asked_elapsed_millis),
            before_millis: prepared.before_millis,
            lakehouse: lakehouse.clone(),
            oldest,
            roots,
            prepared,
            note: options.note,
            marked,
            fresh,
            fence_version: None,
            under_way,
        })
    }

    /// To be called after all of the roots were marked, and before each lot of files is deleted. The first time it
    /// makes the version after which nobody commits older files; then it marks what was committed since. Returns the
    /// version of the fence, and what must stay although the mark does not know it.
    pub async fn fence(&mut self, contents: &dyn Contents, has_roots: bool) -> Result<(u64, Fresh)> {
        self.sweep.wait_for_all_looks(has_roots).await;
        self.sweep.check_clock(self.prepared.time).await?;
        let (lakehouse, marked) = (&self.lakehouse, self.marked.clone());
        let newer = match self.fence_version {
            None => {
                let nodes = new_nodes(None, (marked.nodes().as_ref(), &marked.root)).await;
                self.fresh.extend(marked.unless_expired(nodes).await?);
                let before_millis = self.before_millis;
                self.under_way.announce(lakehouse.environment().as_ref()).await?;
                let made =
                    fence(lakehouse, contents, &mut self.fresh, marked, before_millis, &self.note).await?;
                self.fence_version = Some(made.number);
                made
            }
            Some(_) => {
                let latest = lakehouse.latest().await?;
                mark_since(lakehouse, contents, &mut self.fresh, &marked, &latest).await?;
                latest
            }
        };
        self.marked = newer;
        self.under_way.deletes();
        let fence = self.fence_version.unwrap_or(self.marked.number);
        Ok((fence, Fresh(self.fresh.reached().hashes().collect())))
    }

    /// To be called after all files were deleted that were to be, also where there were none, and not in a dry run.
    /// `knows_all`: no file was classified as unknown or foreign.
    pub async fn end(&mut self, knows_all: bool) {
        self.under_way.has_deleted();
        self.under_way.end(knows_all).await;
    }
}

/// Files that stay, as hashes of their paths.
#[derive(Clone, Debug, Default)]
pub struct Fresh(Paths);

impl Fresh {
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|hash| hash.to_le_bytes()).collect()
    }

    pub fn of_bytes(bytes: &[u8]) -> Fresh {
        let hashes = bytes.as_chunks::<16>().0.iter();
        Fresh(hashes.map(|hash| u128::from_le_bytes(*hash)).collect())
    }

    pub fn contains(&self, path: &str) -> bool {
        self.0.contains(&hash(path))
    }
}

/// Deletes files that were classified as garbage, except those in `fresh`; returns how many it asked the store to delete.
pub async fn delete(storage: &dyn Storage, paths: Vec<String>, fresh: &Fresh) -> Result<u64> {
    let doomed: Vec<String> = paths.into_iter().filter(|path| !fresh.contains(path)).collect();
    let count = doomed.len() as u64;
    delete_all(storage, doomed).await?;
    Ok(count)
}
