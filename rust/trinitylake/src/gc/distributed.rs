//! Garbage collection distributed to many machines. An engine such as Spark distributes lists of files and makes no
//! decisions:
//!
//! 1. [`DistributedGc::begin`] returns the roots, and the time before which files may be deleted.
//! 2. [`links`] reads some referenced files and returns their references. The engine does this type by type, in the
//!    order of [`Sort`], so that each file is read once without a lookup among all files that were read before.
//! 3. [`Walk::divided`](super::walk::Walk::divided) splits the lakehouse's folder into places; the machines list the
//!    files of each place.
//! 4. [`Classifier::file_classifier`](super::file_classifier::Classifier) classifies each listed file by the marks.
//! 5. [`DistributedGc::fence`] publishes the fence. Before each further batch of deletions it marks the versions
//!    committed since. These marks are few, so this process keeps them, and also the nodes of the version that was the
//!    latest one at the beginning, to recognise new nodes. [`Fresh`] carries these marks to the machines that delete.
//! 6. [`DistributedGc::end`] ends the collection after all deletions.
//!
//! This process holds the roots, the nodes of one version, and the new marks, so its memory does not grow with the
//! number of data files.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};

use super::collection::{fence, mark_since, prepare};
use super::file_references::{Contents, FileForm, Form};
use super::mark::{Found, InlineDefinitions, Item, Marks, Paths, hash, open};
use super::marker::GcMarker;
use super::report::Options;
use super::roots;
use super::sweep::Sweep;
use crate::error::{Error, Result};
use crate::file_names::root_path;
use crate::lakehouse::Lakehouse;
use crate::storage::{Storage, delete_all};
use crate::transaction::Note;
use crate::tree::diff::new_nodes;
use crate::tree::node_source::PARALLEL_REQUESTS;
use crate::version::{Version, expiry_boundary};

/// Type of a reference, in the order in which files are read: a file references only files of later types. The only
/// exception is a node, which references other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sort {
    Root,
    Node,
    Table,
    Metadata,
    ExternalMetadata,
    ManifestList,
    Manifest,
    /// A retained file without references.
    Kept,
    /// The folder of a managed table, which is not a file.
    Folder,
    /// The folder of an external or federated table, which is not a file.
    Foreign,
}

/// All types, in their order.
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
        found.ok_or_else(|| Error::InvalidArgument(format!("{word:?} is not a kind of files")))
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

    /// The file to read; `None` for a file without references.
    fn item(self, name: String) -> Result<Option<Item>> {
        let form = match self {
            Sort::Root => {
                let number = name.parse();
                let wrong = |_| Error::InvalidArgument(format!("{name:?} is not a version number"));
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

/// A reference: its type, and the path; for a root, the version number instead of the path.
pub type Named = (Sort, String);

/// Returns the direct references of these files. `CorruptFile` if a file cannot be read.
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

/// Checks that a referenced file is of a later type than `by`. The engine has already read all files of earlier types,
/// and would skip this one.
fn in_order(by: Sort, link: Named) -> Result<Named> {
    if link.0 > by || (by, link.0) == (Sort::Node, Sort::Node) {
        return Ok(link);
    }
    Err(Error::corrupt(link.1, format!("a {} must not reference this {}", by.word(), link.0.word())))
}

/// The coordinator of a distributed collection.
#[derive(Debug)]
pub struct DistributedGc {
    lakehouse: Arc<Lakehouse>,
    pub oldest: u64,
    pub before_millis: u64,
    /// Versions whose references have to be marked.
    pub roots: Vec<u64>,
    note: Note,
    /// The version up to which all versions are marked. At the beginning this is the latest version, which the machines
    /// mark; this process marks later ones.
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
        let oldest = expiry_boundary::boundary(lakehouse.storage().as_ref()).await?;
        let roots = roots::of(&marked, oldest);
        let mut fresh = Marks::new(oldest);
        let roots: Vec<u64> = roots.into_iter().map(roots::Root::version).collect();
        fresh.extend(roots.iter().map(|number| root_path(*number)));
        Ok(DistributedGc {
            sweep: Sweep::begin(lakehouse, prepared.before_millis, oldest, prepared.clock),
            before_millis: prepared.before_millis,
            lakehouse: lakehouse.clone(),
            oldest,
            roots,
            note: options.note,
            marked,
            fresh,
            fence_version: None,
            under_way,
        })
    }

    /// Call this after all roots were marked, and before each batch of deletions. The first call publishes the fence,
    /// after which no writer can commit older files. Every call marks the versions committed since the previous mark.
    /// Returns the version of the fence, and further files to retain, which the machines did not mark.
    pub async fn fence(&mut self, contents: &dyn Contents, has_roots: bool) -> Result<(u64, Fresh)> {
        self.sweep.wait_for_older_observations(has_roots).await;
        self.sweep.check_clock().await?;
        let (lakehouse, marked) = (&self.lakehouse, self.marked.clone());
        let newer = match self.fence_version {
            None => {
                let nodes = new_nodes(None, (marked.nodes().as_ref(), &marked.root)).await;
                self.fresh.extend(marked.unless_expired(nodes).await?);
                let before_millis = self.before_millis;
                self.under_way.announce(lakehouse.environment().as_ref()).await?;
                let made = fence(lakehouse, contents, &mut self.fresh, marked, before_millis, &self.note).await?;
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

    /// Call this after all deletions, even if no file was deleted, but not in a dry run. `knows_all`: no file was
    /// classified as unknown or foreign.
    pub async fn end(&mut self, knows_all: bool) {
        self.under_way.has_deleted();
        self.under_way.end(knows_all).await;
    }
}

/// Files that must be retained, as hashes of their paths.
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

/// Deletes files that were classified as garbage, except files in `fresh`. Returns the number of deletions sent.
pub async fn delete(storage: &dyn Storage, paths: Vec<String>, fresh: &Fresh) -> Result<u64> {
    let garbage: Vec<String> = paths.into_iter().filter(|path| !fresh.contains(path)).collect();
    let count = garbage.len() as u64;
    delete_all(storage, garbage).await?;
    Ok(count)
}
