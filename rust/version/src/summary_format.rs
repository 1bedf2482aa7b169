//! Summary of a transaction in one line of text: the `summary` of an entry of the log (format §4).
//!
//! A summary consists of clauses, one for each object, such as `append +3,000 rows shop.orders`. If there are many
//! clauses, they are grouped and counted by operation. A summary is always one line of at most
//! [`SUMMARY_MAX_SIZE_BYTES`] of printable characters, and no name in it looks like a clause.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};
use trinitylake_format::key::ObjectKind;

pub const SUMMARY_MAX_SIZE_BYTES: usize = 300;
/// Maximum number of clauses that are listed; a longer list is replaced by counts.
const LISTED_MAX: usize = 4;
/// Maximum number of characters of a name that are shown.
const NAME_MAX_CHARS: usize = 48;

/// One line of text; "" if unknown. Created by [`Summary::of`], or read from storage, where another writer may have
/// created it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Summary(String);

/// Change of one object, or of the lakehouse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clause {
    verb: String,
    object: Option<(ObjectKind, String)>,
    says_kind: bool,
    rows: Rows,
    /// Appended to a single clause, such as `+1 column`.
    tail: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    pub added: u64,
    pub removed: u64,
    /// Rows that were updated.
    pub changed: u64,
}

/// Change of a table, described by the layer above: an operation with a number of rows, such as `append` with 3000, or
/// with a text after it, such as `schema` with `+1 column`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableChange {
    pub verb: String,
    pub rows: Rows,
    pub tail: String,
}

impl Clause {
    /// A clause without an object, such as `repair`.
    pub fn plain(text: impl Into<String>) -> Clause {
        let (rows, tail) = Default::default();
        Clause { verb: text.into(), object: None, says_kind: false, rows, tail }
    }

    /// Returns a clause such as `create table shop.x +3,000 rows`.
    pub fn of_object(verb: &str, kind: ObjectKind, namespace: &str, name: &str) -> Clause {
        let object = Some((kind, shown_name(namespace, name)));
        Clause { object, says_kind: true, ..Clause::plain(verb) }
    }

    /// Returns a clause such as `append +3,000 rows shop.orders`.
    pub fn of_change(change: &TableChange, namespace: &str, name: &str) -> Clause {
        Clause {
            rows: change.rows,
            tail: change.tail.clone(),
            says_kind: false,
            ..Clause::of_object(&change.verb, ObjectKind::Table, namespace, name)
        }
    }

    #[must_use]
    pub fn with_rows(mut self, rows: Rows) -> Clause {
        self.rows = rows;
        self
    }

    /// Adds the new name of an object, as in `rename table shop.a to shop.b`.
    #[must_use]
    pub fn to(mut self, namespace: &str, name: &str) -> Clause {
        self.tail = format!("to {}", shown_name(namespace, name));
        self
    }

    fn text(&self) -> String {
        let Some((kind, name)) = &self.object else { return self.verb.clone() };
        let (verb, rows) = (&self.verb, self.rows.text());
        let tail = if self.tail.is_empty() { String::new() } else { format!(" {}", self.tail) };
        if self.says_kind {
            return format!("{verb} {} {name}{rows}{tail}", kind.word());
        }
        format!("{verb}{rows} {name}{tail}")
    }
}

impl Rows {
    pub fn plus(self, other: Rows) -> Rows {
        Rows {
            added: self.added.saturating_add(other.added),
            removed: self.removed.saturating_add(other.removed),
            changed: self.changed.saturating_add(other.changed),
        }
    }

    /// Returns the numbers as ` +3,000 -1 ~2 rows`; "" if all of them are 0.
    fn text(self) -> String {
        let mut text = String::new();
        for (sign, count) in [('+', self.added), ('-', self.removed), ('~', self.changed)] {
            if count > 0 {
                let _ = write!(text, " {sign}{}", with_commas(count));
            }
        }
        match self.added.saturating_add(self.removed).saturating_add(self.changed) {
            0 => {}
            1 => text.push_str(" row"),
            _ => text.push_str(" rows"),
        }
        text
    }
}

impl Summary {
    pub fn of(clauses: Vec<Clause>) -> Summary {
        let texts = match clauses.len() > LISTED_MAX {
            true => counted(&clauses),
            false => clauses.iter().map(Clause::text).collect(),
        };
        Summary::bounded(&texts.join("; "))
    }

    pub fn plain(text: impl Into<String>) -> Summary {
        Summary::of(vec![Clause::plain(text)])
    }

    /// A summary that was read from storage.
    pub fn stored(text: String) -> Summary {
        Summary(text)
    }

    /// Counts by kind: `register 2 namespaces, 1,200 tables`.
    pub fn of_counts(verb: &str, counts: [(ObjectKind, u64); 3]) -> Summary {
        let counts = counts.into_iter().filter(|(_, count)| *count > 0);
        let texts: Vec<String> = counts.map(|(kind, count)| some_of(kind, count)).collect();
        Summary::plain(match texts.is_empty() {
            true => format!("{verb} nothing"),
            false => format!("{verb} {}", texts.join(", ")),
        })
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn bounded(text: &str) -> Summary {
        if text.len() <= SUMMARY_MAX_SIZE_BYTES {
            return Summary(text.to_string());
        }
        let end = text.floor_char_boundary(SUMMARY_MAX_SIZE_BYTES - '…'.len_utf8());
        Summary(format!("{}…", &text[..end]))
    }
}

/// Groups the clauses by verb and kind, in the order of their first occurrence.
fn counted(clauses: &[Clause]) -> Vec<String> {
    let mut groups: Vec<(&Clause, u64, Rows)> = Vec::new();
    let mut places: BTreeMap<(&str, Option<&str>), usize> = BTreeMap::new();
    for clause in clauses {
        let kind = clause.object.as_ref().map(|(kind, _)| kind.word());
        let place = *places.entry((&clause.verb, kind)).or_insert(groups.len());
        match groups.get_mut(place) {
            Some((_, count, rows)) => (*count, *rows) = (*count + 1, rows.plus(clause.rows)),
            None => groups.push((clause, 1, clause.rows)),
        }
    }
    let text = |(first, count, rows): &(&Clause, u64, Rows)| match &first.object {
        Some((kind, _)) if *count > 1 && first.says_kind => {
            format!("{} {}{}", first.verb, some_of(*kind, *count), rows.text())
        }
        Some((kind, _)) if *count > 1 => {
            format!("{}{} in {}", first.verb, rows.text(), some_of(*kind, *count))
        }
        Some(_) | None => first.text(),
    };
    groups.iter().map(text).collect()
}

fn some_of(kind: ObjectKind, count: u64) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {}{plural}", with_commas(count), kind.word())
}

fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A name in a summary. A name with special characters is quoted, and invisible or direction-changing characters are
/// escaped.
fn shown_name(namespace: &str, name: &str) -> String {
    let is_plain = |text: &str, extra: &str| text.chars().all(|c| c.is_alphanumeric() || extra.contains(c));
    let cut = |text: &str| match text.chars().count() > NAME_MAX_CHARS {
        true => text.chars().take(NAME_MAX_CHARS - 1).chain(['…']).collect(),
        false => text.to_string(),
    };
    let shown = match is_plain(namespace, "_-.") {
        true => cut(namespace),
        false => format!("{:?}", cut(namespace)),
    };
    match name {
        "" => shown,
        name if namespace.is_empty() => shown_name(name, ""),
        // A dot in the name would look like a separator of namespaces.
        name if is_plain(name, "_-") => format!("{shown}.{}", cut(name)),
        name => format!("{shown}.{:?}", cut(name)),
    }
}

/// Returns the name of a tag, or another user-defined name, as a summary shows it.
pub fn shown(name: &str) -> String {
    shown_name(name, "")
}

#[cfg(test)]
mod tests;
