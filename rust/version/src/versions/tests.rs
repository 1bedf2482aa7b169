use futures::executor::block_on;
use trinitylake_base::environment::testing::TestEnvironment;
use trinitylake_format::definition::proto::LakehouseDef;
use trinitylake_storage::memory_files::MemoryFiles;

use trinitylake_format::definition::LakehouseDefinition;

use super::*;

/// A child was forked while a thread of its parent looked up the newest version. It inherited the lock as taken, by a
/// thread that it does not have, and its first statement never ended.
#[test]
fn a_child_waits_for_no_lock_that_its_parent_held() {
    let definition = LakehouseDefinition::encode(LakehouseDef {
        name: "lake".into(),
        order: 4,
        namespace_name_max_size_bytes: 20,
        table_name_max_size_bytes: 20,
        view_name_max_size_bytes: 20,
        ..LakehouseDef::default()
    });
    let created = Versions::create(MemoryFiles::shared(), TestEnvironment::seeded(1), definition, None);
    let versions = block_on(created).unwrap();
    let parents =
        (versions.recent(), versions.observations().held(), versions.seen.get().damage.lock().unwrap());

    let child = versions.seen.of_child(std::process::id() + 1);
    let known = child.recent.try_lock().expect("a lock of the child's own").latest.clone();
    assert_eq!(known.number, parents.0.latest.number, "it knows where its parent began");
    assert!(!child.observations.is_held());
    assert!(child.damage.try_lock().is_ok());
}
