//! How the answers of a remote store are interpreted. The tests of `storage` check the contents of files.

use std::sync::atomic::{AtomicUsize, Ordering};

use trinitylake_base::environment::testing::TestEnvironment;

use super::*;
use crate::RetryingStorage;
use crate::tests::{FakeServer, Response, s3};

const CANARY: &str = "cAnArY-sEcReT";

fn always(status: u16, code: &'static str, message: &'static str) -> FakeServer {
    FakeServer::start(move |_| Response::error(status, code, message))
}

fn with_store(root: &RootUri, store: Arc<dyn ObjectStore>) -> ObjectStorage {
    ObjectStorage {
        root: root.clone(),
        client: PerProcess::new(move || Ok(store.clone())),
        retry_policy: RetryPolicy::default(),
        secrets: Secrets::default(),
        reach: Arc::default(),
    }
}

fn retryable(error: &Error) -> bool {
    matches!(error, Error::Storage { retryable: true, .. })
}

/// A retried creation that finds the file of its own first attempt looks like a lost race, so creations are not
/// retried.
#[tokio::test]
async fn only_creations_and_hints_are_not_retried() {
    let server = always(503, "SlowDown", "Please reduce your request rate.");
    let client = s3(&server, "s3://bucket/lake", &[]);
    let storage = RetryingStorage::new(client, TestEnvironment::seeded(1));
    let sent = |method: &str| server.requests().iter().filter(|request| request.method == method).count();
    assert!(retryable(&storage.put_if_absent("a", Bytes::new()).await.unwrap_err()));
    assert_eq!(sent("PUT"), 1);
    assert!(retryable(&storage.put_hint("a", Bytes::new()).await.unwrap_err()));
    assert_eq!(sent("PUT"), 2, "a hint is sent once as well");
    assert!(retryable(&storage.put_unique("a", Bytes::new()).await.unwrap_err()));
    assert_eq!(sent("PUT"), 2 + 3);
    assert!(retryable(&storage.get("a").await.unwrap_err()));
    assert_eq!(sent("GET"), 3);
    assert!(retryable(&storage.list("").await.unwrap_err()));
    assert_eq!(sent("GET"), 6);
    assert!(retryable(&storage.exists("a").await.unwrap_err()));
    assert_eq!(sent("HEAD"), 3);
    assert!(retryable(&storage.delete("a").await.unwrap_err()));
    assert_eq!(sent("DELETE"), 3);
    let message = storage.get("a").await.unwrap_err().to_string();
    assert_eq!(message, "cannot read s3://bucket/lake/a: SlowDown: Please reduce your request rate.");
}

#[tokio::test]
async fn a_creation_that_times_out_is_unknown_and_not_retried() {
    let arrived = Arc::new(AtomicUsize::new(0));
    let seen = arrived.clone();
    let server = FakeServer::start(move |_| {
        seen.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(std::time::Duration::from_millis(600));
        Response::new(200, "")
    });
    let storage = s3(&server, "s3://bucket", &[("timeout", "0.1")]);
    let error = storage.put_if_absent("a", Bytes::new()).await.unwrap_err();
    assert!(retryable(&error), "{error:?}");
    assert_eq!(arrived.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_creation_carries_the_condition() {
    let server = FakeServer::s3();
    s3(&server, "s3://bucket", &[]).put_if_absent("a", Bytes::new()).await.unwrap();
    s3(&server, "s3://bucket", &[]).put_hint("b", Bytes::new()).await.unwrap();
    let conditions: Vec<_> =
        server.requests().iter().map(|request| request.headers.get("if-none-match").cloned()).collect();
    assert_eq!(conditions, [Some("*".to_owned()), None]);
}

#[tokio::test]
async fn a_conflict_or_a_failed_precondition_means_that_the_file_exists() {
    for (status, code) in [(412, "PreconditionFailed"), (409, "ConditionalRequestConflict"), (304, "NotModified")] {
        let storage = s3(&always(status, code, ""), "s3://bucket", &[]);
        let outcome = storage.put_if_absent("a", Bytes::new()).await.unwrap();
        assert_eq!(outcome, PutOutcome::AlreadyExists, "{status}");
    }
}

/// If a store refuses a request, for instance because of a missing permission, a wrong region or a missing bucket, the
/// error has the right kind and names the next step (failure mode 32).
#[tokio::test]
async fn a_refusal_has_a_type_and_names_the_next_step() {
    enum Kind {
        Denied,
        Failed,
    }
    use Kind::{Denied, Failed};
    for (status, code, said, kind, message) in [
        (403, "AccessDenied", "Access Denied", Denied, "the store denies permission (AccessDenied: Access Denied)"),
        (403, "InvalidAccessKeyId", "", Denied, "InvalidAccessKeyId"),
        (401, "Unauthorized", "", Denied, "refuses the credentials"),
        (400, "ExpiredToken", "The provided token has expired.", Denied, "refuses the credentials (ExpiredToken"),
        (404, "NoSuchBucket", "", Failed, "the bucket does not exist"),
        (404, "ContainerNotFound", "", Failed, "the bucket does not exist"),
        (301, "PermanentRedirect", "use the other endpoint", Failed, "set the storage option `region`"),
        (
            400,
            "AuthorizationHeaderMalformed",
            "the region 'us-east-1' is wrong; expecting 'eu-west-1'",
            Failed,
            "expecting 'eu-west-1'",
        ),
        (501, "NotImplemented", "A header is not implemented", Failed, "A header is not implemented"),
        (400, "MalformedXML", "", Failed, "MalformedXML"),
    ] {
        let storage = s3(&always(status, code, said), "s3://bucket/lake", &[]);
        for (verb, error) in [
            ("create", storage.put_if_absent("a", Bytes::new()).await.unwrap_err()),
            ("read", storage.get("a").await.unwrap_err()),
            ("list", storage.list("_0").await.unwrap_err()),
        ] {
            match (&kind, &error) {
                (Denied, Error::PermissionDenied(_))
                | (Failed, Error::StorageRefused(_) | Error::Storage { retryable: false, .. }) => {}
                _ => panic!("{status} {code}: {error:?}"),
            }
            let text = error.to_string();
            assert!(text.contains(message), "{status} {code}: {text}");
            assert!(text.starts_with(&format!("cannot {verb} s3://bucket/lake/")), "{text}");
        }
    }
}

/// A 404 without a code means a missing file; after a `PUT`, which needs no file, it means a missing bucket.
#[tokio::test]
async fn a_404_without_a_code_depends_on_the_request() {
    let storage = s3(&FakeServer::start(|_| Response::new(404, "")), "s3://bucket", &[]);
    assert!(storage.get("a").await.unwrap_err().is_file_not_found());
    assert!(!storage.exists("a").await.unwrap());
    storage.delete("a").await.unwrap();
    let message = storage.put_if_absent("a", Bytes::new()).await.unwrap_err().to_string();
    assert!(message.contains("the bucket does not exist"), "{message}");
}

#[tokio::test]
async fn an_unreachable_server_is_retryable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let storage = s3(&FakeServer::s3(), "s3://bucket/lake", &[("endpoint", endpoint.as_str())]);
    for error in [storage.put_if_absent("a", Bytes::new()).await.unwrap_err(), storage.get("a").await.unwrap_err()] {
        assert!(retryable(&error), "{error:?}");
        assert!(error.to_string().contains("Connection refused"), "{error}");
    }
}

#[tokio::test]
async fn a_malformed_answer_is_an_error() {
    let server = FakeServer::start(|_| Response::new(200, "<html>login page</html>"));
    let storage = s3(&server, "s3://bucket", &[]);
    assert!(matches!(storage.head("a").await, Err(Error::Storage { .. })));
}

/// Neither a message nor a debug output contains a secret, even if the answer of a store repeats the request.
#[tokio::test]
async fn no_message_contains_a_secret() {
    let echo = |secret: &str| format!("<Error><Code>Bad{secret}</Code><Message>sent {secret}</Message></Error>");
    for status in [400, 403, 404, 409, 500, 503] {
        let server = FakeServer::start(move |_| Response::new(status, echo(CANARY)));
        let storage =
            s3(&server, "s3://bucket", &[("secret_access_key", CANARY), ("session_token", &format!("t{CANARY}"))]);
        assert!(!format!("{storage:?}").contains(CANARY), "{storage:?}");
        for error in [
            storage.put_if_absent("a", Bytes::new()).await.err(),
            storage.put_hint("a", Bytes::new()).await.err(),
            storage.get("a").await.err(),
            storage.get_range("a", 0..1).await.err(),
            storage.head("a").await.err(),
            storage.list("").await.err(),
            storage.delete("a").await.err(),
        ] {
            let shown = format!("{error:?} {}", error.as_ref().map(Error::to_string).unwrap_or_default());
            assert!(!shown.contains(CANARY), "{status}: {shown}");
        }
    }
}

/// The end of a file on Azure is read without a suffix range, which Azure refuses.
#[tokio::test]
async fn the_end_of_a_file_on_azure_is_read_without_a_range_from_the_end() {
    let root = RootUri::parse("abfss://container@account.dfs.core.windows.net/lake").unwrap();
    let store = Arc::new(InMemory::new());
    let storage = with_store(&root, store);
    storage.put_if_absent("file", Bytes::from_static(b"0123456789")).await.unwrap();
    storage.put_if_absent("empty", Bytes::new()).await.unwrap();
    for (max_size_bytes, expected) in [(3, "789"), (7, "3456789"), (10, "0123456789"), (11, "0123456789")] {
        let end = storage.get_end("file", max_size_bytes).await.unwrap();
        assert_eq!((end.bytes.as_ref(), end.size_bytes), (expected.as_bytes(), 10));
    }
    let end = storage.get_end("empty", 5).await.unwrap();
    assert_eq!((end.bytes.len(), end.size_bytes), (0, 0));
    assert!(matches!(storage.get_end("absent", 5).await, Err(Error::FileNotFound { .. })));
}
