//! The tree compared with a dictionary. A test that relies on splits, merges or similar events checks that they occur.

mod bulk_build;
mod damage;
mod distributed_bulk_build;
mod histories;
mod model;
