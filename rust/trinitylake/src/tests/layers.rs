//! Allowed imports between the modules of this crate.

use std::fs;
use std::path::Path;

/// Modules that use transactions. Transactions must not use them.
const ABOVE_TRANSACTIONS: [&str; 3] = ["bulk_registration", "expiry", "rollback"];

fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "tests") {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The modules of transactions do not import the modules above them. Otherwise neither could be understood or changed
/// alone.
#[test]
fn transactions_do_not_use_the_layers_above() {
    let mut found = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/transaction"), &mut found);
    assert!(found.len() > 10, "the sources of transactions were moved");
    for (path, source) in found {
        for module in ABOVE_TRANSACTIONS {
            assert!(!source.contains(&format!("crate::{module}")), "{path} uses {module}, which is a layer above it");
        }
    }
}
