//! Scenarios of the trials. Each scenario is the work of one process with one or more handles.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use trinitylake::bulk_registration::register;
use trinitylake::expiry::expire;
use trinitylake::file_names::{INTENT_PREFIX, definition_path};
use trinitylake::key::ObjectKind::{self, Namespace, Table};
use trinitylake::lakehouse::Lakehouse;
use trinitylake::storage::Storage;
use trinitylake::transaction::Transaction;
use uuid::Uuid;

use crate::process::Statement::{self, Append, Create, Drop, GoBack, Rename};
use crate::process::{Name, Process};

/// Prefix of the messages of attempts whose ids the core generates.
pub const BY_MESSAGE: &str = "by message: ";
/// Prefix of chosen ids.
pub const CHOSEN: &str = "chosen";

pub const NAMESPACES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
pub const TABLES: [&str; 4] = ["t0", "t1", "t2", "t3"];

/// A scenario. Returns `Some` if no fault prevented its end.
type Life = fn(&Process) -> BoxFuture<'_, Option<()>>;

pub struct Scenario {
    pub name: &'static str,
    pub begins_empty: bool,
    pub life: Life,
}

const fn scenario(name: &'static str, life: Life) -> Scenario {
    Scenario { name, begins_empty: false, life }
}

pub const SCENARIOS: [Scenario; 15] = [
    Scenario { name: "birth", begins_empty: true, life: |process| Box::pin(birth(process)) },
    scenario("statements", |process| Box::pin(statements(process))),
    scenario("flushes and splits", |process| Box::pin(flushes(process))),
    scenario("rebase", |process| Box::pin(rebase(process))),
    scenario("conflict and conflict", |process| Box::pin(conflict_and_conflict(process))),
    scenario("group", |process| Box::pin(group(process))),
    scenario("saved and resumed", |process| Box::pin(saved_and_resumed(process))),
    scenario("two resumers", |process| Box::pin(two_resumers(process))),
    scenario("given up", |process| Box::pin(given_up(process))),
    scenario("chosen id", |process| Box::pin(chosen_id(process))),
    scenario("rollback", |process| Box::pin(rollback(process))),
    scenario("expiry", |process| Box::pin(expiry(process))),
    scenario("forgotten ids", |process| Box::pin(forgotten_ids(process))),
    scenario("queue", |process| Box::pin(queue(process))),
    scenario("registration", |process| Box::pin(registration(process))),
];

fn namespace(name: &'static str) -> Name {
    (name, "")
}

/// Start of all scenarios except the first: a tree of several levels with filled buffers.
pub async fn settle(process: &Process) -> Option<()> {
    let lakehouse = process.create().await?;
    for name in NAMESPACES {
        process.transact(&lakehouse, &[Create(Namespace, namespace(name))]).await?;
        for table in TABLES {
            process.transact(&lakehouse, &[Create(Table, (name, table))]).await?;
        }
    }
    Some(())
}

async fn birth(process: &Process) -> Option<()> {
    let lakehouse = process.create().await?;
    let first = [Create(Namespace, namespace("a")), Create(Table, ("a", "t0")), Create(Table, ("a", "t1"))];
    let done = process.transact(&lakehouse, &first).await;
    let second = [Append(Table, ("a", "t0")), Append(Table, ("a", "t1"))];
    done.and(process.transact(&lakehouse, &second).await).map(drop)
}

async fn statements(process: &Process) -> Option<()> {
    let lakehouse = process.open().await?;
    let transactions: [&[Statement]; 6] = [
        &[Append(Table, ("a", "t0")), Append(Table, ("b", "t0")), Append(Table, ("h", "t3"))],
        &[Create(Namespace, namespace("x")), Create(Table, ("x", "t0")), Append(Namespace, namespace("a"))],
        &[Rename(("c", "t1"), ("d", "moved")), Append(Table, ("a", "t0"))],
        &[Drop(Table, ("e", "t0")), Drop(Table, ("e", "t1")), Create(Table, ("e", "new"))],
        &[Drop(Table, ("a", "t0")), Create(Table, ("f", "late")), Append(Table, ("b", "t0"))],
        &[Create(Table, ("a", "t0"))],
    ];
    let mut all = Some(());
    for transaction in transactions {
        all = process.transact(&lakehouse, transaction).await.and(all);
    }
    all
}

/// A commit large enough to flush the buffer of the root and to split nodes.
async fn flushes(process: &Process) -> Option<()> {
    let lakehouse = process.open().await?;
    let tables = ["n0", "n1", "n2", "n3", "n4", "n5"];
    let many: Vec<Statement> = tables.into_iter().map(|table| Create(Table, ("c", table))).collect();
    let fewer: Vec<Statement> = TABLES.into_iter().map(|table| Drop(Table, ("g", table))).collect();
    let mut all = Some(());
    for transaction in [&many[..], &fewer[..], &[Append(Table, ("c", "n0")), Drop(Namespace, namespace("g"))]] {
        all = process.transact(&lakehouse, transaction).await.and(all);
    }
    all
}

async fn rebase(process: &Process) -> Option<()> {
    let (slow, quick) = (process.open().await?, process.open().await?);
    let mut transaction = process.begin(&slow, None);
    let own = [Append(Table, ("a", "t1")), Create(Table, ("b", "new"))];
    let filled = process.fill(&mut transaction, &own).await;
    let first = process.transact(&quick, &[Append(Table, ("c", "t0")), Drop(Table, ("c", "t1"))]).await;
    let second = process.transact(&quick, &[Append(Table, ("c", "t0"))]).await;
    filled?;
    process.commit(&slow, &mut transaction, &own).await?;
    first.and(second).map(drop)
}

async fn conflict_and_conflict(process: &Process) -> Option<()> {
    let (slow, quick) = (process.open().await?, process.open().await?);
    let (mut conflicting, mut losing) = (process.begin(&slow, None), process.begin(&slow, None));
    let (conflict, loss) =
        ([Append(Table, ("a", "t1")), Append(Table, ("b", "t1"))], [Append(Namespace, namespace("d"))]);
    let filled = process.fill(&mut conflicting, &conflict).await.and(process.fill(&mut losing, &loss).await);
    let wins = [Append(Table, ("a", "t1")), Append(Namespace, namespace("d"))];
    let won = process.transact(&quick, &wins).await;
    filled?;
    let reapplied = process.commit(&slow, &mut conflicting, &conflict).await;
    let lost = process.commit(&slow, &mut losing, &loss).await;
    if won.is_some() {
        assert_eq!(lost, None, "both changed the same namespace");
    }
    reapplied.and(won).map(drop)
}

/// Transactions that arrive during a commit wait for the next root; two of them create the same name.
async fn group(process: &Process) -> Option<()> {
    let lakehouse = process.open().await?;
    let transactions: [&[Statement]; 5] = [
        &[Append(Table, ("a", "t1"))],
        &[Append(Table, ("b", "t1")), Create(Namespace, namespace("x"))],
        &[Create(Namespace, namespace("x"))],
        &[Append(Table, ("d", "t1")), Drop(Table, ("d", "t2"))],
        &[Create(Table, ("e", "new"))],
    ];
    let all = join_all(transactions.map(|statements| process.transact(&lakehouse, statements))).await;
    if !process.storage.is_dead() && process.storage.fired().is_empty() {
        assert_eq!(all.iter().filter(|version| version.is_some()).count(), 4, "{all:?}");
    }
    all[3].and(all[4]).map(drop)
}

async fn saved(process: &Process, lakehouse: &Arc<Lakehouse>, statements: &[Statement]) -> Option<Transaction> {
    saved_under(process, lakehouse, CHOSEN, statements).await
}

async fn saved_under(
    process: &Process,
    lakehouse: &Arc<Lakehouse>,
    id: &str,
    statements: &[Statement],
) -> Option<Transaction> {
    let mut transaction = process.begin(lakehouse, Some(id));
    process.fill(&mut transaction, statements).await?;
    transaction.save().await.ok()?;
    Some(transaction)
}

async fn saved_and_resumed(process: &Process) -> Option<()> {
    let (here, there) = (process.open().await?, process.open().await?);
    let first = [Append(Table, ("a", "t1")), Create(Namespace, namespace("x"))];
    let mut original = saved(process, &here, &first).await?;
    process.transact(&here, &[Append(Table, ("c", "t0"))]).await;
    let mut resumed = Transaction::resume(&there, CHOSEN).await.ok()?;
    let second = [Create(Table, ("x", "t0")), Append(Table, ("b", "t1"))];
    process.fill(&mut resumed, &second).await?;
    resumed.save().await.ok()?;
    let both = [&first[..], &second[..]].concat();
    let committed = process.commit(&there, &mut resumed, &both).await;
    let answered = process.commit(&here, &mut original, &first).await;
    assert_eq!(answered, None, "another process had continued it");
    // A process that resumes the transaction again gets its outcome.
    let again = Transaction::resume(&here, CHOSEN).await.ok()?;
    if committed.is_some() {
        assert_eq!(again.committed_version(), committed);
    }
    committed.map(drop)
}

async fn two_resumers(process: &Process) -> Option<()> {
    let (here, there) = (process.open().await?, process.open().await?);
    let first = [Append(Table, ("a", "t1"))];
    saved(process, &here, &first).await?;
    let (mut one, mut other) =
        (Transaction::resume(&here, CHOSEN).await.ok()?, Transaction::resume(&there, CHOSEN).await.ok()?);
    let (left, right) = ([Create(Table, ("a", "left"))], [Create(Table, ("a", "right"))]);
    process.fill(&mut one, &left).await?;
    process.fill(&mut other, &right).await?;
    let (left, right) = ([&first[..], &left].concat(), [&first[..], &right].concat());
    let (one, other) =
        futures::join!(process.commit(&here, &mut one, &left), process.commit(&there, &mut other, &right));
    assert!(one.is_none() || other.is_none(), "both continued the same transaction: {one:?}, {other:?}");
    one.or(other).map(drop)
}

/// A failed commit is rolled back. Of two processes with a saved transaction, one commits it while the other rolls it back.
async fn given_up(process: &Process) -> Option<()> {
    let (here, there) = (process.open().await?, process.open().await?);
    let statements = [Append(Table, ("c", "t1")), Append(Table, ("d", "t1"))];
    let mut doubtful = process.begin(&here, None);
    process.fill(&mut doubtful, &statements).await?;
    let done = process.commit(&here, &mut doubtful, &statements).await;
    if done.is_none() {
        process.roll_back(&mut doubtful).await;
    }
    let first = [Append(Table, ("a", "t1")), Append(Table, ("b", "t1"))];
    let mut original = saved(process, &here, &first).await?;
    let mut resumed = Transaction::resume(&there, CHOSEN).await.ok()?;
    let (committed, given_up) =
        futures::join!(process.commit(&here, &mut original, &first), process.roll_back(&mut resumed));
    assert!(committed.is_none() || given_up.is_none(), "committed and rolled back");
    let mut late = saved_under(process, &here, "chosen-late", &first).await?;
    let over = process.roll_back(&mut late).await;
    done.and(committed.map(drop).or(given_up)).and(over)
}

async fn chosen_id(process: &Process) -> Option<()> {
    let (here, there) = (process.open().await?, process.open().await?);
    let statements = [Append(Table, ("a", "t1")), Append(Table, ("b", "t1"))];
    let (transaction, again) = (process.begin(&here, Some(CHOSEN)), process.begin(&there, Some(CHOSEN)));
    let first = process.fill_and_commit(&here, transaction, &[], &statements).await;
    let second = process.fill_and_commit(&there, again, &[], &statements).await;
    if let (Some(first), Some(second)) = (first, second) {
        assert_eq!(first, second, "committed once, for every caller");
    }
    first.and(second).map(drop)
}

async fn rollback(process: &Process) -> Option<()> {
    let lakehouse = process.open().await?;
    let before = lakehouse.known().number;
    process.transact(&lakehouse, &[Append(Table, ("a", "t1")), Create(Namespace, namespace("x"))]).await;
    process.transact(&lakehouse, &[Append(Table, ("b", "t1"))]).await;
    let message = format!("{BY_MESSAGE}back to {before}");
    let attempt = process.try_to(&message, &[GoBack(before)]);
    let answer = lakehouse.rollback(before, &message, "").await.map(|version| version.number);
    let went_back = process.answered(attempt, answer);
    let after = process.transact(&lakehouse, &[Append(Table, ("c", "t1"))]).await;
    went_back.and(after).map(drop)
}

async fn expiry(process: &Process) -> Option<()> {
    let (lakehouse, asleep) = (process.open().await?, process.open().await?);
    let first = process.transact(&lakehouse, &[Append(Table, ("a", "t1"))]).await;
    let latest = lakehouse.known().number;
    let expired = expire(&lakehouse, Some(latest), false).await;
    let second = process.transact(&lakehouse, &[Append(Table, ("b", "t1"))]).await;
    let latest = lakehouse.known().number;
    let again = expire(&lakehouse, Some(latest), false).await;
    // The base version of this transaction is below the boundary.
    let late = process.transact(&asleep, &[Append(Table, ("c", "t1"))]).await;
    if again.is_ok() && first.is_some() && second.is_some() {
        assert_eq!(late, None, "the versions since its base are unknown");
    }
    first.and(second).and(expired.ok()).and(again.ok()).map(drop)
}

/// Records of ids survive a rollback of the lakehouse. They are removed when their versions expire, also if the expiry
/// is interrupted.
async fn forgotten_ids(process: &Process) -> Option<()> {
    let lakehouse = process.open().await?;
    let append = |table| [Append(Table, ("a", table))];
    let run = async |id: &'static str, table: &'static str| {
        let transaction = process.begin(&lakehouse, Some(id));
        process.fill_and_commit(&lakehouse, transaction, &[], &append(table)).await
    };
    let before = lakehouse.known().number;
    let old = run("chosen-old", "t1").await;
    let young = run("chosen-young", "t2").await;
    let message = format!("{BY_MESSAGE}back to {before}");
    let attempt = process.try_to(&message, &[GoBack(before)]);
    let answer = lakehouse.rollback(before, &message, "").await.map(|version| version.number);
    let went_back = process.answered(attempt, answer);
    let latest = lakehouse.known().number;
    let first = expire(&lakehouse, Some(latest - 1), false).await;
    let again = run("chosen-young", "t2").await;
    if young.is_some() && went_back.is_some() {
        assert_eq!(again, None, "it was committed and undone");
    }
    let latest = lakehouse.known().number;
    let second = expire(&lakehouse, Some(latest), false).await;
    old.and(young).and(went_back).and(first.ok()).and(second.ok()).map(drop)
}

/// Three writers of two processes; the loser of a race joins the intent queue. One process may die at any point,
/// waiting or as the leader. The other one must not fail, and may commit the intents that were left.
async fn queue(process: &Process) -> Option<()> {
    let companion = process.companion();
    let writers =
        [(process, process.open().await?), (process, process.open().await?), (&companion, companion.open().await?)];
    let before = writers[2].1.known().number;
    let work = writers.iter().zip(["a", "b", "c"]).map(async |((owner, lakehouse), namespace)| {
        let mut all = Some(());
        for table in ["t1", "t2", "t3"] {
            let statements = [Append(Table, (namespace, table)), Append(Table, (namespace, "t0"))];
            all = owner.transact_in_queue(lakehouse, &statements).await.and(all);
        }
        all
    });
    let done = join_all(work).await;
    assert!(done[2].is_some(), "the surviving process could not commit: {:?}", process.attempts());
    if process.storage.fired().is_empty() && !process.storage.is_dead() {
        let operations = process.storage.log();
        assert!(operations.iter().any(|operation| operation.path.starts_with(INTENT_PREFIX)), "nobody waited");
        let latest = writers[2].1.latest().await.ok()?.number;
        assert!(latest < before + 9, "no intent was committed by another process: {latest}");
    }
    done.into_iter().collect::<Option<Vec<()>>>().map(drop)
}

async fn registration(process: &Process) -> Option<()> {
    let lakehouse = process.open().await?;
    let message = format!("{BY_MESSAGE}registration");
    let objects: [(ObjectKind, Name); 3] = [(Namespace, namespace("x")), (Table, ("x", "t0")), (Table, ("x", "t1"))];
    let latest = lakehouse.known();
    let (mut keys, mut locations) = (Vec::new(), Vec::new());
    for (number, (kind, (namespace, name))) in objects.into_iter().enumerate() {
        let path = definition_path(kind, namespace, name, Uuid::from_u128(number as u128), 200);
        process.storage.put_if_absent(&path, Bytes::from(message.clone())).await.ok()?;
        keys.push(latest.config.names.key(kind, namespace, name).unwrap());
        locations.push(path);
    }
    let attempt = process.try_to(&message, &objects.map(|(kind, name)| Create(kind, name)));
    let answer = register(&lakehouse, keys.into(), locations.into(), false, &message, "").await;
    process.answered(attempt, answer.map(|version| version.number)).map(drop)
}
