//! What users may write into `storage_options`, and what it means to the client of a store.
//!
//! Accepted are the names of the `object_store` crate (`aws_access_key_id`, `region`, …, in any case),
//! those of PyIceberg (`s3.access-key-id`) and of fsspec (`key`, `secret`). A dictionary may serve tables
//! in several stores, so options of another store are accepted and left alone. What nobody knows is
//! refused: a mistyped option that is silently dropped shows up much later, as something else.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;

use crate::error::{Error, Result};
use crate::location::Scheme;

/// How the value of another dictionary becomes ours.
#[derive(Clone, Copy)]
enum Convert {
    Same,
    /// true and false change places.
    Not,
    /// A host name becomes `https://host`.
    Https,
}
use Convert::{Https, Not, Same};

/// Names of other dictionaries, and the `object_store` name that means the same.
const S3_ALIASES: &[(&str, &str, Convert)] = &[
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

const GCS_ALIASES: &[(&str, &str, Convert)] =
    &[("gcs.oauth2.token", "google_bearer_token", Same), ("gcs.service.host", "google_base_url", Same)];

const AZURE_ALIASES: &[(&str, &str, Convert)] = &[
    ("adls.account-name", "azure_storage_account_name", Same),
    ("adls.account-key", "azure_storage_account_key", Same),
    ("adls.account-host", "azure_storage_endpoint", Https),
    ("adls.sas-token", "azure_storage_sas_key", Same),
    ("adls.tenant-id", "azure_storage_tenant_id", Same),
    ("adls.client-id", "azure_storage_client_id", Same),
    ("adls.client-secret", "azure_storage_client_secret", Same),
    ("adls.token", "azure_storage_token", Same),
];

/// Options of PyIceberg that mean nothing to our client and stand in dictionaries that serve both.
const IGNORED: &[&str] = &[
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

/// Retries of everything but the creation of files, which is sent once.
const MAX_RETRIES: &str = "max_retries";
const RETRY_TIMEOUT: &str = "retry_timeout";

/// The names worth proposing to somebody who mistyped one.
const COMMON: &[&str] = &[
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
const S3_NAMES: &[&str] = &[
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
const GCS_NAMES: &[&str] = &[
    "service_account",
    "service_account_path",
    "service_account_key",
    "application_credentials",
    "bearer_token",
    "base_url",
    "skip_signature",
];
const AZURE_NAMES: &[&str] = &[
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

/// Options of one store, under the names of `object_store`.
#[derive(Default)]
pub(crate) struct Settings {
    pub(crate) values: BTreeMap<String, String>,
    pub(crate) max_retries: Option<usize>,
    pub(crate) retry_timeout: Option<Duration>,
}

/// The settings that the options mean for a root of that scheme.
pub(crate) fn resolve(scheme: Scheme, options: &HashMap<String, String>) -> Result<Settings> {
    let mut settings = Settings::default();
    // Which option set a value, to name both of two that disagree. Sorted, so that messages are stable.
    let mut origins: BTreeMap<String, &str> = BTreeMap::new();
    for (option, value) in options.iter().collect::<BTreeMap<_, _>>() {
        let name = option.to_ascii_lowercase();
        if name == MAX_RETRIES {
            settings.max_retries = Some(value.parse().map_err(|_| bad_value(option, "a number"))?);
            continue;
        }
        if name == RETRY_TIMEOUT {
            let seconds = value.trim_end_matches('s').trim().parse().ok();
            let timeout = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            settings.retry_timeout = Some(timeout.ok_or_else(|| bad_value(option, "a number of seconds"))?);
            continue;
        }
        let Some((key, convert)) = translate(scheme, &name) else {
            let stores = [Scheme::S3, Scheme::Gcs, Scheme::Azure];
            if IGNORED.contains(&name.as_str())
                || stores.iter().any(|&other| translate(other, &name).is_some())
            {
                continue;
            }
            return Err(unknown(scheme, option, &name));
        };
        refuse_overrides(option, &key)?;
        let value = convert_value(option, &key, value, convert)?;
        if settings.values.get(&key).is_some_and(|previous| *previous != value) {
            let other = origins.get(&key).copied().unwrap_or_default();
            return Err(Error::InvalidArgument(format!(
                "the storage options `{other}` and `{option}` mean the same and have different values"
            )));
        }
        origins.insert(key.clone(), option);
        settings.values.insert(key, value);
    }
    Ok(settings)
}

impl Settings {
    /// Adds what the environment says and the options do not: `AWS_…`, `GOOGLE_…`, `AZURE_…`.
    /// Credentials are taken from one place as a whole: a session token of the environment does not fit
    /// an access key of the options.
    pub(crate) fn add_environment(
        &mut self,
        scheme: Scheme,
        variables: impl IntoIterator<Item = (String, String)>,
    ) {
        let has_credentials = self.values.keys().any(|key| is_credential(key));
        let has_endpoint = self.values.contains_key("aws_endpoint");
        for (variable, value) in variables {
            let name = match (scheme, variable.as_str()) {
                (Scheme::Gcs, "SERVICE_ACCOUNT") => "google_service_account".to_owned(),
                (Scheme::Azure, "IDENTITY_ENDPOINT") => "azure_msi_endpoint".to_owned(),
                (Scheme::S3, name) if name.starts_with("AWS_") => name.to_ascii_lowercase(),
                (Scheme::Gcs, name) if name.starts_with("GOOGLE_") => name.to_ascii_lowercase(),
                (Scheme::Azure, name) if name.starts_with("AZURE_") => name.to_ascii_lowercase(),
                _ => continue,
            };
            let Some((key, _)) = translate(scheme, &name) else { continue };
            let ignored = refuse_overrides(&variable, &key).is_err()
                || (has_credentials && is_credential(&key))
                // The variable for S3 alone would win over the option.
                || (has_endpoint && key == "aws_endpoint_url_s3");
            if !ignored {
                self.values.entry(key).or_insert(value);
            }
        }
    }
}

/// The `object_store` name of an option of that store, if it is one.
fn translate(scheme: Scheme, name: &str) -> Option<(String, Convert)> {
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
    // `aws_timeout` and `timeout` are one; so are `aws_allow_http` and `allow_http`.
    let plain = key.strip_prefix(prefix).filter(|plain| COMMON.contains(plain)).map(str::to_owned);
    Some((plain.unwrap_or(key), convert))
}

/// What the root URI and the commit protocol decide is no option.
fn refuse_overrides(option: &str, key: &str) -> Result<()> {
    let reason = match key {
        "aws_bucket" | "google_bucket" | "azure_container_name" => "the root URI names the bucket",
        "aws_conditional_put" => "commits rest on conditional writes, which cannot be switched off",
        _ => return Ok(()),
    };
    Err(Error::InvalidArgument(format!("the storage option `{option}` cannot be set: {reason}")))
}

fn convert_value(option: &str, key: &str, value: &str, convert: Convert) -> Result<String> {
    Ok(match convert {
        Not => match value.to_ascii_lowercase().as_str() {
            "1" | "true" | "on" | "yes" | "y" => "false".to_owned(),
            "0" | "false" | "off" | "no" | "n" => "true".to_owned(),
            _ => return Err(bad_value(option, "`true` or `false`")),
        },
        Https if !value.contains("://") => format!("https://{value}"),
        // Other dictionaries give seconds as a bare number.
        Same if key.ends_with("timeout") => match value.parse::<f64>() {
            Ok(seconds) if (0.0..1e9).contains(&seconds) => format!("{}ms", (seconds * 1000.0) as u64),
            _ => value.to_owned(),
        },
        Same | Https => value.to_owned(),
    })
}

/// Whether a setting says who the client is.
fn is_credential(key: &str) -> bool {
    is_secret(key) && key != "proxy_url"
        || key.contains("credential")
        || [
            "access_key_id",
            "client_id",
            "service_account",
            "token_file",
            "role_arn",
            "skip_signature",
            "_msi_",
            "_cli",
        ]
        .iter()
        .any(|part| key.contains(part))
}

/// Whether the value of a setting must never be shown.
pub(crate) fn is_secret(key: &str) -> bool {
    let secret = [
        "secret",
        "token",
        "password",
        "sas_",
        "access_key",
        "account_key",
        "customer_key",
        "encryption_key",
    ];
    (secret.iter().any(|part| key.contains(part))
        || key.ends_with("service_account_key")
        || key == "proxy_url")
        && !key.ends_with("_id")
        && !key.ends_with("_file")
}

fn bad_value(option: &str, expected: &str) -> Error {
    Error::InvalidArgument(format!("the storage option `{option}` must be {expected}"))
}

fn unknown(scheme: Scheme, option: &str, name: &str) -> Error {
    let (names, aliases): (&[&str], &[(&str, &str, Convert)]) = match scheme {
        Scheme::S3 => (S3_NAMES, S3_ALIASES),
        Scheme::Gcs => (GCS_NAMES, GCS_ALIASES),
        Scheme::Azure => (AZURE_NAMES, AZURE_ALIASES),
        Scheme::File | Scheme::Memory => (&[], &[]),
    };
    let known =
        names.iter().copied().chain(COMMON.iter().copied()).chain(aliases.iter().map(|alias| alias.0));
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
            let names =
                close.iter().take(3).map(|(_, name)| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            format!("; did you mean {names}?")
        }
    };
    Error::InvalidArgument(format!("`{option}` is not a known storage option{proposal}"))
}

/// Levenshtein distance over bytes.
fn edit_distance(left: &str, right: &str) -> usize {
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

#[cfg(test)]
mod tests;
