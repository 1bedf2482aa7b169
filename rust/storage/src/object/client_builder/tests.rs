use std::collections::HashMap;

use bytes::Bytes;

use super::*;
use crate::tests::{FakeServer, Response};
use crate::{Durability, Storage, open};

const CANARY: &str = "cAnArYsEcReT";

fn connect_to(root: &str, pairs: &[(&str, &str)]) -> Result<Arc<dyn Storage>> {
    let options: HashMap<String, String> =
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    open(&RootUri::parse(root).unwrap(), &options, Durability::Fsync)
}

fn refusal(root: &str, pairs: &[(&str, &str)]) -> String {
    match connect_to(root, pairs) {
        Err(Error::InvalidArgument(message)) => message,
        other => panic!("{root} {pairs:?} gave {other:?}"),
    }
}

/// Sends some requests. The tests check what each store receives, and that errors contain no secret.
async fn touch(storage: &dyn Storage) -> String {
    let mut shown = format!("{storage:?}");
    shown += &format!("{:?}", storage.put_if_absent("folder/a b", Bytes::from_static(b"x")).await);
    shown += &format!("{:?}", storage.get("folder/a b").await);
    shown += &format!("{:?}", storage.list("folder/").await);
    shown
}

#[tokio::test]
async fn gcs_creations_require_generation_zero() {
    let server = FakeServer::start(|_| Response::new(412, ""));
    let key = format!(
        r#"{{"gcs_base_url": "{}", "disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": "{CANARY}"}}"#,
        server.endpoint
    );
    let storage = connect_to("gs://bucket/lake", &[("service_account_key", &key), ("max_retries", "0")]).unwrap();
    let shown = touch(&*storage).await;
    assert!(shown.contains("AlreadyExists") && !shown.contains(CANARY), "{shown}");
    let requests = server.requests();
    assert_eq!((requests[0].method.as_str(), requests[0].path.as_str()), ("PUT", "/bucket/lake/folder/a b"));
    assert_eq!(requests[0].headers["x-goog-if-generation-match"], "0");
}

#[tokio::test]
async fn azure_creations_require_no_match_and_errors_hide_the_token() {
    let server = FakeServer::start(|request| {
        Response::new(400, format!("<Error><Code>Odd</Code><Message>{:?}</Message></Error>", request.query))
    });
    let sas = format!("sv=2024-01-01&ss=b&sig={CANARY}%3D");
    let options = [
        ("account_name", "account"),
        ("sas_token", sas.as_str()),
        ("endpoint", &server.endpoint),
        ("max_retries", "0"),
    ];
    for root in ["az://container/lake", "abfs://container/lake"] {
        let storage = connect_to(root, &options).unwrap();
        let shown = touch(&*storage).await;
        assert!(shown.contains("Odd"), "{shown}");
        assert!(!shown.contains(CANARY), "{shown}");
    }
    let requests = server.requests();
    assert_eq!(requests[0].path, "/container/lake/folder/a b");
    assert_eq!(requests[0].headers["if-none-match"], "*");
    assert_eq!(requests[0].query["sig"], format!("{CANARY}="), "the token was sent");
}

#[tokio::test]
async fn an_unreachable_azure_hides_the_token() {
    let sas = format!("?sv=2024-01-01&sig={CANARY}%3D");
    let options = [
        ("account_name", "account"),
        ("sas_token", sas.as_str()),
        ("endpoint", "http://127.0.0.1:1"),
        ("max_retries", "0"),
    ];
    let shown = touch(&*connect_to("az://container", &options).unwrap()).await;
    assert!(shown.contains("Connection refused") && !shown.contains(CANARY), "{shown}");
}

#[test]
fn azure_accounts_are_found_in_the_root_or_the_options() {
    let key = [("account_key", "c2VjcmV0")];
    connect_to("abfss://container@account.dfs.core.windows.net/lake", &key).unwrap();
    connect_to("abfss://container@account.blob.core.windows.net/lake", &key).unwrap();
    connect_to("abfss://container@account.dfs.fabric.microsoft.com/lake", &key).unwrap();
    let message = refusal("az://container/lake", &key);
    assert!(message.contains("cannot open az://container/lake/") && message.contains("ccount"), "{message}");
    refusal("abfss://container@host.example.com/lake", &key);
}

#[test]
fn an_invalid_value_is_refused_without_its_secret() {
    refusal("s3://bucket", &[("allow_http", "perhaps")]);
    refusal("s3://bucket", &[("timeout", "soon")]);
    for (root, options) in [
        ("gs://bucket", &[("service_account_key", CANARY)][..]),
        ("gs://bucket", &[("service_account_key", "\"cAnArYsEcReT\"")]),
        ("gs://bucket", &[("service_account_key", "{\"private_key\": \"cAnArYsEcReT\"}")]),
        ("gs://bucket", &[("service_account_key", "{\"private_key\": \"cAnArYsEcReT\", \"client_email\": 1}")]),
        ("az://c", &[("account_name", "a"), ("account_key", "cAnArYsEcReT!")]),
        ("az://c", &[("account_name", "a"), ("sas_token", "cAnArYsEcReT")]),
        ("s3://bucket", &[("proxy_url", "http://user:cAnArYsEcReT@[")]),
    ] {
        match connect_to(root, options) {
            Ok(storage) => assert!(!format!("{storage:?}").contains(CANARY), "{root} {options:?}"),
            Err(error) => {
                assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
                assert!(!error.to_string().contains(CANARY), "{error}");
            }
        }
    }
}

#[test]
fn an_http_endpoint_needs_no_second_option_but_obeys_it() {
    let settings = |pairs: &[(&str, &str)]| {
        let values = pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Settings { values, ..Settings::default() }
    };
    for key in ["aws_endpoint", "aws_endpoint_url_s3", "google_base_url", "azure_storage_endpoint"] {
        assert!(wants_http(&settings(&[(key, "http://localhost:9000")])));
        assert!(!wants_http(&settings(&[(key, "https://localhost:9000")])));
        assert!(!wants_http(&settings(&[(key, "http://localhost:9000"), ("allow_http", "false")])));
    }
}

#[test]
fn only_creations_are_never_retried() {
    let settings = Settings {
        max_retries: Some(4),
        retry_timeout: Some(std::time::Duration::from_secs(7)),
        ..Settings::default()
    };
    assert_eq!((retries(&settings).max_retries, retries(&settings).retry_timeout.as_secs()), (4, 7));
    assert_eq!(retry_policy(&Settings::default()), RetryPolicy::default());
    assert_eq!(no_retries().max_retries, 0);
}
