use super::*;
use trinitylake_base::error::Result;

const REQUEST: Request = Request { verb: "create", uri: "file:///lake/a", path: "a" };

#[cfg(unix)]
fn local(verb: &'static str, code: i32) -> Error {
    Request { verb, ..REQUEST }.local_failure(&std::io::Error::from_raw_os_error(code))
}

/// If a disk is full, read-only or denies permission, the error has the right kind and names the file and the cause
/// (failure mode 32).
#[cfg(unix)]
#[test]
fn the_error_of_a_disk_names_the_file_and_the_cause() {
    for (code, denied, reason) in [
        (13, true, "denies permission"),
        (1, true, "denies permission"),
        (30, true, "mounted read-only"),
        (28, false, "no space is left"),
        (122, false, "quota is used up"),
        (27, false, "files this large"),
        (5, false, "Input/output error"),
    ] {
        let error = local("create", code);
        match &error {
            Error::PermissionDenied(_) => assert!(denied, "{error}"),
            Error::Storage { retryable: false, .. } => assert!(!denied && code == 5, "{error}"),
            Error::StorageRefused(_) => assert!(!denied && code != 5, "{error}"),
            other => panic!("{other:?}"),
        }
        let message = error.to_string();
        assert!(message.contains(reason) && message.contains("cannot create file:///lake/a"), "{message}");
    }
    for code in [23, 24, 4, 116] {
        assert!(matches!(local("create", code), Error::Storage { retryable: true, .. }), "{code}");
    }
    assert!(matches!(local("read", 36), Error::InvalidLocation(_)));
}

#[cfg(unix)]
#[test]
fn a_missing_path_is_not_found_for_readers_and_refused_for_writers() {
    for code in [2, 20, 21] {
        assert!(matches!(local("read", code), Error::FileNotFound { path } if path == "a"), "{code}");
        assert!(matches!(local("create", code), Error::StorageRefused(_)), "{code}");
    }
}

#[test]
fn secrets_are_redacted_from_messages() {
    let mut secrets = Secrets::default();
    secrets.add("canary-long");
    secrets.add("canary");
    secrets.add("abc");
    secrets.add(r#"{"type": "service_account", "private_key": "PRIVATE canary key", "list": ["hidden"], "n": 1}"#);
    assert_eq!(
        secrets.redact("abc canary-long canary PRIVATE canary key hidden"),
        "abc *** *** *** ***",
        "short values stay, long ones are replaced first"
    );
    assert_eq!(secrets.redact("nothing"), "nothing");
    assert_eq!(format!("{secrets:?}"), "Secrets(6)");
}

#[test]
fn a_message_never_repeats_a_url() {
    let source: Box<dyn std::error::Error + Send + Sync> =
        "sending https://account/container/blob?sig=canary failed (https://other?token=canary) x".into();
    let error = object_store::Error::Generic { store: "test", source };
    let message = REQUEST.store_failure(&error, &Secrets::default()).to_string();
    assert!(!message.contains("canary"), "{message}");
    assert!(message.contains("sending (URL) failed ((URL)) x"), "{message}");
}

#[test]
fn long_messages_of_a_store_are_cut() {
    let source: Box<dyn std::error::Error + Send + Sync> = "ü".repeat(5000).into();
    let error = object_store::Error::Generic { store: "test", source };
    let message = REQUEST.store_failure(&error, &Secrets::default()).to_string();
    assert!(message.chars().count() < 400, "{message}");
}

#[test]
fn xml_is_read_as_far_as_needed() {
    let body = "<?xml?><Error><Code> NoSuchBucket\n</Code><Message>a > b</Message></Error>";
    assert_eq!(element(body, "Code").as_deref(), Some("NoSuchBucket"));
    assert_eq!(element(body, "Message").as_deref(), Some("a > b"));
    for body in ["", "<Code>", "</Code><Code>", "{\"code\": 1}", "<Code/>"] {
        assert_eq!(element(body, "Code"), None, "{body}");
    }
}

#[test]
fn kinds_of_the_client_keep_their_meaning() {
    use object_store::Error as Store;
    let source = || -> Box<dyn std::error::Error + Send + Sync> { "why".into() };
    let path = || "a".to_owned();
    let kind = |verb, error: Store| -> Result<()> {
        Err(Request { verb, ..REQUEST }.store_failure(&error, &Secrets::default()))
    };
    let not_found = || Store::NotFound { path: path(), source: source() };
    assert!(matches!(kind("read", not_found()), Err(Error::FileNotFound { .. })));
    let denied = Store::PermissionDenied { path: path(), source: source() };
    assert!(matches!(kind("read", denied), Err(Error::PermissionDenied(_))));
    let unauthenticated = Store::Unauthenticated { path: path(), source: source() };
    assert!(matches!(kind("read", unauthenticated), Err(Error::PermissionDenied(_))));
    let not_supported = Store::NotSupported { source: source() };
    assert!(matches!(kind("create", not_supported), Err(Error::StorageRefused(_))));
}

#[test]
fn missing_credentials_are_not_reported_as_a_missing_bucket() {
    for answer in ["HTTP error: connection refused", "Server returned non-2xx status code: 403 Forbidden: "] {
        let text = format!("Error performing PUT http://169.254.169.254/latest/api/token in 1s - {answer}");
        let error = object_store::Error::Generic { store: "S3", source: text.into() };
        let error = REQUEST.store_failure(&error, &Secrets::default());
        assert!(matches!(error, Error::PermissionDenied(_)), "{error:?}");
        assert!(error.to_string().contains("no credentials were found"), "{error}");
    }
}
