//! Names of objects (format §4).

use trinitylake_base::error::{Error, Result};

/// Padding of names in keys. No name begins or ends with it.
pub const PAD: char = ' ';

/// Refuses a namespace that is not a valid name or has an empty part between dots.
pub fn check_namespace(namespace: &str, max_size_bytes: usize) -> Result<()> {
    check_name("namespace", namespace, max_size_bytes)?;
    if namespace.split('.').any(str::is_empty) {
        return Err(Error::InvalidName(format!(
            "namespace {namespace:?} has an empty part: levels are joined with single dots, as in \"a.b\""
        )));
    }
    namespace.split('.').try_for_each(|level| check_ends("namespace", level))
}

/// Refuses a name that is empty, longer than its limit, begins or ends with a space, or contains a control character or
/// DEL.
pub fn check_name(what: &str, name: &str, max_size_bytes: usize) -> Result<()> {
    if name.is_empty() {
        return Err(Error::InvalidName(format!("{what} name is empty")));
    }
    if name.len() > max_size_bytes {
        let start = cut_for_message(name);
        return Err(Error::InvalidName(format!(
            "{what} name {start:?} has {} bytes, the limit of this lakehouse is {max_size_bytes}",
            name.len()
        )));
    }
    if let Some(bad) = name.bytes().find(|byte| *byte < b' ' || *byte == 0x7F) {
        return Err(Error::InvalidName(format!(
            "{what} name {name:?} contains the control character U+{bad:04X}, which is not allowed"
        )));
    }
    check_ends(what, name)
}

/// Refuses spaces at the ends, which would look like the padding of keys.
fn check_ends(what: &str, name: &str) -> Result<()> {
    if name.starts_with(PAD) || name.ends_with(PAD) {
        return Err(Error::InvalidName(format!("{what} name {name:?} begins or ends with a space")));
    }
    Ok(())
}

/// Returns the beginning of a name that a user chose, short enough for an error message.
pub(crate) fn cut_for_message(name: &str) -> String {
    if name.chars().count() <= 40 { name.to_string() } else { name.chars().take(40).chain(['…']).collect() }
}

#[cfg(test)]
mod tests;
