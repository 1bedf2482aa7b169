//! Roots that are encoded one after the other by the same frames.

use std::io::Cursor;

use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_128;

use super::*;
use crate::node::codec::{Compression, decode, encode, encode_root};
use crate::node::draft::{Draft, Message, Row, Text};

const ORDER: usize = 8;

fn message(number: u32, value: u32) -> Message {
    let key = format!("B===namespace_{number:06}{}", " ".repeat(80));
    let id = |of: &str| format!("{:032x}", xxh3_128(format!("{of} {number} {value}").as_bytes()));
    let value = format!("0101/1100/1010/01100101-namespace_{number}-{}.binpb", id("file"));
    Message::new(key.into(), Some(value.into()), id("transaction").into())
}

fn root(messages: Vec<Message>) -> Draft {
    let rows = vec![Row { key: Text::from("B===a"), value: "of-a".into() }];
    let children = ["left", "right"].map(Text::from).to_vec();
    Draft { height: 1, rows, children, buffer: messages }
}

fn system(version: usize) -> Vec<(&'static str, String)> {
    vec![("version", version.to_string())]
}

fn lasting(end: usize) -> Piece {
    Piece { end, is_passing: false }
}

fn sizes(frames: &Frames) -> (usize, usize) {
    (frames.kept.len(), frames.kept.values().map(|frame| frame.raw.len()).sum())
}

/// A frame that was kept of other rows would be a root that says what nobody wrote, under a checksum that fits.
#[test]
fn a_root_has_the_same_bytes_whatever_was_kept() {
    let mut frames = Frames::default();
    for round in 0..5 {
        for count in [0, 1, 40, 41, 300, 260] {
            let draft = root((0..count).map(|number| message(number, number * round)).collect());
            let system = system(round as usize);
            let kept = encode_root(&mut frames, &system, &draft, None, ORDER, Compression::Zstd).unwrap();
            let fresh =
                encode_root(&mut Frames::default(), &system, &draft, None, ORDER, Compression::Zstd).unwrap();
            assert_eq!(kept.bytes, fresh.bytes, "{count} messages, round {round}");
            let read = decode(kept.bytes, "root", Some(ORDER)).unwrap();
            assert_eq!(Draft::of(&read, 1), draft);
            let by_arrow = arrow_ipc::reader::FileReader::try_new(Cursor::new(&fresh.bytes), None).unwrap();
            let rows: usize = by_arrow.map(|batch| batch.unwrap().num_rows()).sum();
            assert_eq!(rows, 3 + ORDER + count as usize);
        }
    }
}

/// A root was laid out anew for each commit, which took as long as all else that was computed for it. Copied from the root
/// before, it must not differ from that by a bit: not even by those behind the last row.
#[test]
fn a_root_that_has_grown_has_the_same_bytes() {
    let mut frames = Frames::default();
    let mut draft = root(Vec::new());
    let mut before =
        encode_root(&mut frames, &system(1), &draft, None, ORDER, Compression::Zstd).unwrap().node;
    for (round, more) in [1, 1, 7, 0, 1, 64, 1, 300, 2].into_iter().enumerate() {
        let system =
            [system(10_usize.pow(round as u32)), vec![("more", "x".repeat(round)); round % 3]].concat();
        draft.buffer.extend((0..more).map(|number| message(number, number * round as u32)));
        if let Some(last) = draft.buffer.last_mut().filter(|_| round % 2 == 0) {
            last.value = None;
        }
        let grown =
            encode_root(&mut frames, &system, &draft, Some(&before), ORDER, Compression::Zstd).unwrap();
        let whole =
            encode_root(&mut Frames::default(), &system, &draft, None, ORDER, Compression::Zstd).unwrap();
        assert_eq!(grown.bytes, whole.bytes, "round {round}");
        assert_eq!(Draft::of(&grown.node, 1), draft);
        before = grown.node;
    }
}

/// Two texts with one hash are two texts.
#[test]
fn a_frame_is_taken_only_for_the_very_same_bytes() {
    let (raw, other) = (Buffer::from(vec![7u8; 500]), Buffer::from(vec![8u8; 500]));
    let mut frames = Frames::default();
    frames.pack(&raw, &[lasting(500)], &mut Vec::new()).unwrap();
    frames.turn();
    let frame = frames.kept.remove(&hash_of_ends(&raw)).unwrap();
    frames.kept.insert(hash_of_ends(&other), frame);
    assert_eq!(unpacked(&mut frames, &other), vec![8u8; 500]);
}

fn unpacked(frames: &mut Frames, raw: &Buffer) -> Vec<u8> {
    let mut packed = Vec::new();
    frames.pack(raw, &[lasting(raw.len())], &mut packed).unwrap();
    crate::node::zstd::Zstd::new().unwrap().decompress(&packed, raw.len()).unwrap()
}

/// To hash all of a root took as long as to compress what was new in it, so only the ends of its pieces are hashed. Two
/// that differ in their middles alone, or in their lengths, are two all the same.
#[test]
fn pieces_with_the_same_ends_are_not_taken_for_each_other() {
    let with = |middle: u8, size: usize| {
        let mut piece = vec![7u8; size];
        piece[size / 2] = middle;
        piece
    };
    let pieces =
        [with(1, 500), with(2, 500), with(7, 400), with(7, 500), vec![7; 64], vec![7; 63], vec![7; 1]];
    assert_eq!(hash_of_ends(&pieces[0]), hash_of_ends(&pieces[1]), "the story is of such");
    assert_ne!(hash_of_ends(&pieces[2]), hash_of_ends(&pieces[3]));
    let mut frames = Frames::default();
    for _ in 0..3 {
        for piece in &pieces {
            assert_eq!(unpacked(&mut frames, &Buffer::from(piece.clone())), *piece);
        }
        frames.turn();
    }
}

/// A property that is changed again and again takes a row out of the middle each time: all cuts behind it would be
/// elsewhere if they were counted, and nothing kept would fit.
#[test]
fn a_row_that_goes_leaves_most_frames_as_they_are() {
    let messages: Vec<Message> = (0..1000).map(|number| message(number * 7919 % 1000, number)).collect();
    let mut frames = Frames::default();
    let encode = |frames: &mut Frames, messages: &[Message]| {
        encode_root(frames, &system(1), &root(messages.to_vec()), None, ORDER, Compression::Zstd).unwrap()
    };
    encode(&mut frames, &messages);
    let before: Vec<u64> = frames.kept.keys().copied().collect();
    let mut changed = messages.clone();
    let moved = changed.remove(300);
    changed.push(moved);
    encode(&mut frames, &changed);
    let stayed = before.iter().filter(|hash| frames.kept.contains_key(hash)).count();
    assert!(stayed * 10 > before.len() * 6, "{stayed} of {} frames stayed", before.len());
}

/// What a handle keeps is what its last root needs, and nothing at all of one that is very large.
#[test]
fn what_is_kept_does_not_grow() {
    let mut frames = Frames::default();
    for version in 0..200 {
        let messages = (0..100).map(|number| message(number, number + version)).collect();
        encode_root(&mut frames, &system(1), &root(messages), None, ORDER, Compression::Zstd).unwrap();
    }
    let (count, bytes) = sizes(&frames);
    assert!(count < 70 && bytes < 40_000, "{count} frames of {bytes} bytes");
    let large = root((0..9_000).map(|number| message(number, 1)).collect());
    encode_root(&mut frames, &system(1), &large, None, ORDER, Compression::Zstd).unwrap();
    assert_eq!(sizes(&frames), (0, 0));
}

/// Frames take some bytes of their own each, and what is not compressed takes some thousand: cut too often, or left as it
/// is for too long, a root would be larger by half.
#[test]
fn a_root_in_frames_is_not_much_larger() {
    for count in [5, 20, 50, 100, 150, 200, 250, 300, 400] {
        let draft = root((0..count).map(|number| message(number, number)).collect());
        let whole = encode(&system(1), &draft, ORDER, Compression::Zstd).unwrap().bytes.len();
        let cut =
            encode_root(&mut Frames::default(), &system(1), &draft, None, ORDER, Compression::Zstd).unwrap();
        let cut = cut.bytes.len();
        assert!(cut * 10 < whole * 11 + 32_000, "{count}: {cut} bytes in frames, {whole} in one");
    }
}

/// Of each column the last piece of its texts, the offsets behind the first cut and its validity were compressed anew for
/// each commit: a dozen frames, which took a third of what the core computed.
#[test]
fn a_message_more_is_hardly_ever_compressed() {
    let mut frames = Frames::default();
    let mut made = 0;
    for count in 100..200u32 {
        let before: Vec<u64> = frames.kept.keys().copied().collect();
        let draft = root((0..count).map(|number| message(number, number)).collect());
        encode_root(&mut frames, &system(count as usize), &draft, None, ORDER, Compression::Zstd).unwrap();
        if count > 100 {
            made += frames.kept.keys().filter(|hash| !before.contains(hash)).count();
        }
    }
    assert!(made < 100, "{made} frames for 99 messages");
}

/// A piece that is not compressed must not be large: a commit of a thousand objects would take six times the bytes.
#[test]
fn a_large_piece_is_compressed_even_if_it_comes_once() {
    let text = "the same again and again, ".repeat(1000);
    let system = vec![("version", "1".to_string()), ("committed_txns", text.clone())];
    let encoded =
        encode_root(&mut Frames::default(), &system, &root(Vec::new()), None, ORDER, Compression::Zstd)
            .unwrap();
    assert!(encoded.bytes.len() * 5 < text.len(), "{} bytes", encoded.bytes.len());
}

proptest! {
    /// Whoever reads nodes, the browser among them, takes several frames for one text.
    #[test]
    fn all_readers_take_several_frames(
        parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 1..300), any::<bool>()), 1..8),
    ) {
        let (mut raw, mut pieces) = (Vec::new(), Vec::new());
        for (part, is_passing) in parts {
            raw.extend(part);
            pieces.push(Piece { end: raw.len(), is_passing });
        }
        let mut packed = Vec::new();
        Frames::default().pack(&Buffer::from(raw.clone()), &pieces, &mut packed).unwrap();
        let by_c = crate::node::zstd::Zstd::new().unwrap().decompress(&packed, raw.len()).unwrap();
        let in_rust = crate::node::zstd::in_rust::Zstd::new().unwrap().decompress(&packed, raw.len()).unwrap();
        prop_assert_eq!(&by_c, &raw);
        prop_assert_eq!(&in_rust, &raw);
    }
}
