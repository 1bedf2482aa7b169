//! `proto/trinitylake.rs` is the code that prost generates from `proto/trinitylake.proto`.
//!
//! It is committed, so that a build needs no protobuf compiler. After a change of the schema:
//! `WRITE=1 cargo test -p trinitylake-format --test generated_definitions`.

use std::fs;
use std::path::Path;

#[test]
fn generated_definitions_match_the_schema() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    let generated = tempfile::tempdir().unwrap();
    let descriptors = protox::compile([folder.join("trinitylake.proto")], [&folder]).unwrap();
    let mut config = prost_build::Config::new();
    config.btree_map(["."]).out_dir(generated.path()).compile_fds(descriptors).unwrap();
    let expected = fs::read_to_string(generated.path().join("trinitylake.rs")).unwrap();
    let committed = folder.join("trinitylake.rs");
    if std::env::var_os("WRITE").is_some() {
        fs::write(&committed, &expected).unwrap();
    }
    assert!(fs::read_to_string(committed).is_ok_and(|text| text == expected), "the module's head says how to write it");
}
