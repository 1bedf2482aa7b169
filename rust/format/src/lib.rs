//! The format without storage: names of files, keys and listings of objects, contents of node files and lakehouse
//! definitions. This crate has functions on bytes only, and reads and writes no files.

pub mod arrow_columns;
pub mod config;
pub mod definition_file;
pub mod file_names;
pub mod key;
pub mod lakehouse_definition;
pub mod managed_table_folder;
pub mod moved_lakehouse;
pub mod node;
pub mod object_name;
pub mod optimized_path;

pub mod transaction_id;
pub mod unpadded_key;
