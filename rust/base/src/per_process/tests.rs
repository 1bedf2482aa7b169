use std::sync::Mutex;

use super::*;

/// A child and a grandchild have their own values. Otherwise a child would wait forever for a lock that a thread of its
/// parent held during the fork.
#[test]
fn each_generation_of_processes_has_its_own_value() {
    let value: PerProcess<Mutex<u32>> = PerProcess::default();
    let parents = value.get().lock().unwrap();
    let (child, grandchild) = (std::process::id() + 1, std::process::id() + 2);
    *value.of(child).lock().unwrap() = 1;
    let childs = value.of(child).lock().unwrap();
    *value.of(grandchild).lock().unwrap() = 2;
    assert_eq!((*parents, *childs, *value.of(grandchild).lock().unwrap()), (0, 1, 2));
}

/// A child does not drop its parent's value. Otherwise a child that exits would close its parent's connections to a
/// store.
#[test]
fn a_child_does_not_drop_the_value_of_its_parent() {
    let made: Arc<Mutex<Vec<std::sync::Weak<u32>>>> = Arc::default();
    let making = made.clone();
    let value = PerProcess::new(move || {
        let number = Arc::new(7);
        making.lock().unwrap().push(Arc::downgrade(&number));
        number
    });
    let child = std::process::id() + 1;
    assert!(!Arc::ptr_eq(value.get(), value.of(child)));
    value.keep_if_foreign(child);
    drop(value);
    let made = made.lock().unwrap();
    assert!(made[0].upgrade().is_some(), "the parent's");
    assert_eq!(made.len(), 2);

    let owned: PerProcess<Arc<u32>> = PerProcess::default();
    let number = Arc::downgrade(owned.get());
    drop(owned);
    assert!(number.upgrade().is_none(), "its own is dropped");
}
