//! Bulk registration: adds many objects, whose definition files already exist, in one version with a newly built tree.
//!
//! A transaction keeps its changes in the buffer of the root, which is efficient for thousands of objects. Bulk
//! registration is efficient for millions.

use std::sync::Arc;

use arrow_array::{Array, StringArray};

use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::key::{KeyRange, NameSizes, ObjectKind};
use crate::lakehouse::Lakehouse;
use crate::node::mutable_node::MutableNode;
use crate::transaction::commit::limits::VERSIONS_AT_ONCE;
use crate::tree::bulk_build::{NodeWriter, build, merge_runs};
use crate::tree::distributed_bulk_build::{Leaf, LooseRow, assemble};
use crate::version::Version;
use crate::version::root_metadata::{CommittedTransaction, OPERATION_PROPERTY, OPERATION_REGISTER};
use crate::version::summary_format::Summary;

/// Registers objects by key and location, in any order. `ObjectAlreadyExists` if a key occurs twice, or exists and
/// `replace` is false; `ObjectNotFound` if a namespace is missing; `CommitConflict` if another commit was first.
pub async fn register(
    lakehouse: &Lakehouse,
    keys: StringArray,
    locations: StringArray,
    replace: bool,
    message: &str,
    author: &str,
) -> Result<Arc<Version>> {
    let since = lakehouse.latest().await?;
    register_since(lakehouse, &since, (keys, locations), replace, message, author).await
}

/// Like [`register`], for a caller that read the version `since` before it wrote the first definition.
/// `TransactionExpired` if garbage was collected after that version.
pub async fn register_since(
    lakehouse: &Lakehouse,
    since: &Version,
    (keys, locations): (StringArray, StringArray),
    replace: bool,
    message: &str,
    author: &str,
) -> Result<Arc<Version>> {
    let latest = lakehouse.latest().await?;
    let summary = Summary::of_counts("register", Registered::of(&keys, latest.config.names).by_kind());
    if is_collected_since(lakehouse, since, &latest).await? {
        return Err(Error::TransactionExpired(
            "a garbage collection may have deleted the definitions before they were registered; write them and \
             register again"
                .into(),
        ));
    }
    let (keys, locations) = merged(&latest, keys, locations, replace).await?;
    let environment = lakehouse.environment();
    let writer = node_writer(lakehouse, environment.as_ref(), &latest);
    let root = build(&writer, &keys, &locations).await?;
    publish(lakehouse, &latest, root, message, author, summary).await
}

/// Whether a version after `since` is a gc fence, or has expired and may have been a fence.
async fn is_collected_since(lakehouse: &Lakehouse, since: &Version, latest: &Arc<Version>) -> Result<bool> {
    let mut next = since.number + 1;
    while next <= latest.number {
        let last = latest.number.min(next + VERSIONS_AT_ONCE - 1);
        match lakehouse.versions(next, last, latest).await {
            Ok(versions) if versions.iter().all(|version| version.metadata.collects_before_millis().is_none()) => {}
            Ok(_) | Err(Error::VersionExpired(_)) => return Ok(true),
            Err(error) => return Err(error),
        }
        next = last + 1;
    }
    Ok(false)
}

/// Performs the checks of [`register`] on the latest version, with the same errors. Nothing is written.
pub async fn check(lakehouse: &Lakehouse, keys: StringArray, locations: StringArray, replace: bool) -> Result<()> {
    merged(&*lakehouse.latest().await?, keys, locations, replace).await.map(|_| ())
}

/// Returns all objects of the next version in key order: the new objects and the objects of `latest`.
async fn merged(
    latest: &Version,
    keys: StringArray,
    locations: StringArray,
    replace: bool,
) -> Result<(StringArray, StringArray)> {
    let names = latest.config.names;
    let (keys, locations) = sorted(keys, locations, names)?;
    let (old_keys, old_locations) = existing(latest).await?;
    check_sizes([&keys, &old_keys])?;
    check_sizes([&locations, &old_locations])?;
    let (keys, locations) = if old_keys.is_empty() {
        (keys, locations)
    } else {
        let taken = |key: &str| {
            if replace {
                return Ok(());
            }
            Err(Error::ObjectAlreadyExists(format!("{} exists", human_name(names, key))))
        };
        let (keys, locations) = merge_runs((&old_keys, &old_locations), (&keys, &locations), taken)?;
        (keys.as_ref().clone(), locations.as_ref().clone())
    };
    check_whole(&keys, names)?;
    Ok((keys, locations))
}

/// Number of registered objects by kind, for the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    pub namespaces: u64,
    pub tables: u64,
    pub views: u64,
}

impl Registered {
    fn of(keys: &StringArray, names: NameSizes) -> Registered {
        let mut counts = Registered::default();
        for key in keys.iter().flatten() {
            match names.decode_parts(key).map(|(kind, _, _)| kind) {
                Some(ObjectKind::Namespace) => counts.namespaces += 1,
                Some(ObjectKind::Table) => counts.tables += 1,
                Some(ObjectKind::View) => counts.views += 1,
                Some(ObjectKind::TransactionRecord) | None => {}
            }
        }
        counts
    }

    fn by_kind(self) -> [(ObjectKind, u64); 3] {
        [(ObjectKind::Namespace, self.namespaces), (ObjectKind::Table, self.tables), (ObjectKind::View, self.views)]
    }
}

/// Registers objects that workers have sorted, checked, merged with the objects of `base`, and written as parts of a
/// tree (see [`LeafWriter`](crate::tree::distributed_bulk_build::LeafWriter)). `CommitConflict` if `base` is no longer
/// the latest version; [`assemble`] lists the errors for parts that do not fit together. The workers have to check that
/// all namespaces exist and that no view has the name of a table.
pub async fn register_parts(
    lakehouse: &Lakehouse,
    base: &Version,
    (rows, leaves, loose): (usize, Vec<Leaf>, Vec<LooseRow>),
    registered: Registered,
    message: &str,
    author: &str,
) -> Result<Arc<Version>> {
    let environment = lakehouse.environment();
    let writer = node_writer(lakehouse, environment.as_ref(), base);
    let root = assemble(lakehouse.nodes(), &writer, rows, leaves, loose).await?;
    let summary = Summary::of_counts("register", registered.by_kind());
    publish(lakehouse, base, root, message, author, summary).await
}

fn node_writer<'a>(lakehouse: &'a Lakehouse, environment: &'a dyn Environment, base: &'a Version) -> NodeWriter<'a> {
    NodeWriter { storage: lakehouse.storage().as_ref(), environment, config: &base.config }
}

/// Publishes one version, only directly after `base`, because its tree contains all objects of `base`.
async fn publish(
    lakehouse: &Lakehouse,
    base: &Version,
    root: MutableNode,
    message: &str,
    author: &str,
    summary: Summary,
) -> Result<Arc<Version>> {
    let transaction = CommittedTransaction {
        id: lakehouse.environment().uuid().to_string(),
        isolation: "serializable".into(),
        message: message.into(),
        author: author.into(),
        began_at_version: base.number,
        properties: [(OPERATION_PROPERTY.to_string(), OPERATION_REGISTER.to_string())].into(),
        summary,
    };
    let metadata = lakehouse.publisher().next_metadata(base, vec![transaction]);
    lakehouse.publisher().publish_alone(base, metadata, root, "the registration").await
}

/// Sorts the objects by key. Refuses duplicate keys and keys that do not belong to this lakehouse.
fn sorted(keys: StringArray, locations: StringArray, names: NameSizes) -> Result<(StringArray, StringArray)> {
    if keys.len() != locations.len() || keys.null_count() + locations.null_count() > 0 {
        return Err(Error::InvalidArgument("each object needs one location, and nulls are not allowed".into()));
    }
    if let Some(bad) = keys.iter().flatten().find(|key| names.decode_parts(key).is_none()) {
        return Err(Error::InvalidName(format!("{bad:?} is not a key of this lakehouse")));
    }
    let ascending = (1..keys.len()).all(|i| keys.value(i - 1) < keys.value(i));
    if ascending {
        return Ok((keys, locations));
    }
    let mut order: Vec<u32> = (0..keys.len() as u32).collect();
    order.sort_unstable_by(|a, b| keys.value(*a as usize).cmp(keys.value(*b as usize)));
    if let Some(twice) = order.windows(2).find(|pair| keys.value(pair[0] as usize) == keys.value(pair[1] as usize)) {
        let name = human_name(names, keys.value(twice[0] as usize));
        return Err(Error::ObjectAlreadyExists(format!("{name} is registered twice")));
    }
    let pick = |texts: &StringArray| StringArray::from_iter_values(order.iter().map(|i| texts.value(*i as usize)));
    Ok((pick(&keys), pick(&locations)))
}

/// Refuses strings of more than 2 GiB in total, the limit of an Arrow array. The keys of ten million tables with names
/// of 100 bytes have about this size.
pub fn check_size(size_bytes: usize) -> Result<()> {
    if i32::try_from(size_bytes).is_ok() {
        return Ok(());
    }
    Err(Error::InvalidArgument(
        "keys or locations of more than 2 GiB exceed the limit of one process; register the objects with several \
         workers"
            .into(),
    ))
}

fn check_sizes(arrays: [&StringArray; 2]) -> Result<()> {
    check_size(arrays.iter().map(|array| array.value_data().len()).sum())
}

async fn existing(latest: &Version) -> Result<(StringArray, StringArray)> {
    let mut scan = latest.scan(KeyRange::all(), None, true);
    let (mut keys, mut locations) = (Vec::new(), Vec::new());
    let (mut keys_size_bytes, mut locations_size_bytes) = (0, 0);
    while let Some(batch) = scan.next_batch().await? {
        keys_size_bytes += batch.keys.value_data().len();
        locations_size_bytes += batch.locations.as_ref().map_or(0, |texts| texts.value_data().len());
        check_size(keys_size_bytes.max(locations_size_bytes))?;
        keys.push(batch.keys);
        locations.extend(batch.locations);
    }
    let joined = |batches: &[StringArray]| {
        // Arrow needs the length of an iterator, which a flattened iterator does not have.
        let texts: Vec<&str> = batches.iter().flat_map(|batch| batch.iter().flatten()).collect();
        StringArray::from_iter_values(texts)
    };
    Ok((joined(&keys), joined(&locations)))
}

/// Checks that every table and view is in an existing namespace, and that no view has the name of a table. The keys are
/// sorted, so namespaces come first.
fn check_whole(keys: &StringArray, names: NameSizes) -> Result<()> {
    let mut namespaces = std::collections::HashSet::new();
    let mut last = "";
    for key in keys.iter().flatten() {
        let Some((kind, namespace, name)) = names.decode_parts(key) else { continue };
        match kind {
            ObjectKind::Namespace => {
                namespaces.insert(namespace);
            }
            ObjectKind::Table | ObjectKind::View => {
                if namespace != last && !namespaces.contains(namespace) {
                    return Err(Error::ObjectNotFound(format!(
                        "namespace {namespace} does not exist; register it with its tables and views"
                    )));
                }
                last = namespace;
                // If the name is too long for a table, no table can have it.
                if kind == ObjectKind::View
                    && let Ok(table) = names.table_key(namespace, name)
                    && find(keys, &table)
                {
                    return Err(Error::ObjectAlreadyExists(format!(
                        "{} exists, and a view cannot have the same name",
                        human_name(names, &table)
                    )));
                }
            }
            ObjectKind::TransactionRecord => {}
        }
    }
    Ok(())
}

/// Whether a sorted array contains the key.
fn find(keys: &StringArray, key: &str) -> bool {
    let (mut low, mut high) = (0, keys.len());
    while low < high {
        let middle = low + (high - low) / 2;
        match keys.value(middle).cmp(key) {
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Greater => high = middle,
            std::cmp::Ordering::Equal => return true,
        }
    }
    false
}

fn human_name(names: NameSizes, key: &str) -> String {
    names.decode(key).map_or_else(|| key.trim_end().to_string(), |name| name.to_string())
}
