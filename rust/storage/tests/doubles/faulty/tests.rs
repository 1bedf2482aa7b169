use super::*;
use crate::tests::memory;

fn faulty(trigger: Trigger, action: Action) -> FaultyStorage {
    FaultyStorage::new(memory(), [Fault::new(trigger, action)])
}

fn content() -> Bytes {
    Bytes::from_static(b"content")
}

async fn create(storage: &FaultyStorage, path: &str) -> Result<PutOutcome> {
    storage.put_if_absent(path, content()).await
}

fn is_lost<T: std::fmt::Debug>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Storage { retryable: true, .. }))
}

#[tokio::test]
async fn without_faults_it_only_logs() {
    let storage = FaultyStorage::new(memory(), []);
    create(&storage, "a").await.unwrap();
    storage.put_hint("hint", content()).await.unwrap();
    storage.get("a").await.unwrap();
    storage.get_range("a", 0..1).await.unwrap();
    storage.head("a").await.unwrap();
    storage.exists("a").await.unwrap();
    storage.list("x/").await.unwrap();
    storage.delete("a").await.unwrap();
    let log: Vec<_> = storage.log().into_iter().map(|entry| (entry.index, entry.verb, entry.path)).collect();
    let expected = [
        (Verb::PutIfAbsent, "a"),
        (Verb::PutHint, "hint"),
        (Verb::Get, "a"),
        (Verb::GetRange, "a"),
        (Verb::Head, "a"),
        (Verb::Head, "a"),
        (Verb::List, "x/"),
        (Verb::Delete, "a"),
    ];
    let expected: Vec<_> =
        expected.iter().enumerate().map(|(index, &(verb, path))| (index as u64, verb, path.to_owned())).collect();
    assert_eq!(log, expected);
    assert_eq!((storage.fired(), storage.unfired()), (vec![], vec![]));
}

#[tokio::test]
async fn each_action_has_its_effect_on_the_store() {
    // The action, the caller's result, and the content of the store.
    for (action, seen, held) in [
        (Action::FailBefore, "lost", None),
        (Action::FailAfter, "lost", Some("content")),
        (Action::AlreadyExistsAfter, "AlreadyExists", Some("content")),
        (Action::AlreadyExistsBefore, "AlreadyExists", None),
        (Action::Late, "lost", None),
        (Action::Torn { kept_bytes: 4 }, "Created", Some("cont")),
        (Action::Delay(Duration::from_millis(1)), "Created", Some("content")),
        (Action::Deny, "denied", None),
    ] {
        let storage = faulty(Trigger::at(0), action);
        let answer = match create(&storage, "file").await {
            Ok(outcome) => format!("{outcome:?}"),
            Err(Error::PermissionDenied(_)) => "denied".to_owned(),
            error if is_lost(error.clone()) => "lost".to_owned(),
            Err(error) => panic!("{error:?}"),
        };
        assert_eq!(answer, seen, "{action:?}");
        let found = storage.get("file").await.ok();
        assert_eq!(found.as_deref(), held.map(str::as_bytes), "{action:?}");
        assert_eq!(storage.fired().len(), 1, "{action:?}");
        assert_eq!(storage.unfired(), [], "{action:?}");
        let expected = if held.is_none() { PutOutcome::Created } else { PutOutcome::AlreadyExists };
        assert_eq!(create(&storage, "file").await.unwrap(), expected, "a fault happens once: {action:?}");
    }
}

#[tokio::test]
async fn a_dead_process_does_nothing_until_it_is_revived() {
    for (action, written) in [(Action::DieBefore, false), (Action::DieAfter, true)] {
        let storage = faulty(Trigger::on(Verb::PutIfAbsent, 1), action);
        create(&storage, "first").await.unwrap();
        assert!(is_lost(create(&storage, "second").await));
        assert!(storage.is_dead());
        assert!(is_lost(create(&storage, "third").await));
        assert!(is_lost(storage.get("first").await));
        assert!(is_lost(storage.list("").await));
        assert!(is_lost(storage.delete("first").await));
        storage.revive();
        let files: Vec<_> = storage.list("").await.unwrap().into_iter().map(|file| file.path).collect();
        assert_eq!(files, if written { vec!["first", "second"] } else { vec!["first"] });
    }
}

/// A late write is executed when the test delivers it, after its client has received an error (failure mode 2).
#[tokio::test]
async fn a_late_write_arrives_when_the_test_delivers_it() {
    let storage = faulty(Trigger::on(Verb::PutIfAbsent, 0), Action::Late);
    storage.add(Fault::new(Trigger::on(Verb::Delete, 0), Action::Late));
    assert!(is_lost(create(&storage, "root").await));
    assert_eq!(storage.put_if_absent("root", Bytes::new()).await.unwrap(), PutOutcome::Created);
    assert!(is_lost(storage.delete("root").await));
    let outcomes: Vec<_> = storage.deliver_late().await.into_iter().map(Result::unwrap).collect();
    assert_eq!(outcomes, [PutOutcome::AlreadyExists, PutOutcome::Created]);
    assert!(!storage.exists("root").await.unwrap());
    assert!(storage.deliver_late().await.is_empty());
}

#[tokio::test]
async fn triggers_count_what_they_match() {
    let storage = faulty(Trigger::on(Verb::Get, 1).path("node"), Action::FailBefore);
    create(&storage, "node-1").await.unwrap();
    create(&storage, "root").await.unwrap();
    storage.get("node-1").await.unwrap();
    storage.get("root").await.unwrap();
    storage.head("node-1").await.unwrap();
    assert!(is_lost(storage.get("node-1").await));
    let fired = storage.fired();
    assert_eq!(fired.len(), 1);
    assert_eq!((fired[0].operation.index, fired[0].operation.verb), (5, Verb::Get));
    storage.get("node-1").await.unwrap();
}

#[tokio::test]
async fn two_faults_for_one_operation_fire_one_after_the_other() {
    let storage = FaultyStorage::new(
        memory(),
        [
            Fault::new(Trigger::on(Verb::PutIfAbsent, 0), Action::FailBefore),
            Fault::new(Trigger::at(0), Action::FailAfter),
            Fault::new(Trigger::at(100), Action::FailAfter),
        ],
    );
    assert!(is_lost(create(&storage, "file").await));
    assert!(is_lost(create(&storage, "file").await));
    assert_eq!(create(&storage, "file").await.unwrap(), PutOutcome::AlreadyExists);
    assert_eq!(storage.unfired(), [Fault::new(Trigger::at(100), Action::FailAfter)]);
}

#[tokio::test]
async fn reads_fail_and_tear_too() {
    let policy = |operation: &Operation| match operation.index {
        1 => Some(Action::Torn { kept_bytes: 2 }),
        2 => Some(Action::FailAfter),
        3 => Some(Action::Deny),
        4 => Some(Action::Torn { kept_bytes: 100 }),
        _ => None,
    };
    let storage = FaultyStorage::with_policy(memory(), Box::new(policy));
    create(&storage, "file").await.unwrap();
    assert_eq!(storage.get("file").await.unwrap(), "co");
    assert!(is_lost(storage.exists("file").await));
    assert!(matches!(storage.head("file").await, Err(Error::PermissionDenied(_))));
    assert_eq!(storage.get("file").await.unwrap(), "content");
    assert_eq!(storage.fired().len(), 4);
    assert!(Verb::Delete.writes() && !Verb::List.writes());
}
