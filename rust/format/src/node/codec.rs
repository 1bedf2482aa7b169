//! Nodes to bytes and back: one Arrow IPC file, one record batch, a checksum in the footer (format §5).
//!
//! Bytes are not trusted. The checksum is compared first; then every offset and length of the footer and the batch is
//! held against the file, and so are the columns. What the buffers say they decompress to is bounded, and none
//! decompresses to more than it says ([`columns`]). The texts are checked as they become arrays, and any panic in that
//! becomes `CorruptFile`.

use arrow_array::builder::StringBuilder;
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow_buffer::Buffer;
use arrow_ipc::reader::read_footer_length;
use arrow_ipc::{Footer, Schema, Type, root_as_footer};
use arrow_schema::ArrowError;
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::columns::{CONTENT_MAX_SIZE_BYTES, SMALL_CONTENT_SIZE_BYTES};
use super::draft::{Draft, Message};
use super::frames::{Cuts, Frames};
use super::ipc_file::{self, Body, END_OF_STREAM, MAGIC};
use super::{COLUMNS, HEIGHT, N_KEYS, Node, columns, node_schema};
use trinitylake_base::caught::quietly;
use trinitylake_base::error::{Error, Result};

/// Footer metadata: `xxh3-64:<16 hex digits>` over all bytes before the footer.
pub const CHECKSUM: &str = "trinitylake.checksum";
const CHECKSUM_ALGORITHM: &str = "xxh3-64:";
pub const CHECKSUM_VALUE_SIZE_BYTES: usize = CHECKSUM_ALGORITHM.len() + 16;

/// Footer length (4 bytes) and the closing magic.
const TRAILER_SIZE_BYTES: usize = 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    None,
    Lz4,
    #[default]
    Zstd,
}

impl Compression {
    pub fn parse(name: &str) -> Result<Compression> {
        match name {
            "none" => Ok(Compression::None),
            "lz4" => Ok(Compression::Lz4),
            "zstd" => Ok(Compression::Zstd),
            other => Err(Error::InvalidArgument(format!(
                "node compression {other:?} is not one of \"none\", \"lz4\", \"zstd\""
            ))),
        }
    }
}

/// A node as it will be stored and as it will be read, so that its writer need not decode it again.
#[derive(Debug)]
pub struct Encoded {
    pub bytes: Bytes,
    pub node: Node,
}

/// System rows that every node has: how many keys, and how high.
const COUNTS: usize = 2;

/// Lays a draft out as a node of `order` rows. `system` are the system rows besides `n_keys` and `height`.
pub fn encode(
    system: &[(&str, String)],
    draft: &Draft,
    order: usize,
    compression: Compression,
) -> Result<Encoded> {
    encode_in_turn(&mut Frames::default(), system, draft, order, compression)
}

/// The same with a compressor that is kept: to make one takes as long as to compress a small node.
pub fn encode_in_turn(
    frames: &mut Frames,
    system: &[(&str, String)],
    draft: &Draft,
    order: usize,
    compression: Compression,
) -> Result<Encoded> {
    encode_with(frames, &Cuts::default(), lay_out(system, draft, None, order), order, compression)
}

/// The same for a root, which has most of its rows in common with the one that was encoded with these frames before. The
/// draft is that of the node `grown_from`, if there is one, with more messages behind its own: then what both have is copied
/// column by column.
pub fn encode_root(
    frames: &mut Frames,
    system: &[(&str, String)],
    draft: &Draft,
    grown_from: Option<&Node>,
    order: usize,
    compression: Compression,
) -> Result<Encoded> {
    let cuts = Cuts::of_root(system.len() + COUNTS, order, draft.buffer.iter().map(Message::key_hash));
    let batch = lay_out(system, draft, grown_from, order);
    let encoded = encode_with(frames, &cuts, batch, order, compression);
    frames.turn();
    encoded
}

fn encode_with(
    frames: &mut Frames,
    cuts: &Cuts,
    batch: Result<RecordBatch, ArrowError>,
    order: usize,
    compression: Compression,
) -> Result<Encoded> {
    let batch = batch.map_err(|error| Error::corrupt("(new node)", error))?;
    // A file that its own reader would refuse must never be written.
    let node = Node::from_batch(&batch, "(new node)", Some(order))?;
    let bytes = write_batch(&batch, compression, frames, cuts)?;
    Ok(Encoded { bytes, node })
}

/// Writes rows that follow the node layout, which is not checked. What compresses so well that no reader would
/// believe it is not compressed. `InvalidArgument` for more than a node can hold.
pub fn encode_batch(batch: &RecordBatch, compression: Compression) -> Result<Bytes> {
    write_batch(batch, compression, &mut Frames::default(), &Cuts::default())
}

fn write_batch(
    batch: &RecordBatch,
    compression: Compression,
    frames: &mut Frames,
    cuts: &Cuts,
) -> Result<Bytes> {
    let mut write = |compression| {
        let body = Body { compression, frames: &mut *frames, cuts };
        let file = ipc_file::write(batch, body, |covered| {
            (CHECKSUM.to_string(), format!("{CHECKSUM_ALGORITHM}{:016x}", xxh3_64(covered)))
        });
        file.map(Bytes::from).map_err(|error| Error::corrupt("(new node)", error))
    };
    let content_size_bytes = batch.get_array_memory_size() as u64;
    if content_size_bytes > CONTENT_MAX_SIZE_BYTES {
        return Err(Error::InvalidArgument(format!(
            "a node cannot hold {content_size_bytes} bytes, the limit is {CONTENT_MAX_SIZE_BYTES}: change less in one \
             transaction, or register objects in bulk"
        )));
    }
    let bytes = write(compression)?;
    let is_believed = content_size_bytes <= SMALL_CONTENT_SIZE_BYTES
        || compression == Compression::None
        || Frame::check(&bytes).is_ok();
    if is_believed { Ok(bytes) } else { write(Compression::None) }
}

fn lay_out(
    system: &[(&str, String)],
    draft: &Draft,
    grown_from: Option<&Node>,
    order: usize,
) -> Result<RecordBatch, ArrowError> {
    let counts: [_; COUNTS] = [(N_KEYS, draft.rows.len().to_string()), (HEIGHT, draft.height.to_string())];
    let system = || system.iter().chain(&counts).map(|(name, text)| (*name, text.as_str()));
    let newer = grown_from.and_then(|node| Some((node, draft.buffer.get(node.n_messages()..)?)));
    let columns = match newer {
        Some((node, newer)) => {
            let columns = Columns::grown(system, node, newer)?;
            debug_assert_eq!(
                columns,
                Columns::of(system, draft, order),
                "the draft is not that of this node"
            );
            columns
        }
        None => Columns::of(system, draft, order),
    };
    let columns = columns.0.map(|column| std::sync::Arc::new(column) as ArrayRef).to_vec();
    RecordBatch::try_new(node_schema(), columns)
}

/// Keys, values, children and transactions.
#[derive(Debug, PartialEq)]
struct Columns([StringArray; COLUMNS.len()]);

impl Columns {
    fn of<'a, S: Iterator<Item = (&'a str, &'a str)>>(
        system: impl Fn() -> S,
        draft: &Draft,
        order: usize,
    ) -> Columns {
        let n_system = system().count();
        let rows = n_system + order + draft.buffer.len();
        // Of exactly this size: the node stays in the cache as it is built here, and the cache does not count unused
        // capacity.
        let mut key_size: usize = system().map(|(name, _)| name.len()).sum();
        let mut value_size: usize = system().map(|(_, text)| text.len()).sum();
        for row in &draft.rows {
            key_size += row.key.len();
            value_size += row.value.len();
        }
        for message in &draft.buffer {
            key_size += message.key.len();
            value_size += message.value.as_ref().map_or(0, |value| value.len());
        }
        let mut key = StringBuilder::with_capacity(rows, key_size);
        let mut value = StringBuilder::with_capacity(rows, value_size);
        let children_size = draft.children.iter().map(|path| path.len()).sum();
        let mut child = StringBuilder::with_capacity(rows, children_size);
        let mut txn = StringBuilder::with_capacity(rows, draft.buffer.iter().map(|m| m.txn.len()).sum());

        for (name, text) in system() {
            key.append_value(name);
            value.append_value(text);
        }
        key.append_null();
        value.append_null();
        for row in &draft.rows {
            key.append_value(&row.key);
            value.append_value(&row.value);
        }
        let padding = order.saturating_sub(draft.rows.len() + 1);
        key.append_nulls(padding);
        value.append_nulls(padding);
        child.append_nulls(n_system);
        for path in &draft.children {
            child.append_value(path);
        }
        child.append_nulls((order + draft.buffer.len()).saturating_sub(draft.children.len()));
        txn.append_nulls(n_system + order);
        for message in &draft.buffer {
            key.append_value(&message.key);
            value.append_option(message.value.as_deref());
            txn.append_value(&message.txn);
        }
        Columns([key.finish(), value.finish(), child.finish(), txn.finish()])
    }

    /// Those of a node with other system rows and more messages.
    fn grown<'a, S: Iterator<Item = (&'a str, &'a str)>>(
        system: impl Fn() -> S,
        node: &Node,
        newer: &[Message],
    ) -> Result<Columns, ArrowError> {
        let kept = node.rows_below_system();
        let n_system = system().count();
        let builder = |kept: &StringArray, more_size: usize| {
            let ends = kept.offsets();
            let kept_size = (ends[kept.len()] - ends[0]) as usize;
            StringBuilder::with_capacity(n_system + kept.len() + newer.len(), kept_size + more_size)
        };
        let names_size: usize = system().map(|(name, _)| name.len()).sum();
        let texts_size: usize = system().map(|(_, text)| text.len()).sum();
        let sum = |size_of: fn(&Message) -> usize| newer.iter().map(size_of).sum::<usize>();
        let mut key = builder(&kept[0], names_size + sum(|message| message.key.len()));
        let mut value = builder(
            &kept[1],
            texts_size + sum(|message| message.value.as_ref().map_or(0, |value| value.len())),
        );
        let mut child = builder(&kept[2], 0);
        let mut txn = builder(&kept[3], sum(|message| message.txn.len()));

        for (name, text) in system() {
            key.append_value(name);
            value.append_value(text);
        }
        child.append_nulls(n_system);
        txn.append_nulls(n_system);
        for (column, kept) in [&mut key, &mut value, &mut child, &mut txn].into_iter().zip(&kept) {
            column.append_array(kept)?;
        }
        for message in newer {
            key.append_value(&message.key);
            value.append_option(message.value.as_deref());
            txn.append_value(&message.txn);
        }
        child.append_nulls(newer.len());
        Ok(Columns([key.finish(), value.finish(), child.finish(), txn.finish()]))
    }
}

/// Reads the node file at `path`, which is refused under the name of another node. `order` is the N of the lakehouse where
/// it is known.
pub fn decode(bytes: Bytes, path: &str, order: Option<usize>) -> Result<Node> {
    let batch = decode_batch(bytes, path)?;
    let node = Node::from_batch(&batch, path, order)?;
    if let Some(held) = node.other_name(path) {
        return Err(Error::corrupt(path, format!("it is the node of another name, {held}")));
    }
    Ok(node)
}

/// The rows of a node file: the checksum is verified, the arrays are valid, the layout is not yet checked.
pub fn decode_batch(bytes: Bytes, path: &str) -> Result<RecordBatch> {
    let corrupt = |message: String| Error::corrupt(path, message);
    let frame = Frame::check(&bytes).map_err(corrupt)?;
    let body = Buffer::from(bytes.clone()).slice_with_length(frame.body_offset, frame.body_size);
    // The checks above leave little to stumble over; should something still, that is a damaged file.
    let columns = quietly(|| columns::read(&frame.batch, &body))
        .unwrap_or_else(|panic| Err(format!("not a valid Arrow record batch: {panic}")))
        .map_err(corrupt)?;
    let columns = columns.map(|column| std::sync::Arc::new(column) as ArrayRef).to_vec();
    RecordBatch::try_new(node_schema(), columns).map_err(|error| Error::corrupt(path, error))
}

/// Where the one record batch lies, after everything that can be checked without decoding it.
struct Frame<'a> {
    batch: arrow_ipc::RecordBatch<'a>,
    body_offset: usize,
    body_size: usize,
}

impl<'a> Frame<'a> {
    fn check(bytes: &'a [u8]) -> Result<Frame<'a>, String> {
        if bytes.len() < MAGIC.len() + 2 + END_OF_STREAM.len() + TRAILER_SIZE_BYTES {
            return Err(format!("{} bytes are too few for an Arrow file: empty or truncated", bytes.len()));
        }
        if !bytes.starts_with(MAGIC) || !bytes.ends_with(MAGIC) {
            return Err("not an Arrow file, or truncated: it does not begin and end with ARROW1".into());
        }
        let trailer = bytes.len() - TRAILER_SIZE_BYTES;
        let mut trailer_bytes = [0u8; TRAILER_SIZE_BYTES];
        trailer_bytes.copy_from_slice(&bytes[trailer..]);
        let footer_size = read_footer_length(trailer_bytes).map_err(|error| error.to_string())?;
        let footer_offset = trailer
            .checked_sub(footer_size)
            .filter(|offset| *offset >= MAGIC.len())
            .ok_or_else(|| format!("the footer cannot have {footer_size} bytes"))?;
        let footer = root_as_footer(&bytes[footer_offset..trailer])
            .map_err(|error| format!("the footer is damaged: {error}"))?;
        verify_checksum(&footer, &bytes[..footer_offset])?;

        if footer.dictionaries().is_some_and(|blocks| !blocks.is_empty()) {
            return Err("a node file has no dictionaries".into());
        }
        check_schema(footer.schema().ok_or("the footer has no schema")?)?;
        let blocks = footer.recordBatches().ok_or("the footer names no record batch")?;
        if blocks.len() != 1 {
            return Err(format!("a node file has one record batch, this one has {}", blocks.len()));
        }
        let block = *blocks.get(0);
        let part = |size: i64| usize::try_from(size).map_err(|_| format!("{size} is no size or offset"));
        let (offset, metadata, body) =
            (part(block.offset())?, part(block.metaDataLength().into())?, part(block.bodyLength())?);
        let size = metadata.checked_add(body).ok_or("the record batch is larger than any file")?;
        if offset.checked_add(size).is_none_or(|end| end > footer_offset) {
            return Err("the record batch reaches beyond the messages of the file".into());
        }
        let body_offset = offset + metadata;
        let batch = columns::checked(&bytes[offset..body_offset], &bytes[body_offset..offset + size])?;
        Ok(Frame { batch, body_offset, body_size: body })
    }
}

/// A column of another type could take memory that no buffer states.
fn check_schema(schema: Schema<'_>) -> Result<(), String> {
    let fields = schema.fields().unwrap_or_default();
    let names: Vec<&str> = fields.iter().map(|field| field.name().unwrap_or_default()).collect();
    if names != COLUMNS {
        return Err(format!("the columns are {names:?}, a node file has {COLUMNS:?}"));
    }
    match fields.iter().find(|field| field.type_type() != Type::Utf8 || field.dictionary().is_some()) {
        Some(field) => Err(format!(
            "column {} is {}, not Utf8",
            field.name().unwrap_or_default(),
            if field.dictionary().is_some() {
                "a dictionary"
            } else {
                field.type_type().variant_name().unwrap_or("unknown")
            },
        )),
        None => Ok(()),
    }
}

fn verify_checksum(footer: &Footer<'_>, covered: &[u8]) -> Result<(), String> {
    let stated = footer
        .custom_metadata()
        .into_iter()
        .flatten()
        .find(|entry| entry.key() == Some(CHECKSUM))
        .and_then(|entry| entry.value());
    // A file of another writer, or an algorithm this reader does not know: readable, unverified.
    let Some(digits) = stated.and_then(|stated| stated.strip_prefix(CHECKSUM_ALGORITHM)) else {
        return Ok(());
    };
    let actual = format!("{:016x}", xxh3_64(covered));
    if digits == actual {
        Ok(())
    } else {
        Err(format!("damaged: the checksum of its content is {actual}, the footer says {digits}"))
    }
}

#[cfg(test)]
mod tests;
