//! Watched reads: a commit fails if a watched object has changed, on every path of a commit.

use std::sync::Arc;

use futures::future::join_all;

use crate::environment::testing::TestEnvironment;
use crate::error::Error;
use crate::key::ObjectKind::{self, Namespace, Table, View};
use crate::lakehouse::Lakehouse;
use crate::storage::latency::{Latency, LatencyStorage};
use crate::tests::fixture::{
    MemoryFiles, add_namespace, add_table, assert_whole, begin, commit, create, in_queue, leave_intent, names, open,
    text,
};
use crate::transaction::Isolation::{self, Serializable, Snapshot};
use crate::transaction::{CommitLimits, Conflicts, Outcome, Transaction, TransactionOptions};

/// A lakehouse with namespace `a`, table `a.x` and view `a.v`.
async fn lake() -> (Arc<MemoryFiles>, Arc<Lakehouse>) {
    let files = MemoryFiles::shared();
    let lakehouse = create(files.clone(), &TestEnvironment::seeded(1)).await;
    add_namespace(&lakehouse, "a").await.unwrap();
    add_table(&lakehouse, "a", "x").await.unwrap();
    let mut transaction = begin(&lakehouse, Snapshot).await;
    transaction.create(View, "a", "v", text("v")).await.unwrap();
    commit(&mut transaction).await.unwrap();
    (files, lakehouse)
}

type Name = (ObjectKind, &'static str, &'static str);

async fn watch(transaction: &mut Transaction, watched: &[Name]) {
    transaction.begin_watch().unwrap();
    for (kind, namespace, name) in watched {
        transaction.exists(*kind, namespace, name).await.unwrap();
    }
    transaction.end_watch();
}

/// A transaction that creates a namespace of that name and watches these objects.
async fn creating(lakehouse: &Arc<Lakehouse>, namespace: &str, watched: &[Name]) -> Transaction {
    let mut transaction = begin(lakehouse, Snapshot).await;
    transaction.create(Namespace, namespace, "", text(namespace)).await.unwrap();
    watch(&mut transaction, watched).await;
    transaction
}

async fn replace(lakehouse: &Arc<Lakehouse>, (kind, namespace, name): Name) -> u64 {
    let mut transaction = begin(lakehouse, Snapshot).await;
    transaction.replace(kind, namespace, name, text("new")).await.unwrap();
    commit(&mut transaction).await.unwrap()
}

async fn conflicts(transaction: &mut Transaction, limits: CommitLimits) -> Conflicts {
    match transaction.commit(limits).await.unwrap() {
        Outcome::Conflicts(conflicts) => conflicts,
        Outcome::Committed(version) => panic!("committed as {version}"),
    }
}

fn of(watched: &str) -> Conflicts {
    Conflicts { tables: Vec::new(), watched: vec![watched.into()] }
}

#[tokio::test]
async fn a_change_of_a_watched_object_is_reported_and_can_be_resolved() {
    let names_of =
        [((Namespace, "a", ""), "namespace a"), ((Table, "a", "x"), "table a.x"), ((View, "a", "v"), "view a.v")];
    for (name, human_name) in names_of {
        let (_, lakehouse) = lake().await;
        let mut transaction = creating(&lakehouse, "b", &[name]).await;
        let changed_in = replace(&lakehouse, name).await;
        assert_eq!(conflicts(&mut transaction, CommitLimits::default()).await, of(human_name));
        // The commit is refused until the watched objects were read again.
        let error = transaction.commit(CommitLimits::default()).await.unwrap_err();
        assert!(matches!(&error, Error::TransactionClosed(why) if why.contains(human_name)), "{error}");
        transaction.begin_watch().unwrap();
        assert_eq!(transaction.base().number, changed_in);
        assert_eq!(transaction.read(name.0, name.1, name.2).await.unwrap().unwrap(), "new");
        transaction.end_watch();
        assert_eq!(commit(&mut transaction).await.unwrap(), changed_in + 1);
        let changes = lakehouse.known().recorded_changes().unwrap();
        assert_eq!(changes.len(), 1, "a watched object was written");
        assert_eq!(lakehouse.known().metadata.committed[0].began_at_version, changed_in - 1);
    }
}

#[tokio::test]
async fn absent_objects_and_listings_are_watched() {
    let (_, lakehouse) = lake().await;
    let mut absent = creating(&lakehouse, "b", &[(Namespace, "n", ""), (Table, "a", "y")]).await;
    let mut listing = creating(&lakehouse, "c", &[]).await;
    let range = lakehouse.known().config.names.objects_in(Table, Some("a")).unwrap();
    listing.begin_watch().unwrap();
    assert_eq!(listing.list(&range, None).await.unwrap().len(), 1);
    listing.end_watch();
    add_table(&lakehouse, "a", "y").await.unwrap();
    assert_eq!(conflicts(&mut absent, CommitLimits::default()).await, of("table a.y"));
    assert_eq!(conflicts(&mut listing, CommitLimits::default()).await, of("table a.y"));
    watch(&mut absent, &[(Namespace, "n", "")]).await;
    add_namespace(&lakehouse, "n").await.unwrap();
    assert_eq!(conflicts(&mut absent, CommitLimits::default()).await, of("namespace n"));
}

#[tokio::test]
async fn an_object_that_is_no_longer_watched_may_change() {
    let (_, lakehouse) = lake().await;
    let mut transaction = creating(&lakehouse, "b", &[(Table, "a", "x"), (View, "a", "v")]).await;
    assert!(transaction.exists(Namespace, "a", "").await.unwrap(), "read after the watch has ended");
    watch(&mut transaction, &[(View, "a", "v")]).await;
    for name in [(Table, "a", "x"), (Namespace, "a", "")] {
        replace(&lakehouse, name).await;
    }
    commit(&mut transaction).await.unwrap();
}

#[tokio::test]
async fn conflicts_on_tables_and_watched_reads_are_resolved_together() {
    let (_, lakehouse) = lake().await;
    let mut transaction = begin(&lakehouse, Snapshot).await;
    watch(&mut transaction, &[(View, "a", "v")]).await;
    transaction.replace(Table, "a", "x", text("ours")).await.unwrap();
    replace(&lakehouse, (Table, "a", "x")).await;
    replace(&lakehouse, (View, "a", "v")).await;
    let conflicts = conflicts(&mut transaction, CommitLimits::default()).await;
    assert_eq!((conflicts.tables.len(), conflicts.watched.as_slice()), (1, ["view a.v".to_string()].as_slice()));
    assert!(transaction.begin_watch().is_err(), "the conflict on the table is not resolved");
    transaction.rebase(&conflicts.tables[0], text("new and ours")).unwrap();
    watch(&mut transaction, &[(View, "a", "v"), (Table, "a", "x")]).await;
    commit(&mut transaction).await.unwrap();
}

#[tokio::test]
async fn under_serializable_only_reads_before_the_watch_are_final_conflicts() {
    let (_, lakehouse) = lake().await;
    let mut transaction = begin(&lakehouse, Serializable).await;
    transaction.create(Namespace, "b", "", text("b")).await.unwrap();
    watch(&mut transaction, &[(View, "a", "v")]).await;
    replace(&lakehouse, (View, "a", "v")).await;
    assert_eq!(conflicts(&mut transaction, CommitLimits::default()).await.watched, ["view a.v"]);
    watch(&mut transaction, &[(View, "a", "v")]).await;
    transaction.exists(View, "a", "v").await.unwrap();
    replace(&lakehouse, (View, "a", "v")).await;
    let error = commit(&mut transaction).await.unwrap_err();
    assert!(matches!(&error, Error::CommitConflict { keys, .. } if keys == &["view a.v"]), "{error}");
}

#[tokio::test]
async fn a_resumed_transaction_still_watches() {
    let (files, lakehouse) = lake().await;
    let options = TransactionOptions { id: Some("job".into()), ..TransactionOptions::default() };
    let mut transaction = lakehouse.begin(lakehouse.latest().await.unwrap(), options).unwrap();
    transaction.create(Namespace, "b", "", text("b")).await.unwrap();
    watch(&mut transaction, &[(View, "a", "v")]).await;
    let range = lakehouse.known().config.names.objects_in(Table, Some("a")).unwrap();
    transaction.footprint_mut().watched.ranges.add(&range);
    transaction.save().await.unwrap();
    let elsewhere = open(files, &TestEnvironment::seeded(2)).await;
    replace(&lakehouse, (View, "a", "v")).await;
    add_table(&lakehouse, "a", "y").await.unwrap();
    let mut resumed = Transaction::resume(&elsewhere, "job").await.unwrap();
    let names_of = conflicts(&mut resumed, CommitLimits::default()).await;
    assert_eq!(names_of.watched, ["view a.v", "table a.y"]);
    watch(&mut resumed, &[(View, "a", "v")]).await;
    commit(&mut resumed).await.unwrap();
}

/// Of two members of one group that each drop the object that the other one watches, only the first one commits.
#[tokio::test(start_paused = true)]
async fn members_of_a_group_do_not_change_what_another_one_watches() {
    for is_watched in [false, true] {
        let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
        create(files.clone(), &environment).await;
        let lakehouse = open(Arc::new(LatencyStorage::new(files, Latency::S3_EXPRESS)), &environment).await;
        add_namespace(&lakehouse, "a").await.unwrap();
        add_namespace(&lakehouse, "b").await.unwrap();
        let mut group = vec![creating(&lakehouse, "leader", &[]).await];
        for (mine, other) in [("a", "b"), ("b", "a")] {
            let mut transaction = begin(&lakehouse, Snapshot).await;
            if is_watched {
                transaction.begin_watch().unwrap();
            }
            assert!(transaction.exists(Namespace, other, "").await.unwrap());
            transaction.end_watch();
            transaction.drop_object(Namespace, mine, "").await.unwrap();
            group.push(transaction);
        }
        let commits = group.iter_mut().map(|transaction| transaction.commit(CommitLimits::default()));
        let outcomes: Vec<Outcome> = join_all(commits).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(outcomes[1], Outcome::Committed(4));
        let expected = if is_watched { Outcome::Conflicts(of("namespace a")) } else { Outcome::Committed(4) };
        assert_eq!(outcomes[2], expected);
        assert_whole(&lakehouse.latest().await.unwrap()).await;
    }
}

/// A process that commits an intent of another process checks the watched reads of its owner.
#[tokio::test]
async fn an_intent_is_not_committed_after_a_change_of_what_it_watches() {
    for is_changed in [false, true] {
        let (files, owner) = lake().await;
        let other = open(files, &TestEnvironment::seeded(2)).await;
        let mut waiting = creating(&owner, "waiting", &[(View, "a", "v")]).await;
        let range = owner.known().config.names.objects_in(Table, Some("a")).unwrap();
        waiting.footprint_mut().watched.ranges.add(&range);
        leave_intent(&owner, &mut waiting, 20).await;
        if is_changed {
            add_table(&other, "a", "y").await.unwrap();
        }
        for namespace in ["c", "d"] {
            creating(&other, namespace, &[]).await.commit(in_queue()).await.unwrap();
        }
        let present = names(&other.latest().await.unwrap()).await;
        assert_eq!(present.contains(&"namespace waiting".to_string()), !is_changed);
        if is_changed {
            assert_eq!(conflicts(&mut waiting, in_queue()).await, of("table a.y"));
        }
    }
}

#[tokio::test]
async fn only_open_transactions_can_watch() {
    let (_, lakehouse) = lake().await;
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let mut transaction = begin(&lakehouse, isolation).await;
        commit(&mut transaction).await.unwrap();
        assert!(matches!(transaction.begin_watch(), Err(Error::TransactionClosed(_))));
    }
}
