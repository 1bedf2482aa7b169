//! Tests whether a store lets only one of several writers create a file.
//!
//! All of TrinityLake rests on [`Storage::put_if_absent`]. With a store that ignores the condition, or checks
//! it and writes in two steps, all seems well until two commits come at the same time and one of them is
//! lost. So a new lakehouse tests it once, before anything is in it.

use std::collections::HashSet;

use bytes::Bytes;
use futures::future::{join, join_all};

use crate::storage::{PutOutcome, Storage};
use trinitylake_base::error::{Error, Result};

/// Writers that try to create the same file.
const RACERS: usize = 8;

/// Refuses a store on which a file can be created twice: one after the other, or by several writers at
/// once. `name` is a fresh name (an id from the environment); the files lie under `_probe/` and are
/// removed again as far as the store allows. Four rounds of requests.
pub async fn probe(storage: &dyn Storage, name: &str) -> Result<()> {
    let paths = Paths { sequence: format!("_probe/{name}"), race: format!("_probe/{name}-race") };
    let result = exclude(storage, &paths).await;
    // Litter under `_probe/` does no harm, and a store that forbids to delete can still take commits.
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
    let winners: HashSet<usize> =
        (0..RACERS).filter(|&racer| matches!(race[racer], Ok(PutOutcome::Created))).collect();
    if winners.len() > 1 {
        return Err(refused(&format!("{} of {RACERS} writers at once created the same file", winners.len())));
    }
    let Some(winner) = winners.into_iter().next() else {
        // No writer won: report the error of one of them if there is one, since it says why.
        race.into_iter().collect::<Result<Vec<_>>>()?;
        return Err(refused(&format!("none of {RACERS} writers could create the new file {}", paths.race)));
    };
    let (sequence, race) = join(storage.get(&paths.sequence), storage.get(&paths.race)).await;
    if sequence? != first || race? != content(winner) {
        return Err(refused(
            "it replaced a file although it answered the second writer that the file exists",
        ));
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
