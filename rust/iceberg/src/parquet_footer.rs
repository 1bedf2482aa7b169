//! Check of a Parquet footer before the `parquet` crate decodes it. The crate allocates memory for as many row groups and
//! columns as the footer claims, so a few bytes could end the process.

use bytes::Bytes;

/// Greatest depth of nested structures.
const MAX_DEPTH: usize = 16;
const MAX_ROW_GROUPS: usize = 1024;
/// After the footer: its length and the magic bytes.
const TAIL_SIZE_BYTES: usize = 8;

/// Fields of `FileMetaData` and `SchemaElement` in Parquet's Thrift.
const SCHEMA: i64 = 2;
const ROW_GROUPS: i64 = 4;
const NUM_CHILDREN: i64 = 5;

/// Types of Thrift's compact protocol that are decoded.
const I32: u8 = 5;
const LIST: u8 = 9;

/// Whether the lists of a footer are no longer than the footer allows, and no column is nested.
pub fn is_plain(file: &Bytes) -> bool {
    let Some((rest, tail)) = file.split_last_chunk::<TAIL_SIZE_BYTES>() else { return false };
    let (length, magic) = tail.split_at(4);
    let length = length.try_into().map_or(u32::MAX, u32::from_le_bytes);
    let Some(begin) = usize::try_from(length).ok().and_then(|length| rest.len().checked_sub(length)) else {
        return false;
    };
    magic == b"PAR1" && Thrift(&rest[begin..]).file_metadata().is_some()
}

/// The rest of a message in Thrift's compact protocol. Methods return `None` if it is too short or claims too much.
struct Thrift<'a>(&'a [u8]);

impl Thrift<'_> {
    fn file_metadata(&mut self) -> Option<()> {
        let mut columns = false;
        self.fields(0, |thrift, id, kind| {
            match (id, kind) {
                (SCHEMA, LIST) => {
                    columns = true;
                    return thrift.schema().map(|()| true);
                }
                (ROW_GROUPS, LIST) => {
                    let (count, kind) = thrift.list_header()?;
                    if count > MAX_ROW_GROUPS {
                        return None;
                    }
                    for _ in 0..count {
                        thrift.skip(kind, 1)?;
                    }
                    return Some(true);
                }
                _ => {}
            }
            Some(false)
        })?;
        columns.then_some(())
    }

    /// The root element, then as many columns without children as it declares.
    fn schema(&mut self) -> Option<()> {
        let (count, _) = self.list_header()?;
        for number in 0..count {
            let mut children = 0;
            self.fields(1, |thrift, id, kind| {
                let is_it = (id, kind) == (NUM_CHILDREN, I32);
                if is_it {
                    children = thrift.number()?;
                }
                Some(is_it)
            })?;
            let wanted = if number == 0 { i64::try_from(count - 1).ok()? } else { 0 };
            if children != wanted {
                return None;
            }
        }
        Some(())
    }

    /// Passes each field of a structure to `read`, and skips the fields for which it returns false.
    fn fields(
        &mut self,
        depth: usize,
        mut read: impl FnMut(&mut Self, i64, u8) -> Option<bool>,
    ) -> Option<()> {
        let mut id = 0;
        loop {
            let header = self.byte()?;
            if header == 0 {
                return Some(());
            }
            let (delta, kind) = (header >> 4, header & 0x0f);
            id = if delta == 0 { self.number()? } else { i64::checked_add(id, i64::from(delta))? };
            if !read(self, id, kind)? {
                self.skip_field(kind, depth)?;
            }
        }
    }

    fn skip_field(&mut self, kind: u8, depth: usize) -> Option<()> {
        match kind {
            1 | 2 => Some(()), // a boolean is part of the header
            kind => self.skip(kind, depth + 1),
        }
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match kind {
            1..=3 => self.bytes(1),
            4..=6 => self.varint().map(drop),
            7 => self.bytes(8),
            8 => {
                let length = usize::try_from(self.varint()?).ok()?;
                self.bytes(length)
            }
            LIST | 10 => {
                let (count, kind) = self.list_header()?;
                (0..count).try_for_each(|_| self.skip(kind, depth + 1))
            }
            12 => self.fields(depth, |_, _, _| Some(false)),
            13 => self.bytes(16),
            _ => None, // Parquet has no maps
        }
    }

    /// Number and type of elements. `None` if there are fewer bytes than elements.
    fn list_header(&mut self) -> Option<(usize, u8)> {
        let header = self.byte()?;
        let count = match header >> 4 {
            15 => usize::try_from(self.varint()?).ok()?,
            few => usize::from(few),
        };
        (count <= self.0.len()).then_some((count, header & 0x0f))
    }

    fn number(&mut self) -> Option<i64> {
        let zigzag = self.varint()?;
        Some((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut found = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            found |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(found);
            }
        }
        None
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn bytes(&mut self, count: usize) -> Option<()> {
        self.0 = self.0.get(count..)?;
        Some(())
    }
}
