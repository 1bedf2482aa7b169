//! A scan of keys as an Arrow stream.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use trinitylake::tree::node_store::NodeStore;
use trinitylake::tree::scan::{Scan, ScanBatch};

use crate::runtime::runtime;

/// A scan as an Arrow stream. Arrow's C stream interface reads batches without the GIL.
pub struct ScanReader {
    pub scan: Scan<NodeStore>,
    pub schema: SchemaRef,
}

impl Iterator for ScanReader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let runtime = match runtime() {
            Ok(runtime) => runtime,
            Err(error) => return Some(Err(ArrowError::ExternalError(Box::new(error)))),
        };
        match runtime.block_on(self.scan.next_batch()) {
            Ok(None) => None,
            Ok(Some(ScanBatch { keys, locations })) => {
                let columns = [Some(keys), locations].into_iter().flatten().map(|column| Arc::new(column) as ArrayRef);
                Some(RecordBatch::try_new(self.schema.clone(), columns.collect()))
            }
            Err(error) => Some(Err(ArrowError::ExternalError(Box::new(error)))),
        }
    }
}

impl RecordBatchReader for ScanReader {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}
