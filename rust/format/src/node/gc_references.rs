//! The locations that garbage collection must consider referenced by one node (format §9).

use super::Node;

impl Node {
    /// For each key the location in its newest message here, or that in its row if there is no message. Messages in
    /// nodes above hide nothing.
    pub fn named_locations(&self) -> impl Iterator<Item = (&str, &str)> {
        let rows = (0..self.n_keys()).map(|row| (self.key(row), self.value(row)));
        let rows = rows.filter(|(key, _)| self.find_message(key).is_none());
        rows.chain(self.newest_messages().filter_map(|message| Some((message.key, message.value?))))
    }
}
