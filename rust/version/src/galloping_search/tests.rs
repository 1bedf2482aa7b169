use super::*;

fn climbed(mut galloping_search: GallopingSearch, there: impl Fn(u64) -> bool) -> (u64, usize) {
    for rounds in 0..100 {
        let probes = galloping_search.probes();
        assert!(probes.is_sorted() && probes.iter().all(|probe| *probe > galloping_search.last()), "{probes:?}");
        if probes.is_empty() {
            return (galloping_search.last(), rounds);
        }
        galloping_search.learn(&probes.into_iter().map(&there).collect::<Vec<_>>());
    }
    panic!("the search does not end");
}

#[test]
fn any_distance_takes_a_few_rounds() {
    for known in [0, 7, 1 << 33] {
        for behind in (0..500).chain([4095, 4096, 4097, 1_000_000]) {
            for galloping_search in [GallopingSearch::near(known), GallopingSearch::far(known)] {
                let (last, rounds) = climbed(galloping_search, |version| version <= known + behind);
                assert_eq!(last, known + behind);
                assert!(rounds <= 12, "{behind} behind: {rounds} rounds");
            }
        }
    }
}

/// If a higher version exists, all lower ones exist. An answer that a lower version is missing only means that it was
/// created between two requests of the round.
#[test]
fn an_existing_higher_version_counts_more_than_a_missing_lower_one() {
    let mut galloping_search = GallopingSearch::near(10);
    galloping_search.learn(&[false, true, true, false, false, false]);
    assert_eq!(galloping_search.last(), 14);
    assert_eq!(galloping_search.probes(), [15, 16, 17]);
    galloping_search.learn(&[false, true, false]);
    assert_eq!((galloping_search.last(), galloping_search.probes()), (16, vec![]));
}

/// The search ends at the highest possible number. Otherwise, if a hint names it, the search would request that version
/// forever.
#[test]
fn the_search_ends_at_the_highest_number() {
    for known in [VERSION_MAX, VERSION_MAX - 1, VERSION_MAX - 40] {
        assert_eq!(climbed(GallopingSearch::far(known), |_| true).0, VERSION_MAX);
    }
}

#[test]
fn a_hint_is_a_single_number() {
    assert_eq!(version_of_hint(b" 12\n"), Some(12));
    for content in [b"".as_slice(), b"\xFF", b"-1", b"1e3", b"99999999999999999999", b"0000000000000000000012"] {
        assert_eq!(version_of_hint(content), None, "{content:?}");
    }
}
