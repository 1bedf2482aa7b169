//! The module `trinitylake._core`: converts arguments, calls the core, converts results. It contains no other logic.

mod append_queue;
mod arrow;
mod bloom_filter;
mod bulk_registration;
mod difference;
mod distributed_gc;
mod errors;
mod fsck;
mod gc;
mod lakehouse;
mod node_file;
mod paths_and_keys;
mod runtime;
mod scan_reader;
mod storage;
mod transaction;
mod tree_copy;
mod version;

use pyo3::prelude::*;

#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    storage::add_to(module)?;
    gc::add_to(module)?;
    distributed_gc::add_to(module)?;
    module.add_class::<lakehouse::Lakehouse>()?;
    module.add_class::<version::Version>()?;
    module.add_class::<version::VersionInfo>()?;
    module.add_class::<version::TransactionInfo>()?;
    module.add_class::<transaction::Transaction>()?;
    module.add_class::<storage::FileInParts>()?;
    module.add_class::<transaction::ConflictingTable>()?;
    module.add_class::<transaction::Conflicts>()?;
    module.add_class::<transaction::SavedTransaction>()?;
    module.add_class::<append_queue::QueuedAppends>()?;
    module.add_class::<node_file::NodeFile>()?;
    module.add_function(wrap_pyfunction!(runtime::finish_background_tasks, module)?)?;
    fsck::add_to(module)?;
    tree_copy::add_functions(module)?;
    paths_and_keys::add_functions(module)?;
    module.add_function(wrap_pyfunction!(bloom_filter::bloom_filter_may_hold, module)?)?;
    bulk_registration::add_functions(module)?;
    node_file::add_functions(module)
}
