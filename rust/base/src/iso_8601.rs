//! Times in UTC as ISO 8601 text, which is also the input format of time travel.

const DAY_MILLIS: i64 = 86_400_000;
/// The calendar repeats itself after 400 years.
const CYCLE_YEARS: i64 = 400;
const CYCLE_DAYS: i64 = 146_097;
/// Days from 1600-03-01, the start of a cycle of years that begin in March, to 1970-01-01.
const DAYS_BEFORE_1970: i64 = 135_080;

/// Milliseconds since 1970 (negative for earlier times) as `2026-11-23T08:00:00.000Z`.
pub fn iso_8601(millis: i64) -> String {
    let (year, month, day) = date(millis.div_euclid(DAY_MILLIS));
    let time = millis.rem_euclid(DAY_MILLIS);
    let (hour, minute, second) = (time / 3_600_000, time / 60_000 % 60, time / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", time % 1000)
}

/// Returns year, month and day. Computes with years that begin in March, so that a leap day is the last day of its
/// year.
fn date(days_since_1970: i64) -> (i64, i64, i64) {
    let days = days_since_1970 + DAYS_BEFORE_1970;
    let day_of_cycle = days.rem_euclid(CYCLE_DAYS);
    // Every fourth year is a leap year, except each hundredth year, which is one only if it is divisible by 400.
    let year_of_cycle = (day_of_cycle - day_of_cycle / 1460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year = day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    // March to July have 153 days, like August to December, with the same lengths of months.
    let months_since_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months_since_march + 2) / 5 + 1;
    let month = (months_since_march + 2) % 12 + 1;
    let year = 1600 + CYCLE_YEARS * days.div_euclid(CYCLE_DAYS) + year_of_cycle + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests;
