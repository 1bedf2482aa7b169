//! Translates the storage options of users for the client of a store.
//!
//! Each setting has several spellings (`spellings`). Users may pass one dictionary for several stores, so options of
//! another store are accepted and ignored. An option that no store knows is refused, because a mistyped option would
//! otherwise cause an unrelated error much later.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use trinitylake_base::error::{Error, Result};
use trinitylake_base::root_uri::Scheme;

pub mod other_clients;
mod spellings;

use spellings::{Convert, IGNORED, MAX_RETRIES, RETRY_TIMEOUT, translate, unknown};

/// Options of one store, under their names in `object_store`.
#[derive(Default)]
pub(crate) struct Settings {
    pub(crate) values: BTreeMap<String, String>,
    pub(crate) max_retries: Option<usize>,
    pub(crate) retry_timeout: Option<Duration>,
}

/// Returns the settings for a root of this scheme.
pub(crate) fn resolve(scheme: Scheme, options: &HashMap<String, String>) -> Result<Settings> {
    let mut settings = Settings::default();
    // The option that set each value, so that a message can name two contradicting options. Sorted, so that messages
    // are deterministic.
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
            if IGNORED.contains(&name.as_str()) || stores.iter().any(|&other| translate(other, &name).is_some()) {
                continue;
            }
            return Err(unknown(scheme, option, &name));
        };
        refuse_overrides(option, &key)?;
        let value = convert_value(option, &key, value, convert)?;
        if settings.values.get(&key).is_some_and(|previous| *previous != value) {
            let other = origins.get(&key).copied().unwrap_or_default();
            return Err(Error::InvalidArgument(format!(
                "the storage options `{other}` and `{option}` are the same setting with different values"
            )));
        }
        origins.insert(key.clone(), option);
        settings.values.insert(key, value);
    }
    Ok(settings)
}

impl Settings {
    /// Adds settings from the environment variables `AWS_…`, `GOOGLE_…`, `AZURE_…` that the options do not contain.
    /// Credentials come either all from the options or all from the environment: a session token of one does not fit an
    /// access key of the other.
    pub(crate) fn add_environment(&mut self, scheme: Scheme, variables: impl IntoIterator<Item = (String, String)>) {
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
                // The client would prefer this S3-specific variable to the option.
                || (has_endpoint && key == "aws_endpoint_url_s3");
            if !ignored {
                self.values.entry(key).or_insert(value);
            }
        }
    }
}

/// The environment variables of this process.
pub(crate) fn environment_variables() -> impl Iterator<Item = (String, String)> {
    // A setting is always UTF-8, so ignore other variables.
    std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Refuses options that contradict the root URI or the commit protocol.
fn refuse_overrides(option: &str, key: &str) -> Result<()> {
    let reason = match key {
        "aws_bucket" | "google_bucket" | "azure_container_name" => "the root URI names the bucket",
        "aws_conditional_put" => "commits depend on conditional writes, which cannot be switched off",
        _ => return Ok(()),
    };
    Err(Error::InvalidArgument(format!("the storage option `{option}` cannot be set: {reason}")))
}

fn convert_value(option: &str, key: &str, value: &str, convert: Convert) -> Result<String> {
    Ok(match convert {
        Convert::Not => match truth(value) {
            Some(is_true) => (!is_true).to_string(),
            None => return Err(bad_value(option, "`true` or `false`")),
        },
        Convert::Https if !value.contains("://") => format!("https://{value}"),
        // A number without a unit means seconds, as for other clients.
        Convert::Same if key.ends_with("timeout") => match value.parse::<f64>() {
            Ok(seconds) if (0.0..1e9).contains(&seconds) => format!("{}ms", (seconds * 1000.0) as u64),
            _ => value.to_owned(),
        },
        Convert::Same | Convert::Https => value.to_owned(),
    })
}

/// Whether a setting is part of the credentials.
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
    let secret = ["secret", "token", "password", "sas_", "access_key", "account_key", "customer_key", "encryption_key"];
    (secret.iter().any(|part| key.contains(part)) || key.ends_with("service_account_key") || key == "proxy_url")
        && !key.ends_with("_id")
        && !key.ends_with("_file")
}

/// Boolean value of an option, in the spellings that `object_store` accepts.
fn truth(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" | "y" => Some(true),
        "0" | "false" | "off" | "no" | "n" => Some(false),
        _ => None,
    }
}

fn bad_value(option: &str, expected: &str) -> Error {
    Error::InvalidArgument(format!("the storage option `{option}` must be {expected}"))
}

#[cfg(test)]
mod tests;
