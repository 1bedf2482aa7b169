//! The tree against a dictionary. Every test that relies on splits, merges and the like says which ones
//! it needs and fails if they did not happen.

mod bulk;
mod damage;
mod histories;
mod leaf_writer;
mod model;
