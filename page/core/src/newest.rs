//! Search for the newest version (format §7) in a browser, which cannot list files. Decides which files the page
//! requests next, from the answers so far.
//!
//! The search begins at the hint and goes upwards, as in the library. If the hint names no version, the library lists all
//! roots, and this module tries some versions above the hint. It has no state, so searches may run at the same time.

use trinitylake_base::error::{Error, Result};
use trinitylake_format::file_names::{LATEST_HINT_PATH, VERSION_MAX, root_path};
use trinitylake_version::galloping_search::{FAR, GallopingSearch, version_of_hint};

use crate::question::{Heard, Step};

/// Number of versions above an outdated hint that are all requested. Above them, the search requests only the steps of
/// a gallop.
const TRIED: u64 = 64;

/// The next request, given all answers since the search began. `known` is the result of the last search.
pub fn next_step(known: Option<u64>, heard: &[Heard]) -> Result<Step> {
    match search(known, &mut Conversation { heard: heard.iter() }) {
        Ok(Some(version)) => Ok(Step::Newest(version)),
        Ok(None) => Err(Error::NotALakehouse(
            "no lakehouse is here, or its hint is too old to find the newest version".to_string(),
        )),
        Err(Unheard(step)) => Ok(step),
    }
}

/// The search needs the answer to this request.
struct Unheard(Step);

/// The answers, in the order of the requests.
struct Conversation<'a> {
    heard: std::slice::Iter<'a, Heard>,
}

impl Conversation<'_> {
    fn hint(&mut self) -> Result<Option<u64>, Unheard> {
        match self.heard.next() {
            Some(Heard::Hint(content)) => Ok(content.as_ref().and_then(|text| version_of_hint(text.as_bytes()))),
            _ => Err(Unheard(Step::Hint(LATEST_HINT_PATH.to_string()))),
        }
    }

    /// Whether the roots of these versions exist.
    fn exist(&mut self, versions: &[u64]) -> Result<Vec<bool>, Unheard> {
        match self.heard.next() {
            Some(Heard::Exist(exist)) if exist.len() == versions.len() => Ok(exist.clone()),
            _ => Err(Unheard(Step::Exist(versions.iter().copied().map(root_path).collect()))),
        }
    }
}

fn search(known: Option<u64>, conversation: &mut Conversation<'_>) -> Result<Option<u64>, Unheard> {
    let possible = |version: &u64| *version <= VERSION_MAX;
    // If the page was open for a long time, the known version may have expired.
    if let Some(known) = known.filter(possible)
        && let Some(newest) = upwards(known, conversation)?
    {
        return Ok(Some(newest));
    }
    let start = conversation.hint()?.filter(possible).unwrap_or(0);
    if let Some(newest) = upwards(start, conversation)? {
        return Ok(Some(newest));
    }
    let further = FAR.into_iter().filter(|step| *step > TRIED);
    let tried = (2..=TRIED).chain(further).map(|step| start + step).take_while(possible);
    let tried: Vec<u64> = tried.collect();
    let exist = conversation.exist(&tried)?;
    match exist.iter().rposition(|exists| *exists) {
        Some(highest) => last(GallopingSearch::far(tried[highest]), conversation).map(Some),
        None => Ok(None),
    }
}

/// Returns the newest version, if this version or the next one exists.
fn upwards(version: u64, conversation: &mut Conversation<'_>) -> Result<Option<u64>, Unheard> {
    let next = VERSION_MAX.min(version + 1);
    match conversation.exist(&[version, next])?[..] {
        [_, true] => last(GallopingSearch::far(next), conversation).map(Some),
        [is_there, _] => Ok(is_there.then_some(version)),
        _ => Ok(None),
    }
}

fn last(mut galloping_search: GallopingSearch, conversation: &mut Conversation<'_>) -> Result<u64, Unheard> {
    loop {
        let probes = galloping_search.probes();
        if probes.is_empty() {
            return Ok(galloping_search.last());
        }
        galloping_search.learn(&conversation.exist(&probes)?);
    }
}

#[cfg(test)]
mod tests;
