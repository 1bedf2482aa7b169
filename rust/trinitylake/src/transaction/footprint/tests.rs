//! Key ranges and requirements, compared with simple models.

use proptest::prelude::*;

use super::*;

fn key_ranges() -> impl Strategy<Value = Vec<KeyRange>> {
    let end = proptest::option::weighted(0.9, "[a-d]{0,3}");
    let range = ("[a-d]{0,3}", end).prop_map(|(start, end)| KeyRange { start, end });
    proptest::collection::vec(range, 0..8)
}

proptest! {
    #[test]
    fn a_set_of_ranges_contains_the_keys_of_each_range(ranges in key_ranges(), keys in proptest::collection::btree_set("[a-e]{0,4}", 0..20)) {
        let joined: KeyRanges = ranges.iter().cloned().collect();
        for key in &keys {
            prop_assert_eq!(joined.contains(key), ranges.iter().any(|range| range.contains(key)), "{}", key);
        }
        prop_assert_eq!(joined.contains_any(&keys), keys.iter().any(|key| joined.contains(key)));
        let again: KeyRanges = joined.iter().collect();
        prop_assert_eq!(&again, &joined);
        let parts: Vec<KeyRange> = joined.iter().collect();
        for pair in parts.windows(2) {
            prop_assert!(pair[0].end.as_ref().is_some_and(|end| *end < pair[1].start), "disjoint: {:?}", pair);
        }
    }
}

/// Requirements are not searched linearly. Otherwise a transaction with 16,000 new objects would take 20 seconds,
/// because each new requirement and each change of another transaction is compared with every requirement.
#[test]
fn requirements_are_found_in_logarithmic_time() {
    let mut footprint = Footprint::default();
    const MANY: usize = 200_000;
    for number in 0..MANY {
        footprint.require(Requirement::Absent(format!("C{number:08}")));
        footprint.require(Requirement::Exists("Bone".into()));
        footprint.require(Requirement::Empty(KeyRange::prefix(&format!("D{number:08}"))));
    }
    let requirements = &footprint.requirements;
    assert_eq!((requirements.exists.len(), requirements.absent.len()), (1, MANY));
    for number in 0..MANY {
        assert_eq!(requirements.concerning(&format!("C{number:08}")).count(), 1);
        assert_eq!(requirements.concerning(&format!("D{number:08}x")).count(), 1);
    }
    assert_eq!(requirements.concerning("E").count(), 0);
    let back = Footprint::of_proto(&footprint.to_proto());
    assert_eq!(back.requirements, footprint.requirements);
}
