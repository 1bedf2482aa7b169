//! The tree compared with a dictionary. A test that relies on splits, merges or other phenomena fails if they did not
//! happen.

mod bulk_build;
mod damage;
mod distributed_bulk_build;
mod histories;
mod model;
