//! The root URI of a lakehouse, and the rules for paths and locations (format §2).
//!
//! Locations are neither percent-decoded nor normalised, like object keys. Segments that POSIX would resolve (`.`,
//! `..`, empty ones) are refused. `\` is an ordinary character, as in an object key and in a POSIX file name.
//!
//! This module defines the spelling of URIs. The storage crate maps them to stores, and `file_names` of the format
//! crate names the files inside a lakehouse.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};

/// The kinds of store that a root can be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// A folder of the local disk, `file:///…`.
    File,
    /// The memory of this process, `memory://name`.
    Memory,
    /// Amazon S3 and compatible stores, `s3://bucket/…`.
    S3,
    /// Google Cloud Storage, `gs://bucket/…`.
    Gcs,
    /// Azure Blob Storage and Data Lake Storage, `az://container/…`, `abfss://container@account/…`.
    Azure,
}

impl Scheme {
    /// Returns the scheme of a URI in the spelling of [`RootUri::as_str`], without parsing the rest. Each commit calls
    /// it several times.
    pub fn of_root(uri: &str) -> Option<Scheme> {
        let (name, _) = uri.split_once("://")?;
        SCHEMES.iter().find(|(_, spelling, _)| *spelling == name).map(|(_, _, scheme)| *scheme)
    }
}

/// Each accepted spelling of the part before `://`, the spelling in a root URI, and the scheme. All code that compares
/// locations must use this table. If a reader knew one more spelling, garbage collection would delete files that only
/// this reader finds.
const SCHEMES: &[(&str, &str, Scheme)] = &[
    ("file", "file", Scheme::File),
    ("memory", "memory", Scheme::Memory),
    ("s3", "s3", Scheme::S3),
    ("s3a", "s3", Scheme::S3),
    ("s3n", "s3", Scheme::S3),
    ("gs", "gs", Scheme::Gcs),
    ("gcs", "gs", Scheme::Gcs),
    ("az", "az", Scheme::Azure),
    ("abfs", "abfss", Scheme::Azure),
    ("abfss", "abfss", Scheme::Azure),
];

/// Returns each accepted spelling of a scheme, with the spelling of the same scheme in root URIs.
pub fn scheme_spellings() -> impl Iterator<Item = (&'static str, &'static str)> {
    SCHEMES.iter().map(|(name, spelling, _)| (*name, *spelling))
}

/// The root of a lakehouse: a fully qualified URI that ends in `/`. A local root is canonical: a folder has the same
/// root whichever symbolic links lead to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RootUri {
    scheme: Scheme,
    uri: String,
    /// The bucket, the container (`container` or `container@account.host`) or the name of the memory; empty for files.
    authority: String,
    /// Prefix of every path: empty or `segments/`; for a local root the absolute folder.
    prefix: String,
}

impl RootUri {
    /// Parses user input: a URI, or a local path, which is made absolute. `~` is refused, because shells expand it and
    /// it would otherwise become the name of a folder. In a local root, symbolic links are resolved as far as the path
    /// exists.
    pub fn parse(input: &str) -> Result<Self> {
        let root = Self::parse_literally(input)?;
        if root.scheme != Scheme::File {
            return Ok(root);
        }
        let real = real_path(&root.local_path())
            .map_err(|error| invalid(input, &format!("its symbolic links cannot be followed: {error}")))?;
        match real.to_str() {
            Some(real) => Self::from_absolute(uri_path(real).trim_start_matches('/'), input),
            None => Err(invalid(input, "the path that its symbolic links lead to is not UTF-8")),
        }
    }

    /// Parses a recorded root without access to the local disk, where the folder may not exist or be a different one.
    pub fn parse_literally(input: &str) -> Result<Self> {
        if input.is_empty() {
            return Err(invalid(input, "it is empty"));
        }
        check_characters(input, input)?;
        let Some((scheme, rest)) = split_scheme(input) else { return Self::from_local_path(input) };
        if scheme == "hdfs" {
            return Err(invalid(
                &without_secrets(input),
                "hdfs:// is a root of the format, but this implementation cannot read HDFS; copy the lakehouse \
                 to a local folder, s3://, gs:// or az://",
            ));
        }
        let Some(&(_, spelling, scheme)) = SCHEMES.iter().find(|(name, ..)| *name == scheme) else {
            let known = SCHEMES.iter().map(|(name, ..)| *name).collect::<Vec<_>>().join(", ");
            return Err(invalid(&without_secrets(input), &format!("the scheme `{scheme}` is not one of {known}")));
        };
        if scheme == Scheme::File {
            return Self::from_file_uri(input, rest);
        }
        // The error does not repeat a query or a password in a root, because it may be a credential.
        let shown = without_secrets(input);
        let rest = rest.strip_prefix("//").ok_or_else(|| invalid(&shown, "`//` must follow the scheme"))?;
        if rest.contains(['?', '#']) {
            return Err(invalid(&shown, "a root has no query and no fragment; tokens and keys are storage options"));
        }
        let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
        check_authority(scheme, authority, &shown)?;
        let prefix = match key.strip_suffix('/').unwrap_or(key) {
            "" if key.is_empty() => String::new(),
            key => {
                check_segments(key, input)?;
                format!("{key}/")
            }
        };
        let uri = format!("{spelling}://{authority}/{prefix}");
        Ok(Self { scheme, uri, authority: authority.to_owned(), prefix })
    }

    fn from_file_uri(input: &str, rest: &str) -> Result<Self> {
        let path = match rest.strip_prefix("//") {
            None => rest,
            Some(rest) => rest.strip_prefix("localhost").filter(|rest| rest.starts_with('/')).unwrap_or(rest),
        };
        let Some(path) = path.strip_prefix('/') else {
            return Err(invalid(input, "a file URI names an absolute path of this machine: file:///folder/lakehouse"));
        };
        Self::from_absolute(path, input)
    }

    fn from_local_path(input: &str) -> Result<Self> {
        if input == "~" || input.starts_with("~/") {
            return Err(invalid(input, "`~` is not expanded here; give the absolute path"));
        }
        let known = input.split_once(':').filter(|(scheme, _)| SCHEMES.iter().any(|(name, ..)| name == scheme));
        if let Some((scheme, _)) = known {
            return Err(invalid(input, &format!("a URI starts with `{scheme}://`")));
        }
        let absolute = absolute_path(Path::new(input))
            .map_err(|error| invalid(input, &format!("it cannot be made absolute: {error}")))?;
        let Some(absolute) = absolute.to_str() else {
            return Err(invalid(input, "the absolute path is not UTF-8"));
        };
        Self::from_absolute(uri_path(absolute).trim_start_matches('/'), input)
    }

    /// Creates a local root from an absolute path without its leading `/`.
    fn from_absolute(path: &str, input: &str) -> Result<Self> {
        let path = path.strip_suffix('/').unwrap_or(path);
        if path.is_empty() {
            return Err(invalid(input, "the root folder of the machine cannot be a lakehouse"));
        }
        if cfg!(windows) && !has_drive(path) {
            return Err(invalid(input, r"a local root on Windows begins with a drive, C:\folder"));
        }
        check_segments(path, input)?;
        let prefix = format!("/{path}/");
        Ok(Self { scheme: Scheme::File, uri: format!("file://{prefix}"), authority: String::new(), prefix })
    }

    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The whole URI, which ends in `/`.
    pub fn as_str(&self) -> &str {
        &self.uri
    }

    /// The bucket or container, or the name of a memory; empty for a local folder.
    pub fn bucket(&self) -> &str {
        self.authority.split_once('@').map_or(self.authority.as_str(), |(container, _)| container)
    }

    /// The host of an Azure account, `account.dfs.core.windows.net`, if the URI contains one.
    pub fn account_host(&self) -> Option<&str> {
        self.authority.split_once('@').map(|(_, host)| host)
    }

    /// Prefix of every path in the bucket: empty or `segments/`. For a local folder, its absolute path with `/` at both
    /// ends.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The folder of a local root, as the functions of the operating system take it.
    pub fn local_path(&self) -> PathBuf {
        // The slash at the end is removed, because with it Windows accepts only folders.
        local_path(self.prefix.trim_end_matches('/')).into()
    }

    /// Whether both URIs name the same place. If only one of them contains the host of an Azure account, bucket and
    /// path are compared.
    pub fn is_same_place(&self, other: &RootUri) -> bool {
        let hosts_agree = match (self.account_host(), other.account_host()) {
            (Some(own), Some(others)) => own == others,
            _ => true,
        };
        hosts_agree && (self.scheme, self.bucket(), &self.prefix) == (other.scheme, other.bucket(), &other.prefix)
    }

    /// The full URI of a path of this lakehouse. The path is not checked: see [`check_path`].
    pub fn join(&self, path: &str) -> String {
        format!("{}{path}", self.uri)
    }

    /// The path of a full URI in this lakehouse. `None` if it is outside (compared by segment: `s3://b/lake2` is not in
    /// `s3://b/lake`) or breaks the rules for locations.
    ///
    /// Spellings of the same file are equal: `file:/x`, `file:///x`, `file://localhost/x` and, for a local root, the
    /// plain absolute path `/x`; `s3a`, `s3n` and `s3`; `gcs` and `gs`; `abfs` and `abfss`.
    pub fn relativize(&self, uri: &str) -> Option<String> {
        let path = self.key_of(uri)?.strip_prefix(self.prefix.as_str())?;
        check_path(path).is_ok().then(|| path.to_owned())
    }

    /// Returns the paths of this lakehouse that other programs may read for a URI. Some programs resolve segments such
    /// as `.`, `..` and empty ones, some truncate the URI at `?` or `#`, some follow symbolic links of a local disk.
    /// Empty if every program reads outside of this lakehouse.
    pub fn meant_by(&self, uri: &str) -> Vec<String> {
        let Some(key) = self.key_of(uri) else { return Vec::new() };
        let is_local = self.scheme == Scheme::File;
        let mut meant = Vec::new();
        for key in [key, &key[..key.find(['?', '#']).unwrap_or(key.len())]] {
            meant.push(key.to_owned());
            meant.push(format!("{}{}", if is_local { "/" } else { "" }, without_detours(key)));
            if is_local && let Ok(real) = real_path(Path::new(local_path(key))) {
                meant.extend(real.to_str().map(uri_path));
            }
        }
        let mut paths: Vec<String> = meant
            .iter()
            .filter_map(|key| key.strip_prefix(self.prefix.as_str()))
            .filter(|path| !path.is_empty())
            .map(str::to_owned)
            .collect();
        paths.sort();
        paths.dedup();
        paths
    }

    /// Returns the part of a URI below the bucket, or the whole path of a local URI. `None` if the URI is in another
    /// store.
    fn key_of<'a>(&self, uri: &'a str) -> Option<&'a str> {
        Some(match split_scheme(uri) {
            None if self.scheme == Scheme::File => uri,
            None => return None,
            Some((scheme, rest)) => {
                let &(_, spelling, _) = SCHEMES.iter().find(|(name, ..)| *name == scheme)?;
                if !self.uri.strip_prefix(spelling)?.starts_with("://") {
                    return None;
                }
                match (self.scheme, rest.strip_prefix("//")) {
                    (Scheme::File, None) => rest,
                    (Scheme::File, Some(rest)) => {
                        rest.strip_prefix("localhost").filter(|rest| rest.starts_with('/')).unwrap_or(rest)
                    }
                    (_, rest) => rest?.strip_prefix(self.authority.as_str())?.strip_prefix('/')?,
                }
            }
        })
    }
}

impl fmt::Display for RootUri {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.uri)
    }
}

/// Refuses an invalid path: a path is relative to the root and has no leading or trailing `/`, no `.`, `..` or empty
/// segment, and no control character.
pub fn check_path(path: &str) -> Result<()> {
    if path.is_empty() {
        return Err(invalid(path, "a path is not empty"));
    }
    check_characters(path, path)?;
    if path.starts_with('/') {
        return Err(invalid(path, "a path is relative to the root and never starts with `/`"));
    }
    check_segments(path, path)
}

/// Returns the scheme in lower case and the text after its `:`, if the text is a URI: `scheme://…` or `file:/…`.
fn split_scheme(text: &str) -> Option<(String, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let mut bytes = scheme.bytes();
    let named = bytes.next()?.is_ascii_alphabetic()
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    let scheme = scheme.to_ascii_lowercase();
    (named && (rest.starts_with("//") || (scheme == "file" && rest.starts_with('/')))).then_some((scheme, rest))
}

fn check_authority(scheme: Scheme, authority: &str, shown: &str) -> Result<()> {
    let what = match scheme {
        Scheme::Memory => "name",
        Scheme::Azure => "container",
        Scheme::File | Scheme::S3 | Scheme::Gcs => "bucket",
    };
    let (bucket, host) = match authority.split_once('@') {
        // `user:password@host` is a credential; only in Azure's `container@account` is `@` valid.
        Some((bucket, host)) if scheme == Scheme::Azure && !host.is_empty() => (bucket, host),
        Some(_) => {
            return Err(invalid(shown, "a root must not contain a user or a password; they are storage options"));
        }
        None => (authority, ""),
    };
    if bucket.is_empty() {
        return Err(invalid(shown, &format!("it has no {what}")));
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'$');
    if !bucket.bytes().chain(host.bytes()).all(plain) || matches!(bucket, "." | "..") {
        return Err(invalid(shown, &format!("the {what} contains an invalid character")));
    }
    Ok(())
}

fn check_characters(text: &str, shown: &str) -> Result<()> {
    match text.chars().find(char::is_ascii_control) {
        None => Ok(()),
        Some(found) => Err(invalid(shown, &format!("it contains the control character {found:?}"))),
    }
}

fn check_segments(path: &str, shown: &str) -> Result<()> {
    for segment in path.split('/') {
        match segment {
            "" => return Err(invalid(shown, "it has an empty segment (`//`, or a `/` at its end)")),
            "." | ".." => return Err(invalid(shown, &format!("the segment `{segment}` is not allowed"))),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the key without `.`, `..` and empty segments, as POSIX would resolve them.
fn without_detours(key: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in key.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    segments.join("/")
}

/// Returns a location for an error message: without its query, and without a user and password before `@`.
fn without_secrets(location: &str) -> String {
    let shown = location.split(['?', '#']).next().unwrap_or_default();
    match shown.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, key) = rest.split_once('/').map_or((rest, ""), |(head, _)| (head, &rest[head.len()..]));
            // A pasted secret may contain slashes, so the first slash may not be the end of the host.
            if authority.contains(':')
                && let Some((_, shown)) = rest.rsplit_once('@')
            {
                return format!("{scheme}://{shown}");
            }
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            format!("{scheme}://{host}{key}")
        }
        None => shown.to_owned(),
    }
}

/// Returns the absolute path without `.` and `..`. Symbolic links before a `..` are resolved first, because `..` is the
/// parent of the folder to which the link leads.
fn absolute_path(path: &Path) -> std::io::Result<PathBuf> {
    let mut absolute = PathBuf::new();
    for component in std::path::absolute(path)?.components() {
        match component {
            Component::ParentDir => {
                if absolute.exists() {
                    absolute = absolute.canonicalize()?;
                }
                absolute.pop();
            }
            Component::CurDir => {}
            component => absolute.push(component),
        }
    }
    Ok(absolute)
}

/// Converts the path of a file URI to a path of the operating system: on Windows `/C:/folder` becomes `C:/folder`.
fn local_path(path: &str) -> &str {
    match path.strip_prefix('/') {
        Some(path) if cfg!(windows) && has_drive(path) => path,
        _ => path,
    }
}

/// Converts a path of the operating system to the path of a file URI: on Windows `\\?\C:\folder` becomes `/C:/folder`.
fn uri_path(path: &str) -> String {
    if !cfg!(windows) {
        return path.to_owned();
    }
    let path = path.strip_prefix(r"\\?\").unwrap_or(path).replace('\\', "/");
    if has_drive(&path) { format!("/{path}") } else { path }
}

fn has_drive(path: &str) -> bool {
    matches!(path.as_bytes(), [drive, b':', b'/', ..] if drive.is_ascii_alphabetic())
}

/// Returns the path with its symbolic links resolved. The part that does not exist yet stays unchanged.
fn real_path(path: &Path) -> std::io::Result<PathBuf> {
    for ancestor in path.ancestors() {
        if ancestor.exists() {
            let real = ancestor.canonicalize()?;
            return Ok(match path.strip_prefix(ancestor) {
                Ok(rest) if rest.as_os_str().is_empty() => real,
                Ok(rest) => real.join(rest),
                Err(_) => path.to_path_buf(),
            });
        }
    }
    Ok(path.to_path_buf())
}

fn invalid(location: &str, reason: &str) -> Error {
    let mut shown = String::with_capacity(location.len());
    for character in location.chars() {
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    Error::InvalidLocation(format!("`{shown}` is not a valid location: {reason}"))
}

#[cfg(test)]
mod tests;
