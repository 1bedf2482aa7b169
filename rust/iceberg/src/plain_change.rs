//! A commit to one table, as a client of the REST catalog sends it, that does nothing but set and remove properties: found out
//! without an object for each of its parts.
//!
//! `None` is the answer for whatever is more or other than that, and for what may be wrong: who asks then reads the body as
//! any other, which also tells what is wrong.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::properties::{Entries, PropertyChange};

/// Names that are set and removed at a time: each is looked for among all that a table has. An engine sends a handful.
const MAX_NAMES: usize = 100;
const UUID_SIZE_BYTES: usize = 36;

/// What it sets and removes, and what it says of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainChange {
    /// The parts of its namespace, and its name, where they are told.
    pub identifier: Option<Vec<String>>,
    /// That the table must have.
    pub table_uuid: Option<String>,
    pub changes: Vec<PropertyChange>,
}

/// An object of JSON. What serde derives for a structure also reads an array of its fields, which means nothing to any other
/// reader.
struct Object<Fields>(Fields);

impl<'text, Fields: Deserialize<'text>> Deserialize<'text> for Object<Fields> {
    fn deserialize<D: Deserializer<'text>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<Fields>(PhantomData<Fields>);

        impl<'text, Fields: Deserialize<'text>> Visitor<'text> for Reader<Fields> {
            type Value = Object<Fields>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'text>>(self, map: A) -> Result<Self::Value, A::Error> {
                Fields::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(Reader(PhantomData))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    identifier: Option<Object<Identifier>>,
    #[serde(default)]
    requirements: Vec<Object<Requirement>>,
    #[serde(default)]
    updates: Vec<Object<Update>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Identifier {
    namespace: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Requirement {
    r#type: String,
    uuid: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Update {
    action: String,
    updates: Option<Entries<String>>,
    removals: Option<Vec<String>>,
}

/// What the body of a commit says, if it is as plain as that.
pub fn plain_change(body: &[u8]) -> Option<PlainChange> {
    let Object::<Body>(body) = serde_json::from_slice(body).ok()?;
    let table_uuid = match <[Object<Requirement>; 1]>::try_from(body.requirements) {
        Ok([Object(required)]) => Some(table_uuid(required)?),
        Err(requirements) if requirements.is_empty() => None,
        Err(_) => return None,
    };
    let changes: Vec<_> =
        body.updates.into_iter().map(|Object(update)| property_change(update)).collect::<Option<_>>()?;
    let names = changes.iter().map(|change| match change {
        PropertyChange::Set(properties) => properties.len(),
        PropertyChange::Remove(names) => names.len(),
    });
    if changes.len() > MAX_NAMES || names.sum::<usize>() > MAX_NAMES {
        return None;
    }
    let identifier = body.identifier.map(|Object(Identifier { mut namespace, name })| {
        namespace.push(name);
        namespace
    });
    Some(PlainChange { identifier, table_uuid, changes })
}

/// The only thing that it may require. An id that is written otherwise than usual is for those who know all the ways.
fn table_uuid(required: Requirement) -> Option<String> {
    let is_usual = |(place, byte): (usize, u8)| match place {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    let uuid = required.uuid;
    let is_uuid = uuid.len() == UUID_SIZE_BYTES && uuid.bytes().enumerate().all(is_usual);
    (required.r#type == "assert-table-uuid" && is_uuid).then_some(uuid)
}

fn property_change(update: Update) -> Option<PropertyChange> {
    match (update.action.as_str(), update.updates, update.removals) {
        ("set-properties", Some(Entries(properties)), None) => {
            let mut names = HashSet::new();
            let is_each_once = properties.iter().all(|(name, _)| names.insert(name.as_str()));
            is_each_once.then_some(PropertyChange::Set(properties))
        }
        ("remove-properties", None, Some(names)) => Some(PropertyChange::Remove(names)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(updates: &str, more: &str) -> Option<PlainChange> {
        plain_change(format!(r#"{{"updates": [{updates}]{more}}}"#).as_bytes())
    }

    const SET: &str =
        r#"{"action": "set-properties", "updates": {"note": "1", "a\"\u00e9\ud83d\ude00": ""}}"#;
    const UUID: &str = "0a000000-0000-4000-8000-00000000000f";

    #[test]
    fn what_engines_send_is_plain() {
        let set = || PropertyChange::Set(vec![("note".into(), "1".into()), ("a\"é😀".into(), "".into())]);
        let removed = r#"{"action": "remove-properties", "removals": ["x", "x"]}"#;
        let remove = PropertyChange::Remove(vec!["x".into(), "x".into()]);
        assert_eq!(asked(SET, "").unwrap().changes, [set()]);
        assert_eq!(asked(&format!("{SET}, {removed}"), "").unwrap().changes, [set(), remove]);
        let more = format!(
            r#", "identifier": {{"namespace": ["a", "b"], "name": "t"}},
               "requirements": [{{"type": "assert-table-uuid", "uuid": "{UUID}"}}]"#
        );
        let told = asked(SET, &more).unwrap();
        assert_eq!(told.identifier.unwrap(), ["a", "b", "t"]);
        assert_eq!(told.table_uuid.unwrap(), UUID);
        assert_eq!(asked("", "").unwrap().changes, []);
        assert_eq!(plain_change(b"{}").unwrap().changes, []);
    }

    #[test]
    fn what_is_more_or_wrong_is_not() {
        for update in [
            r#"{"action": "set-properties", "updates": {"note": 1}}"#,
            r#"{"action": "set-properties", "updates": {"note": null}}"#,
            r#"{"action": "set-properties", "updates": {"note": "1", "note": "2"}}"#,
            r#"{"action": "set-properties", "updates": {"note": "1"}, "removals": ["x"]}"#,
            r#"{"action": "set-properties", "updates": {"note": "1"}, "more": 1}"#,
            r#"{"action": "set-properties", "updates": {"note": "\ud800"}}"#,
            r#"{"action": "set-properties"}"#,
            r#"{"action": "remove-properties", "removals": "x"}"#,
            r#"{"action": "remove-properties", "updates": {"note": "1"}}"#,
            r#"{"action": "set-location", "location": "x"}"#,
            r#"{"updates": {"note": "1"}}"#,
            r#"["set-properties", {"note": "1"}, null]"#,
        ] {
            assert_eq!(asked(update, ""), None, "{update}");
        }
        let uuid = format!(r#"{{"type": "assert-table-uuid", "uuid": "{UUID}"}}"#);
        for more in [
            r#", "requirements": [{"type": "assert-create"}]"#.to_owned(),
            format!(r#", "requirements": [{uuid}, {uuid}]"#),
            format!(r#", "requirements": [{}]"#, uuid.replace("0a", "0A")),
            format!(r#", "requirements": [{}]"#, uuid.replace('-', "")),
            format!(r#", "requirements": [{}]"#, uuid.replace("table", "view")),
            r#", "requirements": null"#.to_owned(),
            format!(r#", "requirements": [["assert-table-uuid", "{UUID}"]]"#),
            r#", "identifier": [["a"], "t"]"#.to_owned(),
            r#", "identifier": {"namespace": "a", "name": "t"}"#.to_owned(),
            r#", "more": 1"#.to_owned(),
            r#", "updates": []"#.to_owned(),
        ] {
            assert_eq!(asked(SET, &more), None, "{more}");
        }
        for body in [&b""[..], b"[]", b"[null, [], []]", b"{", b"{} {}", b"\xff", b"\xef\xbb\xbf{}"] {
            assert_eq!(plain_change(body), None, "{body:?}");
        }
    }

    /// One request with twenty thousand names, to a table with as many, stopped a whole server for half a second: the core
    /// looks for each among all of them, and holds Python's lock meanwhile.
    #[test]
    fn many_names_are_not_plain() {
        let removed = |count: usize| {
            let names = vec![r#""x""#; count].join(",");
            asked(&format!(r#"{{"action": "remove-properties", "removals": [{names}]}}"#), "")
        };
        assert!(removed(100).is_some());
        assert!(removed(101).is_none());
        let nothing = vec![r#"{"action": "remove-properties", "removals": []}"#; 101].join(",");
        assert!(asked(&nothing, "").is_none());
    }
}
