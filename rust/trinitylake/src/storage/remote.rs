//! The clients of the remote stores, made from a root, the storage options and the environment.
//!
//! Options win over environment variables (`AWS_…`, `GOOGLE_…`, `AZURE_…`), the root wins over both.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ClientConfigKey, RetryConfig};

use super::failure::Secrets;
use super::object::ObjectStorage;
use super::options::{Settings, is_secret};
use crate::error::{Error, Result};
use crate::location::{RootUri, Scheme};

/// Two clients on the bucket of the root.
pub(crate) fn connect(root: &RootUri, settings: Settings) -> Result<ObjectStorage> {
    let mut secrets = Secrets::default();
    for (key, value) in &settings.values {
        if is_secret(key) {
            secrets.add(value);
        }
    }
    let built = match root.scheme() {
        Scheme::S3 => s3(root, &settings, &mut secrets),
        Scheme::Gcs => gcs(root, &settings, &mut secrets),
        Scheme::Azure => azure(root, &settings, &mut secrets),
        Scheme::File | Scheme::Memory => {
            return Err(Error::InvalidLocation(format!("{root} does not lie in a remote store")));
        }
    };
    let (creator, store) = built.map_err(|error| {
        let reason = secrets.redact(&error.to_string());
        Error::InvalidArgument(format!("cannot open {root}: {reason}; check the storage options"))
    })?;
    Ok(ObjectStorage::remote(root, creator, store, secrets))
}

type Clients = (Arc<dyn object_store::ObjectStore>, Arc<dyn object_store::ObjectStore>);

fn s3(root: &RootUri, settings: &Settings, secrets: &mut Secrets) -> object_store::Result<Clients> {
    let mut builder = AmazonS3Builder::from_env();
    for (key, value) in &settings.values {
        builder = builder.with_config(key.parse::<AmazonS3ConfigKey>()?, value);
    }
    for key in [AmazonS3ConfigKey::SecretAccessKey, AmazonS3ConfigKey::Token] {
        secrets.add(&builder.get_config_value(&key).unwrap_or_default());
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
    let endpoints = [AmazonS3ConfigKey::Endpoint, AmazonS3ConfigKey::S3Endpoint]
        .map(|key| builder.get_config_value(&key));
    if wants_http(settings, &endpoints) {
        builder = builder.with_allow_http(true);
    }
    let store = builder.clone().with_retry(retries(settings)).build()?;
    // The same credentials, fetched with retries: only the creation itself is sent once.
    let creator = builder.with_credentials(store.credentials().clone()).with_retry(no_retries()).build()?;
    Ok((Arc::new(creator), Arc::new(store)))
}

fn gcs(root: &RootUri, settings: &Settings, secrets: &mut Secrets) -> object_store::Result<Clients> {
    let mut builder = GoogleCloudStorageBuilder::from_env();
    for (key, value) in &settings.values {
        builder = builder.with_config(key.parse::<GoogleConfigKey>()?, value);
    }
    for key in [GoogleConfigKey::ServiceAccountKey, GoogleConfigKey::BearerToken] {
        secrets.add(&builder.get_config_value(&key).unwrap_or_default());
    }
    builder = builder.with_bucket_name(root.bucket());
    if wants_http(settings, &[builder.get_config_value(&GoogleConfigKey::BaseUrl)]) {
        builder = builder.with_config(GoogleConfigKey::Client(ClientConfigKey::AllowHttp), "true");
    }
    let store = builder.clone().with_retry(retries(settings)).build()?;
    let creator = builder.with_credentials(store.credentials().clone()).with_retry(no_retries()).build()?;
    Ok((Arc::new(creator), Arc::new(store)))
}

fn azure(root: &RootUri, settings: &Settings, secrets: &mut Secrets) -> object_store::Result<Clients> {
    let mut builder = MicrosoftAzureBuilder::from_env();
    for (key, value) in &settings.values {
        builder = builder.with_config(key.parse::<AzureConfigKey>()?, value);
    }
    let keys = [
        AzureConfigKey::AccessKey,
        AzureConfigKey::ClientSecret,
        AzureConfigKey::SasKey,
        AzureConfigKey::Token,
    ];
    for key in keys {
        secrets.add(&builder.get_config_value(&key).unwrap_or_default());
    }
    builder = match root.account_host() {
        // The client knows which hosts are accounts, and how each is addressed.
        Some(host) => builder.with_url(format!("abfss://{}@{host}", root.bucket())),
        None => builder.with_container_name(root.bucket()),
    };
    if wants_http(settings, &[builder.get_config_value(&AzureConfigKey::Endpoint)]) {
        builder = builder.with_allow_http(true);
    }
    let store = builder.clone().with_retry(retries(settings)).build()?;
    let creator = builder.with_credentials(store.credentials().clone()).with_retry(no_retries()).build()?;
    Ok((Arc::new(creator), Arc::new(store)))
}

/// An endpoint that is written `http://` is meant so, unless `allow_http` says otherwise.
fn wants_http(settings: &Settings, endpoints: &[Option<String>]) -> bool {
    !settings.values.contains_key("allow_http")
        && endpoints.iter().flatten().any(|endpoint| endpoint.starts_with("http://"))
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
