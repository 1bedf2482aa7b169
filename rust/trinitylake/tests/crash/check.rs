//! Compares the stored files with the journals: applied in order, the transactions in the log give the content of every
//! version, and they agree with the answers that the processes got.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use trinitylake::environment::testing::TestEnvironment;
use trinitylake::file_names::root_version;
use trinitylake::key::KeyRange;
use trinitylake::key::ObjectKind::{self, Table};
use trinitylake::lakehouse::Lakehouse;
use trinitylake::transaction::saved::cleanup::ABANDON_MESSAGE;
use trinitylake::transaction::saved::cleanup::FORGET_MESSAGE;
use trinitylake::transaction::saved::outcome_by_id::{TransactionOutcome, outcome_of};
use trinitylake::version::Version;
use trinitylake::version::expiry_boundary::boundary;
use trinitylake::version::root_metadata::OPERATION_PROPERTY;

use crate::process::{Answer, Attempt, Statement, lines};
use crate::scenarios;
use crate::store::Store;

pub type Objects = BTreeMap<(&'static str, String, String), Vec<String>>;

/// Start of the trials of a scenario; without a version if no lakehouse exists yet.
#[derive(Clone, Debug, Default)]
pub struct Start {
    pub store: Arc<Store>,
    pub latest: Option<(u64, Objects)>,
}

impl Start {
    pub async fn of(store: Arc<Store>) -> Start {
        let latest = open(&store).await.known();
        let objects = objects(&latest).await;
        Start { store, latest: Some((latest.number, objects)) }
    }
}

pub async fn open(store: &Arc<Store>) -> Arc<Lakehouse> {
    Lakehouse::open(store.clone(), TestEnvironment::seeded(9), None).await.unwrap()
}

/// Checks all versions and attempts. Returns the number of committed attempts whose process got no answer.
pub async fn check(start: &Start, store: &Arc<Store>, attempts: &[Attempt]) -> u64 {
    let living = open(store).await;
    let (latest, oldest) = (living.known().number, boundary(store.as_ref()).await.unwrap());
    let mut roots: Vec<u64> = store.paths().iter().filter_map(|path| root_version(path)).collect();
    roots.retain(|version| *version >= oldest);
    roots.sort_unstable();
    assert_eq!(roots, (oldest..=latest).collect::<Vec<_>>(), "the versions are not contiguous");
    for number in oldest..=latest {
        living.version(number).await.unwrap();
    }

    let past = open(&store.archive()).await;
    let (first, mut model) = match &start.latest {
        Some((number, objects)) => (number + 1, objects.clone()),
        None => (0, Objects::new()),
    };
    let mut committed_in: HashMap<String, Vec<u64>> = HashMap::new();
    let mut explained: HashMap<usize, u64> = HashMap::new();
    let mut rollbacks: Vec<(u64, u64)> = Vec::new();
    let mut found_out = 0;
    for number in first..=latest {
        let version = past.version(number).await.unwrap();
        let shape = version.shape().await.unwrap();
        assert!(shape.problems.is_empty(), "version {number}: {:?}", shape.problems);
        let actual = objects(&version).await;
        let ids = ids(&version);
        let candidates: Vec<Vec<usize>> = ids
            .iter()
            .map(|id| {
                let is_it = |(_, attempt): &(usize, &Attempt)| attempt.id == *id && may_be_committed(attempt);
                attempts.iter().enumerate().filter(is_it).map(|(index, _)| index).collect()
            })
            .collect();
        let mut went_back = None;
        if let [only] = candidates.as_slice()
            && let Some(Statement::GoBack(target)) = only.first().and_then(|i| attempts[*i].statements.first())
        {
            went_back = Some(objects(past.version(*target).await.unwrap().as_ref()).await);
            rollbacks.push((number, *target));
        }
        let chosen = explain(&model, went_back.as_ref(), &candidates, attempts, &actual);
        let chosen = chosen.unwrap_or_else(|| {
            panic!("version {number} of {ids:?} is not what they make of {model:?}, but {actual:?}")
        });
        for (id, attempt) in ids.iter().zip(chosen) {
            let versions = committed_in.entry(id.clone()).or_default();
            // An id stays used after a rollback of the lakehouse.
            assert!(versions.is_empty(), "transaction {id} is in versions {versions:?} and in {number}");
            versions.push(number);
            explained.insert(attempt, number);
            for file in &attempts[attempt].files {
                let content = store.content(file);
                assert_eq!(content.as_deref(), Some(file.as_bytes()), "version {number} names {file}");
            }
            found_out += u64::from(attempts[attempt].answer == Answer::Unknown);
        }
        model = actual;
    }

    let undone_by = |version: u64| {
        let mut later = rollbacks.iter().filter(|(number, target)| (target + 1..*number).contains(&version));
        later.next().map(|(number, _)| *number)
    };
    let names = living.known().config.names;
    for (id, versions) in committed_in.iter().filter(|(id, _)| id.starts_with(scenarios::CHOSEN)) {
        let key = names.transaction_key(id).unwrap();
        let is_recorded = living.known().get(&key).await.unwrap().is_some();
        assert!(is_recorded || versions.iter().all(|version| *version < oldest), "{id} may commit again");
    }
    for (index, attempt) in attempts.iter().enumerate() {
        let versions = committed_in.get(&attempt.id);
        match attempt.answer {
            Answer::Committed(version) => {
                // The version may be the commit of another process with the same id and the same statements.
                let did_the_same =
                    |(other, at): (&usize, &u64)| *at == version && attempts[*other].statements == attempt.statements;
                let is_there = versions.is_some_and(|versions| versions.contains(&version));
                assert!(is_there && explained.iter().any(did_the_same), "{index}: {attempt:?} is in {versions:?}");
            }
            Answer::Refused => assert!(!explained.contains_key(&index)),
            Answer::RolledBack => assert!(versions.is_none(), "{attempt:?} is in {versions:?}"),
            Answer::Unknown => {
                let expected = versions.and_then(|versions| versions.last()).filter(|last| **last >= oldest);
                match outcome_of(&living, &attempt.id).await.unwrap() {
                    TransactionOutcome::Committed(Some(version)) => {
                        assert_eq!((Some(&version), undone_by(version)), (expected, None), "{attempt:?}")
                    }
                    TransactionOutcome::Undone { version, by } => {
                        assert_eq!((Some(&version), undone_by(version)), (expected, Some(by)), "{attempt:?}")
                    }
                    TransactionOutcome::Committed(None) => assert!(versions.is_some(), "{attempt:?}"),
                    // The outcome of a transaction with a generated id cannot be queried.
                    TransactionOutcome::RolledBack => {
                        assert!(versions.is_none(), "{attempt:?} is in {versions:?}")
                    }
                    TransactionOutcome::NotCommitted | TransactionOutcome::Unknown if has_foreign_id(attempt) => {}
                    TransactionOutcome::NotCommitted => {
                        assert!(expected.is_none(), "{attempt:?}: {expected:?}")
                    }
                    TransactionOutcome::Unknown => {
                        assert!(oldest > 0 && expected.is_none(), "{attempt:?}: {expected:?}")
                    }
                }
            }
        }
    }
    found_out
}

fn may_be_committed(attempt: &Attempt) -> bool {
    match attempt.answer {
        Answer::Committed(_) | Answer::Unknown => true,
        Answer::Refused | Answer::RolledBack => false,
    }
}

fn has_foreign_id(attempt: &Attempt) -> bool {
    attempt.id.starts_with(scenarios::BY_MESSAGE)
}

/// Ids of the transactions of a version, or the message if the core chose the id.
fn ids(version: &Version) -> Vec<String> {
    let committed = version.metadata.committed.iter();
    committed
        .filter(|transaction| ![FORGET_MESSAGE, ABANDON_MESSAGE].contains(&transaction.message.as_str()))
        .filter(|transaction| transaction.gives_up().is_none())
        .map(|transaction| match transaction.properties.contains_key(OPERATION_PROPERTY) {
            true => transaction.message.clone(),
            false => transaction.id.clone(),
        })
        .collect()
}

/// Chooses one of the `candidates` for each transaction of a version, so that the attempts in this order lead from
/// `model` to `actual`.
fn explain(
    model: &Objects,
    went_back: Option<&Objects>,
    candidates: &[Vec<usize>],
    attempts: &[Attempt],
    actual: &Objects,
) -> Option<Vec<usize>> {
    let Some((first, rest)) = candidates.split_first() else {
        return (model == actual).then(Vec::new);
    };
    first.iter().find_map(|&attempt| {
        let after = match went_back {
            Some(objects) => objects.clone(),
            None => attempts[attempt]
                .statements
                .iter()
                .try_fold(model.clone(), |model, statement| apply(statement, &attempts[attempt].id, model))?,
        };
        let others = explain(&after, None, rest, attempts, actual)?;
        Some(std::iter::once(attempt).chain(others).collect())
    })
}

/// Applies a statement to the model; `None` if the statement is impossible.
fn apply(statement: &Statement, id: &str, mut model: Objects) -> Option<Objects> {
    let key = |kind: &ObjectKind, name: &(&str, &str)| (kind.word(), name.0.to_string(), name.1.to_string());
    match statement {
        Statement::Create(kind, name) => model.insert(key(kind, name), vec![id.to_string()]).is_none().then_some(())?,
        Statement::Append(kind, name) => model.get_mut(&key(kind, name))?.push(id.to_string()),
        Statement::Drop(kind, name) => model.remove(&key(kind, name)).map(drop)?,
        Statement::Rename(from, to) => {
            let object = model.remove(&key(&Table, from))?;
            model.insert(key(&Table, to), object).is_none().then_some(())?
        }
        Statement::GoBack(_) => return None,
    }
    Some(model)
}

pub async fn objects(version: &Version) -> Objects {
    let mut objects = Objects::new();
    let mut scan = version.scan(KeyRange::all(), None, true);
    while let Some(batch) = scan.next_batch().await.unwrap() {
        let locations = batch.locations.unwrap();
        for (key, location) in batch.keys.iter().flatten().zip(locations.iter().flatten()) {
            let (kind, namespace, name) = version.config.names.decode_parts(key).unwrap();
            if kind != ObjectKind::TransactionRecord {
                let content = lines(&version.read_definition(location).await.unwrap());
                objects.insert((kind.word(), namespace.to_string(), name.to_string()), content);
            }
        }
    }
    objects
}
