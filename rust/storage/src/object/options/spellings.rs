//! All names that users may use for a setting: the names of the `object_store` crate (`aws_access_key_id`, `region`, …,
//! in any case), of PyIceberg (`s3.access-key-id`) and of fsspec (`key`, `secret`).
//!
//! This is the only table of spellings. All other code, Python included, uses one name for a setting.

use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;

use trinitylake_base::error::Error;
use trinitylake_base::root_uri::Scheme;

/// Conversion of a value for `object_store`.
#[derive(Clone, Copy)]
pub(super) enum Convert {
    Same,
    /// The value is a boolean and is negated.
    Not,
    /// A host name becomes `https://host`.
    Https,
}
use Convert::{Https, Not, Same};

/// Names in PyIceberg and fsspec, each with its name in `object_store` and the conversion of its value.
pub(super) const S3_ALIASES: &[(&str, &str, Convert)] = &[
    ("s3.access-key-id", "aws_access_key_id", Same),
    ("s3.secret-access-key", "aws_secret_access_key", Same),
    ("s3.session-token", "aws_session_token", Same),
    ("s3.region", "aws_region", Same),
    ("s3.endpoint", "aws_endpoint", Same),
    ("s3.anonymous", "aws_skip_signature", Same),
    ("s3.path-style-access", "aws_virtual_hosted_style_request", Not),
    ("s3.force-virtual-addressing", "aws_virtual_hosted_style_request", Same),
    ("s3.connect-timeout", "connect_timeout", Same),
    ("s3.request-timeout", "timeout", Same),
    ("s3.proxy-uri", "proxy_url", Same),
    ("client.access-key-id", "aws_access_key_id", Same),
    ("client.secret-access-key", "aws_secret_access_key", Same),
    ("client.session-token", "aws_session_token", Same),
    ("client.region", "aws_region", Same),
    ("key", "aws_access_key_id", Same),
    ("secret", "aws_secret_access_key", Same),
    ("anon", "aws_skip_signature", Same),
];

pub(super) const GCS_ALIASES: &[(&str, &str, Convert)] =
    &[("gcs.oauth2.token", "google_bearer_token", Same), ("gcs.service.host", "google_base_url", Same)];

pub(super) const AZURE_ALIASES: &[(&str, &str, Convert)] = &[
    ("adls.account-name", "azure_storage_account_name", Same),
    ("adls.account-key", "azure_storage_account_key", Same),
    ("adls.account-host", "azure_storage_endpoint", Https),
    ("adls.sas-token", "azure_storage_sas_key", Same),
    ("adls.tenant-id", "azure_storage_tenant_id", Same),
    ("adls.client-id", "azure_storage_client_id", Same),
    ("adls.client-secret", "azure_storage_client_secret", Same),
    ("adls.token", "azure_storage_token", Same),
];

/// Options of PyIceberg that have no meaning here. They are accepted, because users may pass one dictionary to
/// PyIceberg and to this library.
pub(super) const IGNORED: &[&str] = &[
    "py-io-impl",
    "s3.resolve-region",
    "s3.retry-strategy-impl",
    "s3.signer",
    "s3.signer.endpoint",
    "s3.signer.uri",
    "gcs.access",
    "gcs.cache-timeout",
    "gcs.consistency",
    "gcs.default-location",
    "gcs.oauth2.token-expires-at",
    "gcs.project-id",
    "gcs.requester-pays",
    "gcs.session-kwargs",
    "gcs.version-aware",
    "adls.blob-storage-authority",
    "adls.blob-storage-scheme",
    "adls.dfs-storage-authority",
    "adls.dfs-storage-scheme",
];

/// Number of retries of each request, except the creation of a file, which is sent once.
pub(super) const MAX_RETRIES: &str = "max_retries";
pub(super) const RETRY_TIMEOUT: &str = "retry_timeout";

/// Names to suggest for a mistyped option.
pub(super) const COMMON: &[&str] = &[
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "http1_only",
    "pool_idle_timeout",
    "proxy_url",
    "read_timeout",
    "timeout",
    "user_agent",
    MAX_RETRIES,
    RETRY_TIMEOUT,
];
pub(super) const S3_NAMES: &[&str] = &[
    "access_key_id",
    "secret_access_key",
    "session_token",
    "token",
    "region",
    "endpoint",
    "endpoint_url",
    "skip_signature",
    "virtual_hosted_style_request",
    "role_arn",
    "role_session_name",
    "web_identity_token_file",
    "server_side_encryption",
    "sse_kms_key_id",
    "checksum_algorithm",
    "unsigned_payload",
    "request_payer",
    "s3_express",
    "metadata_endpoint",
];
pub(super) const GCS_NAMES: &[&str] = &[
    "service_account",
    "service_account_path",
    "service_account_key",
    "application_credentials",
    "bearer_token",
    "base_url",
    "skip_signature",
];
pub(super) const AZURE_NAMES: &[&str] = &[
    "account_name",
    "account_key",
    "access_key",
    "sas_token",
    "sas_key",
    "bearer_token",
    "client_id",
    "client_secret",
    "tenant_id",
    "endpoint",
    "authority_host",
    "use_emulator",
    "use_azure_cli",
    "federated_token_file",
    "skip_signature",
];

/// Returns the `object_store` name of an option; `None` if the store has no such option.
pub(super) fn translate(scheme: Scheme, name: &str) -> Option<(String, Convert)> {
    let (aliases, prefix) = match scheme {
        Scheme::S3 => (S3_ALIASES, "aws_"),
        Scheme::Gcs => (GCS_ALIASES, "google_"),
        Scheme::Azure => (AZURE_ALIASES, "azure_"),
        Scheme::File | Scheme::Memory => return None,
    };
    let alias = aliases.iter().find(|(alias, ..)| *alias == name);
    let (name, convert) = alias.map_or((name, Same), |&(_, name, convert)| (name, convert));
    let key = match scheme {
        Scheme::S3 => name.parse::<AmazonS3ConfigKey>().ok()?.as_ref().to_owned(),
        Scheme::Gcs => name.parse::<GoogleConfigKey>().ok()?.as_ref().to_owned(),
        Scheme::Azure => name.parse::<AzureConfigKey>().ok()?.as_ref().to_owned(),
        Scheme::File | Scheme::Memory => return None,
    };
    // `aws_timeout` and `timeout` are the same option; so are `aws_allow_http` and `allow_http`.
    let plain = key.strip_prefix(prefix).filter(|plain| COMMON.contains(plain)).map(str::to_owned);
    Some((plain.unwrap_or(key), convert))
}

/// The error for an unknown option, with similar names as suggestions.
pub(super) fn unknown(scheme: Scheme, option: &str, name: &str) -> Error {
    let (names, aliases): (&[&str], &[(&str, &str, Convert)]) = match scheme {
        Scheme::S3 => (S3_NAMES, S3_ALIASES),
        Scheme::Gcs => (GCS_NAMES, GCS_ALIASES),
        Scheme::Azure => (AZURE_NAMES, AZURE_ALIASES),
        Scheme::File | Scheme::Memory => (&[], &[]),
    };
    let known = names.iter().copied().chain(COMMON.iter().copied()).chain(aliases.iter().map(|alias| alias.0));
    let bare = ["aws_", "google_", "azure_storage_", "azure_"]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name);
    let mut close: Vec<(usize, &str)> = known
        .map(|known| (edit_distance(name, known).min(edit_distance(bare, known)), known))
        .filter(|(distance, known)| *distance <= known.len().max(6) / 3)
        .collect();
    close.sort_unstable();
    let proposal = match close.len() {
        0 => String::new(),
        _ => {
            let names = close.iter().take(3).map(|(_, name)| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            format!("; did you mean {names}?")
        }
    };
    Error::InvalidArgument(format!("`{option}` is not a known storage option{proposal}"))
}

/// Levenshtein distance over bytes.
pub(super) fn edit_distance(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, left_byte) in left.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right_byte) in right.bytes().enumerate() {
            let substituted = diagonal + usize::from(left_byte != right_byte);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}
