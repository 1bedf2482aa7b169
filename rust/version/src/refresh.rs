//! Search for the latest version by a handle that knows an older one, and a check whether a next root exists.

use std::sync::Arc;

use futures::future::{join, join3};

use super::damaged_latest_version::Damage;
use super::discovery::{self, read_hint};
use super::expiry_boundary::boundary;
use super::observations::{Observation, Trust};
use super::version::Version;
use super::version_lookup::{version_of, version_of_node};
use super::versions::Versions;
use trinitylake_base::environment::Moment;
use trinitylake_base::error::{Error, Result};
use trinitylake_format::file_names::root_path;
use trinitylake_storage::response_dates::{StoreMoment, dated, dated_last};

/// If the hint is further ahead than this, the search starts at the hint instead of the next version.
const FAR_AHEAD: u64 = 32;

/// Whether the root file after the latest known version exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextRoot {
    Absent,
    Exists,
    /// The file does not exist, but the known version has expired, so that a root with this name would be void.
    Expired,
}

impl Versions {
    /// Returns the latest version. If it is the known version or the next one, this takes one round of requests:
    /// usually two requests, from time to time four.
    pub async fn latest(&self) -> Result<Arc<Version>> {
        match self.damage() {
            Some(damage) if damage.is_missing => return self.rediscover().await,
            Some(damage) => return Err(damage.error),
            None => {}
        }
        let known = self.known();
        let (next, after) = (known.number + 1, known.number + 2);
        let storage = self.storage().as_ref();
        let (next_file, file_after) = (root_path(next), root_path(after));
        let environment = self.environment().as_ref();
        let asked = Moment::now(environment);
        let look_at_boundary = async {
            let is_untouched = self.observations().is_name_unused(next, None, environment) > Trust::None;
            match is_untouched || self.observations().boundary(None, environment).is_some() {
                true => Ok::<_, Error>(()),
                false => self.ask_boundary().await.map(drop),
            }
        };
        let look = async {
            let (hint, boundary) = join(self.read_hint_now_and_then(), look_at_boundary).await;
            boundary.map(|()| hint)
        };
        let ((root, answered), (is_another, other_answered), hint) =
            join3(dated(self.nodes().load(&next_file, None)), dated(storage.exists(&file_after)), look).await;
        self.observations().heard(other_answered.or(answered));
        let (hint, is_another) = (hint?, is_another?);
        // An answer proves something only if the known version has certainly not expired. If it has expired, for
        // instance while this machine was suspended, an absent root may have been deleted, and an existing root may be
        // void. Check this for each answer, because the machine may be suspended between two answers.
        let mut trust = self.trust_in(known.number, answered).await?;
        if root.is_ok() {
            trust = trust.min(self.trust_in(known.number, other_answered).await?);
        }
        if trust == Trust::None {
            return self.rediscover().await;
        }
        // The answer that shows that no later version exists.
        let answered = if root.is_ok() { other_answered } else { answered };
        let observation = Observation { asked, answered: answered.filter(|_| trust == Trust::Certain) };
        let latest = match root {
            Ok(root) => {
                if !is_another {
                    self.observations().saw_none_above(next, observation);
                }
                let version = Arc::new(version_of_node(self.nodes(), next, root, Some(&known)).await?);
                self.learn(version.clone());
                version
            }
            Err(Error::FileNotFound { .. }) => {
                self.observations().saw_none_above(known.number, observation);
                known
            }
            // The next root is damaged, and a repair has published later versions.
            Err(Error::CorruptFile { .. }) if is_another => known,
            Err(error) => return Err(error),
        };
        let latest = if is_another { self.latest_from(self.start(after, hint).await?).await? } else { latest };
        // If the hint is ahead, its root was created after this handle requested the root, or roots are missing.
        if hint.is_some_and(|hint| hint > latest.number) { self.rediscover().await } else { Ok(latest) }
    }

    /// Returns the existing version at which the search starts: `number`, or the hint if it is far ahead.
    async fn start(&self, number: u64, hint: Option<u64>) -> Result<u64> {
        Ok(match hint {
            Some(hint) if hint > number + FAR_AHEAD && self.storage().exists(&root_path(hint)).await? => hint,
            _ => number,
        })
    }

    /// Time of the store when it last answered a search for the latest version, if it dates its answers.
    pub fn last_heard(&self) -> Option<StoreMoment> {
        self.observations().last_heard()
    }

    /// Reads the hint, if the last read is long enough ago. The hint can show that newer roots were lost, or that this
    /// handle is far behind.
    async fn read_hint_now_and_then(&self) -> Option<u64> {
        match self.observations().reads_hint(self.environment().as_ref()) {
            true => read_hint(self.storage().as_ref()).await,
            false => None,
        }
    }

    async fn ask_boundary(&self) -> Result<u64> {
        let asked = Moment::now(self.environment().as_ref());
        let (oldest, answered) = dated(boundary(self.storage().as_ref())).await;
        let oldest = oldest?;
        self.observations().saw_boundary(oldest, Observation { asked, answered });
        Ok(oldest)
    }

    /// Returns how certain it is that version `number` had not expired when the store answered that the next version
    /// does not exist. If version `number` had expired, the answer proves nothing, because the next version may have
    /// been created and deleted (format §7). Call this after the answer. Sends a request if the last observation is too
    /// old.
    async fn trust_in(&self, number: u64, answered: Option<StoreMoment>) -> Result<Trust> {
        let environment = self.environment().as_ref();
        let untouched = self.observations().is_name_unused(number + 1, answered, environment);
        let (oldest, trust) = match self.observations().boundary(answered, environment) {
            Some(seen) => seen,
            None if untouched > Trust::None => return Ok(untouched),
            // The request for the boundary follows the answer, so its result is certain for that time.
            None => (self.ask_boundary().await?, Trust::Certain),
        };
        Ok(if oldest > number { Trust::None } else { trust.max(untouched) })
    }

    /// Returns whether the root after `number`, the latest known version, exists. Sends no request if a recent
    /// observation exists. Records an observation, on which [`Observations::is_name_unused`] relies after that root was
    /// created.
    pub async fn next_root(&self, number: u64) -> Result<NextRoot> {
        let (environment, next) = (self.environment().as_ref(), root_path(number + 1));
        if self.observations().is_name_unused(number + 1, None, environment) > Trust::None {
            return Ok(NextRoot::Absent);
        }
        let asked = Moment::now(environment);
        let ((exists, answered), oldest, hint) =
            join3(dated(self.storage().exists(&next)), self.ask_boundary(), self.read_hint_now_and_then()).await;
        oldest?;
        // If the hint is ahead, roots were created just now or were lost. The search for the latest version
        // distinguishes these cases.
        let exists = exists? || hint.is_some_and(|hint| hint > number);
        let trust = self.trust_in(number, answered).await?;
        if trust == Trust::None {
            return Ok(NextRoot::Expired);
        }
        if exists {
            return Ok(NextRoot::Exists);
        }
        let answered = answered.filter(|_| trust == Trust::Certain);
        self.observations().saw_none_above(number, Observation { asked, answered });
        Ok(NextRoot::Absent)
    }

    /// Forgets all observations after the boundary has risen.
    pub(crate) fn distrust_boundary(&self) {
        self.observations().forget();
    }

    /// Returns the latest version, searched from the existing version `number`.
    pub(crate) async fn latest_from(&self, number: u64) -> Result<Arc<Version>> {
        let number = discovery::last_existing(self.storage().as_ref(), number).await?;
        // Read the boundary even if the version is cached: it may have expired during the search.
        let (version, oldest) = self.with_boundary(self.load_version(number)).await?;
        match version {
            // Search without the hint of this handle: the process that expired the version knew a later one.
            Err(Error::VersionExpired(_)) => self.rediscover().await,
            _ if number < oldest => self.rediscover().await,
            Err(error) => Err(error),
            Ok(version) => {
                self.learn(version.clone());
                Ok(version)
            }
        }
    }

    /// Returns the latest version, searched without the observations of this handle.
    pub async fn rediscover(&self) -> Result<Arc<Version>> {
        let look = discovery::latest(self.storage().as_ref(), self.environment().as_ref());
        let (found, answered) = dated_last(look).await;
        self.observations().heard(answered);
        let found = found?;
        let version = version_of(self.nodes(), found.version, found.root, Some(&self.known())).await?;
        let version = Arc::new(version);
        self.set_damage(found.missing.map(|named| Damage::missing(named, found.version)));
        self.learn(version.clone());
        Ok(version)
    }
}
