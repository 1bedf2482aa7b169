//! A record batch of texts as an Arrow IPC file, written in one go (format §5).
//!
//! Arrow's own writer compresses each buffer into memory of its own and copies it into the file. Here the header of the
//! batch, whose size does not depend on what it says, is left room for, so that buffers are compressed right to where
//! they stay.

use std::sync::{Arc, OnceLock};

use arrow_array::{Array, RecordBatch, StringArray, cast::AsArray};
use arrow_buffer::Buffer;
use arrow_ipc::convert::metadata_to_fb;
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions};
use arrow_ipc::{
    Block, BodyCompressionBuilder, BodyCompressionMethod, Buffer as Place, CompressionType, FieldNode,
    FooterBuilder, MessageBuilder, MessageHeader, MetadataVersion, RecordBatchBuilder,
};
use arrow_schema::{ArrowError, Schema};
use flatbuffers::FlatBufferBuilder;

use super::codec::{CHECKSUM, CHECKSUM_VALUE_SIZE_BYTES, Compression};
use super::columns::{BUFFERS_PER_COLUMN, NOT_COMPRESSED};
use super::frames::{Cuts, Frames, Piece};
use super::node_schema;

pub const MAGIC: &[u8] = b"ARROW1";
/// Marks the end of the messages; stands directly before the footer.
pub const END_OF_STREAM: [u8; 8] = [0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0];
const CONTINUATION: [u8; 4] = [0xFF; 4];
/// Continuation marker and length, before each header.
const PREFIX_SIZE_BYTES: usize = 8;
/// What reads a file where it lies wants its buffers aligned like this; where each is compressed, to what is least.
const ALIGNMENT_PLAIN_BYTES: usize = 64;
const ALIGNMENT_COMPRESSED_BYTES: usize = 8;

/// How its buffers are written.
pub struct Body<'a> {
    pub compression: Compression,
    pub frames: &'a mut Frames,
    pub cuts: &'a Cuts,
}

impl Body<'_> {
    fn codec(&self) -> Option<CompressionType> {
        match self.compression {
            Compression::None => None,
            Compression::Lz4 => Some(CompressionType::LZ4_FRAME),
            Compression::Zstd => Some(CompressionType::ZSTD),
        }
    }

    fn alignment(&self) -> usize {
        match self.compression {
            Compression::None => ALIGNMENT_PLAIN_BYTES,
            Compression::Lz4 | Compression::Zstd => ALIGNMENT_COMPRESSED_BYTES,
        }
    }

    /// A buffer as it is stored; what does not become smaller is not compressed.
    fn write(&mut self, raw: &Buffer, pieces: &[Piece], file: &mut Vec<u8>) -> Result<(), String> {
        if self.compression == Compression::None || raw.is_empty() {
            file.extend_from_slice(raw);
            return Ok(());
        }
        let start = file.len();
        file.extend_from_slice(&(raw.len() as i64).to_le_bytes());
        let content = file.len();
        match self.compression {
            Compression::Lz4 => super::frames::lz4(raw, file)?,
            Compression::None | Compression::Zstd => self.frames.pack(raw, pieces, file)?,
        }
        if file.len() - content >= raw.len() {
            file.truncate(start);
            file.extend_from_slice(&NOT_COMPRESSED.to_le_bytes());
            file.extend_from_slice(raw);
        }
        Ok(())
    }
}

/// The file, up to what its footer says of it: `metadata_of` is given all bytes before the footer.
pub fn write(
    batch: &RecordBatch,
    mut body: Body<'_>,
    metadata_of: impl FnOnce(&[u8]) -> (String, String),
) -> Result<Vec<u8>, ArrowError> {
    let failure = |message: String| ArrowError::IpcError(message);
    let alignment = body.alignment();
    let columns: Vec<&StringArray> = batch.columns().iter().map(|column| column.as_string::<i32>()).collect();
    let mut file = Vec::with_capacity(batch.get_array_memory_size() + 4096);
    file.extend_from_slice(MAGIC);
    pad(&mut file, alignment);
    let schema = batch.schema_ref();
    let of_nodes = Arc::ptr_eq(schema, &node_schema()).then(OfNodes::get);
    match of_nodes {
        Some(of_nodes) => write_header(&mut file, &of_nodes.schema_message, alignment),
        None => write_header(&mut file, &schema_message(schema), alignment),
    }

    let nodes: Vec<FieldNode> = columns
        .iter()
        .map(|column| FieldNode::new(column.len() as i64, column.null_count() as i64))
        .collect();
    // Numbers that are 0 are left out: with others it is as long as it can be.
    let longest = vec![Place::new(1, 1); BUFFERS_PER_COLUMN * columns.len()];
    let room = header(1, &nodes, &longest, body.codec(), 1).len();
    let header_offset = file.len();
    write_header(&mut file, &vec![0; room], alignment);
    let body_offset = file.len();

    let mut places = Vec::with_capacity(longest.len());
    for column in &columns {
        let (cuts, buffers) = (body.cuts, buffers_of(column));
        let pieces = [cuts.of_validity(buffers[0].len()), cuts.of_offsets(column), cuts.of_texts(column)];
        for (raw, pieces) in buffers.iter().zip(&pieces) {
            let offset = file.len() - body_offset;
            body.write(raw, pieces, &mut file).map_err(failure)?;
            places.push(Place::new(offset as i64, (file.len() - body_offset - offset) as i64));
            pad_from(&mut file, body_offset, alignment);
        }
    }
    let body_size = file.len() - body_offset;
    let header = header(batch.num_rows(), &nodes, &places, body.codec(), body_size);
    if header.len() > room {
        return Err(failure(format!("a header of {} bytes where there is room for {room}", header.len())));
    }
    let header_start = header_offset + PREFIX_SIZE_BYTES;
    file[header_start..header_start + header.len()].copy_from_slice(&header);

    file.extend_from_slice(&END_OF_STREAM);
    let metadata = metadata_of(&file);
    let block = Block::new(header_offset as i64, (body_offset - header_offset) as i32, body_size as i64);
    let footer = of_nodes.and_then(|of_nodes| of_nodes.footer(&block, &metadata));
    let footer = footer.unwrap_or_else(|| footer_of(schema, &block, metadata));
    file.extend_from_slice(&footer);
    file.extend_from_slice(&(footer.len() as i32).to_le_bytes());
    file.extend_from_slice(MAGIC);
    Ok(file)
}

/// What all files have in common whose schema is that of nodes: to write it anew each time took as long as to lay out the
/// rows of a root.
struct OfNodes {
    schema_message: Vec<u8>,
    /// The footer of a file with this checksum and this block.
    footer: Vec<u8>,
    checksum: (String, String),
    checksum_at: Option<usize>,
    block_at: Option<usize>,
}

impl OfNodes {
    fn get() -> &'static OfNodes {
        static OF_NODES: OnceLock<OfNodes> = OnceLock::new();
        OF_NODES.get_or_init(|| {
            let schema = node_schema();
            // Such numbers and letters stand nowhere else in it.
            let block = Block::new(0x0102_0304_0506_0708, 0x090A_0B0C, 0x0D0E_0F10_1112_1314);
            let checksum = (CHECKSUM.to_string(), "?".repeat(CHECKSUM_VALUE_SIZE_BYTES));
            let footer = footer_of(&schema, &block, checksum.clone());
            let at = |part: &[u8]| footer.windows(part.len()).position(|found| found == part);
            let (checksum_at, block_at) = (at(checksum.1.as_bytes()), at(&block.0));
            OfNodes { schema_message: schema_message(&schema), footer, checksum, checksum_at, block_at }
        })
    }

    /// The same footer for another block and another checksum; `None` for metadata that is no checksum.
    fn footer(&self, block: &Block, (key, value): &(String, String)) -> Option<Vec<u8>> {
        if *key != self.checksum.0 || value.len() != self.checksum.1.len() {
            return None;
        }
        let (mut footer, checksum_at, block_at) = (self.footer.clone(), self.checksum_at?, self.block_at?);
        footer[checksum_at..checksum_at + value.len()].copy_from_slice(value.as_bytes());
        footer[block_at..block_at + block.0.len()].copy_from_slice(&block.0);
        Some(footer)
    }
}

fn schema_message(schema: &Schema) -> Vec<u8> {
    let (mut tracker, options) = (DictionaryTracker::new(true), IpcWriteOptions::default());
    IpcDataGenerator::default()
        .schema_to_bytes_with_dictionary_tracker(schema, &mut tracker, &options)
        .ipc_message
}

/// Validity, offsets and texts of a column, whatever part of other columns it is.
fn buffers_of(column: &StringArray) -> [Buffer; BUFFERS_PER_COLUMN] {
    let validity = match column.nulls() {
        Some(nulls) if nulls.null_count() > 0 => nulls.inner().sliced(),
        _ => Buffer::from([]),
    };
    let ends = column.offsets();
    let (first, last) = (ends[0], ends[column.len()]);
    let offsets = match first {
        0 => ends.inner().inner().slice_with_length(0, (column.len() + 1) * size_of::<i32>()),
        first => ends.iter().map(|end| end - first).collect::<Vec<i32>>().into(),
    };
    let texts = column.values().slice_with_length(first as usize, (last - first) as usize);
    [validity, offsets, texts]
}

fn header(
    rows: usize,
    nodes: &[FieldNode],
    places: &[Place],
    codec: Option<CompressionType>,
    body_size: usize,
) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::with_capacity(1024);
    let compression = codec.map(|codec| {
        let mut compression = BodyCompressionBuilder::new(&mut builder);
        compression.add_method(BodyCompressionMethod::BUFFER);
        compression.add_codec(codec);
        compression.finish()
    });
    let places = builder.create_vector(places);
    let nodes = builder.create_vector(nodes);
    let mut batch = RecordBatchBuilder::new(&mut builder);
    batch.add_length(rows as i64);
    batch.add_nodes(nodes);
    batch.add_buffers(places);
    if let Some(compression) = compression {
        batch.add_compression(compression);
    }
    let batch = batch.finish().as_union_value();
    let mut message = MessageBuilder::new(&mut builder);
    message.add_version(MetadataVersion::V5);
    message.add_header_type(MessageHeader::RecordBatch);
    message.add_bodyLength(body_size as i64);
    message.add_header(batch);
    let message = message.finish();
    builder.finish(message, None);
    builder.finished_data().to_vec()
}

fn write_header(file: &mut Vec<u8>, header: &[u8], alignment: usize) {
    let size = (header.len() + PREFIX_SIZE_BYTES).next_multiple_of(alignment) - PREFIX_SIZE_BYTES;
    file.extend_from_slice(&CONTINUATION);
    file.extend_from_slice(&(size as i32).to_le_bytes());
    file.extend_from_slice(header);
    pad(file, alignment);
}

fn footer_of(schema: &Schema, block: &Block, metadata: (String, String)) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::with_capacity(1024);
    let dictionaries = builder.create_vector::<Block>(&[]);
    let batches = builder.create_vector(&[*block]);
    let schema = arrow_ipc::convert::schema_to_fb_offset(&mut builder, schema);
    let metadata = metadata_to_fb(&mut builder, &[metadata].into_iter().collect());
    let mut footer = FooterBuilder::new(&mut builder);
    footer.add_version(MetadataVersion::V5);
    footer.add_schema(schema);
    footer.add_dictionaries(dictionaries);
    footer.add_recordBatches(batches);
    footer.add_custom_metadata(metadata);
    let footer = footer.finish();
    builder.finish(footer, None);
    builder.finished_data().to_vec()
}

fn pad(file: &mut Vec<u8>, alignment: usize) {
    pad_from(file, 0, alignment);
}

fn pad_from(file: &mut Vec<u8>, start: usize, alignment: usize) {
    file.resize(start + (file.len() - start).next_multiple_of(alignment), 0);
}

#[cfg(test)]
mod tests;
