//! References that definitions and table files contain.

use std::fmt::Debug;

use bytes::Bytes;
use prost::Message as _;
pub use trinitylake_iceberg::Form;
use trinitylake_iceberg::{Named, in_file, in_metadata};

use crate::error::{Error, Result};
use crate::lakehouse_definition::METADATA_LOCATION;
use crate::lakehouse_definition::proto::{TableDef, TableType};
use crate::root_uri::{RootUri, check_path};

/// Type of a file, which decides how its references are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileForm {
    /// The metadata of a managed table.
    Metadata,
    /// A metadata file in the lakehouse's folder that belongs to an external table. Garbage collection does not delete
    /// files of that table.
    ExternalMetadata,
    Iceberg(Form),
}

/// A reference to a file or folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Path of a retained file.
    File { path: String, form: FileForm },
    /// Folder of a managed table.
    Folder(String),
    /// Folder of an external or federated table.
    Foreign(String),
}

/// Reads the references of definitions and table files.
pub trait Contents: Send + Sync + Debug {
    /// Returns the references of a table definition.
    fn of_table(&self, bytes: Bytes, path: &str) -> Result<Vec<Link>>;
    /// Returns the references of a file of an Iceberg table.
    fn of_file(&self, form: FileForm, bytes: &Bytes, path: &str) -> Result<Vec<Link>>;
}

/// References of Iceberg tables.
#[derive(Debug)]
pub struct IcebergTables {
    /// Current and earlier root URIs of this lakehouse. A location below any of them is a file of this lakehouse.
    roots: Vec<RootUri>,
}

impl IcebergTables {
    /// `other_roots` are earlier root URIs of the lakehouse. A URI that this release cannot parse is skipped, because
    /// this release could not open files below it either.
    pub fn new(root: &str, other_roots: &[String]) -> Result<IcebergTables> {
        let mut roots = vec![RootUri::parse_literally(root)?];
        roots.extend(other_roots.iter().filter_map(|root| RootUri::parse_literally(root).ok()));
        Ok(IcebergTables { roots })
    }

    /// Returns the path of a location below the longest matching root URI; `None` outside of the lakehouse.
    fn path_of(&self, location: &str) -> Option<String> {
        let found = self.roots.iter().filter_map(|root| root.relativize(location));
        found.min_by_key(String::len)
    }

    /// Returns the references to files of this lakehouse, in every spelling that any reader resolves to such a file, so
    /// that none of these files is deleted. `path` is the file that contains the references.
    fn files(&self, named: Vec<Named>, path: &str) -> Result<Vec<Link>> {
        let mut links = Vec::with_capacity(named.len());
        for Named { location, form } in named {
            let literal = self.path_of(&location);
            let meant: Vec<String> = match literal.is_none() || location.contains(['?', '#']) {
                true => self.roots.iter().flat_map(|root| root.meant_by(&location)).collect(),
                false => Vec::new(),
            };
            let is_read = !matches!(form, Form::Content | Form::Deletes);
            if is_read && literal.is_none() && meant.len() > 1 {
                let problem = format!("it names {location:?}, which may be one of several files: {meant:?}");
                return Err(Error::corrupt(path, problem));
            }
            let meant = if is_read && literal.is_some() { Vec::new() } else { meant };
            let paths = literal.into_iter().chain(meant);
            links.extend(paths.map(|path| Link::File { path, form: FileForm::Iceberg(form) }));
        }
        Ok(links)
    }

    fn folder_of(&self, location: &str) -> Option<String> {
        self.path_of(location.trim_end_matches('/'))
    }
}

impl Contents for IcebergTables {
    fn of_table(&self, bytes: Bytes, path: &str) -> Result<Vec<Link>> {
        let table =
            TableDef::decode(bytes).map_err(|error| Error::corrupt(path, format!("no table definition: {error}")))?;
        let metadata = table.format_properties.get(METADATA_LOCATION);
        match TableType::try_from(table.table_type) {
            // A table definition without metadata, as in a saved transaction, references no files.
            Ok(TableType::Managed) => Ok(metadata
                .map(|location| {
                    check_path(location)?;
                    Ok(Link::File { path: location.clone(), form: FileForm::Metadata })
                })
                .transpose()?
                .into_iter()
                .collect()),
            Ok(TableType::External) => {
                let inside = metadata.and_then(|location| self.path_of(location));
                Ok(inside.map(|path| Link::File { path, form: FileForm::ExternalMetadata }).into_iter().collect())
            }
            // Only the other catalog knows the table's files, so retain all files below each location.
            Ok(TableType::Federated) => {
                let places = table.format_properties.values();
                Ok(places.filter_map(|place| self.folder_of(place)).map(Link::Foreign).collect())
            }
            Err(_) => Err(Error::UnsupportedVersion(format!(
                "{path}: this release does not know the table type {}, so the files of the table are unknown",
                table.table_type
            ))),
        }
    }

    fn of_file(&self, form: FileForm, bytes: &Bytes, path: &str) -> Result<Vec<Link>> {
        match form {
            FileForm::Metadata => {
                let metadata = in_metadata(bytes, path)?;
                let folders = metadata.folders.iter().filter_map(|folder| self.folder_of(folder));
                let mut links: Vec<Link> = folders.map(Link::Folder).collect();
                links.extend(self.files(metadata.files, path)?);
                Ok(links)
            }
            FileForm::ExternalMetadata => {
                let metadata = in_metadata(bytes, path)?;
                let folders = metadata.folders.iter().filter_map(|folder| self.folder_of(folder));
                let mut links: Vec<Link> = folders.map(Link::Foreign).collect();
                links.extend(path.rsplit_once('/').map(|(folder, _)| Link::Foreign(folder.to_string())));
                links.extend(self.files(metadata.files, path)?);
                Ok(links)
            }
            FileForm::Iceberg(form) => self.files(in_file(form, bytes, path)?, path),
        }
    }
}

#[cfg(test)]
mod tests;
