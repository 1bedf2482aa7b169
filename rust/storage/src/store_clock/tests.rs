//! The time of the store that is reported for requests.

use futures::future::join;

use super::*;

/// A virtual machine stood still between two answers, its clocks with it. Only the dates of the answers tell.
#[tokio::test]
async fn answers_that_lie_apart_are_of_no_moment() {
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
async fn an_answer_without_a_date_leaves_the_moment_open() {
    assert_eq!(dated(async {}).await.1, None);
    let (_, undated) = dated(async {
        answered(Some(5000));
        answered(None);
    })
    .await;
    assert_eq!(undated, None);
}

/// Requests of one task that are under way together have each their own date, and all of them count for what they are
/// a part of.
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
    assert_eq!(
        (one.1, other.1, all),
        (Some(StoreMoment(5000)), Some(StoreMoment(6000)), Some(StoreMoment(5000)))
    );
}

#[test]
fn the_date_of_an_answer_is_read_as_http_writes_it() {
    assert_eq!(millis_of("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777_000));
    assert_eq!(millis_of("yesterday"), None);
}
