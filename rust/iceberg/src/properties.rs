//! The metadata of a table with other properties: the text of the file before, of which everything else is copied as it
//! stands, unknown fields too.
//!
//! `None` is the answer wherever more would have to be known or done: the layer above then goes the long way, which also
//! tells what is wrong.

use std::collections::HashMap;
use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// What becomes of the properties of a table, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyChange {
    Set(Vec<(String, String)>),
    Remove(Vec<String>),
}

/// What is said of the file before, and how much the new one keeps.
#[derive(Clone, Copy, Debug)]
pub struct Succession<'a> {
    /// As the log of the new file names it.
    pub previous_uri: &'a str,
    /// Where it lies, without `/` at its end.
    pub previous_folder: &'a str,
    pub table_uuid: &'a str,
    pub now_millis: u64,
    /// Earlier files that the log names, and snapshots that a table has without any of them being let go.
    pub kept: usize,
}

/// Every table of ours has this property, with this value (`write_rules.py`).
const COLLECTED_ELSEWHERE: (&str, &str) = ("gc.enabled", "false");
/// Where a table has properties that begin so, a commit does more: it names files otherwise, compresses them, lets
/// snapshots go.
const STEERING: [&str; 2] = ["write.metadata.", "history."];

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Logged<'a> {
    metadata_file: &'a str,
    timestamp_ms: u64,
}

/// The text of the new file.
pub fn with_properties(
    text: &[u8],
    changes: &[PropertyChange],
    succession: &Succession<'_>,
) -> Option<Vec<u8>> {
    let document: Entries<&RawValue> = serde_json::from_slice(text).ok()?;
    let field = |name: &str| document.only(name).map(|value| value.get());
    let format_version: u32 = serde_json::from_str(field("format-version")?).ok()?;
    let uuid: &str = serde_json::from_str(field("table-uuid")?).ok()?;
    let location: String = serde_json::from_str(field("location")?).ok()?;
    let last_updated_millis: u64 = serde_json::from_str(field("last-updated-ms")?).ok()?;
    let log: Vec<&RawValue> = serde_json::from_str(field("metadata-log")?).ok()?;
    let snapshots: Vec<&RawValue> = serde_json::from_str(field("snapshots")?).ok()?;
    let properties: Entries<String> = serde_json::from_str(field("properties")?).ok()?;
    let lies_as_usual =
        succession.previous_folder.strip_suffix("/metadata") == Some(location.trim_end_matches('/'));
    let is_usual = matches!(format_version, 2 | 3)
        && uuid == succession.table_uuid
        && lies_as_usual
        && snapshots.len() <= succession.kept
        && properties.only(COLLECTED_ELSEWHERE.0).is_some_and(|value| value == COLLECTED_ELSEWHERE.1)
        && !properties.0.iter().any(|(name, _)| STEERING.iter().any(|steering| name.starts_with(steering)));
    if !is_usual {
        return None;
    }
    let properties = raw(&changed(properties, changes)?)?;
    let entry = Logged { metadata_file: succession.previous_uri, timestamp_ms: last_updated_millis };
    let entry = raw(&entry)?;
    let first = (log.len() + 1).saturating_sub(succession.kept);
    let log = raw(&log.into_iter().chain([&*entry]).skip(first).collect::<Vec<_>>())?;
    let last_updated = raw(&succession.now_millis.max(last_updated_millis))?;
    let fields = document.0.into_iter().map(|(name, value)| {
        let value = match name.as_str() {
            "properties" => &*properties,
            "metadata-log" => &*log,
            "last-updated-ms" => &*last_updated,
            _ => value,
        };
        (name, value)
    });
    serde_json::to_vec(&Entries(fields.collect())).ok()
}

/// `None` if all is as it was afterwards, or a property is there twice.
fn changed(before: Entries<String>, changes: &[PropertyChange]) -> Option<Entries<String>> {
    let values: HashMap<&str, &str> = by_name(&before);
    if values.len() < before.0.len() {
        return None;
    }
    let mut properties = before.clone();
    for change in changes {
        match change {
            PropertyChange::Set(values) => {
                for (name, value) in values {
                    match properties.0.iter_mut().find(|(known, _)| known == name) {
                        Some((_, present)) => present.clone_from(value),
                        None => properties.0.push((name.clone(), value.clone())),
                    }
                }
            }
            PropertyChange::Remove(names) => properties.0.retain(|(name, _)| !names.contains(name)),
        }
    }
    (by_name(&properties) != values).then_some(properties)
}

fn by_name(properties: &Entries<String>) -> HashMap<&str, &str> {
    properties.0.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

fn raw(value: &impl Serialize) -> Option<Box<RawValue>> {
    serde_json::value::to_raw_value(value).ok()
}

/// An object of JSON, with its fields in their order.
#[derive(Clone)]
pub(crate) struct Entries<Value>(pub(crate) Vec<(String, Value)>);

impl<Value> Entries<Value> {
    /// The value of a field that is there once.
    fn only(&self, name: &str) -> Option<&Value> {
        let mut found = self.0.iter().filter(|(known, _)| known == name);
        found.next().filter(|_| found.next().is_none()).map(|(_, value)| value)
    }
}

impl<'text, Value: Deserialize<'text>> Deserialize<'text> for Entries<Value> {
    fn deserialize<D: Deserializer<'text>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<Value>(std::marker::PhantomData<Value>);

        impl<'text, Value: Deserialize<'text>> Visitor<'text> for Reader<Value> {
            type Value = Entries<Value>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'text>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(Reader(std::marker::PhantomData))
    }
}

impl<Value: Serialize> Serialize for Entries<Value> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = concat!(
        r#"{"snapshots":[],"metadata-log":[{"metadata-file":"file:///l/t/metadata/0.json","timestamp-ms":5}],"#,
        r#""location":"file:///l/t","table-uuid":"u","last-updated-ms":9,"unknown":{"a": [1e5, "\u00e9"]},"#,
        r#""properties":{"gc.enabled":"false","owner":"ana"},"format-version":2}"#
    );
    const SUCCESSION: Succession<'static> = Succession {
        previous_uri: "file:///l/t/metadata/1.json",
        previous_folder: "file:///l/t/metadata",
        table_uuid: "u",
        now_millis: 20,
        kept: 2,
    };

    fn set(name: &str, value: &str) -> PropertyChange {
        PropertyChange::Set(vec![(name.into(), value.into())])
    }

    fn remove(names: &[&str]) -> PropertyChange {
        PropertyChange::Remove(names.iter().map(|name| name.to_string()).collect())
    }

    fn after(text: &str, changes: &[PropertyChange], succession: &Succession<'_>) -> Option<String> {
        with_properties(text.as_bytes(), changes, succession).map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn all_else_is_copied_as_it_stands() {
        let expected = concat!(
            r#"{"snapshots":[],"metadata-log":[{"metadata-file":"file:///l/t/metadata/0.json","timestamp-ms":5},"#,
            r#"{"metadata-file":"file:///l/t/metadata/1.json","timestamp-ms":9}],"#,
            r#""location":"file:///l/t","table-uuid":"u","last-updated-ms":20,"unknown":{"a": [1e5, "\u00e9"]},"#,
            r#""properties":{"gc.enabled":"false","owner":"bo","new":"\"x\"\n"},"format-version":2}"#
        );
        let changes = [set("owner", "bo"), set("new", "\"x\"\n")];
        assert_eq!(after(TEXT, &changes, &SUCCESSION).as_deref(), Some(expected));
    }

    #[test]
    fn changes_come_one_after_the_other() {
        let properties = |changes: &[PropertyChange]| {
            let text = after(TEXT, changes, &SUCCESSION)?;
            let document: serde_json::Value = serde_json::from_str(&text).unwrap();
            Some(document["properties"].to_string())
        };
        let none = r#"{"gc.enabled":"false"}"#;
        assert_eq!(
            properties(&[set("owner", "bo"), remove(&["owner", "owner", "no"])]).as_deref(),
            Some(none)
        );
        let other = r#"{"gc.enabled":"false","owner":"bo"}"#;
        assert_eq!(properties(&[remove(&["owner"]), set("owner", "bo")]).as_deref(), Some(other));
        for nothing in [&[][..], &[remove(&["no"])], &[PropertyChange::Set(Vec::new())]] {
            assert_eq!(properties(nothing), None);
        }
        // The log said that properties had changed, where it says otherwise of the same change by the long way.
        for again in [&[set("owner", "ana")][..], &[remove(&["owner"]), set("owner", "ana")]] {
            assert_eq!(properties(again), None);
        }
    }

    #[test]
    fn the_log_forgets_the_oldest_and_time_does_not_go_back() {
        let once = after(TEXT, &[set("a", "1")], &Succession { now_millis: 3, ..SUCCESSION }).unwrap();
        let succession = Succession { previous_uri: "second", now_millis: 3, ..SUCCESSION };
        let twice = after(&once, &[set("a", "2")], &succession).unwrap();
        let document: serde_json::Value = serde_json::from_str(&twice).unwrap();
        let files: Vec<&serde_json::Value> = document["metadata-log"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| &entry["metadata-file"])
            .collect();
        assert_eq!(files, ["file:///l/t/metadata/1.json", "second"]);
        assert_eq!(document["last-updated-ms"], 9);
    }

    /// Each of these is for the long way: it does more, or says what is wrong.
    #[test]
    fn what_is_not_as_usual_is_left_alone() {
        let refused = |from: &str, to: &str| {
            assert!(TEXT.contains(from), "{from}");
            assert_eq!(after(&TEXT.replace(from, to), &[set("a", "1")], &SUCCESSION), None, "{from} as {to}");
        };
        refused("\"format-version\":2", "\"format-version\":1");
        refused("\"format-version\":2", "\"format-version\":4");
        refused("\"table-uuid\":\"u\"", "\"table-uuid\":\"v\"");
        refused("\"location\":\"file:///l/t\"", "\"location\":\"file:///l/other\"");
        refused("\"snapshots\":[]", "\"snapshots\":[1,2,3]");
        refused("\"gc.enabled\":\"false\"", "\"gc.enabled\":\"true\"");
        refused("\"gc.enabled\":\"false\",", "");
        refused("\"owner\":\"ana\"", "\"write.metadata.compression-codec\":\"gzip\"");
        refused("\"owner\":\"ana\"", "\"write.metadata.path\":\"file:///l/t/m\"");
        refused("\"owner\":\"ana\"", "\"history.expire.max-snapshot-age-ms\":\"1\"");
        refused("\"owner\":\"ana\"", "\"owner\":1");
        refused("\"owner\":\"ana\"", "\"gc.enabled\":\"false\"");
        // Readers take the last one: to set the first was answered, and changed nothing.
        refused("\"owner\":\"ana\"", "\"a\":\"b\",\"a\":\"c\"");
        refused("\"owner\":\"ana\"", "\"owner\":\"ana\",\"owner\":\"bo\"");
        refused("\"unknown\"", "\"properties\":{},\"unknown\"");
        refused("\"metadata-log\"", "\"another-log\"");
        refused("\"last-updated-ms\":9", "\"last-updated-ms\":-9");
        refused("{\"snapshots\"", "[{\"snapshots\"");
        assert!(after(TEXT, &[set("a", "1")], &SUCCESSION).is_some());
        assert!(after(&TEXT.replace("[],", "[1,2],"), &[set("a", "1")], &SUCCESSION).is_some());
    }
}
