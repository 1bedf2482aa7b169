use super::*;

/// The expected texts are from `date --utc --iso-8601=ns --date=@SECONDS`.
#[test]
fn times_equal_those_of_the_date_command() {
    for (millis, expected) in [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (951_782_400_000, "2000-02-29T00:00:00.000Z"),
        (951_868_800_000, "2000-03-01T00:00:00.000Z"),
        (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
        (1_735_689_599_000, "2024-12-31T23:59:59.000Z"),
        (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        (1_795_420_800_123, "2026-11-23T08:00:00.123Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (-62_135_596_800_000, "0001-01-01T00:00:00.000Z"),
    ] {
        assert_eq!(iso_8601(millis), expected, "{millis}");
    }
}

/// For eight hundred years, each day is the successor of the day before.
#[test]
fn each_day_follows_the_one_before() {
    let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = |year: i64, month: i64| match month {
        2 => 28 + i64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let (mut year, mut month, mut day) = (1970, 1, 1);
    for days in 0..2 * CYCLE_DAYS {
        assert_eq!(date(days), (year, month, day));
        day += 1;
        if day > length(year, month) {
            (month, day) = (month + 1, 1);
        }
        if month > 12 {
            (year, month) = (year + 1, 1);
        }
    }
}

#[test]
fn every_time_can_be_formatted() {
    assert!(iso_8601(i64::MAX).ends_with('Z') && iso_8601(i64::MIN).ends_with('Z'));
}
