//! Anomalies that each isolation level allows or refuses (failure modes 24 and 25).

use std::sync::Arc;

use crate::environment::testing::TestEnvironment;
use crate::error::{Error, Result};
use crate::key::ObjectKind::{self, Namespace, Table, View};
use crate::lakehouse::Lakehouse;
use crate::tests::fixture::{MemoryFiles, add_namespace, add_table, begin, commit, create, text};
use crate::transaction::Isolation::{self, Serializable, Snapshot};
use crate::transaction::{CommitLimits, ConflictingTable, Outcome, Transaction};

/// A lakehouse with namespaces `a` and `b`, tables `a.x`, `a.y` and `b.x`.
async fn lake() -> Arc<Lakehouse> {
    let lakehouse = create(MemoryFiles::shared(), &TestEnvironment::seeded(1)).await;
    for namespace in ["a", "b"] {
        add_namespace(&lakehouse, namespace).await.unwrap();
    }
    for (namespace, table) in [("a", "x"), ("a", "y"), ("b", "x")] {
        add_table(&lakehouse, namespace, table).await.unwrap();
    }
    lakehouse
}

#[track_caller]
fn assert_conflict(result: Result<u64>, key: &str) {
    match result {
        Err(Error::CommitConflict { keys, winners, message }) => {
            assert_eq!(keys, [key], "{message}");
            assert!(!winners.is_empty() && message.contains(key), "{message}");
        }
        other => panic!("not a conflict: {other:?}"),
    }
}

async fn definition(lakehouse: &Lakehouse, kind: ObjectKind, namespace: &str, name: &str) -> String {
    let latest = lakehouse.latest().await.unwrap();
    let location = latest.locate(kind, namespace, name).await.unwrap().unwrap();
    String::from_utf8(latest.read_definition(&location).await.unwrap().to_vec()).unwrap()
}

async fn replace(transaction: &mut Transaction, kind: ObjectKind, namespace: &str, name: &str, with: &str) {
    transaction.replace(kind, namespace, name, text(with)).await.unwrap();
}

/// Of two transactions that change the same object, the second one fails. Otherwise it would overwrite the change of
/// the first one, as when two sessions increment a counter.
#[tokio::test]
async fn mode_24_lost_update_is_refused_at_both_levels() {
    for isolation in [Snapshot, Serializable] {
        let lakehouse = lake().await;
        let mut first = begin(&lakehouse, isolation).await;
        let mut second = begin(&lakehouse, isolation).await;
        replace(&mut first, Namespace, "a", "", "first").await;
        replace(&mut second, Namespace, "a", "", "second").await;
        commit(&mut first).await.unwrap();
        assert_conflict(commit(&mut second).await, "namespace a");
        assert_eq!(definition(&lakehouse, Namespace, "a", "").await, "first");
    }
}

#[tokio::test]
async fn a_conflict_names_the_winner() {
    let lakehouse = lake().await;
    let mut loser = begin(&lakehouse, Snapshot).await;
    replace(&mut loser, Namespace, "a", "", "loser").await;
    let options = crate::transaction::TransactionOptions {
        message: "the winner".into(),
        author: "ann".into(),
        ..Default::default()
    };
    let mut winner = lakehouse.begin(lakehouse.known(), options).unwrap();
    replace(&mut winner, Namespace, "a", "", "winner").await;
    let version = commit(&mut winner).await.unwrap();
    add_namespace(&lakehouse, "later").await.unwrap();
    let Err(Error::CommitConflict { winners, message, .. }) = commit(&mut loser).await else { panic!("a conflict") };
    let [reported] = winners.as_slice() else { panic!("one winner: {winners:?}") };
    assert_eq!(
        (reported.version, reported.transaction_id.as_str(), reported.author.as_str()),
        (version, winner.id(), "ann")
    );
    assert!(message.contains("the winner"), "{message}");
}

async fn write_skew(isolation: Isolation) -> Result<u64> {
    let lakehouse = lake().await;
    let mut first = begin(&lakehouse, isolation).await;
    let mut second = begin(&lakehouse, isolation).await;
    for transaction in [&mut first, &mut second] {
        transaction.read(Table, "a", "x").await.unwrap();
        transaction.read(Table, "a", "y").await.unwrap();
    }
    replace(&mut first, Table, "a", "x", "off call").await;
    replace(&mut second, Table, "a", "y", "off call").await;
    commit(&mut first).await.unwrap();
    commit(&mut second).await
}

/// Write skew: two doctors are on call, each sees that the other one is, and both go off call. SERIALIZABLE prevents
/// it. The run under SNAPSHOT must show it, otherwise the test proves nothing.
#[tokio::test]
async fn mode_24_write_skew_is_allowed_under_snapshot_and_refused_under_serializable() {
    write_skew(Snapshot).await.unwrap();
    assert_conflict(write_skew(Serializable).await, "table a.x");
}

/// Opening a table is not a read of its rows: two appends to one table would conflict, because each of them opens the
/// table. Finding no table is a read.
#[tokio::test]
async fn opening_a_table_is_not_a_read_but_its_absence_is() {
    let lakehouse = lake().await;
    let mut transaction = begin(&lakehouse, Serializable).await;
    assert_eq!(transaction.open_table("a", "x").await.unwrap().unwrap(), "x");
    transaction.create(Table, "b", "new", text("")).await.unwrap();
    let mut other = begin(&lakehouse, Snapshot).await;
    replace(&mut other, Table, "a", "x", "other").await;
    commit(&mut other).await.unwrap();
    commit(&mut transaction).await.unwrap();

    let mut transaction = begin(&lakehouse, Serializable).await;
    assert_eq!(transaction.open_table("a", "z").await.unwrap(), None);
    transaction.create(Table, "b", "newer", text("")).await.unwrap();
    add_table(&lakehouse, "a", "z").await.unwrap();
    assert_conflict(commit(&mut transaction).await, "table a.z");
}

async fn phantom(isolation: Isolation) -> Result<u64> {
    let lakehouse = lake().await;
    let range = lakehouse.known().config.names.objects_in(Table, Some("a")).unwrap();
    let mut lister = begin(&lakehouse, isolation).await;
    assert_eq!(lister.list(&range, None).await.unwrap().len(), 2);
    lister.create(Table, "b", "count_is_2", text("")).await.unwrap();
    add_table(&lakehouse, "a", "z").await.unwrap();
    commit(&mut lister).await
}

#[tokio::test]
async fn mode_24_phantom_by_listing_is_refused_under_serializable() {
    phantom(Snapshot).await.unwrap();
    assert_conflict(phantom(Serializable).await, "table a.z");
}

/// A listing of one namespace does not conflict with a new table in another namespace, even if the listing has a limit.
#[tokio::test]
async fn listing_another_namespace_is_not_a_phantom() {
    let lakehouse = lake().await;
    let range = lakehouse.known().config.names.objects_in(Table, Some("b")).unwrap();
    let mut lister = begin(&lakehouse, Serializable).await;
    lister.list(&range, Some(1)).await.unwrap();
    lister.create(Table, "b", "new", text("")).await.unwrap();
    add_table(&lakehouse, "a", "z").await.unwrap();
    commit(&mut lister).await.unwrap();
}

async fn absence_read(isolation: Isolation) -> Result<u64> {
    let lakehouse = lake().await;
    let mut reader = begin(&lakehouse, isolation).await;
    assert!(!reader.exists(Table, "a", "z").await.unwrap());
    reader.create(Table, "b", "z_is_absent", text("")).await.unwrap();
    add_table(&lakehouse, "a", "z").await.unwrap();
    commit(&mut reader).await
}

#[tokio::test]
async fn mode_24_reading_an_absent_object_counts_under_serializable() {
    absence_read(Snapshot).await.unwrap();
    assert_conflict(absence_read(Serializable).await, "table a.z");
}

async fn refusal_read(isolation: Isolation) -> Result<u64> {
    let lakehouse = lake().await;
    let mut reader = begin(&lakehouse, isolation).await;
    let refused = reader.create(Table, "a", "x", text("")).await;
    assert!(matches!(refused, Err(Error::ObjectAlreadyExists(_))));
    reader.create(Table, "b", "x_exists", text("")).await.unwrap();
    let mut rival = begin(&lakehouse, isolation).await;
    rival.drop_object(Table, "a", "x").await.unwrap();
    commit(&mut rival).await.unwrap();
    commit(&mut reader).await
}

/// A failed statement records its read, because the caller may act on the failure.
#[tokio::test]
async fn mode_24_the_read_of_a_refused_statement_counts_under_serializable() {
    refusal_read(Snapshot).await.unwrap();
    assert_conflict(refusal_read(Serializable).await, "table a.x");
}

#[tokio::test]
async fn mode_24_read_skew_does_not_happen() {
    for isolation in [Snapshot, Serializable] {
        let lakehouse = lake().await;
        let mut reader = begin(&lakehouse, isolation).await;
        assert_eq!(reader.read(Table, "a", "x").await.unwrap().unwrap(), "x");
        let mut writer = begin(&lakehouse, isolation).await;
        replace(&mut writer, Table, "a", "x", "new").await;
        replace(&mut writer, Table, "a", "y", "new").await;
        commit(&mut writer).await.unwrap();
        assert_eq!(reader.read(Table, "a", "y").await.unwrap().unwrap(), "y", "x and y of two versions");
    }
}

async fn conflicts(transaction: &mut Transaction) -> Vec<ConflictingTable> {
    match transaction.commit(CommitLimits::default()).await.unwrap() {
        Outcome::Conflicts(conflicts) => conflicts.tables,
        Outcome::Committed(version) => panic!("committed as {version}"),
    }
}

/// Two appends to one table: the table format may rebase the second one on the first.
#[tokio::test]
async fn a_conflict_on_a_table_is_returned_for_a_rebase() {
    for isolation in [Snapshot, Serializable] {
        let lakehouse = lake().await;
        let mut second = begin(&lakehouse, isolation).await;
        replace(&mut second, Table, "a", "x", "second").await;
        second.create(Table, "b", "new", text("new")).await.unwrap();
        let mut first = begin(&lakehouse, isolation).await;
        replace(&mut first, Table, "a", "x", "first").await;
        commit(&mut first).await.unwrap();

        let offered = conflicts(&mut second).await;
        let [conflict] = offered.as_slice() else { panic!("one conflict: {offered:?}") };
        assert_eq!((conflict.namespace.as_str(), conflict.name.as_str()), ("a", "x"));
        let latest = lakehouse.latest().await.unwrap();
        assert_eq!(latest.locate(Table, "a", "x").await.unwrap().as_ref(), Some(&conflict.winner_location));
        assert_ne!(conflict.base_location, conflict.winner_location);
        let unresolved = second.commit(CommitLimits::default()).await;
        assert!(matches!(unresolved, Err(Error::TransactionClosed(_))), "{unresolved:?}");

        // A third transaction commits while the format rebases.
        let mut third = begin(&lakehouse, isolation).await;
        replace(&mut third, Table, "a", "x", "first, third").await;
        commit(&mut third).await.unwrap();
        second.rebase(conflict, text("first, second")).unwrap();
        let offered = conflicts(&mut second).await;
        assert_eq!(offered.len(), 1);
        second.rebase(&offered[0], text("first, third, second")).unwrap();
        commit(&mut second).await.unwrap();
        assert_eq!(definition(&lakehouse, Table, "a", "x").await, "first, third, second");
        assert_eq!(definition(&lakehouse, Table, "b", "new").await, "new");
    }
}

/// Under SERIALIZABLE, a table that was read and written cannot be rebased, because the read is stale.
#[tokio::test]
async fn a_table_that_was_read_is_a_final_conflict_under_serializable() {
    let lakehouse = lake().await;
    let mut reader = begin(&lakehouse, Serializable).await;
    reader.read(Table, "a", "x").await.unwrap();
    replace(&mut reader, Table, "a", "x", "read and written").await;
    let mut first = begin(&lakehouse, Serializable).await;
    replace(&mut first, Table, "a", "x", "first").await;
    commit(&mut first).await.unwrap();
    assert_conflict(commit(&mut reader).await, "table a.x");
}

#[tokio::test]
async fn changing_a_dropped_or_renamed_table_is_a_conflict() {
    for rename in [false, true] {
        let lakehouse = lake().await;
        let mut changer = begin(&lakehouse, Snapshot).await;
        replace(&mut changer, Table, "a", "x", "changed").await;
        let mut other = begin(&lakehouse, Snapshot).await;
        match rename {
            false => other.drop_object(Table, "a", "x").await.unwrap(),
            true => other.rename(Table, ("a", "x"), ("b", "moved")).await.unwrap(),
        }
        commit(&mut other).await.unwrap();
        assert_conflict(commit(&mut changer).await, "table a.x");
    }
}

#[tokio::test]
async fn dropping_or_renaming_a_changed_table_is_a_conflict() {
    for rename in [false, true] {
        let lakehouse = lake().await;
        let mut other = begin(&lakehouse, Snapshot).await;
        match rename {
            false => other.drop_object(Table, "a", "x").await.unwrap(),
            true => other.rename(Table, ("a", "x"), ("b", "moved")).await.unwrap(),
        }
        let mut changer = begin(&lakehouse, Snapshot).await;
        replace(&mut changer, Table, "a", "x", "changed").await;
        commit(&mut changer).await.unwrap();
        assert_conflict(commit(&mut other).await, "table a.x");
        assert_eq!(definition(&lakehouse, Table, "a", "x").await, "changed");
    }
}

/// An object that was dropped and created again has changed, although it has the same name. Otherwise an append that
/// was prepared for the old table would be applied to the new table without a check.
#[tokio::test]
async fn mode_25_drop_and_recreate_is_a_change() {
    let lakehouse = lake().await;
    let mut table = begin(&lakehouse, Snapshot).await;
    replace(&mut table, Table, "a", "x", "for the old one").await;
    let mut namespace = begin(&lakehouse, Snapshot).await;
    replace(&mut namespace, Namespace, "b", "", "for the old one").await;
    let mut reader = begin(&lakehouse, Serializable).await;
    reader.read(Table, "a", "x").await.unwrap();
    reader.create(Table, "a", "z", text("")).await.unwrap();

    let mut drop_all = begin(&lakehouse, Snapshot).await;
    drop_all.drop_object(Table, "a", "x").await.unwrap();
    drop_all.drop_object(Table, "b", "x").await.unwrap();
    drop_all.drop_object(Namespace, "b", "").await.unwrap();
    commit(&mut drop_all).await.unwrap();
    add_namespace(&lakehouse, "b").await.unwrap();
    add_table(&lakehouse, "a", "x").await.unwrap();

    let offered = conflicts(&mut table).await;
    assert_eq!(offered.len(), 1, "the table format compares the ids of both definitions");
    assert_ne!(offered[0].base_location, offered[0].winner_location);
    assert_conflict(commit(&mut namespace).await, "namespace b");
    assert_conflict(commit(&mut reader).await, "table a.x");
}

#[tokio::test]
async fn both_creating_the_same_object_is_a_conflict() {
    for kind in [Table, View] {
        let lakehouse = lake().await;
        let mut first = begin(&lakehouse, Snapshot).await;
        let mut second = begin(&lakehouse, Snapshot).await;
        for transaction in [&mut first, &mut second] {
            transaction.create(kind, "a", "new", text("")).await.unwrap();
        }
        commit(&mut first).await.unwrap();
        assert_conflict(commit(&mut second).await, &format!("{} a.new", kind.word()));
    }
}

#[tokio::test]
async fn disjoint_writes_do_not_conflict() {
    for isolation in [Snapshot, Serializable] {
        let lakehouse = lake().await;
        let mut first = begin(&lakehouse, isolation).await;
        let mut second = begin(&lakehouse, isolation).await;
        replace(&mut first, Table, "a", "x", "first").await;
        replace(&mut second, Table, "a", "y", "second").await;
        commit(&mut first).await.unwrap();
        commit(&mut second).await.unwrap();
        assert_eq!(definition(&lakehouse, Table, "a", "x").await, "first");
        assert_eq!(definition(&lakehouse, Table, "a", "y").await, "second");
    }
}
