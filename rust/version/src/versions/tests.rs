use futures::executor::block_on;
use trinitylake_base::environment::testing::TestEnvironment;
use trinitylake_format::lakehouse_definition::proto::LakehouseDef;
use trinitylake_storage::memory_files::MemoryFiles;

use trinitylake_format::lakehouse_definition::LakehouseDefinition;

use super::*;

/// A forked child has its own locks. Otherwise, if a thread of the parent holds a lock during the fork, the first
/// statement of the child would wait for that lock forever.
#[test]
fn a_forked_child_does_not_wait_for_a_lock_of_its_parent() {
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
    let parents = (versions.latest_known(), versions.observations().held(), versions.seen.get().damage.lock().unwrap());

    let child = versions.seen.of_child(std::process::id() + 1);
    let known = child.latest.try_lock().expect("the child has its own lock").clone();
    assert_eq!(known.number, parents.0.number, "the child knows the version at which its parent began");
    assert!(!child.observations.is_held());
    assert!(child.damage.try_lock().is_ok());
}
