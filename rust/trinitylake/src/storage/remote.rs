//! The clients of the remote stores, made from a root, the storage options and the environment.
//!
//! Options win over environment variables (`AWS_…`, `GOOGLE_…`, `AZURE_…`), the root wins over both.

use std::sync::{Arc, Once};

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ClientConfigKey, ObjectStore, RetryConfig};

use super::failure::Secrets;
use super::object::ObjectStorage;
use super::options::{Settings, is_secret};
use crate::error::{Error, Result};
use crate::location::{RootUri, Scheme};

/// Two clients on the bucket of the root.
pub(crate) fn connect(root: &RootUri, mut settings: Settings) -> Result<ObjectStorage> {
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        // What is not UTF-8 cannot be a setting.
        Some((name.into_string().ok()?, value.into_string().ok()?))
    });
    settings.add_environment(root.scheme(), variables);
    let mut secrets = Secrets::default();
    settings.values.iter().filter(|(key, _)| is_secret(key)).for_each(|(_, secret)| secrets.add(secret));
    provide_cryptography();
    let clients = match root.scheme() {
        Scheme::S3 => s3(root, &settings),
        Scheme::Gcs => gcs(root, &settings),
        Scheme::Azure => azure(root, &settings),
        Scheme::File | Scheme::Memory => {
            return Err(Error::InvalidLocation(format!("{root} does not lie in a remote store")));
        }
    };
    let Clients { creator, store } = clients.map_err(|error| {
        let reason = secrets.redact(&error.to_string());
        Error::InvalidArgument(format!("cannot open {root}: {reason}; check the storage options"))
    })?;
    Ok(ObjectStorage::remote(root, creator, store, secrets))
}

/// What the clients need before the first of them is made.
fn provide_cryptography() {
    static PROVIDED: Once = Once::new();
    // Refused only if the process has a provider already, which is as good.
    PROVIDED.call_once(|| _ = rustls::crypto::ring::default_provider().install_default());
}

struct Clients {
    /// Sends each request once.
    creator: Arc<dyn ObjectStore>,
    store: Arc<dyn ObjectStore>,
}

fn s3(root: &RootUri, settings: &Settings) -> object_store::Result<Clients> {
    let mut builder = AmazonS3Builder::new();
    for (key, value) in &settings.values {
        builder = builder.with_config(key.parse::<AmazonS3ConfigKey>()?, value);
    }
    // One request per file: some stores that speak S3 do not know the request that deletes many.
    builder = builder
        .with_bucket_name(root.bucket())
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_config(AmazonS3ConfigKey::DisableBulkDelete, "true");
    // Directory buckets (S3 Express) carry their kind in their name.
    if root.bucket().ends_with("--x-s3") && !settings.values.contains_key("aws_s3_express") {
        builder = builder.with_s3_express(true);
    }
    if wants_http(settings) {
        builder = builder.with_allow_http(true);
    }
    let store = builder.clone().with_retry(retries(settings)).build()?;
    // The same credentials, fetched with retries: only the creation itself is sent once.
    let creator = builder.with_credentials(store.credentials().clone()).with_retry(no_retries()).build()?;
    Ok(Clients { creator: Arc::new(creator), store: Arc::new(store) })
}

fn gcs(root: &RootUri, settings: &Settings) -> object_store::Result<Clients> {
    let mut builder = GoogleCloudStorageBuilder::new();
    for (key, value) in &settings.values {
        builder = builder.with_config(key.parse::<GoogleConfigKey>()?, value);
    }
    builder = builder.with_bucket_name(root.bucket());
    if wants_http(settings) {
        builder = builder.with_config(GoogleConfigKey::Client(ClientConfigKey::AllowHttp), "true");
    }
    let store = builder.clone().with_retry(retries(settings)).build()?;
    let creator = builder.with_credentials(store.credentials().clone()).with_retry(no_retries()).build()?;
    Ok(Clients { creator: Arc::new(creator), store: Arc::new(store) })
}

fn azure(root: &RootUri, settings: &Settings) -> object_store::Result<Clients> {
    let mut builder = MicrosoftAzureBuilder::new();
    for (key, value) in &settings.values {
        builder = builder.with_config(key.parse::<AzureConfigKey>()?, value);
    }
    builder = match root.account_host() {
        // The client knows which hosts are accounts, and how each is addressed.
        Some(host) => builder.with_url(format!("abfss://{}@{host}", root.bucket())),
        None => builder.with_container_name(root.bucket()),
    };
    if wants_http(settings) {
        builder = builder.with_allow_http(true);
    }
    let store = builder.clone().with_retry(retries(settings)).build()?;
    let creator = builder.with_credentials(store.credentials().clone()).with_retry(no_retries()).build()?;
    Ok(Clients { creator: Arc::new(creator), store: Arc::new(store) })
}

/// An endpoint that is written `http://` is meant so, unless `allow_http` says otherwise.
fn wants_http(settings: &Settings) -> bool {
    let endpoints = ["aws_endpoint", "aws_endpoint_url_s3", "google_base_url", "azure_storage_endpoint"];
    !settings.values.contains_key("allow_http")
        && endpoints
            .iter()
            .filter_map(|key| settings.values.get(*key))
            .any(|endpoint| endpoint.starts_with("http://"))
}

fn retries(settings: &Settings) -> RetryConfig {
    let defaults = RetryConfig::default();
    RetryConfig {
        max_retries: settings.max_retries.unwrap_or(defaults.max_retries),
        retry_timeout: settings.retry_timeout.unwrap_or(defaults.retry_timeout),
        ..defaults
    }
}

fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

#[cfg(test)]
mod tests;
