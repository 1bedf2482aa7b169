//! Settings for other clients of the same store: an S3 client, and the properties of an Iceberg catalog. Both are
//! derived from the storage options by the same rules as the settings of our own client.

use std::collections::{BTreeMap, HashMap};

use trinitylake_base::error::Result;
use trinitylake_base::root_uri::Scheme;

use super::{Settings, environment_variables, resolve, truth};

/// S3 settings from the storage options and the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct S3Settings {
    pub access_key_id: Option<String>,
    pub secret_access_key: Option<String>,
    pub session_token: Option<String>,
    pub region: Option<String>,
    /// Endpoint of the store; `None` for AWS.
    pub endpoint: Option<String>,
    /// Whether requests have the bucket in the host name instead of the path.
    pub is_bucket_in_host: bool,
}

impl S3Settings {
    /// Options take precedence over environment variables.
    pub fn from_options(options: &HashMap<String, String>) -> Result<S3Settings> {
        let mut settings = resolve(Scheme::S3, options)?;
        settings.add_environment(Scheme::S3, environment_variables());
        Ok(S3Settings::of(&settings))
    }

    pub(super) fn of(settings: &Settings) -> S3Settings {
        let first = |keys: &[&str]| {
            let mut values = keys.iter().filter_map(|key| settings.values.get(*key));
            values.find(|value| !value.is_empty()).cloned()
        };
        S3Settings {
            access_key_id: first(&["aws_access_key_id"]),
            secret_access_key: first(&["aws_secret_access_key"]),
            session_token: first(&["aws_session_token"]),
            region: first(&["aws_region", "aws_default_region"]),
            endpoint: first(&["aws_endpoint_url_s3", "aws_endpoint"]),
            is_bucket_in_host: first(&["aws_virtual_hosted_style_request"])
                .is_some_and(|value| truth(&value) == Some(true)),
        }
    }
}

/// Names of settings in `object_store`, with the different names in Iceberg's clients.
const ICEBERG_NAMES: &[(&str, &str)] = &[
    ("google_bearer_token", "gcs.oauth2.token"),
    ("google_base_url", "gcs.service.host"),
    ("azure_storage_account_name", "adls.auth.shared-key.account.name"),
    ("azure_storage_account_key", "adls.auth.shared-key.account.key"),
    ("azure_storage_token", "adls.token"),
];

/// Options with these prefixes already have their Iceberg names.
const ICEBERG_PREFIXES: [&str; 4] = ["s3.", "client.", "gcs.", "adls."];

/// Returns the storage options as properties of an Iceberg catalog, for a root of this scheme. Environment variables
/// are not included, because Iceberg's clients read them, too.
pub fn iceberg_properties(scheme: Scheme, options: &HashMap<String, String>) -> Result<BTreeMap<String, String>> {
    if matches!(scheme, Scheme::File | Scheme::Memory) {
        return Ok(BTreeMap::new());
    }
    let settings = resolve(scheme, options)?;
    let mut properties: BTreeMap<String, String> = options
        .iter()
        .filter(|(name, _)| ICEBERG_PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            properties.insert(name.to_owned(), value);
        }
    };
    for (key, name) in ICEBERG_NAMES {
        add(name, settings.values.get(*key).cloned());
    }
    if scheme == Scheme::S3 {
        let s3 = S3Settings::of(&settings);
        // Iceberg's clients put the bucket into the host name by default, our client into the path.
        let is_path_style = s3.endpoint.is_some() || settings.values.contains_key("aws_virtual_hosted_style_request");
        add("s3.path-style-access", is_path_style.then(|| (!s3.is_bucket_in_host).to_string()));
        add("s3.access-key-id", s3.access_key_id);
        add("s3.secret-access-key", s3.secret_access_key);
        add("s3.session-token", s3.session_token);
        add("client.region", s3.region);
        add("s3.endpoint", s3.endpoint);
    }
    Ok(properties)
}
