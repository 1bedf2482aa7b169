//! The locations that a node references, for garbage collection (format §7).

use super::Node;

impl Node {
    /// Returns one location for each key: from the newest message in this node, or otherwise from the row. Messages in
    /// nodes above do not matter.
    pub fn named_locations(&self) -> impl Iterator<Item = (&str, &str)> {
        let rows = (0..self.n_keys()).map(|row| (self.key(row), self.value(row)));
        let rows = rows.filter(|(key, _)| self.find_message(key).is_none());
        rows.chain(self.newest_messages().filter_map(|message| Some((message.key, message.value?))))
    }
}
