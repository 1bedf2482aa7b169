//! The format without storage: what files are called, how objects are keyed and listed, what a node file
//! and a lakehouse definition hold. Nothing here reads or writes; all of it is functions of bytes.

pub mod batch;
pub mod config;
pub mod definition;
pub mod definition_file;
pub mod key;
pub mod managed_table_folder;
pub mod moved_lakehouse;
pub mod node;
pub mod object_name;
pub mod path;
pub mod sort_text;
pub mod transaction_id;
