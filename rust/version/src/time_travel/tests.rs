use super::*;

/// Result of a search among versions with these creation times, and the number of its requests.
fn searched(
    oldest: u64,
    newest: u64,
    moment_millis: i64,
    created: impl Fn(u64) -> Option<u64>,
) -> (Result<u64>, usize) {
    let mut search = AtMoment::up_to(newest, moment_millis);
    search.expired_below(oldest);
    for asked in 0..100 {
        let Some(probe) = search.probe() else { return (search.found(), asked) };
        assert!((oldest..=newest).contains(&probe), "{probe}");
        search.learn(created(probe).map(|created| (probe, created)));
    }
    panic!("the search does not end");
}

#[test]
fn every_time_has_its_version() {
    for newest in [0, 1, 2, 9, 64, 1000] {
        for moment in 100..=(10 * newest + 115) {
            let (found, asked) = searched(0, newest, moment as i64, |version| Some(100 + 10 * version));
            assert_eq!(found.unwrap(), newest.min((moment - 100) / 10));
            assert!(asked <= 12, "{asked} versions of {newest}");
        }
    }
}

#[test]
fn the_current_time_takes_one_request() {
    assert_eq!(searched(0, 1_000_000, i64::MAX, Some).1, 1);
}

/// Messages show times as ISO dates. Otherwise users would read `946684800000 (milliseconds)`.
#[test]
fn errors_contain_iso_dates() {
    let created = |version| Some(1_795_420_800_000 + version);
    let error = searched(0, 3, 946_684_800_000, created).0.unwrap_err();
    assert!(matches!(error, Error::VersionNotFound(_)));
    assert_eq!(
        error.to_string(),
        "no version is as old as 2000-01-01T00:00:00.000Z: the lakehouse was created at 2026-11-23T08:00:00.000Z"
    );
    let error = searched(2, 3, 946_684_800_000, created).0.unwrap_err();
    assert!(matches!(error, Error::VersionExpired(_)));
    assert_eq!(
        error.to_string(),
        "versions as old as 2000-01-01T00:00:00.000Z have expired; the oldest kept is 2, created at \
         2026-11-23T08:00:00.002Z"
    );
    // Times before 1970 are shown as dates as well.
    assert!(searched(0, 3, -1, created).0.unwrap_err().to_string().contains("1969-12-31T23:59:59.999Z"));
}

/// A tagged version below expired versions is not the result for a time at which a later version was the latest.
#[test]
fn a_tagged_version_below_a_gap_is_not_a_result() {
    for named in 0..40 {
        let is_there = |version| version == named || version >= 40;
        for moment in 0..600 {
            let (found, _) = searched(0, 63, moment, |version| is_there(version).then_some(10 * version));
            let expected = 63.min(moment as u64 / 10);
            match found {
                Ok(found) => {
                    assert!(found == expected && is_there(found), "{found} at {moment}, not {expected}")
                }
                // The search does not examine versions below a gap. For each time after the gap, it finds the version.
                Err(Error::VersionExpired(_)) => assert!(expected < 40, "{moment}"),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn all_versions_may_expire_during_the_search() {
    let error = searched(5, 9, 0, |_| None).0.unwrap_err();
    assert!(matches!(error, Error::VersionExpired(_)), "{error}");
    assert!(searched(5, 4, 0, |_| None).0.is_err());
}
