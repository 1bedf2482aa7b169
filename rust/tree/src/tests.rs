//! The tree compared with a dictionary. A test that relies on splits, merges or other phenomena fails if they did not
//! happen.

mod bulk;
mod damage;
mod histories;
mod leaf_writer;
mod model;
