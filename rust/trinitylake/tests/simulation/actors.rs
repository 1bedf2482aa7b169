//! Work of the processes: transactions of random statements, rollbacks, expiry and reads.
//!
//! Every definition is the list of the transactions that appended to it, so that a lost or a doubled write shows in any
//! later read.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use prost::Message as _;
use trinitylake::error::{Error, Result as CoreResult};
use trinitylake::expiry::expire;
use trinitylake::gc::file_references::{Contents, FileForm, Form, Link};
use trinitylake::gc::{Options, no_progress, vacuum};
use trinitylake::key::ObjectKind::{self, Namespace, Table};
use trinitylake::lakehouse::Lakehouse;
use trinitylake::lakehouse_definition::{LakehouseDefinition, proto};
use trinitylake::transaction::{
    CommitLimits, ConflictingTable, Coordination, Isolation, Outcome, Transaction, TransactionOptions,
};

use crate::dying_process::{Life, MortalLine};
use crate::world::{Line, Process, World};

/// Number of collections of one collector, and of expiries of one expirer, in one world.
const MOST_ROUNDS: u64 = 25;

pub type Name = (String, String);

#[derive(Clone, Debug)]
pub enum Statement {
    Create(ObjectKind, Name),
    Append(ObjectKind, Name),
    Drop(ObjectKind, Name),
    Rename(Name, Name),
    /// Registers a table with the data file of another transaction. A version may reference that file.
    Register(Name, String),
}

impl Statement {
    pub fn names(&self) -> Vec<&Name> {
        match self {
            Statement::Create(_, name)
            | Statement::Append(_, name)
            | Statement::Drop(_, name)
            | Statement::Register(name, _) => vec![name],
            Statement::Rename(from, to) => vec![from, to],
        }
    }
}

#[derive(Clone, Debug)]
pub enum Read {
    /// Content of an object, or its absence.
    Object(ObjectKind, Name, Option<Vec<String>>),
    /// The tables of a namespace.
    Tables(String, Vec<String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Result {
    Committed(u64),
    /// Certainly not committed.
    Failed,
    Unknown,
}

#[derive(Clone, Debug)]
pub struct Record {
    pub id: String,
    /// Number of the handle on which the transaction began.
    pub process: usize,
    pub isolation: Isolation,
    /// Whether its reads are watched.
    pub is_watching: bool,
    /// Number of times that the transaction repeated its watched reads after a conflict.
    pub looked_again: u64,
    pub base: u64,
    pub statements: Vec<Statement>,
    pub reads: Vec<Read>,
    /// Files that were uploaded in the background.
    pub files: Vec<String>,
    pub answer: Result,
    pub was_resumed: bool,
    /// Whether the transaction was rolled back while others might have committed it.
    pub was_rolled_back: bool,
    /// Number of files that the transaction could not register, because a collection might delete them.
    pub not_registered: u64,
}

pub fn lines(bytes: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(bytes).lines().map(str::to_string).collect()
}

fn appended(content: &[u8], id: &str) -> Bytes {
    let mut lines = lines(content);
    lines.push(id.to_string());
    lines.join("\n").into()
}

pub async fn open(world: &Arc<World>) -> CoreResult<Arc<Lakehouse>> {
    let process = Process::new(world);
    Lakehouse::open(Line::of(&process), process, None).await
}

async fn open_until_death(world: &Arc<World>, life: &Arc<Life>) -> CoreResult<Arc<Lakehouse>> {
    let process = Process::new(world);
    Lakehouse::open(MortalLine::new(world, &process, life), process, None).await
}

/// Creates a lakehouse with small nodes. In half of them saved transactions can be resumed for a short time only.
pub async fn create(world: &Arc<World>) {
    let compression = if world.is_compressed { "zstd" } else { "none" };
    let properties =
        [("root.buffer-size-bytes", "900"), ("inner.buffer-size-bytes", "500"), ("node.compression", compression)];
    let definition = LakehouseDefinition::encode(proto::LakehouseDef {
        order: [3, 4, 8][world.below(3) as usize],
        txn_ttl_millis: if world.chance(50) { 200 + world.below(3000) } else { 0 },
        properties: properties.map(|(name, value)| (name.to_string(), value.to_string())).into(),
        ..Default::default()
    });
    Lakehouse::create(Line::new(world), Process::new(world), definition, None).await.unwrap();
}

/// Creates the lakehouse and starts all actors; returns the records of all transactions.
pub async fn play(world: &Arc<World>) -> Vec<Record> {
    create(world).await;
    let mut handles = Vec::new();
    for _ in 0..1 + world.below(3) {
        handles.push(open(world).await.unwrap());
    }
    world.infect();
    let records: Mutex<Vec<Record>> = Mutex::default();
    let writers = (0..2 + world.below(7)).map(|_| {
        let handle = handles[world.below(handles.len() as u64) as usize].clone();
        write(world, handle, &handles, &records)
    });
    let is_over = AtomicBool::new(false);
    // Most worlds have two collectors and one expirer, until the last writer has ended.
    let (collectors, expirers) = [(0, 0), (1, 1), (2, 0), (2, 1), (2, 1)][world.below(5) as usize];
    let collectors = (0..collectors).map(|_| collect(world, &is_over));
    let expirers = (0..expirers).map(|_| expire_versions(world, &is_over));
    let others = async {
        futures::join!(disturb(world, &handles[0]), watch(world), watch(world));
    };
    let work = async {
        futures::join!(join_all(writers), others);
        is_over.store(true, Ordering::SeqCst);
    };
    futures::join!(work, join_all(collectors), join_all(expirers));
    records.into_inner().unwrap()
}

async fn write(world: &Arc<World>, handle: Arc<Lakehouse>, handles: &[Arc<Lakehouse>], records: &Mutex<Vec<Record>>) {
    for _ in 0..10 + world.below(20) {
        tokio::time::sleep(Duration::from_millis(world.below(60))).await;
        // Some writers commit several transactions at the same time, which may conflict.
        let several = if world.chance(20) { 2 + world.below(3) } else { 1 };
        let mut prepared = Vec::new();
        for _ in 0..several {
            match prepare(world, &handle, handles).await {
                Prepared::Nothing => {}
                Prepared::Over(record) => records.lock().unwrap().push(*record),
                Prepared::ToCommit(transaction, record) => prepared.push((*transaction, *record)),
            }
        }
        let limits = limits(world);
        let outcomes = join_all(prepared.iter_mut().map(|(transaction, _)| transaction.commit(limits))).await;
        for ((mut transaction, mut record), outcome) in prepared.into_iter().zip(outcomes) {
            record.answer = conclude(world, &handle, &mut transaction, &mut record, limits, outcome).await;
            // An unknown outcome can be settled by a rollback, unless it was committed.
            if record.answer == Result::Unknown && world.chance(60) && transaction.rollback().await.is_ok() {
                record.answer = Result::Failed;
                record.was_rolled_back = true;
            }
            records.lock().unwrap().push(record);
        }
    }
}

enum Prepared {
    /// The transaction could not begin.
    Nothing,
    /// The transaction failed, or another process continued it.
    Over(Box<Record>),
    ToCommit(Box<Transaction>, Box<Record>),
}

/// Begins a transaction and runs random statements.
async fn prepare(world: &Arc<World>, handle: &Arc<Lakehouse>, handles: &[Arc<Lakehouse>]) -> Prepared {
    let Ok(base) = handle.latest().await else { return Prepared::Nothing };
    let isolation = if world.chance(50) { Isolation::Snapshot } else { Isolation::Serializable };
    let options = TransactionOptions { isolation, ..TransactionOptions::default() };
    let mut transaction = handle.begin(base.clone(), options).unwrap();
    let mut record = Box::new(Record {
        id: transaction.id().to_string(),
        process: handles.iter().position(|other| Arc::ptr_eq(other, handle)).unwrap(),
        isolation,
        is_watching: isolation == Isolation::Snapshot && world.chance(40),
        looked_again: 0,
        base: base.number,
        statements: Vec::new(),
        reads: Vec::new(),
        files: Vec::new(),
        answer: Result::Failed,
        was_resumed: false,
        was_rolled_back: false,
        not_registered: 0,
    });
    if record.is_watching {
        transaction.begin_watch().unwrap();
    }
    // The data file is written first, which may take long.
    let data = handle.storage().put_unique(&data_path(&record.id), Bytes::from(record.id.clone())).await;
    if world.chance(10) {
        tokio::time::sleep(Duration::from_millis(world.below(4000))).await;
    }
    let is_filled = data.is_ok() && fill(world, &mut transaction, &mut record).await.is_ok();
    if !is_filled || record.statements.is_empty() {
        return Prepared::Over(record);
    }
    transaction.end_watch();
    if world.chance(10) && transaction.save().await.is_ok() {
        record.was_resumed = true;
        (record.answer, record.was_rolled_back) = resume(world, &record.id, handles).await;
        return Prepared::Over(record);
    }
    Prepared::ToCommit(Box::new(transaction), record)
}

/// Runs random statements. A failure of the store ends the transaction; a refused statement does not.
async fn fill(world: &Arc<World>, transaction: &mut Transaction, record: &mut Record) -> CoreResult<()> {
    let namespace = |world: &World| format!("n{}", world.below(4));
    let table = |world: &World| (namespace(world), format!("t{}", world.below(4)));
    if world.chance(30) {
        let namespace = namespace(world);
        let tables = tables(transaction, &namespace).await?;
        record.reads.push(Read::Tables(namespace, tables));
    }
    let mut touched: BTreeSet<Name> = BTreeSet::new();
    for _ in 0..1 + world.below(5) {
        let is_table = world.chance(70);
        let kind = if is_table { Table } else { Namespace };
        let name = if is_table { table(world) } else { (namespace(world), String::new()) };
        if !touched.insert(name.clone()) {
            continue;
        }
        let (id, what) = (record.id.clone(), world.below(100));
        let current = transaction.read(kind, &name.0, &name.1).await?;
        let seen = current.as_ref().map(|content| lines(content));
        record.reads.push(Read::Object(kind, name.clone(), seen));
        let statement = match (&current, what) {
            (_, 0..25) => continue,
            (None, 60..) if is_table => {
                let Some(other) = written_by_another(world, &id) else { continue };
                match transaction.adopt(vec![data_path(&other)], false).await {
                    Err(Error::TransactionExpired(_)) => {
                        record.not_registered += 1;
                        continue;
                    }
                    adopted => adopted?,
                }
                let done = transaction.create(kind, &name.0, &name.1, Bytes::from(other.clone())).await;
                done.map(|()| Statement::Register(name, other))
            }
            (None, _) => {
                let done = transaction.create(kind, &name.0, &name.1, Bytes::from(id)).await;
                done.map(|()| Statement::Create(kind, name))
            }
            (Some(content), 25..75) => {
                let done = transaction.replace(kind, &name.0, &name.1, appended(content, &id)).await;
                done.map(|()| Statement::Append(kind, name))
            }
            (Some(_), 75..90) => {
                let done = transaction.drop_object(kind, &name.0, &name.1).await;
                done.map(|()| Statement::Drop(kind, name))
            }
            (Some(_), _) => {
                let target = table(world);
                if kind != Table || !touched.insert(target.clone()) {
                    continue;
                }
                let (from, to) = ((name.0.as_str(), name.1.as_str()), (target.0.as_str(), target.1.as_str()));
                let done = transaction.rename(Table, from, to).await;
                done.map(|()| Statement::Rename(name, target))
            }
        };
        if statement.is_ok() && world.chance(40) {
            let path = format!("data/{}/{}", record.id, record.files.len());
            transaction.pending().put(&path, Bytes::from(path.clone())).await?;
            record.files.push(path);
        }
        match statement {
            Ok(statement) => record.statements.push(statement),
            Err(Error::ObjectNotFound(_) | Error::ObjectAlreadyExists(_) | Error::NamespaceNotEmpty(_)) => {}
            Err(error) => return Err(error),
        }
        if world.chance(20) {
            tokio::time::sleep(Duration::from_millis(world.below(100))).await;
        }
    }
    Ok(())
}

/// Returns the id of another transaction whose data file exists.
fn written_by_another(world: &World, id: &str) -> Option<String> {
    let others: Vec<String> =
        world.paths().iter().filter_map(|path| data_id(path)).filter(|other| other != id).collect();
    let chosen = world.below(others.len().max(1) as u64) as usize;
    others.into_iter().nth(chosen)
}

fn limits(world: &World) -> CommitLimits {
    let coordination = if world.queues { Coordination::Queue } else { Coordination::None };
    CommitLimits { max_attempts: 50, timeout_millis: 1000 + world.below(60_000), coordination: Some(coordination) }
}

async fn commit(
    world: &Arc<World>,
    handle: &Arc<Lakehouse>,
    transaction: &mut Transaction,
    record: &mut Record,
) -> Result {
    let limits = limits(world);
    let outcome = transaction.commit(limits).await;
    conclude(world, handle, transaction, record, limits, outcome).await
}

/// Resolves conflicts and commits again until the answer to a commit is final.
async fn conclude(
    world: &Arc<World>,
    handle: &Arc<Lakehouse>,
    transaction: &mut Transaction,
    record: &mut Record,
    limits: CommitLimits,
    mut outcome: CoreResult<Outcome>,
) -> Result {
    loop {
        match outcome {
            Ok(Outcome::Committed(version)) => return Result::Committed(version),
            Ok(Outcome::Conflicts(conflicts)) => {
                let mut is_resolved = true;
                for conflict in &conflicts.tables {
                    is_resolved &= rebase(handle, transaction, conflict, &record.id).await.is_ok();
                }
                if is_resolved && !conflicts.watched.is_empty() {
                    is_resolved = world.chance(70) && look_again(transaction, record).await.is_ok();
                }
                if !is_resolved {
                    // The rollback of a saved transaction writes a record, which may fail.
                    return match transaction.rollback().await {
                        Ok(_) => Result::Failed,
                        Err(_) => Result::Unknown,
                    };
                }
            }
            // `VersionExpired` means that the transaction was committed in a version that has expired.
            Err(Error::CommitStateUnknown(_) | Error::VersionExpired(_)) => return Result::Unknown,
            // Any other error is certain.
            Err(
                Error::CommitConflict { .. }
                | Error::TransactionExpired(_)
                | Error::PermissionDenied(_)
                | Error::Storage { .. },
            ) => return Result::Failed,
            Err(error) => panic!("transaction {} of {:?} ended in {error:?}", record.id, record.statements),
        }
        outcome = transaction.commit(limits).await;
    }
}

/// Rebases the append of this transaction on the winner's definition.
async fn rebase(
    handle: &Arc<Lakehouse>,
    transaction: &mut Transaction,
    conflict: &ConflictingTable,
    id: &str,
) -> CoreResult<()> {
    let theirs = handle.known().read_definition(&conflict.winner_location).await?;
    transaction.rebase(conflict, appended(&theirs, id))
}

/// Repeats the watched reads on the newest version, except for objects that the transaction writes.
async fn look_again(transaction: &mut Transaction, record: &mut Record) -> CoreResult<()> {
    if record.was_resumed {
        return Err(Error::InvalidArgument("the reads of the first writer are not known here".into()));
    }
    transaction.begin_watch()?;
    let written: BTreeSet<&Name> = record.statements.iter().flat_map(Statement::names).collect();
    let mut reads = Vec::new();
    for read in &record.reads {
        match read {
            Read::Object(kind, name, _) if !written.contains(name) => {
                let content = transaction.read(*kind, &name.0, &name.1).await?;
                reads.push(Read::Object(*kind, name.clone(), content.as_ref().map(|content| lines(content))));
            }
            Read::Tables(namespace, _) if written.iter().all(|name| name.0 != *namespace) => {
                let tables = tables(transaction, namespace).await?;
                reads.push(Read::Tables(namespace.clone(), tables));
            }
            Read::Object(..) | Read::Tables(..) => {}
        }
    }
    transaction.end_watch();
    record.reads = reads;
    record.base = transaction.base().number;
    record.looked_again += 1;
    Ok(())
}

async fn tables(transaction: &mut Transaction, namespace: &str) -> CoreResult<Vec<String>> {
    let names = transaction.base().config.names;
    let range = names.objects_in(Table, Some(namespace))?;
    let rows = transaction.list(&range, None).await?;
    Ok(rows.iter().filter_map(|(key, _)| names.decode(key)).map(|object| object.name).collect())
}

/// One or two processes continue a saved transaction at the same time, or roll it back. Returns the answer, and whether
/// a process rolled the transaction back.
async fn resume(world: &Arc<World>, id: &str, handles: &[Arc<Lakehouse>]) -> (Result, bool) {
    let resumers = 1 + world.below(2);
    let answers = join_all((0..resumers).map(|_| async {
        let handle = &handles[world.below(handles.len() as u64) as usize];
        tokio::time::sleep(Duration::from_millis(world.below(300))).await;
        let Ok(mut transaction) = Transaction::resume(handle, id).await else {
            return (Result::Unknown, false);
        };
        if world.chance(25) {
            let is_rolled_back = transaction.rollback().await.is_ok();
            return (if is_rolled_back { Result::Failed } else { Result::Unknown }, is_rolled_back);
        }
        let mut record = Record {
            id: id.to_string(),
            process: 0,
            isolation: transaction.isolation(),
            is_watching: false,
            looked_again: 0,
            base: 0,
            statements: Vec::new(),
            reads: Vec::new(),
            files: Vec::new(),
            answer: Result::Unknown,
            was_resumed: true,
            was_rolled_back: false,
            not_registered: 0,
        };
        match commit(world, handle, &mut transaction, &mut record).await {
            // Another process resumed it and knows the outcome.
            Result::Failed if resumers > 1 => (Result::Unknown, false),
            answer => (answer, false),
        }
    }))
    .await;
    let committed = answers.iter().find(|(answer, _)| matches!(answer, Result::Committed(_)));
    let rolled_back = answers.iter().find(|(_, is_rolled_back)| *is_rolled_back);
    assert!(committed.is_none() || rolled_back.is_none(), "{id}: committed and rolled back: {answers:?}");
    *committed.or(rolled_back).unwrap_or(&answers[0])
}

/// Rolls back and expires some versions from time to time.
async fn disturb(world: &Arc<World>, handle: &Arc<Lakehouse>) {
    for _ in 0..world.below(8) {
        tokio::time::sleep(Duration::from_millis(200 + world.below(2000))).await;
        let Ok(latest) = handle.latest().await else { continue };
        // The checks do not need the answers.
        if world.chance(40) {
            let _ = handle.rollback(latest.number.saturating_sub(world.below(4)), "back", "").await;
        } else if world.chance(30) {
            let _ = name_version(world, handle, latest.number.saturating_sub(world.below(6))).await;
        } else {
            let _ = expire(handle, Some(latest.number.saturating_sub(world.below(12))), false).await;
        }
    }
}

/// Creates or drops a tag, as the layer above does.
async fn name_version(world: &Arc<World>, handle: &Arc<Lakehouse>, number: u64) -> CoreResult<()> {
    let target = handle.version(number).await?;
    change_names(handle, |names| {
        if world.chance(40) {
            names.clear();
        }
        names.insert("named".into(), target.root_path.clone());
    })
    .await?;
    if handle.oldest_version().await? > number {
        change_names(handle, |names| names.clear()).await?;
    }
    Ok(())
}

pub async fn change_names(
    handle: &Arc<Lakehouse>,
    change: impl FnOnce(&mut std::collections::BTreeMap<String, String>),
) -> CoreResult<()> {
    let base = handle.latest().await?;
    let options = TransactionOptions { message: NAME_MESSAGE.into(), ..TransactionOptions::default() };
    let mut transaction = handle.begin(base.clone(), options)?;
    let mut definition = proto::LakehouseDef::decode(base.definition.bytes().clone()).unwrap();
    change(&mut definition.exported_snapshots);
    transaction.set_lakehouse_definition(definition.encode_to_vec().into())?;
    transaction.commit(CommitLimits::default()).await.map(drop)
}

/// Collects garbage with a very short grace period during the work of others. Some collectors die at one of their
/// requests.
async fn collect(world: &Arc<World>, is_over: &AtomicBool) {
    for _ in 0..MOST_ROUNDS {
        tokio::time::sleep(Duration::from_millis(world.below(1200))).await;
        if is_over.load(Ordering::SeqCst) {
            return;
        }
        let life = Life::new(world, 250);
        let options = Options { grace_millis: Some(world.below(3000)), ..Options::default() };
        let collection = async {
            let handle = open_until_death(world, &life).await?;
            vacuum(&handle, &Lines, options, &no_progress()).await
        };
        let outcome = life.live(collection).await;
        world.note_collection(|seen| {
            seen.begun += 1;
            seen.deleted += life.deleted();
            match outcome {
                None => seen.died += 1,
                Some(Ok(report)) => {
                    seen.finished += 1;
                    seen.reported += report.total_deleted().files;
                }
                Some(Err(Error::CorruptFile { path, message })) => panic!("{path}: {message}"),
                Some(Err(_)) => {}
            }
        });
    }
}

/// Expires versions, by number or by age and count, during the work of others. Some of these processes die at one of
/// their requests.
async fn expire_versions(world: &Arc<World>, is_over: &AtomicBool) {
    for _ in 0..MOST_ROUNDS {
        tokio::time::sleep(Duration::from_millis(world.below(2500))).await;
        if is_over.load(Ordering::SeqCst) {
            return;
        }
        let life = Life::new(world, 80);
        let expiry = async {
            let handle = open_until_death(world, &life).await?;
            let latest = handle.latest().await?;
            let before = world.chance(80).then(|| latest.number.saturating_sub(world.below(12)));
            expire(&handle, before, false).await
        };
        // The checks do not need the answer.
        let _ = life.live(expiry).await;
    }
}

/// Message of versions that change tags.
pub const NAME_MESSAGE: &str = "name a version";

/// Path of the data file of a transaction, in the folder of an unknown table.
pub fn data_path(id: &str) -> String {
    format!("n/t-{}/data/{id}.parquet", &id[..8])
}

/// The inverse of [`data_path`].
fn data_id(path: &str) -> Option<String> {
    let id = path.strip_suffix(".parquet")?.rsplit('/').next()?;
    (data_path(id) == path).then(|| id.to_string())
}

/// Contents of test tables, whose definitions are lists of transactions: each transaction has a data file.
#[derive(Debug)]
pub struct Lines;

impl Contents for Lines {
    fn of_table(&self, bytes: Bytes, _: &str) -> CoreResult<Vec<Link>> {
        let link = |id: String| Link::File { path: data_path(&id), form: FileForm::Iceberg(Form::Content) };
        Ok(lines(&bytes).into_iter().map(link).collect())
    }

    fn of_file(&self, _: FileForm, _: &Bytes, path: &str) -> CoreResult<Vec<Link>> {
        panic!("{path} names nothing")
    }
}

/// Opens the lakehouse repeatedly, and checks its tree.
async fn watch(world: &Arc<World>) {
    let mut newest = 0;
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(world.below(700))).await;
        let Ok(lakehouse) = open(world).await else { continue };
        let version = lakehouse.known();
        assert!(version.number >= newest, "version {} is older than {newest}, seen before", version.number);
        newest = version.number;
        if let Ok(shape) = version.shape().await {
            assert!(shape.problems.is_empty(), "version {}: {:?}", version.number, shape.problems);
        }
    }
}
