//! The folder of a managed table's data and metadata files, relative to the root (format §9).
//!
//! A table keeps its folder when it is renamed, so the folder has the first name of the table. Only the definitions of
//! tables show which table owns a folder.

use crate::file_names::{SEGMENT_MAX_SIZE_BYTES, cut};

/// Returns the folder `<namespace>/<table>-<8 hex digits of its id>`. Characters that are not allowed in a path segment
/// are replaced. The digits distinguish folders of tables whose names become equal.
pub fn managed_table_folder(namespace: &str, name: &str, id: &str) -> String {
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(8).collect();
    let room = SEGMENT_MAX_SIZE_BYTES - digits.len() - 1;
    format!("{}/{}-{digits}", cut(&plain_segment(namespace), SEGMENT_MAX_SIZE_BYTES), cut(&plain_segment(name), room))
}

/// Returns a path segment that every store, URI parser and engine interprets in the same way.
fn plain_segment(name: &str) -> String {
    let plain: String =
        name.chars().map(|c| if c.is_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' }).collect();
    // Names of the format's own files begin with an underscore, hidden files with a dot.
    if plain.starts_with(['.', '_']) { format!("-{}", &plain[1..]) } else { plain }
}

/// Returns the first digits of the table's id from a folder that [`managed_table_folder`] named.
pub fn table_id_digits(folder: &str) -> Option<&str> {
    let (_, name) = folder.split_once('/').filter(|(_, name)| !name.contains('/'))?;
    let (_, digits) = name.rsplit_once('-')?;
    (digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(digits)
}

#[cfg(test)]
mod tests;
