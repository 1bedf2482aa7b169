//! Creates the clients of the remote stores from the root, the storage options and the environment.
//!
//! Options take precedence over environment variables (`AWS_…`, `GOOGLE_…`, `AZURE_…`), the root URI over both.

use std::sync::{Arc, Once};
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};

use super::options::{Settings, environment_variables, is_secret};
use crate::reachability::Reach;
use crate::response_dates::ListeningConnector;
use crate::retry_policy::RetryPolicy;
use crate::secrets::Secrets;
use trinitylake_base::error::{Error, Result};
use trinitylake_base::per_process::PerProcess;
use trinitylake_base::root_uri::{RootUri, Scheme};

/// Storage options with the endpoint of a store.
const ENDPOINTS: [&str; 4] = ["aws_endpoint_url_s3", "aws_endpoint", "google_base_url", "azure_storage_endpoint"];

/// Client of one store, or the error of its creation. It never retries. Each process creates its own client, because a
/// forked child must not use the connections of its parent.
pub(super) type Client = PerProcess<Result<Arc<dyn ObjectStore>>>;

/// Client of a store, returned by [`client`].
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) retry_policy: RetryPolicy,
    /// Values that no message may contain.
    pub(super) secrets: Secrets,
    pub(super) reach: Arc<Reach>,
}

/// Client for the bucket of a root.
pub(super) fn client(root: &RootUri, mut settings: Settings) -> Result<Connection> {
    settings.add_environment(root.scheme(), environment_variables());
    let mut secrets = Secrets::default();
    settings.values.iter().filter(|(key, _)| is_secret(key)).for_each(|(_, secret)| secrets.add(secret));
    provide_cryptography();
    let retry_policy = retry_policy(&settings);
    let endpoint = ENDPOINTS.iter().find_map(|key| settings.values.get(*key)).cloned();
    let reach = Arc::new(Reach::new(endpoint));
    let (of_process, redacted, of_client) = (root.clone(), secrets.clone(), reach.clone());
    let client = PerProcess::new(move || {
        let client = match of_process.scheme() {
            Scheme::S3 => s3(&of_process, &settings, of_client.clone()),
            Scheme::Gcs => gcs(&of_process, &settings, of_client.clone()),
            Scheme::Azure => azure(&of_process, &settings, of_client.clone()),
            Scheme::File | Scheme::Memory => {
                return Err(Error::InvalidLocation(format!("{of_process} is not in a remote store")));
            }
        };
        client.map_err(|error| {
            let reason = redacted.redact(&error.to_string());
            Error::InvalidArgument(format!("cannot open {of_process}: {reason}; check the storage options"))
        })
    });
    client.get().as_ref().map_err(Error::clone)?;
    Ok(Connection { client, retry_policy, secrets, reach })
}

/// Installs the TLS cryptography provider that the clients need.
fn provide_cryptography() {
    static PROVIDED: Once = Once::new();
    // Fails only if the process already has a provider, which can be used as well.
    PROVIDED.call_once(|| _ = rustls::crypto::ring::default_provider().install_default());
}

/// Builds a client that fetches credentials with retries, and sends all other requests once.
macro_rules! client {
    ($builder:expr, $settings:expr, $reach:expr) => {{
        let builder = $builder;
        let credentials = builder.clone().with_retry(retries($settings)).build()?.credentials().clone();
        Ok(Arc::new(
            builder
                .with_credentials(credentials)
                .with_retry(no_retries())
                .with_http_connector(ListeningConnector($reach))
                .build()?,
        ))
    }};
}

fn s3(root: &RootUri, settings: &Settings, reach: Arc<Reach>) -> object_store::Result<Arc<dyn ObjectStore>> {
    let mut builder = AmazonS3Builder::new();
    for (key, value) in &settings.values {
        builder = builder.with_config(key.parse::<AmazonS3ConfigKey>()?, value);
    }
    // One request per file: some S3-compatible stores do not support bulk deletion.
    builder = builder
        .with_bucket_name(root.bucket())
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_config(AmazonS3ConfigKey::DisableBulkDelete, "true");
    // Directory buckets (S3 Express) are recognised by their names.
    if root.bucket().ends_with("--x-s3") && !settings.values.contains_key("aws_s3_express") {
        builder = builder.with_s3_express(true);
    }
    if wants_http(settings) {
        builder = builder.with_allow_http(true);
    }
    client!(builder, settings, reach)
}

fn gcs(root: &RootUri, settings: &Settings, reach: Arc<Reach>) -> object_store::Result<Arc<dyn ObjectStore>> {
    let mut builder = GoogleCloudStorageBuilder::new();
    for (key, value) in &settings.values {
        builder = builder.with_config(key.parse::<GoogleConfigKey>()?, value);
    }
    builder = builder.with_bucket_name(root.bucket());
    if wants_http(settings) {
        builder = builder.with_config(GoogleConfigKey::Client(ClientConfigKey::AllowHttp), "true");
    }
    client!(builder, settings, reach)
}

fn azure(root: &RootUri, settings: &Settings, reach: Arc<Reach>) -> object_store::Result<Arc<dyn ObjectStore>> {
    let mut builder = MicrosoftAzureBuilder::new();
    for (key, value) in &settings.values {
        builder = builder.with_config(key.parse::<AzureConfigKey>()?, value);
    }
    builder = match root.account_host() {
        // The client parses the account and the style of addressing from the host.
        Some(host) => builder.with_url(format!("abfss://{}@{host}", root.bucket())),
        None => builder.with_container_name(root.bucket()),
    };
    if wants_http(settings) {
        builder = builder.with_allow_http(true);
    }
    client!(builder, settings, reach)
}

/// Whether to allow HTTP because an endpoint starts with `http://`. A value of `allow_http` takes precedence.
fn wants_http(settings: &Settings) -> bool {
    !settings.values.contains_key("allow_http")
        && ENDPOINTS.iter().filter_map(|key| settings.values.get(*key)).any(|endpoint| endpoint.starts_with("http://"))
}

/// Retry policy from the storage options.
fn retry_policy(settings: &Settings) -> RetryPolicy {
    let defaults = RetryPolicy::default();
    let max_retries = settings.max_retries.map(|retries| u32::try_from(retries).unwrap_or(u32::MAX));
    let budget = settings.retry_timeout.map(|budget| u64::try_from(budget.as_millis()).unwrap_or(u64::MAX));
    RetryPolicy {
        max_retries: max_retries.unwrap_or(defaults.max_retries),
        budget_millis: budget.unwrap_or(defaults.budget_millis),
        ..defaults
    }
}

/// Returns the retry policy in the form of `object_store`, for the client's own requests for credentials.
fn retries(settings: &Settings) -> RetryConfig {
    let policy = retry_policy(settings);
    RetryConfig {
        max_retries: policy.max_retries as usize,
        retry_timeout: Duration::from_millis(policy.budget_millis),
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(policy.first_pause_millis),
            max_backoff: Duration::from_millis(policy.max_pause_millis),
            base: 2.0,
        },
    }
}

fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

#[cfg(test)]
mod tests;
