use super::*;

fn root(input: &str) -> RootUri {
    RootUri::parse(input).unwrap()
}

fn refusal(input: &str) -> String {
    match RootUri::parse(input) {
        Err(Error::InvalidLocation(message)) => message,
        other => panic!("{input:?} gave {other:?}"),
    }
}

#[cfg(unix)]
#[test]
fn every_spelling_of_a_root_becomes_one_that_ends_in_a_slash() {
    for (input, uri, scheme, bucket, prefix) in [
        ("/data/lake", "file:///data/lake/", Scheme::File, "", "/data/lake/"),
        ("/data/lake/", "file:///data/lake/", Scheme::File, "", "/data/lake/"),
        ("/data//x/./lake", "file:///data/x/lake/", Scheme::File, "", "/data/x/lake/"),
        ("/data/x/../lake", "file:///data/lake/", Scheme::File, "", "/data/lake/"),
        ("/a b/%20#ü", "file:///a b/%20#ü/", Scheme::File, "", "/a b/%20#ü/"),
        ("file:///data/lake", "file:///data/lake/", Scheme::File, "", "/data/lake/"),
        ("file:/data/lake/", "file:///data/lake/", Scheme::File, "", "/data/lake/"),
        ("file://localhost/data/lake", "file:///data/lake/", Scheme::File, "", "/data/lake/"),
        ("FILE:///data/Lake", "file:///data/Lake/", Scheme::File, "", "/data/Lake/"),
        ("memory://name", "memory://name/", Scheme::Memory, "name", ""),
        ("memory://name/a/b", "memory://name/a/b/", Scheme::Memory, "name", "a/b/"),
        ("s3://bucket", "s3://bucket/", Scheme::S3, "bucket", ""),
        ("s3://bucket/", "s3://bucket/", Scheme::S3, "bucket", ""),
        ("S3A://bucket/lake", "s3://bucket/lake/", Scheme::S3, "bucket", "lake/"),
        ("s3://my.bucket--x-s3/a%2Fb", "s3://my.bucket--x-s3/a%2Fb/", Scheme::S3, "my.bucket--x-s3", "a%2Fb/"),
        ("gs://bucket/lake", "gs://bucket/lake/", Scheme::Gcs, "bucket", "lake/"),
        ("az://container/lake", "az://container/lake/", Scheme::Azure, "container", "lake/"),
        ("abfs://container/lake", "abfss://container/lake/", Scheme::Azure, "container", "lake/"),
        (
            "abfss://container@account.dfs.core.windows.net/lake",
            "abfss://container@account.dfs.core.windows.net/lake/",
            Scheme::Azure,
            "container",
            "lake/",
        ),
    ] {
        let root = root(input);
        assert_eq!(root.as_str(), uri, "{input}");
        assert_eq!((root.scheme(), root.bucket(), root.prefix()), (scheme, bucket, prefix), "{input}");
        assert_eq!(RootUri::parse(root.as_str()).unwrap(), root, "{input} is not stable");
        assert_eq!(root.to_string(), uri);
    }
    let azure = root("abfss://container@account.dfs.core.windows.net");
    assert_eq!(azure.account_host(), Some("account.dfs.core.windows.net"));
    assert_eq!(root("az://container").account_host(), None);
}

#[cfg(unix)]
#[test]
fn a_relative_folder_is_made_absolute() {
    let here = std::env::current_dir().unwrap().canonicalize().unwrap();
    let here = here.to_str().unwrap();
    for input in ["lake", "./lake", "absent/../lake", "./lake/."] {
        assert_eq!(root(input).as_str(), format!("file://{here}/lake/"), "{input}");
    }
    assert_eq!(root(".").as_str(), format!("file://{here}/"));
}

#[cfg(unix)]
#[test]
fn the_parent_of_a_link_is_that_of_its_target() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    std::fs::create_dir_all(folder.join("real/inner")).unwrap();
    std::os::unix::fs::symlink(folder.join("real/inner"), folder.join("link")).unwrap();
    let input = format!("{}/link/../lake", folder.display());
    assert_eq!(root(&input).as_str(), format!("file://{}/real/lake/", folder.display()));
}

#[cfg(unix)]
#[test]
fn a_refused_root_names_the_reason() {
    for (input, reason) in [
        ("", "empty"),
        ("/", "root folder of the machine"),
        ("file:///", "root folder of the machine"),
        ("~/lake", "not expanded"),
        ("hdfs://host/lake", "cannot read HDFS"),
        ("http://host/lake", "the scheme `http` is not one of file, memory, s3"),
        ("s3:bucket/lake", "starts with `s3://`"),
        ("s3:///lake", "has no bucket"),
        ("memory://", "has no name"),
        ("az:///x", "has no container"),
        ("file://host/lake", "absolute path of this machine"),
        ("file:////lake", "empty segment"),
        ("s3://bucket//lake", "empty segment"),
        ("s3://bucket/lake//", "empty segment"),
        ("s3://bucket/a/../lake", "the segment `..`"),
        ("s3://bucket/./lake", "the segment `.`"),
        ("file:///a/../lake", "the segment `..`"),
        ("s3://..", "contains an invalid character"),
        ("s3://bucket:9000/lake", "contains an invalid character"),
        ("s3://bucket/a\nb", "control character '\\n'"),
        ("/data\0", "control character '\\0'"),
    ] {
        let message = refusal(input);
        assert!(message.contains(reason), "{input:?}: {message}");
        assert!(!message.contains(['\n', '\0']), "{message:?}");
    }
}

#[test]
fn a_refused_root_does_not_repeat_a_credential() {
    for input in [
        "s3://KEY:canary@bucket/lake",
        "s3://canary@bucket/lake",
        "az://container/lake?sv=2024&sig=canary",
        "az://user:canary@account.dfs.core.windows.net/lake",
        "gs://bucket/lake#canary",
        "https://user:canary@host/lake?sig=canary",
        "hdfs://user:canary@host/lake",
    ] {
        let message = refusal(input);
        assert!(!message.contains("canary"), "{message}");
    }
}

#[test]
fn a_path_is_relative_and_plain() {
    for path in ["a", "a/b", "_expired/0", "a b", "a\\b", "...", "..a", "%2e%2e", "~", "a:b", "日本", "s3:x"] {
        check_path(path).unwrap();
    }
    for (path, reason) in [
        ("", "empty"),
        ("/a", "never starts with `/`"),
        ("a/", "empty segment"),
        ("a//b", "empty segment"),
        (".", "segment `.`"),
        ("a/..", "segment `..`"),
        ("../a", "segment `..`"),
        ("a/./b", "segment `.`"),
        ("a\0", "control character"),
        ("a\u{7f}", "control character"),
    ] {
        let Err(Error::InvalidLocation(message)) = check_path(path) else { panic!("{path:?}") };
        assert!(message.contains(reason), "{path:?}: {message}");
    }
}

#[test]
fn join_and_relativize_are_inverse() {
    for uri in ["/data/lake", "memory://m", "s3://b", "s3://b/lake", "gs://b/l", "abfss://c@a.dfs.core.windows.net/l"] {
        let root = root(uri);
        for path in ["file", "a/b/c", "ü ?#%20", "a\\b"] {
            assert_eq!(root.relativize(&root.join(path)).as_deref(), Some(path), "{uri} {path}");
        }
    }
}

#[cfg(unix)]
#[test]
fn equal_spellings_are_inside_and_similar_prefixes_are_not() {
    let local = root("/data/lake");
    for uri in [
        "file:///data/lake/a/b",
        "file:/data/lake/a/b",
        "file://localhost/data/lake/a/b",
        "/data/lake/a/b",
        "FILE:///data/lake/a/b",
    ] {
        assert_eq!(local.relativize(uri).as_deref(), Some("a/b"), "{uri}");
    }
    for uri in [
        "file:///data/lake",
        "file:///data/lake/",
        "file:///data/lake2/a",
        "file:///data/lake/../lake/a",
        "file:///data/lake/a//b",
        "file:///data/lake//a",
        "file://host/data/lake/a",
        "file://localhostdata/lake/a",
        "data/lake/a",
        "s3://data/lake/a",
        "memory://data/lake/a",
    ] {
        assert_eq!(local.relativize(uri), None, "{uri}");
    }
    let remote = root("s3a://bucket/lake");
    for uri in ["s3://bucket/lake/a", "s3a://bucket/lake/a", "s3n://bucket/lake/a", "S3://bucket/lake/a"] {
        assert_eq!(remote.relativize(uri).as_deref(), Some("a"), "{uri}");
    }
    for uri in
        ["s3://bucket/lake2/a", "s3://bucket2/lake/a", "s3://bucket", "gs://bucket/lake/a", "/bucket/lake/a", "lake/a"]
    {
        assert_eq!(remote.relativize(uri), None, "{uri}");
    }
    assert_eq!(root("gs://bucket").relativize("gcs://bucket/lake/a").as_deref(), Some("lake/a"));
    assert_eq!(root("s3://bucket").relativize("s3://bucket/lake/a").as_deref(), Some("lake/a"));
    let azure = root("abfs://c@a.dfs.core.windows.net/l");
    assert_eq!(azure.relativize("abfss://c@a.dfs.core.windows.net/l/x").as_deref(), Some("x"));
    assert_eq!(azure.relativize("abfss://c@b.dfs.core.windows.net/l/x"), None);
}

proptest::proptest! {
    #[test]
    fn no_parsed_path_leaves_the_root_or_panics(input in "(s3://b/|file:///|/|memory://|az://)?[a./~:@?#%\\\\-]{0,12}", path in "[a./\\\\]{0,8}") {
        if let Ok(root) = RootUri::parse(&input) {
            proptest::prop_assert!(root.as_str().ends_with('/'));
            proptest::prop_assert_eq!(RootUri::parse(root.as_str()).unwrap(), root.clone());
            let inside = root.relativize(&root.join(&path));
            proptest::prop_assert_eq!(inside.is_some(), check_path(&path).is_ok());
        }
    }
}

/// A local root is the same through a symbolic link and by its real path. Otherwise one folder would seem to be two
/// lakehouses, and a table in one could use files of the other.
#[cfg(unix)]
#[test]
fn a_link_to_a_folder_is_resolved() {
    let folder = tempfile::tempdir().unwrap();
    let real = folder.path().canonicalize().unwrap();
    std::fs::create_dir(real.join("real")).unwrap();
    std::os::unix::fs::symlink(real.join("real"), real.join("link")).unwrap();
    let through_link = RootUri::parse(real.join("link/lake").to_str().unwrap()).unwrap();
    let direct = RootUri::parse(&format!("file://{}", real.join("real/lake").display())).unwrap();
    assert_eq!(through_link, direct);
    let literal = RootUri::parse_literally(&format!("file://{}", real.join("link/lake").display())).unwrap();
    assert_ne!(literal, direct, "a recorded root is not looked up on this machine");
}

/// All paths of the lakehouse that a more tolerant program may read for a URI are returned. Otherwise a file in the
/// lakehouse would be treated as external, although such a program reads it.
#[cfg(unix)]
#[test]
fn paths_that_tolerant_readers_may_read_are_found() {
    let lake = root("file:///data/lake");
    for uri in [
        "file:///data/lake/t//f",
        "file:////data/lake/t/f",
        "//data/lake/./t/f",
        "/data/lake/x/../t/f?a=1",
        "/data//lake/t/f#a",
    ] {
        assert!(lake.meant_by(uri).iter().any(|path| path == "t/f"), "{uri}: {:?}", lake.meant_by(uri));
    }
    for uri in ["/data/lake2/t//f", "s3://data/lake/t/f", "/data/lake/../t/f", "file:///data/lake//"] {
        assert!(!lake.meant_by(uri).iter().any(|path| path == "t/f"), "{uri}: {:?}", lake.meant_by(uri));
    }
    assert_eq!(root("memory://name").meant_by("memory://name//t/./f"), ["/t/./f", "t/f"]);
}

#[cfg(windows)]
#[test]
fn a_local_root_on_windows_has_a_drive() {
    for input in [r"C:\data\lake", "C:/data/lake/", "file:///C:/data/lake", r"C:\data\other\..\lake"] {
        let root = RootUri::parse(input).unwrap();
        assert_eq!(root.as_str(), "file:///C:/data/lake/", "{input}");
        assert_eq!(root.local_path(), std::path::Path::new(r"C:\data\lake"), "{input}");
        assert_eq!(root.relativize("file:///C:/data/lake/a/b").as_deref(), Some("a/b"));
        assert_eq!(root.relativize("file:///D:/data/lake/a/b"), None);
    }
    for input in [r"\\server\share\lake", "file:///data/lake", r"C:\"] {
        assert!(RootUri::parse(input).is_err(), "{input}");
    }
}
