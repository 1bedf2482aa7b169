//! Checks that a store lets only one of several writers create a file.
//!
//! All guarantees of TrinityLake depend on [`Storage::put_if_absent`]. A store that ignores the condition, or that
//! checks it and writes in two steps, works until two commits arrive at the same time and one of them is lost.
//! Therefore the store is checked once, before a lakehouse is created.

use std::collections::HashSet;

use bytes::Bytes;
use futures::future::{join, join_all};

use crate::storage_trait::{PutOutcome, Storage};
use trinitylake_base::error::{Error, Result};

/// Number of writers that try to create the same file.
const RACERS: usize = 8;

/// Refuses a store on which a file can be created twice, one after the other or by several writers at the same time.
/// `name` is a unique name (an id from the environment). The files are written below `_probe/` and deleted again if the
/// store allows it. Takes four rounds of requests.
pub async fn probe(storage: &dyn Storage, name: &str) -> Result<()> {
    let paths = Paths { sequence: format!("_probe/{name}"), race: format!("_probe/{name}-race") };
    let result = exclude(storage, &paths).await;
    // Leftovers below `_probe/` are harmless, and a store that denies deletions can still accept commits.
    let _ = join(storage.delete(&paths.sequence), storage.delete(&paths.race)).await;
    result
}

struct Paths {
    sequence: String,
    race: String,
}

async fn exclude(storage: &dyn Storage, paths: &Paths) -> Result<()> {
    let first = Bytes::from_static(b"first");
    if storage.put_if_absent(&paths.sequence, first.clone()).await? != PutOutcome::Created {
        return Err(refused(&format!("it says that the new file {} exists already", paths.sequence)));
    }
    let second = storage.put_if_absent(&paths.sequence, Bytes::from_static(b"second"));
    let racers = (0..RACERS).map(|racer| storage.put_if_absent(&paths.race, content(racer)));
    let (second, race) = join(second, join_all(racers)).await;
    if second? != PutOutcome::AlreadyExists {
        return Err(refused("it ignores the condition: the same file was created twice"));
    }
    let winners: HashSet<usize> = (0..RACERS).filter(|&racer| matches!(race[racer], Ok(PutOutcome::Created))).collect();
    if winners.len() > 1 {
        return Err(refused(&format!("{} of {RACERS} writers at once created the same file", winners.len())));
    }
    let Some(winner) = winners.into_iter().next() else {
        // No writer won: report the error of one of them if there is one, because it contains the cause.
        race.into_iter().collect::<Result<Vec<_>>>()?;
        return Err(refused(&format!("none of {RACERS} writers could create the new file {}", paths.race)));
    };
    let (sequence, race) = join(storage.get(&paths.sequence), storage.get(&paths.race)).await;
    if sequence? != first || race? != content(winner) {
        return Err(refused("it replaced a file although it answered the second writer that the file exists"));
    }
    Ok(())
}

fn content(racer: usize) -> Bytes {
    Bytes::from(format!("racer {racer}"))
}

fn refused(finding: &str) -> Error {
    Error::Storage {
        message: format!(
            "this store cannot hold a lakehouse: {finding}. A commit is the creation of a file that only one \
             writer may win; here two commits could both succeed and one of them would be lost. Use a store \
             with conditional writes (If-None-Match)"
        ),
        retryable: false,
    }
}

#[cfg(test)]
mod tests;
