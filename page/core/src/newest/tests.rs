use std::collections::BTreeSet;

use proptest::prelude::*;
use trinitylake_format::file_names::root_version;

use super::*;

/// Runs a search. Returns its result, and the number of rounds of requests.
fn searched(known: Option<u64>, hint: Option<&str>, there: impl Fn(u64) -> bool) -> (Result<u64>, usize) {
    let mut heard = Vec::new();
    loop {
        assert!(heard.len() < 60, "it asks for ever: {heard:?}");
        match next_step(known, &heard) {
            Err(error) => return (Err(error), heard.len()),
            Ok(Step::Newest(version)) => return (Ok(version), heard.len()),
            Ok(Step::Hint(path)) => {
                assert_eq!(path, LATEST_HINT_PATH);
                heard.push(Heard::Hint(hint.map(str::to_string)));
            }
            Ok(Step::Exist(paths)) => {
                let versions: Vec<u64> = paths.iter().map(|path| root_version(path).unwrap()).collect();
                let different = versions.iter().collect::<BTreeSet<_>>().len();
                assert!(different == versions.len() || versions == [VERSION_MAX; 2], "asked twice: {versions:?}");
                assert!(versions.len() <= 80, "{} requests at once", versions.len());
                heard.push(Heard::Exist(versions.into_iter().map(&there).collect()));
            }
        }
    }
}

proptest! {
    /// The newest version is found in at most ten rounds. Otherwise a page with a hint that is a thousand versions old
    /// would wait for 20 rounds.
    #[test]
    fn the_newest_version_is_found_in_a_few_rounds(
        oldest in 0..1000_u64, kept in 0..2000_u64, hint in prop::option::of(0..2000_u64), known in prop::option::of(0..2000_u64)
    ) {
        let newest = oldest + kept;
        // The hint is not above the newest version, and the known version existed at some time.
        let hint = hint.map(|hint| oldest + hint % (kept + 1));
        let known = known.map(|known| known % (newest + 1));
        let start = hint.unwrap_or(0);
        prop_assume!(known.is_some_and(|known| known + 1 >= oldest) || start + TRIED >= oldest);
        let (found, rounds) = searched(known, hint.map(|hint| hint.to_string()).as_deref(), |version| (oldest..=newest).contains(&version));
        prop_assert_eq!(found.unwrap(), newest);
        prop_assert!(rounds <= 10, "{} rounds", rounds);
    }

    #[test]
    fn any_answers_end(
        known in any::<Option<u64>>(), hint in prop::option::of("[0-9]{0,21}|.{0,30}"), bits in any::<u64>()
    ) {
        let _ = searched(known, hint.as_deref(), |version| bits >> (version % 64) & 1 == 1);
        let _ = searched(known, hint.as_deref(), |_| true);
        let _ = searched(known, hint.as_deref(), |_| false);
    }
}

#[test]
fn a_right_hint_takes_two_rounds_and_a_known_version_one() {
    let there = |version| version <= 12;
    assert_eq!(searched(None, Some("12\n"), there).1, 2);
    assert_eq!(searched(Some(12), None, there).1, 1);
}

/// If the known version has expired, the search finds the newest one. Otherwise a page that was open for a long time
/// would continue to show the expired version.
#[test]
fn what_was_known_may_have_expired() {
    let (found, _) = searched(Some(12), Some("90"), |version| (80..=90).contains(&version));
    assert_eq!(found.unwrap(), 90);
}

#[test]
fn where_nothing_is_no_lakehouse_is() {
    for hint in [None, Some("nonsense"), Some("5")] {
        let error = searched(None, hint, |_| false).0.unwrap_err();
        assert!(matches!(error, Error::NotALakehouse(_)), "{error}");
    }
}
