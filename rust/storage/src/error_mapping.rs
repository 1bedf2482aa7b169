//! Translates failures of a store into errors of the right kind. The message says what failed, on which file, and why,
//! and never contains a secret.
//!
//! `object_store` does not expose the HTTP status, so the status and the store's own error code are parsed from the
//! error chain. URLs are never repeated, because a signed URL is a credential.

use object_store::client::{HttpError, HttpErrorKind};

use crate::secrets::Secrets;
use trinitylake_base::error::Error;

/// Maximum number of characters of a store's own message that are repeated.
const MAX_REASON_CHARS: usize = 300;

/// The failed request, for the message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    /// "read", "create", "list", …
    pub(crate) verb: &'static str,
    /// The full URI of the file or folder.
    pub(crate) uri: &'a str,
    /// Path relative to the root.
    pub(crate) path: &'a str,
}

impl Request<'_> {
    fn failed(&self, reason: &str) -> String {
        format!("cannot {} {}: {reason}", self.verb, self.uri)
    }

    fn storage(&self, reason: &str, retryable: bool) -> Error {
        Error::Storage { message: self.failed(reason), retryable }
    }

    fn refused(&self, reason: &str) -> Error {
        Error::StorageRefused(self.failed(reason))
    }

    fn denied(&self, reason: &str) -> Error {
        Error::PermissionDenied(self.failed(reason))
    }

    /// Error for a failure of the local disk.
    pub(crate) fn local_failure(&self, error: &std::io::Error) -> Error {
        use std::io::ErrorKind;
        match kind_of(error) {
            // The folders of a new file were created before, so an error of this kind does not mean that the file is
            // missing.
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::AlreadyExists | ErrorKind::IsADirectory
                if matches!(self.verb, "create" | "write") =>
            {
                self.refused(&format!("a part of its path is missing or not a folder ({error})"))
            }
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory => {
                Error::FileNotFound { path: self.path.to_owned() }
            }
            ErrorKind::PermissionDenied => self.denied("the file system denies permission"),
            ErrorKind::ReadOnlyFilesystem => self.denied("the file system is mounted read-only"),
            ErrorKind::StorageFull => self.refused("no space is left on the disk"),
            ErrorKind::QuotaExceeded => self.refused("the disk quota is used up"),
            ErrorKind::FileTooLarge => self.refused("the file system does not take files this large"),
            ErrorKind::InvalidFilename => {
                Error::InvalidLocation(self.failed("a segment or the whole path is too long for the file system"))
            }
            ErrorKind::Interrupted | ErrorKind::TimedOut | ErrorKind::StaleNetworkFileHandle => {
                self.storage(&error.to_string(), true)
            }
            // EMFILE and ENFILE (too many open files) have no `ErrorKind`.
            _ if matches!(error.raw_os_error(), Some(23 | 24)) => self.storage("too many files are open", true),
            _ => self.storage(&error.to_string(), false),
        }
    }

    /// Error for a failure of an object store.
    pub(crate) fn store_failure(&self, error: &object_store::Error, secrets: &Secrets) -> Error {
        use object_store::Error as Store;
        let answer = Answer::of(error);
        let reason = secrets.redact(&answer.reason(error));
        match error {
            // Check this first, because the answer comes from the credential service and not from the store.
            _ if answer.asked_for_credentials => self.denied(&format!(
                "no credentials were found in the storage options or the environment, and the machine's own \
                 credential service did not answer ({reason})"
            )),
            _ if answer.says_no_bucket() => self.refused(&format!("the bucket does not exist ({reason})")),
            _ if answer.says_wrong_region() => {
                self.refused(&format!("the bucket is in another region; set the storage option `region` ({reason})"))
            }
            // A creation or a listing needs no existing file, so 404 means that the bucket is missing.
            _ if answer.status == Some(404) && matches!(self.verb, "create" | "write" | "list") => {
                self.refused(&format!("the bucket does not exist ({reason})"))
            }
            Store::NotFound { .. } => Error::FileNotFound { path: self.path.to_owned() },
            Store::InvalidPath { .. } => Error::InvalidLocation(self.failed(&reason)),
            _ if answer.says_bad_credentials() || matches!(error, Store::Unauthenticated { .. }) => {
                self.denied(&format!("the store refuses the credentials ({reason})"))
            }
            _ if answer.status == Some(403) || matches!(error, Store::PermissionDenied { .. }) => {
                self.denied(&format!(
                    "the store denies permission ({reason}); some stores also answer this for a file that is \
                     missing when the credentials may not list the bucket"
                ))
            }
            Store::NotImplemented { .. } | Store::NotSupported { .. } => {
                self.refused(&format!("the store cannot do that ({reason})"))
            }
            Store::UnknownConfigurationKey { key, .. } => {
                Error::InvalidArgument(self.failed(&format!("the storage option `{key}` does not fit the store")))
            }
            _ => self.storage(&reason, is_retryable(answer.status, answer.transport, answer.code.as_deref())),
        }
    }
}

/// The store's answer, parsed from an error chain.
struct Answer {
    status: Option<u16>,
    /// The store's own error code, such as `NoSuchBucket`.
    code: Option<String>,
    message: Option<String>,
    transport: Option<HttpErrorKind>,
    asked_for_credentials: bool,
    /// The innermost error, which is the most specific one.
    cause: String,
}

impl Answer {
    fn of(error: &object_store::Error) -> Self {
        let mut answer = Self {
            status: None,
            code: None,
            message: None,
            transport: None,
            asked_for_credentials: false,
            cause: String::new(),
        };
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(error) = next {
            let text = error.to_string();
            if let Some(http) = error.downcast_ref::<HttpError>() {
                answer.transport = Some(http.kind());
            }
            answer.asked_for_credentials |=
                ["169.254.169.254", "metadata.google.internal", "169.254.170.2"].iter().any(|host| text.contains(host));
            if let Some(rest) = text.strip_prefix("Server returned non-2xx status code: ") {
                let (status, body) = rest.split_once(": ").unwrap_or((rest, ""));
                answer.status = status.split(' ').next().and_then(|status| status.parse().ok());
                answer.code = element(body, "Code");
                answer.message = element(body, "Message");
            } else if let Some(body) = text.strip_prefix("Server returned error response: ") {
                answer.code = element(body, "Code");
                answer.message = element(body, "Message");
            }
            answer.cause = text;
            next = error.source();
        }
        answer
    }

    fn reason(&self, error: &object_store::Error) -> String {
        let mut reason = match (&self.code, &self.message, self.status) {
            (Some(code), Some(message), _) => format!("{code}: {message}"),
            (Some(code), None, _) => code.clone(),
            (None, _, Some(status)) => format!("status {status}"),
            (None, _, None) => match error {
                object_store::Error::NotFound { .. } => "not found".to_owned(),
                _ => self.cause.clone(),
            },
        };
        // Any URL in the store's message may be a signed one.
        while let Some(start) = reason.find("http://").or_else(|| reason.find("https://")) {
            let end = reason[start..].find([' ', '"', ')', '<']).map_or(reason.len(), |length| start + length);
            reason.replace_range(start..end, "(URL)");
        }
        match reason.char_indices().nth(MAX_REASON_CHARS) {
            Some((end, _)) => format!("{}…", &reason[..end]),
            None => reason,
        }
    }

    fn has_code(&self, codes: &[&str]) -> bool {
        self.code.as_deref().is_some_and(|code| codes.contains(&code))
    }

    fn says_no_bucket(&self) -> bool {
        self.has_code(&["NoSuchBucket", "ContainerNotFound", "FilesystemNotFound", "ContainerBeingDeleted"])
    }

    fn says_wrong_region(&self) -> bool {
        self.has_code(&["PermanentRedirect", "TemporaryRedirect", "IllegalLocationConstraintException"])
            || (self.has_code(&["AuthorizationHeaderMalformed"])
                && self.message.as_deref().is_some_and(|message| message.contains("region")))
            || matches!(self.status, Some(301 | 307))
            || self.cause.contains("incorrectly configured region")
    }

    fn says_bad_credentials(&self) -> bool {
        self.has_code(&["ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId"])
            || self.status == Some(401)
    }
}

/// Returns the content of the first XML element with this name.
fn element(body: &str, name: &str) -> Option<String> {
    let (_, rest) = body.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    Some(text.trim().to_owned())
}

/// Whether a failed request may succeed if it is sent again. This is decided by its HTTP status, the failure of the
/// connection, or the store's error code.
pub(crate) fn is_retryable(status: Option<u16>, transport: Option<HttpErrorKind>, code: Option<&str>) -> bool {
    match (status, transport) {
        (Some(status), _) => status >= 500 && status != 501 || matches!(status, 408 | 409 | 425 | 429),
        // An interrupted response is retried; a response that cannot be decoded is not.
        (None, Some(kind)) => !matches!(kind, HttpErrorKind::Decode),
        (None, None) => {
            matches!(code, Some("InternalError" | "SlowDown" | "ServiceUnavailable" | "RequestTimeout"))
        }
    }
}

/// Returns the kind of an error of a local disk. On Windows, `ERROR_INVALID_NAME` means a file in place of a folder,
/// because names were checked before.
pub(crate) fn kind_of(error: &std::io::Error) -> std::io::ErrorKind {
    match error.raw_os_error() {
        Some(123) if cfg!(windows) => std::io::ErrorKind::NotADirectory,
        _ => error.kind(),
    }
}

#[cfg(test)]
mod tests;
