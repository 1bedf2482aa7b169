//! Ids of transactions (format §4).

use trinitylake_base::error::{Error, Result};

use crate::object_name::cut_for_message;

pub const TRANSACTION_ID_MAX_SIZE_BYTES: usize = 100;

/// Ids chosen by users are part of file names, so they match `[A-Za-z0-9._-]{1,100}`.
pub fn check_transaction_id(id: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if id.is_empty() || id.len() > TRANSACTION_ID_MAX_SIZE_BYTES || !id.bytes().all(plain) {
        return Err(Error::InvalidName(format!(
            "transaction id {:?} is not 1 to {TRANSACTION_ID_MAX_SIZE_BYTES} of the characters A-Z a-z 0-9 . _ -",
            cut_for_message(id)
        )));
    }
    if id.bytes().all(|byte| byte == b'.') {
        return Err(Error::InvalidName(format!("transaction id {id:?} consists of dots only")));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
