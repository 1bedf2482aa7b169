//! Unpadded keys, to sort very many objects: `C` + namespace + U+0001 + name.
//!
//! U+0001 sorts before every character that is allowed in a name, and no name ends with a space, the padding of keys.
//! Therefore unpadded keys sort like the keys of the tree, but are much shorter.

use crate::key::{NameSizes, ObjectKind};
use trinitylake_base::error::{Error, Result};

const END_OF_NAMESPACE: char = '\u{1}';

/// The unpadded form of a key; `None` if it is not a key of this lakehouse.
pub fn unpadded_key(names: NameSizes, key: &str) -> Option<String> {
    let (kind, namespace, name) = names.decode_parts(key)?;
    Some(format!("{}{namespace}{END_OF_NAMESPACE}{name}", &kind.prefix()[..1]))
}

/// The inverse of [`unpadded_key`]. `InvalidName` if the text is not an unpadded key.
pub fn key_of(names: NameSizes, text: &str) -> Result<String> {
    let unknown = || Error::InvalidName(format!("{text:?} is not the unpadded key of an object"));
    let kind = ObjectKind::ALL.into_iter().find(|kind| text.starts_with(&kind.prefix()[..1]));
    let (namespace, name) = text.get(1..).and_then(|rest| rest.split_once(END_OF_NAMESPACE)).ok_or_else(unknown)?;
    match kind.ok_or_else(unknown)? {
        ObjectKind::Namespace if !name.is_empty() => Err(Error::InvalidName(format!(
            "namespace name {:?} contains the control character U+0001, which is not allowed",
            text[1..].strip_suffix(END_OF_NAMESPACE).unwrap_or(&text[1..])
        ))),
        kind => names.key(kind, namespace, name),
    }
}

#[cfg(test)]
mod tests;
