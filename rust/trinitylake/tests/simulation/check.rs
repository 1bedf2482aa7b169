//! Compares a history with a dictionary: applied in order, the transactions in the log give the content of every
//! version, and they agree with all answers and reads.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use trinitylake::gc::COLLECT_MESSAGE;
use trinitylake::key::KeyRange;
use trinitylake::key::ObjectKind::{self, Table};
use trinitylake::lakehouse::Lakehouse;
use trinitylake::transaction::saved::cleanup::ABANDON_MESSAGE;
use trinitylake::transaction::saved::cleanup::FORGET_MESSAGE;
use trinitylake::transaction::saved::outcome_by_id::{TransactionOutcome, outcome_of};
use trinitylake::transaction::{CommitLimits, Isolation, Outcome, TransactionOptions};
use trinitylake::version::Version;

use crate::actors::{self, NAME_MESSAGE, Name, Read, Record, Result, Statement, lines};
use crate::gc;
use crate::world::{Line, Process, World};

type Objects = BTreeMap<(String, Name), Vec<String>>;

#[derive(Default)]
pub struct Findings {
    pub versions: u64,
    pub shared_versions: u64,
    /// Versions with transactions of several processes.
    pub carried_versions: u64,
    pub write_skews: u64,
    /// Files of committed transactions that were uploaded in the background.
    pub written_behind: u64,
    /// Definitions whose files were created after the root that references them.
    pub came_first: u64,
    /// Versions in which an expiry removed the ids of transactions.
    pub forgetting_versions: u64,
    /// Versions of garbage collections.
    pub collecting_versions: u64,
    /// Versions in which an expiry aborted saved transactions that could not be resumed.
    pub abandoning_versions: u64,
}

fn key(kind: ObjectKind, name: &Name) -> (String, Name) {
    (kind.word().to_string(), name.clone())
}

pub async fn check(world: &Arc<World>, records: &[Record]) -> Findings {
    let living = actors::open(world).await.unwrap();
    let latest = living.latest().await.unwrap().number;
    let oldest = world.boundary();
    let roots = world.roots();
    for version in oldest..=latest {
        assert!(roots.contains(&version), "version {version} of {oldest}..={latest} is missing");
    }
    // A late request may still create the next root, but none after it.
    assert!(roots.iter().all(|version| *version <= latest), "a gap below {:?}", roots.last());

    let archive = world.everything();
    let past = Lakehouse::open(Line::new(&archive), Process::new(&archive), None).await.unwrap();
    let by_id: HashMap<&str, &Record> = records.iter().map(|record| (record.id.as_str(), record)).collect();
    let mut findings = Findings::default();
    let mut states: Vec<Objects> = Vec::new();
    let mut committed_in: HashMap<String, Vec<u64>> = HashMap::new();
    let mut abandoned: BTreeSet<String> = BTreeSet::new();
    let mut forgotten: BTreeSet<String> = BTreeSet::new();
    let mut last_rollback = 0;
    let mut created_at = 0;
    for number in 0..=latest {
        let version = past.version(number).await.unwrap();
        assert!(version.metadata.created_at_millis > created_at, "version {number} is not younger than the one before");
        created_at = version.metadata.created_at_millis;
        let actual = objects(&version).await;
        let shape = version.shape().await.unwrap();
        assert!(shape.problems.is_empty(), "version {number}: {:?}", shape.problems);
        if version.metadata.rollback_from_root.is_some() {
            assert!(states.contains(&actual), "version {number} rolled back to a state that never existed");
            states.push(actual);
            last_rollback = number;
            continue;
        }
        for message in version.root.messages().filter(|message| version.metadata.commits(message.txn)) {
            let file = message.value.unwrap_or("");
            let is_there = file.is_empty() || world.was_before(file, &version.root_path);
            findings.came_first += u64::from(!is_there);
        }
        for file in locations(&version).await {
            let is_there = world.was_before(&file, &version.root_path);
            let is_held = version.metadata.inline_definitions.contains_key(&file);
            assert!(is_there || is_held, "version {number} was created before {file}, and does not contain it");
        }
        let mut model = states.last().cloned().unwrap_or_default();
        let mut processes = BTreeSet::new();
        for transaction in &version.metadata.committed {
            if let Some(id) = transaction.gives_up() {
                assert!(!committed_in.contains_key(id), "{id} is aborted in version {number}, and committed");
                continue;
            }
            if [COLLECT_MESSAGE, NAME_MESSAGE].contains(&transaction.message.as_str()) {
                findings.collecting_versions += u64::from(transaction.message == COLLECT_MESSAGE);
                continue;
            }
            if transaction.message == FORGET_MESSAGE {
                findings.forgetting_versions += 1;
                forgotten.extend(recorded_ids(&version));
                continue;
            }
            if transaction.message == ABANDON_MESSAGE {
                findings.abandoning_versions += 1;
                // Transactions in the same group wrote their own records.
                for id in recorded_ids(&version).into_iter().filter(|id| !version.metadata.commits(id)) {
                    // A saved state may be left of a transaction whose record was removed long ago, or that a rollback
                    // of the lakehouse has undone. Expiry may abort such a transaction although it was committed.
                    let versions = committed_in.get(&id).map(Vec::as_slice).unwrap_or_default();
                    let is_gone = forgotten.contains(&id) || versions.iter().all(|version| *version < last_rollback);
                    assert!(is_gone, "{id} was aborted in {number}, and committed in {versions:?}");
                    abandoned.insert(id);
                }
                continue;
            }
            assert!(!abandoned.contains(&transaction.id), "{} was aborted before {number}", transaction.id);
            let record = by_id.get(transaction.id.as_str()).unwrap_or_else(|| {
                panic!("version {number} contains transaction {}, which no writer committed", transaction.id)
            });
            let versions = committed_in.entry(transaction.id.clone()).or_default();
            let is_first = versions.last().is_none_or(|before| *before < last_rollback);
            assert!(is_first, "transaction {} is in versions {versions:?} and {number}", transaction.id);
            versions.push(number);
            for file in &record.files {
                assert!(world.was_before(file, &version.root_path), "version {number} was created before {file}");
            }
            findings.written_behind += record.files.len() as u64;
            assert!(record.answer != Result::Failed, "{record:?} is in version {number}, and was refused");
            let still_holds = record.reads.iter().all(|read| holds(read, &model));
            if record.isolation == Isolation::Serializable || record.is_watching {
                assert!(still_holds, "{record:?} read what version {number} does not contain: {model:?}");
            } else if !still_holds {
                findings.write_skews += 1;
            }
            for statement in &record.statements {
                apply(statement, &record.id, &mut model);
            }
            if !record.was_resumed {
                processes.insert(record.process);
            }
        }
        assert_eq!(model, actual, "version {number}");
        findings.shared_versions += u64::from(version.metadata.committed.len() > 1);
        findings.carried_versions += u64::from(processes.len() > 1);
        states.push(model);
    }
    findings.versions = latest + 1;
    for record in records {
        if let Result::Committed(version) = record.answer {
            let is_there = committed_in.get(&record.id).is_some_and(|versions| versions.contains(&version));
            assert!(is_there, "{record:?} got the answer that it is in {version}");
        }
        for read in &record.reads {
            assert!(holds(read, &states[record.base as usize]), "{record:?} did not read version {}", record.base);
        }
    }
    for record in records.iter().filter(|record| record.answer == Result::Unknown) {
        let versions = committed_in.get(&record.id);
        let expected = versions.and_then(|versions| versions.last()).filter(|version| **version >= oldest);
        match outcome_of(&living, &record.id).await {
            // A late request has created the next root in the meantime.
            Ok(TransactionOutcome::Committed(Some(version))) if version > latest => {
                let is_next = version == latest + 1 && world.roots().contains(&version);
                assert!(versions.is_none() && is_next, "{record:?} is in {versions:?} and {version}");
            }
            Ok(TransactionOutcome::Committed(Some(version))) => {
                assert_eq!(Some(&version), expected, "{record:?}")
            }
            Ok(TransactionOutcome::Undone { version, by }) => {
                assert_eq!(Some(&version), expected, "{record:?}");
                assert!(version < by && by <= last_rollback, "{record:?} was undone in {by}");
            }
            Ok(TransactionOutcome::Committed(None)) => assert!(versions.is_some(), "{record:?}"),
            Ok(TransactionOutcome::RolledBack) => {
                assert!(versions.is_none(), "{record:?} is rolled back and in {versions:?}")
            }
            Ok(TransactionOutcome::NotCommitted) => assert_eq!(expected, None, "{record:?}"),
            // A late boundary may have been created in the meantime.
            Ok(TransactionOutcome::Unknown) => {
                let oldest = world.boundary();
                let last = versions.and_then(|versions| versions.last());
                let has_expired = last.is_none_or(|version| *version < oldest);
                assert!(oldest > 0 && has_expired, "{record:?}, the oldest version is {oldest}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    // Chosen ids stay used as long as their versions are retained.
    let tip = living.latest().await.unwrap();
    let oldest = world.boundary();
    for record in records.iter().filter(|record| record.was_resumed) {
        let versions = committed_in.get(&record.id);
        if versions.and_then(|versions| versions.last()).is_some_and(|version| *version >= oldest) {
            let key = tip.config.names.transaction_key(&record.id).unwrap();
            assert!(tip.get(&key).await.unwrap().is_some(), "{record:?} could be committed again");
        }
    }
    gc::nothing_was_lost(world, &world.everything(), &tip);
    commit_succeeds(&living).await;
    gc::no_unreferenced_file_is_left(world, &living).await;
    findings
}

fn holds(read: &Read, state: &Objects) -> bool {
    match read {
        Read::Object(kind, name, seen) => state.get(&key(*kind, name)) == seen.as_ref(),
        Read::Tables(namespace, seen) => {
            let is_table = |(kind, name): &&(String, Name)| kind == Table.word() && name.0 == *namespace;
            let tables: BTreeSet<&String> = state.keys().filter(is_table).map(|(_, name)| &name.1).collect();
            tables == seen.iter().collect()
        }
    }
}

fn apply(statement: &Statement, id: &str, model: &mut Objects) {
    match statement {
        Statement::Create(kind, name) => {
            let taken = model.insert(key(*kind, name), vec![id.to_string()]);
            assert!(taken.is_none(), "{statement:?} of {id}: it existed");
        }
        Statement::Register(name, other) => {
            let taken = model.insert(key(Table, name), vec![other.clone()]);
            assert!(taken.is_none(), "{statement:?} of {id}: it existed");
        }
        Statement::Append(kind, name) => {
            let object = model.get_mut(&key(*kind, name));
            object.unwrap_or_else(|| panic!("{statement:?} of {id}: nothing there")).push(id.to_string());
        }
        Statement::Drop(kind, name) => {
            assert!(model.remove(&key(*kind, name)).is_some(), "{statement:?} of {id}: nothing there");
        }
        Statement::Rename(from, to) => {
            let object = model.remove(&key(Table, from));
            let object = object.unwrap_or_else(|| panic!("{statement:?} of {id}: nothing there"));
            assert!(model.insert(key(Table, to), object).is_none(), "{statement:?} of {id}: taken");
        }
    }
}

/// Locations that a version references.
async fn locations(version: &Version) -> Vec<String> {
    let mut found = Vec::new();
    let mut scan = version.scan(KeyRange::all(), None, true);
    while let Some(batch) = scan.next_batch().await.unwrap() {
        found.extend(batch.locations.unwrap().iter().flatten().map(str::to_string));
    }
    found
}

async fn objects(version: &Version) -> Objects {
    let mut objects = Objects::new();
    let mut scan = version.scan(KeyRange::all(), None, true);
    while let Some(batch) = scan.next_batch().await.unwrap() {
        let locations = batch.locations.unwrap();
        for (object_key, location) in batch.keys.iter().flatten().zip(locations.iter().flatten()) {
            let Some((kind, namespace, name)) = version.config.names.decode_parts(object_key) else {
                panic!("{object_key:?} is not a key");
            };
            if kind == ObjectKind::TransactionRecord {
                continue;
            }
            let content = version.read_definition(location).await.unwrap();
            objects.insert(key(kind, &(namespace.to_string(), name.to_string())), lines(&content));
        }
    }
    objects
}

/// Checks that a commit succeeds when no request fails.
async fn commit_succeeds(lakehouse: &Arc<Lakehouse>) {
    let base = lakehouse.latest().await.unwrap();
    let mut transaction = lakehouse.begin(base.clone(), TransactionOptions::default()).unwrap();
    transaction.create(ObjectKind::Namespace, "afterwards", "", "x".into()).await.unwrap();
    let outcome = transaction.commit(CommitLimits::default()).await.unwrap();
    assert!(matches!(outcome, Outcome::Committed(version) if version > base.number));
}

/// The transactions whose records a version wrote or removed.
fn recorded_ids(version: &Version) -> Vec<String> {
    let prefix = ObjectKind::TransactionRecord.prefix();
    let changes = version.recorded_changes().unwrap();
    let keys = changes.iter().filter_map(|change| change.key.strip_prefix(prefix));
    keys.map(|id| id.trim_end().to_string()).collect()
}
