//! Files that definitions name: the files of tables.

use std::fmt::Debug;

use bytes::Bytes;
use prost::Message as _;
pub use trinitylake_iceberg::Form;
use trinitylake_iceberg::{Named, in_file, in_metadata};

use crate::definition::METADATA_LOCATION;
use crate::definition::proto::{TableDef, TableType};
use crate::error::{Error, Result};
use crate::root_uri::{RootUri, check_path};

/// Kind of a file by the references that it contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileForm {
    /// The metadata of a managed table.
    Metadata,
    /// That of an external one, which lies below the root: its files are not the lakehouse's to delete.
    ExternalMetadata,
    Iceberg(Form),
}

/// A reference to a file or folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// A file that is kept, by its path.
    File { path: String, form: FileForm },
    /// A folder whose files are a managed table's.
    Folder(String),
    /// A folder whose files are somebody else's.
    Foreign(String),
}

/// Knows what definitions, and the files that they name, consist of.
pub trait Contents: Send + Sync + Debug {
    /// References of a table definition.
    fn of_table(&self, bytes: Bytes, path: &str) -> Result<Vec<Link>>;
    /// References of another file.
    fn of_file(&self, form: FileForm, bytes: &Bytes, path: &str) -> Result<Vec<Link>>;
}

/// Iceberg's tables.
#[derive(Debug)]
pub struct IcebergTables {
    /// Below which files of this lakehouse are named: the present one, and those before.
    roots: Vec<RootUri>,
}

impl IcebergTables {
    /// `other_roots` are those that the lakehouse had before. Those that this release cannot read as a root name
    /// nothing that it could open either.
    pub fn new(root: &str, other_roots: &[String]) -> Result<IcebergTables> {
        let mut roots = vec![RootUri::parse_literally(root)?];
        roots.extend(other_roots.iter().filter_map(|root| RootUri::parse_literally(root).ok()));
        Ok(IcebergTables { roots })
    }

    /// The path that a location means, if it lies in this lakehouse. Of several roots the longest counts.
    fn path_of(&self, location: &str) -> Option<String> {
        let found = self.roots.iter().filter_map(|root| root.relativize(location));
        found.min_by_key(String::len)
    }

    /// What is named below a root, also in a spelling that is no qualified location: other readers find the file by it,
    /// so nothing that one of them may mean is garbage. `path` is that of the file which names them.
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
        let table = TableDef::decode(bytes)
            .map_err(|error| Error::corrupt(path, format!("no table definition: {error}")))?;
        let metadata = table.format_properties.get(METADATA_LOCATION);
        match TableType::try_from(table.table_type) {
            // One that has no metadata yet, as a saved transaction may leave it, has no files.
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
                Ok(inside
                    .map(|path| Link::File { path, form: FileForm::ExternalMetadata })
                    .into_iter()
                    .collect())
            }
            // Only the other catalog knows where its files are, so all that it lists counts.
            Ok(TableType::Federated) => {
                let places = table.format_properties.values();
                Ok(places.filter_map(|place| self.folder_of(place)).map(Link::Foreign).collect())
            }
            Err(_) => Err(Error::UnsupportedVersion(format!(
                "{path}: tables of type {} are not known here, so nobody can tell which files they have",
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
mod tests {
    use super::*;

    fn named(location: &str, form: Form) -> Result<Vec<String>> {
        let tables = IcebergTables::new("s3://b/lake", &[]).unwrap();
        let links = tables.files(vec![Named { location: location.to_owned(), form }], "t/manifest.avro")?;
        Ok(links
            .into_iter()
            .map(|link| match link {
                Link::File { path, .. } => path,
                other => panic!("{other:?}"),
            })
            .collect())
    }

    /// A writer put two slashes between a location and the name of a file, readers found the file all the same, and the
    /// next collection deleted it: its name was no qualified location, which counted as one elsewhere.
    #[test]
    fn a_file_that_is_named_in_another_spelling_is_no_garbage() {
        for (location, path) in [
            ("s3://b/lake/t/data/f", "t/data/f"),
            ("s3a://b/lake/t//data/f", "t/data/f"),
            ("s3://b/lake/t//data/f", "t//data/f"),
            ("s3://b/lake/t/./data/../data/f", "t/data/f"),
            ("s3://b//lake/t/data/f", "t/data/f"),
            ("s3://b/lake/t/data/f?x=1", "t/data/f"),
            ("s3://b/lake/t/data/f?x=1", "t/data/f?x=1"),
            ("s3://b/lake/t/data/f#x", "t/data/f"),
        ] {
            for form in [Form::Content, Form::Deletes] {
                let paths = named(location, form).unwrap();
                assert!(paths.iter().any(|one| one == path), "{location}: {paths:?}");
            }
        }
        assert!(named("s3://b/lake2/t//data/f", Form::Content).unwrap().is_empty());
    }

    /// What a manifest names was garbage if the manifest had a name of that kind.
    #[test]
    fn a_manifest_of_which_nobody_can_tell_where_it_is_ends_the_collection() {
        let error = named("s3://b/lake/t//m.avro", Form::Manifest).unwrap_err();
        assert!(error.to_string().contains("s3://b/lake/t//m.avro"), "{error}");
        assert_eq!(named("s3://b//lake/t/m.avro", Form::ManifestList).unwrap(), ["t/m.avro"]);
        assert_eq!(named("s3://b/lake/t/m?.avro", Form::Manifest).unwrap(), ["t/m?.avro"]);
    }
}
