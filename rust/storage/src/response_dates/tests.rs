//! The time of the store that is reported for requests.

use futures::future::join;

use super::*;

/// Answers whose dates differ have no common moment: a virtual machine may have been suspended between them together
/// with its clocks, so that only the dates show it.
#[tokio::test]
async fn answers_with_different_dates_have_no_moment() {
    let (_, close) = dated(async {
        answered(Some(5000));
        tokio::task::yield_now().await;
        answered(Some(4000));
    })
    .await;
    assert_eq!(close, Some(StoreMoment(4000)));
    let (_, apart) = dated(async {
        answered(Some(5000));
        answered(Some(7000));
    })
    .await;
    assert_eq!(apart, None);
    let (_, last) = dated_last(async {
        answered(Some(7000));
        answered(Some(5000));
    })
    .await;
    assert_eq!(last, Some(StoreMoment(7000)));
}

#[tokio::test]
async fn an_answer_without_a_date_has_no_moment() {
    assert_eq!(dated(async {}).await.1, None);
    let (_, undated) = dated(async {
        answered(Some(5000));
        answered(None);
    })
    .await;
    assert_eq!(undated, None);
}

/// Concurrent requests of one task each report their own date, and the enclosing request takes all of them into
/// account.
#[tokio::test]
async fn each_of_several_requests_has_its_own_date() {
    let ((one, other), all) = dated(join(
        dated(async {
            tokio::task::yield_now().await;
            answered(Some(5000));
        }),
        dated(async { answered(Some(6000)) }),
    ))
    .await;
    assert_eq!((one.1, other.1, all), (Some(StoreMoment(5000)), Some(StoreMoment(6000)), Some(StoreMoment(5000))));
}

#[test]
fn the_date_of_an_answer_is_parsed() {
    assert_eq!(millis_of("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777_000));
    assert_eq!(millis_of("yesterday"), None);
}
