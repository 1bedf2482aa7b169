//! Functions that JavaScript calls. Bytes are passed in shared memory: the receiver of an address and a size owns them.

#![allow(unsafe_code, reason = "JavaScript knows addresses only")]

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use crate::decompression;
use crate::reader::Reader;

static READER: Mutex<Option<Reader>> = Mutex::new(None);

/// Allocates this number of bytes, for an argument of one of the calls below.
#[unsafe(no_mangle)]
pub extern "C" fn allocate(size: usize) -> *mut u8 {
    Box::into_raw(vec![0_u8; size].into_boxed_slice()).cast()
}

/// Ends the life of an answer.
///
/// # Safety
/// Address and size are those of an answer, or of [`allocate`], and nobody uses them any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn release(at: *mut u8, size: usize) {
    drop(unsafe { owned(at, size) });
}

/// The reply to a question, both in JSON; `file` are the bytes that come with it.
///
/// # Safety
/// Both are of [`allocate`], and nobody uses them any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ask(question: *mut u8, question_size: usize, file: *mut u8, file_size: usize) -> u64 {
    let question = unsafe { owned(question, question_size) };
    let file = Bytes::from(unsafe { owned(file, file_size) }.into_vec());
    let mut reader = READER.lock().unwrap_or_else(PoisonError::into_inner);
    handed_over(reader.get_or_insert_with(Reader::default).reply(&question, file))
}

/// Size of the content of a ZSTD frame; 0 if it is damaged or holds more than `limit` bytes.
///
/// # Safety
/// The frame is of [`allocate`], and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn decompress(frame: *mut u8, size: usize, limit: usize) -> u64 {
    let frame = unsafe { owned(frame, size) };
    decompression::decompressed(&frame, limit).map_or(0, handed_over)
}

unsafe fn owned(at: *mut u8, size: usize) -> Box<[u8]> {
    unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(at, size)) }
}

/// Packs the address into the upper half and the size into the lower half.
fn handed_over(bytes: Vec<u8>) -> u64 {
    let size = bytes.len() as u64;
    let at = Box::into_raw(bytes.into_boxed_slice()).cast::<u8>();
    (at as u64) << 32 | size
}
