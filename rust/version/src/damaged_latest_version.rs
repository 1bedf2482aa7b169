//! Damage of the newest version: its root is unreadable or missing.

use trinitylake_base::error::Error;
use trinitylake_format::file_names::{LATEST_HINT_PATH, root_path};

/// Damage of the newest version. Older versions can be read. No version can be committed, because the content of the
/// damaged version is unknown.
#[derive(Clone, Debug)]
pub(crate) struct Damage {
    /// The highest version that is known to have existed.
    pub newest: u64,
    /// Whether the root of that version is missing. If so, readers use the newest existing version.
    pub is_missing: bool,
    pub error: Error,
}

impl Damage {
    pub fn unreadable(newest: u64, path: String, message: &str, intact: u64) -> Damage {
        let message = format!(
            "{message}; this is the root of the newest version, {newest}: restore the file from a copy, or run fsck with \
             `repair`, which continues from version {intact}. Until then versions up to {intact} can be read by their \
             number, and nothing is written"
        );
        Damage { newest, is_missing: false, error: Error::corrupt(path, message) }
    }

    pub fn missing(newest: u64, intact: u64) -> Damage {
        let message = format!(
            "{LATEST_HINT_PATH} names version {newest}, whose root is missing. Version {intact}, the newest existing one, \
             is read, and nothing is written, since a number must not be used twice: restore the roots of versions {} to \
             {newest} from a copy, or run fsck with `repair`, which continues from version {intact}. If the hint is \
             wrong, stop all writers and delete {LATEST_HINT_PATH}",
            intact + 1
        );
        Damage { newest, is_missing: true, error: Error::corrupt(root_path(newest), message) }
    }
}
