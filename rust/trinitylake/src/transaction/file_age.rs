//! Age of the files of a transaction, by the clock of the store.

use crate::environment::Moment;
use crate::lakehouse::Lakehouse;
use crate::storage::response_dates::StoreMoment;
use crate::version::Version;
use crate::version::root_metadata::RootMetadata;

/// Precision of the store's file times: whole seconds, of machines whose clocks differ slightly.
pub(crate) const STORE_CLOCK_STEP_MILLIS: u64 = 2000;
/// Lower bounds of the times at which the files of a transaction were written.
#[derive(Debug)]
pub(crate) struct FileAge {
    /// No file was written before this time of this machine.
    pub(super) began: Moment,
    /// No file was written before this answer of the store.
    pub(super) heard: Option<StoreMoment>,
    /// No file was written before this time of the store. Set for a saved transaction, which has files of several
    /// processes.
    pub since_millis: Option<u64>,
    /// Proven so far: no file was deleted by a collection of files older than this.
    pub(super) proven_millis: u64,
    /// Files that other clients wrote before the transaction began. The age of each is checked separately.
    pub(super) adopted: Vec<String>,
}

/// Garbage collections recorded in a range of versions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Collected {
    /// The highest time of any collection up to the last of these versions.
    pub(super) highest_millis: u64,
    /// The highest time of a collection whose fence is one of these versions.
    pub(super) among_them_millis: Option<u64>,
}

impl Collected {
    pub fn add(&mut self, version: &RootMetadata) {
        self.highest_millis = self.highest_millis.max(version.gc_before_millis.unwrap_or_default());
        self.among_them_millis = self.among_them_millis.max(version.collects_before_millis());
    }
}

impl FileAge {
    pub(crate) fn of(base: &Version, lakehouse: &Lakehouse) -> FileAge {
        FileAge {
            began: Moment::now(lakehouse.environment().as_ref()),
            heard: lakehouse.last_heard(),
            since_millis: None,
            proven_millis: base.metadata.gc_before_millis.unwrap_or_default(),
            adopted: Vec::new(),
        }
    }
}
