use super::testing::TestEnvironment;
use super::*;

/// An observation is recent only if little time has passed by both clocks. Otherwise an old observation would seem
/// recent after a laptop slept for an hour while one of its clocks stopped.
#[test]
fn a_moment_is_recent_only_if_both_clocks_say_so() {
    let environment = TestEnvironment::seeded(1);
    let is_recent = |moment: Moment| moment.is_within(500, environment.as_ref());
    let moment = Moment::now(environment.as_ref());
    environment.advance(Duration::from_millis(499));
    assert!(is_recent(moment));
    environment.advance(Duration::from_millis(1));
    assert!(!is_recent(moment));
    for wall_millis in [3_600_000, -1] {
        let moment = Moment::now(environment.as_ref());
        environment.set_now_millis(environment.now_millis().saturating_add_signed(wall_millis));
        assert!(!is_recent(moment), "{wall_millis}");
        assert!(!moment.is_past(1, environment.as_ref()), "{wall_millis}");
    }
}
