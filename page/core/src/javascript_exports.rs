//! Functions that JavaScript calls. Bytes are passed in shared memory: the receiver of an address and a size owns them.

#![allow(unsafe_code, reason = "JavaScript knows addresses only")]

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use crate::decompression;
use crate::reader::Reader;

static READER: Mutex<Option<Reader>> = Mutex::new(None);

/// Allocates this number of bytes for an argument of one of the functions below. Returns the address.
#[unsafe(no_mangle)]
pub extern "C" fn allocate(size: usize) -> *mut u8 {
    Box::into_raw(vec![0_u8; size].into_boxed_slice()).cast()
}

/// Frees the bytes of an answer.
///
/// # Safety
/// Address and size must be those of an answer or of bytes from [`allocate`], which no code uses afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn release(at: *mut u8, size: usize) {
    drop(unsafe { owned(at, size) });
}

/// Returns the reply to a question, both in JSON. `file` are the bytes that accompany the question.
///
/// # Safety
/// Question and file must be from [`allocate`], and no code may use them afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ask(question: *mut u8, question_size: usize, file: *mut u8, file_size: usize) -> u64 {
    let question = unsafe { owned(question, question_size) };
    let file = Bytes::from(unsafe { owned(file, file_size) }.into_vec());
    let mut reader = READER.lock().unwrap_or_else(PoisonError::into_inner);
    handed_over(reader.get_or_insert_with(Reader::default).reply(&question, file))
}

/// Returns the content of a ZSTD frame; 0 if the frame is damaged or contains more than `limit` bytes.
///
/// # Safety
/// The frame must be from [`allocate`], and no code may use it afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn decompress(frame: *mut u8, size: usize, limit: usize) -> u64 {
    let frame = unsafe { owned(frame, size) };
    decompression::decompressed(&frame, limit).map_or(0, handed_over)
}

unsafe fn owned(at: *mut u8, size: usize) -> Box<[u8]> {
    unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(at, size)) }
}

/// Passes bytes to JavaScript: the address in the upper half of the result, and the size in the lower half.
fn handed_over(bytes: Vec<u8>) -> u64 {
    let size = bytes.len() as u64;
    let at = Box::into_raw(bytes.into_boxed_slice()).cast::<u8>();
    (at as u64) << 32 | size
}
