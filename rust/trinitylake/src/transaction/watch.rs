//! Watched reads: reads that a decision depends on, such as those of a check, although no write shows it.
//!
//! Everything read between [`Transaction::watch_anew`] and [`Transaction::end_watch`] is watched: objects,
//! absent ones and listings. If another transaction changes any of it, the commit stops, under either
//! isolation level, and reports what changed. The caller may then decide again, on the newest version, and
//! commit once more.

use super::Transaction;
use crate::error::Result;

impl Transaction {
    /// Forgets what was watched, and watches what is read from now on: own writes over the newest version that
    /// this transaction was held against, which becomes its base. Clashes on what was watched are resolved
    /// by that; those on tables must be before (`TransactionClosed`).
    pub fn watch_anew(&mut self) -> Result<()> {
        self.life.look_again()?;
        self.go_on();
        let footprint = self.footprint_mut();
        footprint.watched = Default::default();
        footprint.is_watching = true;
        Ok(())
    }

    /// What is read from now on is not watched.
    pub fn end_watch(&mut self) {
        self.footprint_mut().is_watching = false;
    }
}
