//! Disk usage of a lakehouse by the versions that retain the files: one mark in layers, and one listing.
//!
//! Each file is in the first of these layers that references it: the latest version; other retained versions; versions
//! that an expiry would delete. An unreferenced file is garbage. This deletes no file and publishes no version.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::file_classifier::Classified;
use super::file_kind::{Kind, table_folder};
use super::file_references::Contents;
use super::mark::Marks;
use super::report::{Count, OnProgress, Progress};
use super::roots::{self, Root};
use super::sweep::Sweep;
use crate::error::{Error, Result};
use crate::lakehouse::Lakehouse;
use crate::version::store_clock::{ClockCheck, FILE_TIME_PRECISION_MILLIS};
use crate::version::{Version, expiry_boundary};

/// Maximum number of table folders that are reported separately.
const MAX_FOLDERS: usize = 100_000;
/// Maximum number of attempts to mark while versions expire.
const MAX_MARK_ATTEMPTS: u32 = 5;

/// Reason why a file is retained or may be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Held {
    /// Referenced by the latest version, or a file that gc never deletes.
    Latest,
    /// Referenced only by older retained or tagged versions.
    History,
    /// Referenced only by versions that an expiry would delete.
    Expiring,
    /// Unreferenced, and old enough for gc.
    Garbage,
    /// Unreferenced, but so young that a running transaction may commit it.
    Young,
}

impl Held {
    pub fn word(self) -> &'static str {
        match self {
            Held::Latest => "latest",
            Held::History => "history",
            Held::Expiring => "expiring",
            Held::Garbage => "garbage",
            Held::Young => "young",
        }
    }
}

/// Files of one folder of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableUsage {
    /// Namespace and name, if the latest version has the table.
    pub name: Option<(String, String)>,
    pub by_kind: BTreeMap<(Held, Kind), Count>,
    /// Data files of the latest version that are smaller than the requested size.
    pub small: Count,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub version: u64,
    pub by_kind: BTreeMap<(Held, Kind), Count>,
    /// Usage by folder of a table. The folder "" has files outside of such folders, and those beyond [`MAX_FOLDERS`].
    pub by_folder: HashMap<String, TableUsage>,
    pub unknown: Count,
    pub foreign: Count,
}

/// Measures the usage, as if an expiry would delete the versions below `expiring_before`.
pub async fn usage(
    lakehouse: &Arc<Lakehouse>,
    contents: &dyn Contents,
    expiring_before: u64,
    small_file_size_bytes: u64,
    on_progress: &OnProgress,
) -> Result<Usage> {
    let clock = ClockCheck::begin(lakehouse.storage().as_ref(), lakehouse.environment().as_ref()).await?;
    let mut look = 1;
    let (marks, version) = loop {
        let latest = lakehouse.latest().await?;
        let oldest = expiry_boundary::boundary(lakehouse.storage().as_ref()).await?;
        let mut marks = Marks::in_layers(oldest);
        let mut layers = layered(roots::of(&latest, oldest), &latest, expiring_before);
        let mut marked = Ok(());
        for layer in layers.drain(..) {
            marked = marks.mark(lakehouse, contents, layer, on_progress).await;
            if marked.is_err() {
                break;
            }
            marks.next_layer();
        }
        match marked {
            Ok(()) => break (marks, latest),
            // If a version expired during the mark, a collection may have deleted its files: begin again.
            Err(error @ (Error::CorruptFile { .. } | Error::FileNotFound { .. })) => {
                let has_risen = expiry_boundary::boundary(lakehouse.storage().as_ref()).await? > oldest;
                if !has_risen || look == MAX_MARK_ATTEMPTS {
                    return Err(error);
                }
                look += 1;
            }
            Err(error) => return Err(error),
        }
    };
    let grace_millis = lakehouse.known().definition.transaction_ttl_millis().max(FILE_TIME_PRECISION_MILLIS);
    let before_millis = clock.begun.millis_before(grace_millis);
    let mut usage = Usage { version: version.number, ..Usage::default() };
    let names = version.config.names;
    for (folder, key) in marks.tables() {
        let name = names.decode_parts(key).map(|(_, namespace, name)| (namespace.into(), name.into()));
        usage.by_folder.insert(folder.clone(), TableUsage { name, ..TableUsage::default() });
    }
    let mut sweep = Sweep::begin(lakehouse, before_millis, marks.oldest, clock);
    let mut swept = 0;
    while let Some(files) = sweep.next().await? {
        swept += files.len() as u64;
        for file in files {
            let (held, kind) = match sweep.classify(&file, &marks).await? {
                Classified::Unknown => {
                    usage.unknown.add(file.size_bytes);
                    continue;
                }
                Classified::Foreign => {
                    usage.foreign.add(file.size_bytes);
                    continue;
                }
                Classified::Kept(kind) => match marks.layer_of(&file.path) {
                    None | Some(0) => (Held::Latest, kind),
                    Some(1) => (Held::History, kind),
                    Some(_) => (Held::Expiring, kind),
                },
                Classified::Young(kind) => (Held::Young, kind),
                Classified::Garbage(kind) => (Held::Garbage, kind),
            };
            let kind = if kind == Kind::Data && marks.are_deletes(&file.path) { Kind::Deletes } else { kind };
            usage.count(&file.path, held, kind, file.size_bytes, small_file_size_bytes);
        }
        on_progress(Progress::Swept(swept));
    }
    Ok(usage)
}

/// Divides the roots into layers: the latest version, other retained versions, versions that an expiry would delete.
fn layered(roots: Vec<Root>, latest: &Version, expiring_before: u64) -> Vec<Vec<Root>> {
    let pinned: Vec<u64> = latest.definition.pinned_versions().collect();
    let mut layers = vec![Vec::new(), Vec::new(), Vec::new()];
    for root in roots {
        let layer = match root {
            Root::Version(number) if number == latest.number => 0,
            Root::Version(number) if number < expiring_before && !pinned.contains(&number) => 2,
            Root::Version(_) | Root::Tag(_) => 1,
        };
        layers[layer].push(root);
    }
    layers
}

impl Usage {
    fn count(&mut self, path: &str, held: Held, kind: Kind, size_bytes: u64, small_file_size_bytes: u64) {
        self.by_kind.entry((held, kind)).or_default().add(size_bytes);
        if !matches!(kind, Kind::TableMetadata | Kind::Data | Kind::Deletes) {
            return;
        }
        let folder = table_folder(path)
            .filter(|folder| self.by_folder.len() < MAX_FOLDERS || self.by_folder.contains_key(*folder))
            .unwrap_or_default();
        let table = self.by_folder.entry(folder.to_string()).or_default();
        table.by_kind.entry((held, kind)).or_default().add(size_bytes);
        if held == Held::Latest && kind == Kind::Data && size_bytes < small_file_size_bytes {
            table.small.add(size_bytes);
        }
    }
}
