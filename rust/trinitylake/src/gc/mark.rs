//! Mark: finds every file that the roots reference, and reads each of them once.
//!
//! A node references the locations of its rows and of the newest message of each key in its buffer, even if a node
//! above hides them (format §7). Paths are stored as 128-bit hashes. A hash collision can retain garbage, or skip the
//! reading of a referenced file and so lose its references. Among 10 million files its probability is below 1 in 10^24.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use xxhash_rust::xxh3::xxh3_128;

use super::file_classifier::Known;
use super::file_kind::table_folder;
use super::file_references::{Contents, FileForm, Form, Link};
use super::report::{OnProgress, Progress};
use super::roots::Root;
use crate::definition_file::decode_file;
use crate::error::{Error, Result};
use crate::file_names::{root_path, root_path_000};
use crate::key::ObjectKind;
use crate::lakehouse::Lakehouse;
use crate::node::Node;
use crate::node::codec::decode;
use crate::storage::Storage;
use crate::tree::node_source::PARALLEL_REQUESTS;
use crate::version::expiry_boundary::boundary;
use crate::version::root_metadata::RootMetadata;

/// Number of files between two progress reports.
const FILES_PER_WORD: u64 = 1000;

/// Hasher that returns its input, because the input is a hash already.
#[derive(Clone, Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 ^= u64::from_le_bytes(word);
        }
    }

    fn write_u128(&mut self, hash: u128) {
        self.0 = hash as u64;
    }
}

pub(super) type Paths = HashSet<u128, BuildHasherDefault<Spread>>;

pub(super) fn hash(path: &str) -> u128 {
    xxh3_128(path.as_bytes())
}

/// Referenced files. The files in `named` were referenced as data or statistics, and were not read. Such a file is read
/// later if another file references it as a manifest, because a manifest may list any file as data.
#[derive(Clone, Debug, Default)]
pub(super) struct Reached {
    read: Paths,
    named: Paths,
}

impl Reached {
    fn has(&self, hash: u128) -> bool {
        self.read.contains(&hash) || self.named.contains(&hash)
    }

    fn len(&self) -> usize {
        self.read.len() + self.named.len()
    }

    pub fn hashes(&self) -> impl Iterator<Item = u128> {
        self.read.iter().chain(&self.named).copied()
    }
}

/// Marked files and folders.
#[derive(Debug)]
pub(super) struct Marks {
    /// Versions below this one have expired, except tagged ones.
    pub oldest: u64,
    pub roots: u64,
    /// Layers that were marked before the current one. A file belongs to the first layer that references it.
    finished: Vec<Reached>,
    reached: Reached,
    details: Option<Details>,
    /// Folders of managed tables.
    folders: Paths,
    /// Folders of external and federated tables.
    foreign: Paths,
}

/// Details for a report of disk usage. A garbage collection does not need them.
#[derive(Debug, Default)]
pub(super) struct Details {
    /// Delete files.
    deletes: Paths,
    /// Keys of the tables in the first layer, by the folder of their metadata.
    tables: HashMap<String, String>,
}

/// Maximum number of tables in [`Details`].
const MAX_NAMED_TABLES: usize = 100_000;

/// A file to read.
pub(super) enum Item {
    Root(u64),
    Node(String),
    Table { location: String, key: String },
    File(String, FileForm),
}

/// A reference or a detail that was found in a file.
pub(super) enum Found {
    Item(Item),
    /// A file that is marked and not read.
    Path(String),
    /// A delete file, which is marked and not read.
    Deletes(String),
    Folder(String),
    Foreign(String),
    /// Folder and key of a table.
    Named {
        folder: String,
        key: String,
    },
}

impl Marks {
    pub fn new(oldest: u64) -> Marks {
        Marks {
            oldest,
            roots: 0,
            finished: Vec::new(),
            details: None,
            reached: Reached::default(),
            folders: Paths::default(),
            foreign: Paths::default(),
        }
    }

    /// Creates empty marks with layers and details.
    pub fn in_layers(oldest: u64) -> Marks {
        Marks { details: Some(Details::default()), ..Marks::new(oldest) }
    }

    pub fn next_layer(&mut self) {
        self.finished.push(std::mem::take(&mut self.reached));
    }

    /// Returns the number of the first layer that references the file.
    pub fn layer_of(&self, path: &str) -> Option<usize> {
        let hash = hash(path);
        self.finished.iter().chain([&self.reached]).position(|layer| layer.has(hash))
    }

    pub fn are_deletes(&self, path: &str) -> bool {
        self.details.as_ref().is_some_and(|details| details.deletes.contains(&hash(path)))
    }

    /// Returns pairs of the folder and the key of a table.
    pub fn tables(&self) -> impl Iterator<Item = (&String, &String)> {
        self.details.iter().flat_map(|details| &details.tables)
    }

    /// Marks a file without reading it.
    fn name(&mut self, path: &str) {
        let hash = hash(path);
        if !self.finished.iter().chain([&self.reached]).any(|layer| layer.has(hash)) {
            self.reached.named.insert(hash);
        }
    }

    /// Marks a file that the caller reads next. Returns false if it was read before.
    fn begin_reading(&mut self, path: &str) -> bool {
        let hash = hash(path);
        !self.finished.iter().any(|layer| layer.read.contains(&hash)) && self.reached.read.insert(hash)
    }

    /// Marks files without reading them, because another process marks their references.
    pub fn extend(&mut self, paths: impl IntoIterator<Item = String>) {
        for path in paths {
            self.begin_reading(&path);
        }
    }

    /// Marks of the current layer.
    pub fn reached(&self) -> &Reached {
        &self.reached
    }

    /// Marks all files that these roots reference.
    pub async fn mark(
        &mut self,
        lakehouse: &Arc<Lakehouse>,
        contents: &dyn Contents,
        roots: Vec<Root>,
        on_progress: &OnProgress,
    ) -> Result<()> {
        let (storage, inline) = (lakehouse.storage().as_ref(), InlineDefinitions::default());
        // Depth first, so that few items wait. The next root begins when no other item waits.
        let mut roots = roots.into_iter();
        let mut waiting: Vec<Item> = Vec::new();
        let mut running = FuturesUnordered::new();
        let mut read = 0;
        loop {
            while running.len() < PARALLEL_REQUESTS {
                let Some(item) = waiting.pop().or_else(|| roots.next().map(|root| Item::Root(root.version()))) else {
                    break;
                };
                self.roots += u64::from(matches!(item, Item::Root(_)));
                running.push(open(storage, contents, &inline, item));
            }
            let Some(found) = running.next().await else { return Ok(()) };
            read += 1;
            if read % FILES_PER_WORD == 0 {
                on_progress(Progress::Marked(self.reached.len() as u64));
            }
            for one in found? {
                self.take(one, &mut waiting);
            }
        }
    }

    fn take(&mut self, found: Found, waiting: &mut Vec<Item>) {
        match found {
            Found::Path(path) => self.name(&path),
            Found::Deletes(path) => {
                self.name(&path);
                if let Some(details) = &mut self.details {
                    details.deletes.insert(hash(&path));
                }
            }
            Found::Named { folder, key } => {
                let is_first = self.finished.is_empty();
                let details = self.details.as_mut().filter(|details| details.tables.len() < MAX_NAMED_TABLES);
                if let Some(details) = details.filter(|_| is_first) {
                    details.tables.insert(folder, key);
                }
            }
            Found::Folder(folder) => {
                self.folders.insert(hash(&folder));
            }
            Found::Foreign(folder) => {
                self.foreign.insert(hash(&folder));
            }
            Found::Item(item) => {
                let path = match &item {
                    Item::Root(number) => root_path(*number),
                    Item::Node(path) | Item::Table { location: path, .. } | Item::File(path, _) => path.clone(),
                };
                if self.begin_reading(&path) {
                    waiting.push(item);
                }
            }
        }
    }
}

impl Known for Marks {
    fn contains(&self, path: &str) -> bool {
        let hash = hash(path);
        self.finished.iter().chain([&self.reached]).any(|layer| layer.has(hash))
    }

    fn is_foreign(&self, path: &str) -> bool {
        !self.foreign.is_empty() && is_below(&self.foreign, path)
    }

    fn is_in_table(&self, path: &str) -> bool {
        is_below(&self.folders, path)
    }
}

fn is_below(folders: &Paths, path: &str) -> bool {
    path.match_indices('/').any(|(end, _)| folders.contains(&hash(&path[..end]))) || folders.contains(&hash(path))
}

/// Inline definitions of the roots. The files of these definitions may not have been written yet.
#[derive(Debug, Default)]
pub(super) struct InlineDefinitions(Mutex<HashMap<String, Bytes>>);

impl InlineDefinitions {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Bytes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a file and returns its references.
pub(super) async fn open(
    storage: &dyn Storage,
    contents: &dyn Contents,
    inline: &InlineDefinitions,
    item: Item,
) -> Result<Vec<Found>> {
    match item {
        Item::Root(number) => root(storage, inline, number).await,
        Item::Node(path) => {
            let node = decode(read(storage, &path).await?, &path, None)?;
            Ok(named_by(&node))
        }
        Item::Table { location, key } => {
            let held = inline.all().get(&location).cloned();
            let bytes = match held {
                Some(bytes) => bytes,
                None => read(storage, &location).await?,
            };
            let links = contents.of_table(decode_file(&location, &bytes)?, &location)?;
            let folder = links.iter().find_map(|link| match link {
                Link::File { path, .. } => table_folder(path).map(str::to_string),
                _ => None,
            });
            let mut found = linked(links);
            found.extend(folder.map(|folder| Found::Named { folder, key }));
            Ok(found)
        }
        Item::File(path, form) => Ok(linked(contents.of_file(form, &read(storage, &path).await?, &path)?)),
    }
}

/// Reads a referenced file. `CorruptFile` if it is missing.
async fn read(storage: &dyn Storage, path: &str) -> Result<Bytes> {
    match storage.get(path).await {
        Err(Error::FileNotFound { path }) => {
            Err(Error::corrupt(path, "a retained version references this file, which is missing"))
        }
        bytes => bytes,
    }
}

async fn root(storage: &dyn Storage, inline: &InlineDefinitions, number: u64) -> Result<Vec<Found>> {
    let mut path = root_path(number);
    let bytes = match storage.get(&path).await {
        Err(Error::FileNotFound { .. }) => {
            path = root_path_000(number);
            match read(storage, &path).await {
                Err(Error::CorruptFile { .. }) => return Err(missing_root(storage, number).await?),
                bytes => bytes?,
            }
        }
        bytes => bytes?,
    };
    let node = decode(bytes, &path, None)?;
    let metadata = RootMetadata::of(&node, number, &path)?;
    let mut found = named_by(&node);
    found.push(Found::Path(path));
    found.push(Found::Path(metadata.lakehouse_definition));
    inline.all().extend(metadata.inline_definitions.into_iter().chain(metadata.copied_definitions));
    Ok(found)
}

/// Returns the error for a missing root. Every version from the boundary on has a root. A lower version has none if it
/// was tagged after it had expired, by a process that has not removed the tag yet or has died.
async fn missing_root(storage: &dyn Storage, number: u64) -> Result<Error> {
    let oldest = boundary(storage).await?;
    if oldest <= number {
        return Ok(Error::corrupt(root_path(number), "the root node file of this retained version is missing"));
    }
    Ok(Error::VersionExpired(format!(
        "version {number} has expired, and its root node file is missing. If the version has a tag, the tag was created \
         too late or the file was lost: drop the tag; otherwise try again"
    )))
}

/// Returns the references of a node: its children, and the newest location that it contains for each key.
fn named_by(node: &Node) -> Vec<Found> {
    let mut found = Vec::new();
    if !node.is_leaf() {
        found.extend((0..=node.n_keys()).map(|child| Found::Item(Item::Node(node.child(child).to_string()))));
    }
    found.extend(node.named_locations().map(|(key, location)| located(key, location)));
    found
}

fn located(key: &str, location: &str) -> Found {
    match key.starts_with(ObjectKind::Table.prefix()) {
        true => Found::Item(Item::Table { location: location.to_string(), key: key.to_string() }),
        // Definitions of other objects have no references.
        false => Found::Path(location.to_string()),
    }
}

fn linked(links: Vec<Link>) -> Vec<Found> {
    let found = |link| match link {
        Link::File { path, form: FileForm::Iceberg(Form::Content) } => Found::Path(path),
        Link::File { path, form: FileForm::Iceberg(Form::Deletes) } => Found::Deletes(path),
        Link::File { path, form } => Found::Item(Item::File(path, form)),
        Link::Folder(folder) => Found::Folder(folder),
        Link::Foreign(folder) => Found::Foreign(folder),
    };
    links.into_iter().map(found).collect()
}

#[cfg(test)]
mod tests;
