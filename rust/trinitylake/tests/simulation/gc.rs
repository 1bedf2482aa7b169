//! Check of garbage collection: no file that a retained version references was deleted, and in the end no unreferenced
//! file is left. The references of a version are computed here independently, from the nodes alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use trinitylake::definition_file::decode_file;
use trinitylake::expiry::expire;
use trinitylake::file_names::{root_path, root_version, transaction_file};
use trinitylake::gc::{Options, no_progress, vacuum};
use trinitylake::lakehouse::Lakehouse;
use trinitylake::lakehouse_definition::LakehouseDefinition;
use trinitylake::node::codec::decode;
use trinitylake::version::Version;
use trinitylake::version::root_metadata::RootMetadata;

use crate::actors::{Lines, change_names, data_path, lines};
use crate::world::World;

/// Time after which all late requests have been executed, and saved transactions are too old to be resumed.
const AGES: Duration = Duration::from_secs(3 * 24 * 3600);

/// Returns all files that a version references, except records of transactions, which have rules of their own.
/// `archive` contains every file that ever existed.
fn reached(archive: &World, version: u64, known: &mut BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let path = root_path(version);
    let node = decode(archive.content(&path).unwrap(), &path, None).unwrap();
    let metadata = RootMetadata::of(&node, version, &path).unwrap();
    let mut found = below(archive, &path, known);
    found.insert(path);
    found.insert(metadata.lakehouse_definition);
    found
}

/// Returns the definitions that the root of a version contains.
fn inline_definitions(archive: &World, version: u64) -> BTreeMap<String, Bytes> {
    let path = root_path(version);
    let Some(bytes) = archive.content(&path) else { return BTreeMap::new() };
    let node = decode(bytes, &path, None).unwrap();
    RootMetadata::of(&node, version, &path).unwrap().inline_definitions
}

/// Returns the content of a definition, from its file or from a root that contains it.
fn definition(archive: &World, location: &str) -> Bytes {
    let held = || archive.roots().into_iter().find_map(|root| inline_definitions(archive, root).remove(location));
    let file = archive.content(location).or_else(held).unwrap_or_else(|| panic!("{location} is nowhere"));
    decode_file(location, &file).unwrap()
}

fn below(archive: &World, path: &str, known: &mut BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    if let Some(found) = known.get(path) {
        return found.clone();
    }
    let node = decode(archive.content(path).unwrap(), path, None).unwrap();
    let mut newest: BTreeMap<String, Option<String>> = BTreeMap::new();
    for row in 0..node.n_keys() {
        newest.insert(node.key(row).to_string(), Some(node.value(row).to_string()));
    }
    for message in node.messages() {
        newest.insert(message.key.to_string(), message.value.map(str::to_string));
    }
    let mut found = BTreeSet::new();
    for (key, location) in newest {
        let Some(location) = location else { continue };
        if key.starts_with("C===") {
            found.extend(lines(&definition(archive, &location)).iter().map(|id| data_path(id)));
        }
        if !key.starts_with("E===") {
            found.insert(location);
        }
    }
    if !node.is_leaf() {
        for child in 0..=node.n_keys() {
            found.insert(node.child(child).to_string());
            found.extend(below(archive, node.child(child), known));
        }
    }
    known.insert(path.to_string(), found.clone());
    found
}

/// Returns the versions that have a tag in the given version.
fn pinned(archive: &World, version: u64) -> BTreeSet<u64> {
    let path = root_path(version);
    let node = decode(archive.content(&path).unwrap(), &path, None).unwrap();
    let metadata = RootMetadata::of(&node, version, &path).unwrap();
    let path = &metadata.lakehouse_definition;
    let file = metadata.inline_definition.clone().unwrap_or_else(|| archive.content(path).unwrap());
    LakehouseDefinition::decode_file(&file, path).unwrap().pinned_versions().collect()
}

/// Whether a version with a tag in version `newest` was retained when the tag was created. A later tag retains nothing,
/// and its creator drops it again.
fn is_kept_by_name(world: &World, names: &[BTreeSet<u64>], version: u64, newest: u64) -> bool {
    let is_named = |at: &u64| names[*at as usize].contains(&version);
    let named_since = (0..=newest).rev().take_while(is_named).last();
    named_since.is_some_and(|since| world.boundary_at(since) <= version)
}

/// Checks that no deleted file was referenced by a version that was retained at that time, and that all retained
/// versions have their files.
pub fn nothing_was_lost(world: &World, archive: &World, latest: &Version) {
    let mut known = BTreeMap::new();
    let all: Vec<BTreeSet<String>> = (0..=latest.number).map(|version| reached(archive, version, &mut known)).collect();
    let names: Vec<BTreeSet<u64>> = (0..=latest.number).map(|version| pinned(archive, version)).collect();
    for (version, reached) in all.iter().enumerate() {
        let (root, held) = (root_path(version as u64), inline_definitions(archive, version as u64));
        let is_missing = |path: &&String| **path != root && !world.was_before(path, &root) && !held.contains_key(*path);
        let missing: Vec<&String> = reached.iter().filter(is_missing).collect();
        assert!(missing.is_empty(), "version {version} was created before {missing:?}, and does not contain them");
    }
    for deletion in world.deletions() {
        // A root above the latest version is void.
        let newest = deletion.latest.min(latest.number);
        let named = names[newest as usize].iter().copied();
        let named = named.filter(|version| is_kept_by_name(world, &names, *version, newest));
        for version in (deletion.oldest..=newest).chain(named) {
            assert!(
                !all[version as usize].contains(&deletion.path),
                "{} was deleted, but version {version} references it; retained were {}..={} and tagged versions",
                deletion.path,
                deletion.oldest,
                deletion.latest
            );
        }
    }
    let there = world.paths();
    let named = latest.definition.exported_snapshots().values().filter_map(|root| root_version(root));
    let named = named.filter(|version| is_kept_by_name(world, &names, *version, latest.number));
    for version in (world.boundary()..=latest.number).chain(named) {
        let held = inline_definitions(archive, version);
        let missing = all[version as usize].difference(&there).filter(|path| !held.contains_key(*path));
        let missing: Vec<&String> = missing.collect();
        assert!(missing.is_empty(), "version {version} is retained, and lacks {missing:?}");
    }
}

/// Checks that no unreferenced file is left after a final collection.
pub async fn no_unreferenced_file_is_left(world: &Arc<World>, lakehouse: &Arc<Lakehouse>) {
    let latest = lakehouse.latest().await.unwrap();
    tokio::time::sleep(AGES).await;
    // Drops tags that were created too late and that their creators could not drop.
    if !latest.definition.pinned_versions().all(|version| world.roots().contains(&version)) {
        change_names(lakehouse, |names| names.clear()).await.unwrap();
    }
    for _ in 0..2 {
        let latest = lakehouse.latest().await.unwrap();
        expire(lakehouse, Some(latest.number), false).await.unwrap();
        let options = Options { grace_millis: Some(0), ..Options::default() };
        vacuum(lakehouse, &Lines, options, &no_progress()).await.unwrap();
        tokio::time::sleep(AGES).await;
    }
    let options = Options { grace_millis: Some(0), ..Options::default() };
    let latest_again = lakehouse.latest().await.unwrap();
    assert!(latest_again.number >= latest.number);
    vacuum(lakehouse, &Lines, options, &no_progress()).await.unwrap();
    let latest = lakehouse.latest().await.unwrap();
    let mut known = BTreeMap::new();
    let mut wanted = BTreeSet::new();
    let named = latest.definition.exported_snapshots().values().filter_map(|root| root_version(root));
    for version in (world.boundary()..=latest.number).chain(named) {
        wanted.extend(reached(world, version, &mut known));
    }
    let has_unknown = world.paths().iter().any(|path| path.starts_with("data/"));
    let is_litter = |path: &&String| {
        let is_system = path.starts_with("_expired/") || path.as_str() == "_latest_hint.txt";
        // Markers of dead collections stay as long as unknown files exist.
        let is_system = is_system || (has_unknown && path.starts_with("_collecting/"));
        // Data files with names that no table writer creates, which no collection may delete.
        let is_unknown = path.starts_with("data/");
        !is_system && !is_unknown && transaction_file(path).is_none() && !wanted.contains(*path)
    };
    let there = world.paths();
    let left: Vec<&String> = there.iter().filter(is_litter).collect();
    assert!(left.is_empty(), "unreferenced files are left: {left:?}");
}
