//! Reachability of a store. Requests to a store that has answered before are retried as long as the policy allows. If a
//! store has never answered, e.g. because the endpoint is wrong, the error is reported after a few failures.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use object_store::client::HttpErrorKind;
use trinitylake_base::root_uri::RootUri;

/// Number of failures after which a store that has never answered counts as unreachable. If connections are refused, a
/// single request reaches this number after about two seconds, including the pauses of the policy.
const FAILURES_MAX: u32 = 7;
/// Number of failures for which a timeout counts. A timeout takes five seconds, so two timeouts are enough.
const TIMEOUT_WEIGHT: u32 = 4;

/// Reachability of a store, according to the requests of one client.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    endpoint: Option<String>,
    has_answered: AtomicBool,
    failures: AtomicU32,
}

impl Reach {
    pub(crate) fn new(endpoint: Option<String>) -> Self {
        Self { endpoint, ..Self::default() }
    }

    pub(crate) fn answered(&self) {
        self.has_answered.store(true, Relaxed);
    }

    pub(crate) fn failed(&self, kind: HttpErrorKind) {
        match kind {
            HttpErrorKind::Connect => self.failures.fetch_add(1, Relaxed),
            HttpErrorKind::Timeout => self.failures.fetch_add(TIMEOUT_WEIGHT, Relaxed),
            _ => 0,
        };
    }

    /// Whether further retries are useless.
    pub(crate) fn is_unreachable(&self) -> bool {
        !self.has_answered.load(Relaxed) && self.failures.load(Relaxed) >= FAILURES_MAX
    }

    /// Returns the error message for an unreachable store. `error` is the message of the last request, `cannot read
    /// URI: reason`.
    pub(crate) fn message(&self, root: &RootUri, error: &str) -> String {
        let reason = error.split_once(": ").map_or(error, |(_, reason)| reason);
        let endpoint = self.endpoint.as_ref().map(|endpoint| format!(" at {endpoint}")).unwrap_or_default();
        format!(
            "cannot reach the store{endpoint} of bucket {:?}: {reason}; check the endpoint, the network and the \
             storage options",
            root.bucket()
        )
    }
}
