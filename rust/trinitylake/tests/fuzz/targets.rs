//! The decoders, each with samples that it must accept and with the rules that every accepted value must satisfy.

use std::sync::Arc;

use arrow_ipc::CompressionType;
use arrow_ipc::reader::FileReader;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use bytes::Bytes;
use prost::Message as _;
use trinitylake::config::TreeConfig;
use trinitylake::error::Error;
use trinitylake::file_names::{
    LATEST_HINT_PATH, boundary_version, root_path, root_version, transaction_file, transaction_path,
};
use trinitylake::key::{NameSizes, ObjectKind};
use trinitylake::lakehouse_definition::{LakehouseDefinition, proto};
use trinitylake::node::Node;
use trinitylake::node::codec::{Compression, decode, encode};
use trinitylake::node::mutable_node::{Message, MutableNode, Row};
use trinitylake::root_uri::RootUri;
use trinitylake::storage::{Durability, Storage, open};
use trinitylake::transaction_id::check_transaction_id;
use trinitylake::version::discovery::read_hint;
use trinitylake::version::root_metadata::{CommittedTransaction, RootMetadata};

const ORDER: usize = 6;
const VERSION: u64 = 7;

pub struct Target {
    pub name: &'static str,
    pub samples: fn() -> Vec<Vec<u8>>,
    /// Whether the bytes are accepted; panics if the decoded value violates a rule.
    pub decode: fn(&[u8]) -> bool,
}

pub const TARGETS: [Target; 6] = [
    Target { name: "nodes", samples: nodes, decode: decode_node },
    Target { name: "nodes without checksum", samples: foreign_nodes, decode: decode_node },
    Target { name: "definitions", samples: definitions, decode: decode_definition },
    Target { name: "saved transactions", samples: saved_transactions, decode: decode_saved },
    Target { name: "keys and paths", samples: names, decode: decode_name },
    Target { name: "hints", samples: hints, decode: decode_hint },
];

fn is_clean(error: &Error) -> bool {
    matches!(
        error,
        Error::CorruptFile { .. }
            | Error::UnsupportedVersion(_)
            | Error::InvalidArgument(_)
            | Error::InvalidName(_)
            | Error::InvalidLocation(_)
    )
}

fn is_accepted<T>(result: Result<T, Error>) -> Option<T> {
    result.inspect_err(|error| assert!(is_clean(error), "{error:?}")).ok()
}

fn nodes() -> Vec<Vec<u8>> {
    let row = |key: &str| Row { key: key.into(), value: format!("table-{key}.binpb").as_str().into() };
    let message = |key: &str, value: Option<&str>| Message::new(key.into(), value.map(Into::into), "3c0e".into());
    let leaf = MutableNode { rows: ["b", "d", "größer"].map(row).to_vec(), ..MutableNode::default() };
    let inner = MutableNode {
        height: 2,
        rows: ["f", "m"].map(row).to_vec(),
        children: ["0/left", "1/middle", "1/right"].map(Into::into).to_vec(),
        buffer: vec![message("a", Some("first")), message("f", None), message("a", Some("second"))],
    };
    let transaction = CommittedTransaction { id: "3c0e".into(), ..CommittedTransaction::default() };
    let metadata = RootMetadata {
        version: VERSION,
        commit_id: "c".into(),
        lakehouse_definition: "_lakehouse_def_1.binpb".into(),
        inline_definition: Some(definitions()[1].clone().into()),
        committed: vec![transaction],
        ..RootMetadata::default()
    };
    let system = metadata.system_rows().unwrap();
    let compressions = [Compression::None, Compression::Lz4, Compression::Zstd];
    let files = compressions.iter().flat_map(|compression| {
        [&leaf, &inner].map(|draft| encode(&system, draft, ORDER, *compression).unwrap().bytes.to_vec())
    });
    files.collect()
}

/// Nodes as stored by a plain Arrow writer, without a checksum, so that damaged bytes reach the decoder.
fn foreign_nodes() -> Vec<Vec<u8>> {
    let compressions = [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)];
    let rewrite = |bytes: Vec<u8>, compression| {
        let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
        let reader = FileReader::try_new(std::io::Cursor::new(bytes), None).unwrap();
        let mut writer = FileWriter::try_new_with_options(Vec::new(), &reader.schema(), options).unwrap();
        reader.for_each(|batch| writer.write(&batch.unwrap()).unwrap());
        writer.into_inner().unwrap()
    };
    let nodes = nodes();
    compressions.iter().flat_map(|how| nodes.iter().map(|bytes| rewrite(bytes.clone(), *how))).collect()
}

fn decode_node(bytes: &[u8]) -> bool {
    let Some(node) = is_accepted(decode(Bytes::copy_from_slice(bytes), "fuzzed", None)) else { return false };
    let node: Arc<Node> = Arc::new(node);
    for i in 0..node.n_keys() {
        assert!(i == 0 || node.key(i - 1) < node.key(i), "keys ascend");
        assert_eq!(node.search_table(node.key(i)), Ok(i));
        let _ = node.value(i);
    }
    for message in node.messages() {
        assert!(node.find_message(message.key).is_some());
    }
    if !node.is_leaf() {
        // A decoded node may name children that do not exist.
        (0..=node.n_keys()).for_each(|i| drop(node.child(i).to_string()));
    }
    let _ = MutableNode::of(&node, node.height().unwrap_or_default());
    let metadata = RootMetadata::of(&node, VERSION, "fuzzed");
    is_accepted(metadata).is_some()
}

fn definitions() -> Vec<Vec<u8>> {
    let properties = [("root.buffer-size-bytes", "600"), ("commit.coordination", "queue")];
    let full = proto::LakehouseDef {
        name: "lake".into(),
        order: 4,
        namespace_name_max_size_bytes: 20,
        maximum_version_age_millis_overrides: [(1, 2)].into(),
        properties: properties.map(|(name, value)| (name.to_string(), value.to_string())).into(),
        ..Default::default()
    };
    vec![proto::LakehouseDef::default().encode_to_vec(), full.encode_to_vec()]
}

fn decode_definition(bytes: &[u8]) -> bool {
    let decoded = LakehouseDefinition::decode(Bytes::copy_from_slice(bytes), "fuzzed");
    is_accepted(decoded).is_some_and(|definition| is_accepted(TreeConfig::of(&definition)).is_some())
}

fn saved_transactions() -> Vec<Vec<u8>> {
    let write = proto::footprint::Write { key: "B===a".into(), location: Some("a.binpb".into()), ..Default::default() };
    let footprint = proto::Footprint { base_version: 3, writes: vec![write], ..Default::default() };
    let saved = proto::DistributedTransactionDef {
        id: "job".into(),
        beginning_root: root_path(3),
        footprint: footprint.encode_to_vec(),
        checks: vec!["SELECT 1".into()],
        ..Default::default()
    };
    vec![saved.encode_to_vec()]
}

fn decode_saved(bytes: &[u8]) -> bool {
    proto::DistributedTransactionDef::decode(bytes)
        .is_ok_and(|saved| proto::Footprint::decode(saved.footprint.as_slice()).is_ok())
}

fn names() -> Vec<Vec<u8>> {
    let sizes = NameSizes::default();
    let names = [
        sizes.namespace_key("a.b").unwrap(),
        sizes.table_key("a", "größer").unwrap(),
        sizes.view_key("a", "v").unwrap(),
        sizes.transaction_key("job-1").unwrap(),
        root_path(0),
        root_path(100),
        root_path(1 << 40),
        transaction_path("job-1", 12),
        "_expired/00000000000000000012".into(),
        "s3://bucket/folder/file".into(),
        "file:///a/b".into(),
        "a/b/c.parquet".into(),
    ];
    names.map(String::into_bytes).to_vec()
}

fn decode_name(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let sizes = NameSizes::default();
    let mut is_any = false;
    if let Some((kind, namespace, name)) = sizes.decode_parts(text) {
        is_any = true;
        assert_eq!(ObjectKind::of_key(text), Some(kind));
        // A key of another writer may contain a name that this library would refuse.
        if let Some(key) = is_accepted(sizes.key(kind, namespace, name)) {
            assert_eq!(key, text);
        }
    }
    if let Some(version) = root_version(text) {
        is_any = true;
        assert_eq!(root_path(version).trim_end_matches(".arrow"), text.rsplit_once('.').unwrap().0);
    }
    if let Some((id, sequence)) = transaction_file(text) {
        is_any = true;
        if check_transaction_id(id).is_ok() {
            assert_eq!(transaction_path(id, sequence), text);
        }
    }
    is_any |= boundary_version(text).is_some();
    is_any |= is_accepted(RootUri::parse(text)).is_some();
    is_any
}

fn hints() -> Vec<Vec<u8>> {
    ["0", "7", "100\n", "18446744073709551615"].map(|hint| hint.as_bytes().to_vec()).to_vec()
}

fn decode_hint(bytes: &[u8]) -> bool {
    let root = RootUri::parse("memory://fuzzed-hints").unwrap();
    let storage: Arc<dyn Storage> = open(&root, &Default::default(), Durability::None).unwrap();
    let work = async {
        storage.put_hint(LATEST_HINT_PATH, Bytes::copy_from_slice(bytes)).await.unwrap();
        read_hint(storage.as_ref()).await
    };
    let hint = futures::executor::block_on(work);
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    assert!(hint.is_none_or(|number| text.trim().trim_start_matches('+').parse() == Ok(number)));
    hint.is_some()
}
