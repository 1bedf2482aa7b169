use super::other_clients::{S3Settings, iceberg_properties};
use super::spellings::{
    AZURE_ALIASES, AZURE_NAMES, COMMON, GCS_ALIASES, GCS_NAMES, S3_ALIASES, S3_NAMES, edit_distance,
};
use super::*;

fn resolve_pairs(scheme: Scheme, pairs: &[(&str, &str)]) -> Result<Settings> {
    let options = pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    resolve(scheme, &options)
}

fn values(scheme: Scheme, pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    resolve_pairs(scheme, pairs).unwrap().values.into_iter().collect()
}

fn refusal(scheme: Scheme, pairs: &[(&str, &str)]) -> String {
    match resolve_pairs(scheme, pairs) {
        Err(Error::InvalidArgument(message)) => message,
        Err(other) => panic!("{pairs:?} gave {other:?}"),
        Ok(settings) => panic!("{pairs:?} gave {:?}", settings.values),
    }
}

#[test]
fn every_dialect_means_the_same() {
    for (scheme, key, names) in [
        (
            Scheme::S3,
            "aws_access_key_id",
            &[
                "aws_access_key_id",
                "AWS_ACCESS_KEY_ID",
                "access_key_id",
                "s3.access-key-id",
                "client.access-key-id",
                "key",
            ][..],
        ),
        (
            Scheme::S3,
            "aws_secret_access_key",
            &["secret_access_key", "s3.secret-access-key", "client.secret-access-key", "secret"],
        ),
        (Scheme::S3, "aws_session_token", &["session_token", "token", "s3.session-token", "client.session-token"]),
        (Scheme::S3, "aws_region", &["region", "AWS_REGION", "s3.region", "client.region"]),
        (Scheme::S3, "aws_endpoint", &["endpoint", "endpoint_url", "aws_endpoint_url", "s3.endpoint"]),
        (Scheme::Gcs, "google_bearer_token", &["bearer_token", "gcs.oauth2.token"]),
        (Scheme::Gcs, "google_base_url", &["base_url", "gcs.service.host"]),
        (Scheme::Azure, "azure_storage_account_name", &["account_name", "adls.account-name"]),
        (Scheme::Azure, "azure_storage_account_key", &["account_key", "adls.account-key", "access_key"]),
        (Scheme::Azure, "azure_storage_sas_key", &["sas_token", "sas_key", "adls.sas-token"]),
        (Scheme::Azure, "azure_storage_client_secret", &["client_secret", "adls.client-secret"]),
        (Scheme::Azure, "azure_storage_token", &["token", "bearer_token", "adls.token"]),
    ] {
        for name in names {
            assert_eq!(values(scheme, &[(name, "x")]), [(key.to_owned(), "x".to_owned())], "{name}");
        }
    }
}

#[test]
fn every_alias_is_a_setting_of_the_client() {
    for (scheme, aliases, names) in [
        (Scheme::S3, S3_ALIASES, S3_NAMES),
        (Scheme::Gcs, GCS_ALIASES, GCS_NAMES),
        (Scheme::Azure, AZURE_ALIASES, AZURE_NAMES),
    ] {
        for (alias, name, _) in aliases {
            assert!(translate(scheme, alias).is_some(), "{alias}");
            assert!(translate(scheme, name).is_some(), "{name}");
        }
        for name in names.iter().chain(COMMON).filter(|name| ![MAX_RETRIES, RETRY_TIMEOUT].contains(*name)) {
            assert!(translate(scheme, name).is_some(), "{name}");
        }
    }
}

#[test]
fn values_are_converted() {
    let value = |scheme, name, value| values(scheme, &[(name, value)]).remove(0).1;
    assert_eq!(value(Scheme::S3, "s3.path-style-access", "true"), "false");
    assert_eq!(value(Scheme::S3, "s3.path-style-access", "False"), "true");
    assert_eq!(value(Scheme::S3, "s3.force-virtual-addressing", "true"), "true");
    assert_eq!(value(Scheme::S3, "timeout", "30"), "30000ms");
    assert_eq!(value(Scheme::S3, "s3.connect-timeout", "0.5"), "500ms");
    assert_eq!(value(Scheme::Gcs, "connect_timeout", "2 minutes"), "2 minutes");
    let host = "account.blob.core.windows.net";
    assert_eq!(value(Scheme::Azure, "adls.account-host", host), format!("https://{host}"));
    assert!(refusal(Scheme::S3, &[("s3.path-style-access", "maybe")]).contains("`true` or `false`"));
    let settings = resolve_pairs(Scheme::S3, &[("max_retries", "3"), ("retry_timeout", "1.5s")]).unwrap();
    assert_eq!((settings.max_retries, settings.retry_timeout), (Some(3), Some(Duration::from_millis(1500))));
    for (name, value) in [("max_retries", "-1"), ("retry_timeout", "soon"), ("retry_timeout", "-2")] {
        assert!(refusal(Scheme::S3, &[(name, value)]).contains(name));
    }
}

#[test]
fn an_unknown_option_is_refused_with_similar_names() {
    for (scheme, name, proposal) in [
        (Scheme::S3, "acess_key_id", "`access_key_id`"),
        (Scheme::S3, "aws_secret_acces_key", "`secret_access_key`"),
        (Scheme::S3, "s3.acces-key-id", "`s3.access-key-id`"),
        (Scheme::S3, "endpont", "`endpoint`"),
        (Scheme::S3, "time_out", "`timeout`"),
        (Scheme::Gcs, "service_acount_key", "`service_account_key`"),
        (Scheme::Azure, "azure_storage_acount_name", "`account_name`"),
        (Scheme::Memory, "timout", "`timeout`"),
    ] {
        let message = refusal(scheme, &[(name, "canary")]);
        assert!(message.contains(proposal) && message.contains(name), "{message}");
        assert!(!message.contains("canary"), "{message}");
    }
    assert_eq!(refusal(Scheme::S3, &[("xyzzy", "1")]), "`xyzzy` is not a known storage option");
}

#[test]
fn options_of_other_stores_and_readers_are_ignored() {
    for scheme in [Scheme::File, Scheme::Memory, Scheme::Gcs] {
        let pairs = [("s3.access-key-id", "x"), ("adls.sas-token", "y"), ("aws_region", "z"), ("py-io-impl", "w")];
        assert_eq!(values(scheme, &pairs), []);
    }
    assert_eq!(values(Scheme::S3, &[("gcs.project-id", "x"), ("adls.account-name", "y"), ("anon", "true")]).len(), 1);
}

#[test]
fn two_names_of_one_setting_must_agree() {
    values(Scheme::S3, &[("region", "a"), ("s3.region", "a"), ("AWS_REGION", "a")]);
    let message = refusal(Scheme::S3, &[("region", "a"), ("s3.region", "b")]);
    assert!(message.contains("`region` and `s3.region`"), "{message}");
    let message = refusal(Scheme::S3, &[("secret", "canary1"), ("secret_access_key", "canary2")]);
    assert!(!message.contains("canary"), "{message}");
}

#[test]
fn options_cannot_override_the_root_or_the_protocol() {
    for (scheme, name) in [
        (Scheme::S3, "bucket"),
        (Scheme::S3, "AWS_BUCKET_NAME"),
        (Scheme::Gcs, "google_bucket"),
        (Scheme::Azure, "container_name"),
    ] {
        assert!(refusal(scheme, &[(name, "x")]).contains("the root URI names the bucket"), "{name}");
    }
    assert!(refusal(Scheme::S3, &[("conditional_put", "disabled")]).contains("cannot be switched off"));
}

#[test]
fn secrets_are_recognised_by_their_names() {
    for (scheme, names) in [
        (Scheme::S3, &["secret_access_key", "session_token", "sse_customer_key_base64", "proxy_url"][..]),
        (Scheme::Gcs, &["service_account_key", "bearer_token"]),
        (
            Scheme::Azure,
            &["account_key", "client_secret", "sas_token", "token", "fabric_session_token", "encryption_key"],
        ),
    ] {
        for name in names {
            assert!(is_secret(&translate(scheme, name).unwrap().0), "{name}");
        }
    }
    for name in ["access_key_id", "region", "web_identity_token_file", "container_authorization_token_file", "timeout"]
    {
        assert!(!is_secret(&translate(Scheme::S3, name).unwrap().0), "{name}");
    }
    assert!(!is_secret(&translate(Scheme::Gcs, "service_account_path").unwrap().0));
}

#[test]
fn edit_distance_counts_edits() {
    for (left, right, distance) in
        [("", "", 0), ("a", "", 1), ("", "abc", 3), ("kitten", "sitting", 3), ("region", "regoin", 2)]
    {
        assert_eq!(edit_distance(left, right), distance, "{left} {right}");
    }
}

#[test]
fn the_environment_completes_the_options() {
    let after = |scheme, pairs: &[(&str, &str)], variables: &[(&str, &str)]| {
        let mut settings = resolve_pairs(scheme, pairs).unwrap();
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        settings.add_environment(scheme, variables);
        settings.values.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    };
    let variables = [
        ("AWS_ACCESS_KEY_ID", "env"),
        ("AWS_SECRET_ACCESS_KEY", "env"),
        ("AWS_SESSION_TOKEN", "env"),
        ("AWS_REGION", "env"),
        ("AWS_ENDPOINT_URL_S3", "env"),
        ("AWS_BUCKET", "env"),
        ("AWS_CONDITIONAL_PUT", "disabled"),
        ("AWS_PROFILE", "env"),
        ("REGION", "env"),
        ("GOOGLE_BUCKET", "env"),
        ("GOOGLE_SERVICE_ACCOUNT", "env"),
        ("AZURE_STORAGE_SAS_TOKEN", "env"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "env"),
        ("IDENTITY_ENDPOINT", "env"),
    ];
    assert_eq!(
        after(Scheme::S3, &[], &variables),
        "aws_access_key_id=env aws_endpoint_url_s3=env aws_region=env aws_secret_access_key=env aws_session_token=env"
    );
    // With an access key in the options, the session token of the environment is not used. An endpoint in the options
    // is not replaced by the environment.
    assert_eq!(
        after(Scheme::S3, &[("key", "k"), ("secret", "s"), ("endpoint", "e")], &variables),
        "aws_access_key_id=k aws_endpoint=e aws_region=env aws_secret_access_key=s"
    );
    assert_eq!(
        after(Scheme::S3, &[("anon", "true"), ("region", "r")], &variables[..4]),
        "aws_region=r aws_skip_signature=true"
    );
    assert_eq!(after(Scheme::Gcs, &[], &variables), "google_service_account=env");
    assert_eq!(
        after(Scheme::Azure, &[], &variables),
        "azure_msi_endpoint=env azure_storage_account_name=env azure_storage_sas_key=env"
    );
    assert_eq!(
        after(Scheme::Azure, &[("account_key", "k")], &variables),
        "azure_storage_account_key=k azure_storage_account_name=env"
    );
    assert_eq!(after(Scheme::File, &[], &variables), "");
}

fn s3_settings(pairs: &[(&str, &str)]) -> S3Settings {
    S3Settings::of(&resolve_pairs(Scheme::S3, pairs).unwrap())
}

fn properties(scheme: Scheme, pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let options = pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    iceberg_properties(scheme, &options).unwrap()
}

/// Every spelling of path-style access has the same effect in all clients. Otherwise requests of some clients would
/// have the bucket in the host name although the option puts it into the path.
#[test]
fn every_spelling_of_path_style_access_reaches_all_clients() {
    let endpoint = ("endpoint", "https://store.example");
    for (name, value, is_bucket_in_host) in [
        ("s3.path-style-access", "false", true),
        ("s3.path-style-access", "true", false),
        ("s3.force-virtual-addressing", "true", true),
        ("s3.force-virtual-addressing", "0", false),
        ("virtual_hosted_style_request", "1", true),
        ("aws_virtual_hosted_style_request", "YES", true),
        ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "off", false),
    ] {
        let pairs = [endpoint, (name, value)];
        assert_eq!(s3_settings(&pairs).is_bucket_in_host, is_bucket_in_host, "{name}={value}");
        let answer = &properties(Scheme::S3, &pairs)["s3.path-style-access"];
        assert_eq!(*answer, (!is_bucket_in_host).to_string(), "{name}={value}");
    }
    assert!(!s3_settings(&[endpoint]).is_bucket_in_host);
    assert_eq!(properties(Scheme::S3, &[endpoint])["s3.path-style-access"], "true");
    assert!(!properties(Scheme::S3, &[("region", "eu-west-1")]).contains_key("s3.path-style-access"), "AWS itself");
}

#[test]
fn other_clients_receive_the_same_settings() {
    let settings = s3_settings(&[
        ("key", "id"),
        ("client.secret-access-key", "secret"),
        ("token", "session"),
        ("default_region", "eu-west-1"),
        ("endpoint_url", "http://localhost:9000"),
    ]);
    let text = |text: &str| Some(text.to_string());
    let expected = S3Settings {
        access_key_id: text("id"),
        secret_access_key: text("secret"),
        session_token: text("session"),
        region: text("eu-west-1"),
        endpoint: text("http://localhost:9000"),
        is_bucket_in_host: false,
    };
    assert_eq!(settings, expected);

    for (scheme, option, property) in [
        (Scheme::S3, "aws_access_key_id", "s3.access-key-id"),
        (Scheme::S3, "secret", "s3.secret-access-key"),
        (Scheme::S3, "session_token", "s3.session-token"),
        (Scheme::S3, "s3.region", "client.region"),
        (Scheme::S3, "aws_default_region", "client.region"),
        (Scheme::S3, "s3.connect-timeout", "s3.connect-timeout"),
        (Scheme::Gcs, "bearer_token", "gcs.oauth2.token"),
        (Scheme::Gcs, "base_url", "gcs.service.host"),
        (Scheme::Azure, "account_name", "adls.auth.shared-key.account.name"),
        (Scheme::Azure, "adls.account-key", "adls.auth.shared-key.account.key"),
        (Scheme::Azure, "bearer_token", "adls.token"),
    ] {
        assert_eq!(properties(scheme, &[(option, "1")])[property], "1", "{option}");
    }
    assert!(properties(Scheme::File, &[("region", "eu-west-1")]).is_empty());
}
