//! Definition files that a transaction has read: a statement looks the same object up several times, and on a local disk
//! each look would open the file again. They never change, so what was read once is what they hold.

use std::collections::VecDeque;

use bytes::Bytes;

/// So many are kept, those that were read last.
const KEPT: usize = 16;
/// Larger ones are read again.
const KEPT_SIZE_BYTES: usize = 16 << 10;

#[derive(Clone, Debug, Default)]
pub(super) struct DefinitionsRead(VecDeque<Read>);

#[derive(Clone, Debug)]
struct Read {
    location: String,
    bytes: Bytes,
}

impl DefinitionsRead {
    /// The bytes of a file, if it was read lately.
    pub fn get(&self, location: &str) -> Option<Bytes> {
        self.0.iter().find(|read| read.location == location).map(|read| read.bytes.clone())
    }

    pub fn keep(&mut self, location: String, bytes: &Bytes) {
        if bytes.len() > KEPT_SIZE_BYTES {
            return;
        }
        self.0.truncate(KEPT - 1);
        self.0.push_front(Read { location, bytes: bytes.clone() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_were_read_last_are_kept_and_large_ones_are_not() {
        let mut read = DefinitionsRead::default();
        for number in 0..=KEPT {
            read.keep(format!("file {number}"), &Bytes::from(number.to_string()));
        }
        read.keep("large file".into(), &Bytes::from(vec![0; KEPT_SIZE_BYTES + 1]));
        assert_eq!((read.get("file 0"), read.get("large file")), (None, None));
        assert_eq!(read.get("file 1"), Some(Bytes::from("1")));
    }
}
