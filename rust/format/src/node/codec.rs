//! Encoding and decoding of node files: an Arrow IPC file with one record batch and a checksum in the footer (format
//! §5).
//!
//! The bytes are not trusted. First the checksum is verified, then every offset and length of the footer, the batch and
//! the columns is checked against the size of the file. The decompressed size that a buffer states is limited, and no
//! buffer is decompressed to a larger size ([`columns`]). The strings are validated when the arrays are created. A
//! panic of the decoder becomes `CorruptFile`.

use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::reader::read_footer_length;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use arrow_ipc::{CompressionType, Footer, Schema, Type, root_as_footer};
use arrow_schema::ArrowError;
use bytes::Bytes;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::columns::{CONTENT_MAX_SIZE_BYTES, SMALL_CONTENT_SIZE_BYTES};
use super::mutable_node::MutableNode;
use super::{COLUMNS, HEIGHT, N_KEYS, Node, columns, node_schema};
use trinitylake_base::catch_panic::quietly;
use trinitylake_base::error::{Error, Result};

/// Footer metadata: `xxh3-64:<16 hex digits>` over all bytes before the footer.
pub const CHECKSUM: &str = "trinitylake.checksum";
const CHECKSUM_ALGORITHM: &str = "xxh3-64:";

const MAGIC: &[u8] = b"ARROW1";
/// End of the messages, directly before the footer.
const END_OF_STREAM: [u8; 8] = [0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0];
/// Approximate size of the schema, batch header and footer.
const HEADERS_SIZE_BYTES: usize = 4096;

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
    fn codec(self) -> Option<CompressionType> {
        match self {
            Compression::None => None,
            Compression::Lz4 => Some(CompressionType::LZ4_FRAME),
            Compression::Zstd => Some(CompressionType::ZSTD),
        }
    }

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

/// An encoded node together with the decoded node, so that its writer need not decode it.
#[derive(Debug)]
pub struct Encoded {
    pub bytes: Bytes,
    pub node: Node,
}

/// Encodes a draft as a node of `order` rows. `system` are the system rows except `n_keys` and `height`.
pub fn encode(
    system: &[(&str, String)],
    draft: &MutableNode,
    order: usize,
    compression: Compression,
) -> Result<Encoded> {
    let batch = lay_out(system, draft, order).map_err(|error| Error::corrupt("(new node)", error))?;
    // A file that a reader would refuse must never be written.
    let node = Node::from_batch(&batch, "(new node)", Some(order))?;
    let bytes = encode_batch(&batch, compression)?;
    Ok(Encoded { bytes, node })
}

/// Encodes rows in the node layout, without checking the layout. If the compression ratio is higher than readers
/// accept, the batch is stored uncompressed. `InvalidArgument` for more content than a node may have.
pub fn encode_batch(batch: &RecordBatch, compression: Compression) -> Result<Bytes> {
    let content_size_bytes = batch.get_array_memory_size() as u64;
    if content_size_bytes > CONTENT_MAX_SIZE_BYTES {
        return Err(Error::InvalidArgument(format!(
            "a node cannot hold {content_size_bytes} bytes, the limit is {CONTENT_MAX_SIZE_BYTES}: change less in one \
             transaction, or register objects in bulk"
        )));
    }
    let bytes = write_file(batch, compression).map_err(|error| Error::corrupt("(new node)", error))?;
    let is_accepted = content_size_bytes <= SMALL_CONTENT_SIZE_BYTES
        || compression == Compression::None
        || Frame::check(&bytes).is_ok();
    if is_accepted { Ok(bytes) } else { encode_batch(batch, Compression::None) }
}

/// Encodes a batch as an Arrow IPC file. The metadata in the footer contains a checksum of all bytes before the footer.
fn write_file(batch: &RecordBatch, compression: Compression) -> Result<Bytes, ArrowError> {
    let options = IpcWriteOptions::default().try_with_compression(compression.codec())?;
    let file = Vec::with_capacity(batch.get_array_memory_size() + HEADERS_SIZE_BYTES);
    let mut writer = FileWriter::try_new_with_options(file, batch.schema_ref(), options)?;
    writer.write(batch)?;
    let mut checksum = Xxh3::new();
    checksum.update(writer.get_ref());
    // The Arrow writer writes this marker between the batch and the footer.
    checksum.update(&END_OF_STREAM);
    writer.write_metadata(CHECKSUM, format!("{CHECKSUM_ALGORITHM}{:016x}", checksum.digest()));
    Ok(writer.into_inner()?.into())
}

fn lay_out(system: &[(&str, String)], draft: &MutableNode, order: usize) -> Result<RecordBatch, ArrowError> {
    let counts = [(N_KEYS, draft.rows.len().to_string()), (HEIGHT, draft.height.to_string())];
    let system = || system.iter().chain(&counts).map(|(name, text)| (*name, text.as_str()));
    let n_system = system().count();
    let rows = n_system + order + draft.buffer.len();
    // Allocate the exact capacity: the node stays in the cache, whose limit does not include unused capacity.
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
    let columns = [key.finish(), value.finish(), child.finish(), txn.finish()];
    let columns = columns.map(|column| Arc::new(column) as ArrayRef).to_vec();
    RecordBatch::try_new(node_schema(), columns)
}

/// Decodes the node file at `path`; refuses it if it contains the id of another node. `order` is the N of the
/// lakehouse, if known.
pub fn decode(bytes: Bytes, path: &str, order: Option<usize>) -> Result<Node> {
    let batch = decode_batch(bytes, path)?;
    let node = Node::from_batch(&batch, path, order)?;
    if let Some(held) = node.other_name(path) {
        return Err(Error::corrupt(path, format!("it contains the node of another name, {held}")));
    }
    Ok(node)
}

/// Returns the rows of a node file. The checksum is verified and the arrays are valid, but the layout is not checked
/// yet.
pub fn decode_batch(bytes: Bytes, path: &str) -> Result<RecordBatch> {
    let corrupt = |message: String| Error::corrupt(path, message);
    let frame = Frame::check(&bytes).map_err(corrupt)?;
    let body = Buffer::from(bytes.clone()).slice_with_length(frame.body_offset, frame.body_size);
    // Few errors are possible after the checks above. A panic also means that the file is damaged.
    let columns = quietly(|| columns::read(&frame.batch, &body))
        .unwrap_or_else(|panic| Err(format!("not a valid Arrow record batch: {panic}")))
        .map_err(corrupt)?;
    let columns = columns.map(|column| Arc::new(column) as ArrayRef).to_vec();
    RecordBatch::try_new(node_schema(), columns).map_err(|error| Error::corrupt(path, error))
}

/// The record batch of a file and its position, after all checks that need no decoding.
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
        let blocks = footer.recordBatches().ok_or("the footer lists no record batches")?;
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

/// Refuses columns of other types, which could take more memory than their buffers state.
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
    // A file of another writer or with an unknown algorithm is read without verification.
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
