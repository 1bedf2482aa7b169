//! The pages of files, decompressed, and how much memory their rows take at most.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use parquet::arrow::arrow_reader::RowGroups;
use parquet::basic::{Compression, Encoding, Type as PhysicalType};
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};
use parquet::file::serialized_reader::SerializedPageReader;

/// Of a value that has no length of its own, at most: a decimal of 128 bits. A page may need a bit for it.
const VALUE_SIZE_BYTES: usize = 16;
/// Of an offset to a text.
const OFFSET_SIZE_BYTES: usize = 8;

/// The pages of some columns of one file.
pub struct FileRows {
    metadata: ParquetMetaData,
    /// By column and row group.
    chunks: BTreeMap<usize, Vec<Vec<Page>>>,
    size_bytes: usize,
}

impl FileRows {
    /// None if the rows may take more memory than that, or if the file has a codec that is left to others.
    ///
    /// # Arguments
    ///
    /// * `leaves`: which columns.
    pub fn decompressed(
        file: &Bytes,
        metadata: ParquetMetaData,
        leaves: &[usize],
        max_size_bytes: usize,
    ) -> Result<Option<Self>> {
        let file = Arc::new(file.clone());
        let mut chunks: BTreeMap<usize, Vec<Vec<Page>>> = BTreeMap::new();
        let mut size_bytes: usize = 0;
        for group in metadata.row_groups() {
            let rows = usize::try_from(group.num_rows())?;
            for leaf in leaves {
                let chunk =
                    group.columns().get(*leaf).ok_or_else(|| damaged("a row group lacks a column"))?;
                // Before anything is decompressed: what the file says of itself, which is held against its pages.
                let told = usize::try_from(chunk.uncompressed_size())?;
                if size_bytes.saturating_add(told) > max_size_bytes {
                    return Ok(None);
                }
                let Some(pages) = pages_of(&file, chunk, rows)? else { return Ok(None) };
                size_bytes = size_bytes.saturating_add(read_size_bytes(chunk, &pages, rows));
                if size_bytes > max_size_bytes {
                    return Ok(None);
                }
                chunks.entry(*leaf).or_default().push(pages);
            }
        }
        Ok(Some(Self { metadata, chunks, size_bytes }))
    }

    /// What the rows take in memory, at most.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    pub fn has_columns_of(&self, other: &ParquetMetaData) -> bool {
        self.metadata.file_metadata().schema_descr() == other.file_metadata().schema_descr()
    }
}

/// The pages of a column in a row group, decompressed; None for a codec that is left to others.
fn pages_of(file: &Arc<Bytes>, chunk: &ColumnChunkMetaData, rows: usize) -> Result<Option<Vec<Page>>> {
    let codec = chunk.compression();
    if !matches!(codec, Compression::UNCOMPRESSED | Compression::ZSTD(_) | Compression::SNAPPY) {
        return Ok(None);
    }
    let as_stored = chunk.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
    let mut left = usize::try_from(chunk.uncompressed_size())?;
    let mut values: usize = 0;
    let mut pages = Vec::new();
    for page in SerializedPageReader::new(file.clone(), &as_stored, rows, None)? {
        let page = plain(page?, codec, left)?;
        left = left
            .checked_sub(page.buffer().len())
            .ok_or_else(|| damaged("pages are larger than their column"))?;
        match (&page, page.encoding()) {
            // Room is made for as many texts or numbers as it says it has.
            (Page::DictionaryPage { buf, num_values, .. }, _) if *num_values as usize > buf.len() => {
                return Ok(None);
            }
            (Page::DictionaryPage { .. }, _) => {}
            (_, Encoding::PLAIN | Encoding::RLE | Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY) => {
                values = values.saturating_add(page.num_values() as usize);
            }
            // Others hold lengths and counts of their own.
            _ => return Ok(None),
        }
        pages.push(page);
    }
    if values != rows {
        return Err(damaged("pages do not have as many values as their row group has rows"));
    }
    Ok(Some(pages))
}

fn damaged(what: &str) -> ParquetError {
    ParquetError::General(what.to_owned())
}

/// What the values of a column take in memory, at most.
fn read_size_bytes(chunk: &ColumnChunkMetaData, pages: &[Page], rows: usize) -> usize {
    match chunk.column_type() {
        PhysicalType::BYTE_ARRAY => {}
        PhysicalType::FIXED_LEN_BYTE_ARRAY => {
            let length = usize::try_from(chunk.column_descr().type_length()).unwrap_or(usize::MAX);
            return rows.saturating_mul(length.max(VALUE_SIZE_BYTES));
        }
        _ => return rows.saturating_mul(VALUE_SIZE_BYTES),
    }
    let mut longest = 0;
    let mut size_bytes = rows.saturating_mul(OFFSET_SIZE_BYTES);
    for page in pages {
        size_bytes = size_bytes.saturating_add(match (page, page.encoding()) {
            (Page::DictionaryPage { buf, .. }, _) => {
                longest = longest_text(buf);
                0
            }
            (_, Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY) => {
                longest.saturating_mul(page.num_values() as usize)
            }
            _ => page.buffer().len(),
        });
    }
    size_bytes
}

/// In a dictionary: each text behind its length.
fn longest_text(mut texts: &[u8]) -> usize {
    let mut longest = 0;
    while let Some((length, rest)) = texts.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        longest = longest.max(length);
        texts = rest.get(length..).unwrap_or_default();
    }
    longest
}

/// A page as it would be if nothing had compressed it; at most so large.
fn plain(page: Page, codec: Compression, max_size_bytes: usize) -> Result<Page> {
    if codec == Compression::UNCOMPRESSED {
        return Ok(page);
    }
    Ok(match page {
        Page::DataPage { buf, num_values, encoding, def_level_encoding, rep_level_encoding, statistics } => {
            let buf = decompressed(&buf, 0, codec, max_size_bytes)?;
            Page::DataPage { buf, num_values, encoding, def_level_encoding, rep_level_encoding, statistics }
        }
        Page::DataPageV2 {
            buf,
            num_values,
            encoding,
            num_nulls,
            num_rows,
            def_levels_byte_len,
            rep_levels_byte_len,
            is_compressed: true,
            statistics,
        } => {
            let levels = def_levels_byte_len as usize + rep_levels_byte_len as usize;
            let buf = decompressed(&buf, levels, codec, max_size_bytes)?;
            Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                num_nulls,
                num_rows,
                def_levels_byte_len,
                rep_levels_byte_len,
                is_compressed: false,
                statistics,
            }
        }
        page @ Page::DataPageV2 { .. } => page,
        Page::DictionaryPage { buf, num_values, encoding, is_sorted } => {
            let buf = decompressed(&buf, 0, codec, max_size_bytes)?;
            Page::DictionaryPage { buf, num_values, encoding, is_sorted }
        }
    })
}

/// What stands behind the first bytes, which are not compressed, decompressed behind them.
pub fn decompressed(
    stored: &Bytes,
    begin: usize,
    codec: Compression,
    max_size_bytes: usize,
) -> Result<Bytes> {
    let (kept, compressed) =
        stored.split_at_checked(begin).ok_or_else(|| damaged("a page ends before its levels do"))?;
    if compressed.is_empty() {
        return Ok(stored.clone());
    }
    let is_zstd = matches!(codec, Compression::ZSTD(_));
    let told = if is_zstd {
        zstd::zstd_safe::get_frame_content_size(compressed).ok().flatten().map(usize::try_from).transpose()?
    } else {
        Some(snap::raw::decompress_len(compressed).map_err(|error| damaged(&error.to_string()))?)
    };
    // Who compressed it piece by piece did not say how much it was.
    let room = told.unwrap_or_else(|| max_size_bytes.saturating_sub(begin));
    if room.saturating_add(begin) > max_size_bytes {
        return Err(damaged("a page is larger than its column"));
    }
    let mut plain = vec![0; begin + room];
    let (head, body) = plain.split_at_mut(begin);
    head.copy_from_slice(kept);
    let length = if is_zstd {
        ZSTD.with_borrow_mut(|zstd| {
            if zstd.is_none() {
                *zstd = Some(zstd::bulk::Decompressor::new()?);
            }
            zstd.as_mut().expect("made above").decompress_to_buffer(compressed, body)
        })?
    } else {
        snap::raw::Decoder::new().decompress(compressed, body).map_err(|error| damaged(&error.to_string()))?
    };
    plain.truncate(begin + length);
    Ok(Bytes::from(plain))
}

thread_local! {
    /// Made once: to make one asks the processor what it can do, and a hypervisor answers late.
    static ZSTD: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

/// The rows of several files of the same columns, as if they were row groups of one file. To be read once.
pub struct Rows {
    files: Vec<ParquetMetaData>,
    /// By column: its pages in each row group, in order.
    columns: Mutex<BTreeMap<usize, Vec<Vec<Page>>>>,
    count: usize,
}

impl Rows {
    /// There is a file, and each has the columns of the first.
    pub fn new(found: Vec<FileRows>) -> Self {
        let mut columns: BTreeMap<usize, Vec<Vec<Page>>> = BTreeMap::new();
        let mut files = Vec::with_capacity(found.len());
        let mut count = 0;
        for file in found {
            for (column, pages) in file.chunks {
                columns.entry(column).or_default().extend(pages);
            }
            count += file.metadata.row_groups().iter().map(|group| group.num_rows() as usize).sum::<usize>();
            files.push(file.metadata);
        }
        Self { files, columns: Mutex::new(columns), count }
    }

    pub fn count(&self) -> usize {
        self.count
    }
}

impl RowGroups for Rows {
    fn num_rows(&self) -> usize {
        self.count
    }

    fn column_chunks(&self, column: usize) -> Result<Box<dyn PageIterator>> {
        let mut columns = self.columns.lock().unwrap_or_else(PoisonError::into_inner);
        let chunks = columns.remove(&column).ok_or_else(|| damaged("a column was not asked for"))?;
        Ok(Box::new(Chunks(chunks.into_iter())))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(self.files.iter().flat_map(ParquetMetaData::row_groups))
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.files[0]
    }
}

struct Chunks(std::vec::IntoIter<Vec<Page>>);

impl Iterator for Chunks {
    type Item = Result<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(Ok(Box::new(Pages(self.0.next()?.into_iter()))))
    }
}

impl PageIterator for Chunks {}

struct Pages(std::vec::IntoIter<Page>);

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(Ok)
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        Ok(self.0.next())
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        Ok(self.0.as_slice().first().map(|page| PageMetadata {
            num_rows: (!matches!(page, Page::DictionaryPage { .. })).then_some(page.num_values() as usize),
            num_levels: None,
            is_dict: matches!(page, Page::DictionaryPage { .. }),
        }))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.0.next();
        Ok(())
    }
}
