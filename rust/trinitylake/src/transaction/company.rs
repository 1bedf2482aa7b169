//! Several transactions of one caller, who waits for all of them: their files are written and made to last together, and
//! one root has them, if they fit beside each other. A server that answers many clients from one thread commits so, and
//! pays once for what each would pay for: a wait for the disk, and a change of threads.
//!
//! Only the first try is made together. Whoever is not in its root, because another writer was faster, because a companion
//! changed the same thing before, or because something failed, goes on by itself, as if it had been alone from the start.

use bytes::Bytes;
use futures::future::join_all;

use super::Transaction;
use super::commit::{CommitLimits, Effort, Fit, Looked, Outcome};
use super::group_commit::Verdict;
use super::life::Failure;
use super::shared_root::Submission;
use super::written_behind::make_files_durable;
use crate::error::Result;
use crate::storage::PendingWrites;
use crate::storage::retry::within;

/// As if nothing had been sent for it.
const NOT_TRIED: Verdict = Verdict::Again { files_are_written: false };

/// Where a companion stands.
enum Stage {
    /// It was over before, or cannot be committed: its answer.
    Over(Result<Outcome>),
    Ended(Result<Outcome, Failure>),
    Ready(Effort, Fit),
    /// It goes on by itself.
    Alone,
}

/// Commits each of them, as [`Transaction::commit`] does, with an answer for each. None may be there twice.
pub async fn commit_together(company: &mut [&mut Transaction], limits: CommitLimits) -> Vec<Result<Outcome>> {
    let mut stages = join_all(company.iter_mut().map(|companion| companion.ready(limits))).await;
    try_together(company, &mut stages, limits).await;
    let answers = company.iter_mut().zip(stages).map(|(companion, stage)| async {
        let ended = match stage {
            Stage::Over(answer) => return answer,
            Stage::Ended(ended) => ended,
            // What it was held against may yet turn out to be void.
            Stage::Ready(_, fit) => {
                let _ = companion.hear(NOT_TRIED, fit);
                companion.go_for_version(limits).await
            }
            Stage::Alone => companion.go_for_version(limits).await,
        };
        companion.end_commit(ended).await
    });
    join_all(answers).await
}

/// One try of all that are ready.
async fn try_together(company: &mut [&mut Transaction], stages: &mut [Stage], limits: CommitLimits) {
    let ready: Vec<usize> =
        (0..stages.len()).filter(|&number| matches!(stages[number], Stage::Ready(..))).collect();
    let Some(&first) = ready.first() else { return };
    let lakehouse = company[first].lakehouse.clone();
    let is_companion = |number: &usize| std::sync::Arc::ptr_eq(&company[*number].lakehouse, &lakehouse);
    let ready: Vec<usize> = ready.into_iter().filter(is_companion).collect();
    let must_wait = lakehouse.commits().is_led()
        || ready.iter().any(|&number| company[number].waits_in_queue(limits.coordination));
    if must_wait {
        // Whoever joins others has its files in place. What could not be written shows where each goes on.
        write_files_of(company, &ready).await;
        return;
    }
    let mut submissions: Vec<Submission> = Vec::with_capacity(ready.len());
    let mut tried = Vec::with_capacity(ready.len());
    let mut deadline_millis = u64::MAX;
    for number in ready {
        let Stage::Ready(mut effort, fit) = std::mem::replace(&mut stages[number], Stage::Alone) else {
            continue;
        };
        deadline_millis = deadline_millis.min(effort.deadline_millis);
        effort.attempts += 1;
        match company[number].submit(limits.coordination, effort.attempts) {
            Ok(submission) => submissions.push(submission),
            Err(error) => {
                stages[number] = Stage::Ended(Err(error.into()));
                continue;
            }
        }
        tried.push((number, effort, fit));
    }
    let is_one = submissions.len() == 1;
    let verdicts = lakehouse.commits().commit_company(&lakehouse, submissions, deadline_millis);
    let Some(verdicts) = within(deadline_millis, verdicts).await else {
        // Somebody has begun to lead meanwhile.
        for (number, _, fit) in tried {
            let _ = company[number].hear(NOT_TRIED, fit);
        }
        return;
    };
    for ((number, mut effort, fit), verdict) in tried.into_iter().zip(verdicts) {
        let companion = &mut company[number];
        let tried = match verdict {
            // Perhaps for the file of another.
            Err(Failure::Certain(..)) if !is_one => {
                effort.attempts -= 1;
                Ok(companion.hear(NOT_TRIED, fit))
            }
            verdict => verdict.map(|verdict| companion.hear(verdict, fit)),
        };
        companion.effort = Some(effort);
        if let Some(ended) = companion.weigh(tried, limits, effort) {
            stages[number] = Stage::Ended(ended);
        }
    }
}

/// Makes the files of all of them last, in one wait.
async fn write_files_of(company: &mut [&mut Transaction], numbers: &[usize]) {
    let Some(&first) = numbers.first() else { return };
    let lakehouse = company[first].lakehouse.clone();
    let files: Vec<(String, Bytes)> =
        numbers.iter().flat_map(|&number| company[number].changes.unwritten_files()).collect();
    let written = {
        let pending: Vec<&PendingWrites> =
            numbers.iter().map(|&number| company[number].pending.as_ref()).collect();
        make_files_durable(lakehouse.storage().as_ref(), files, &pending).await
    };
    if written.is_ok() {
        numbers.iter().for_each(|&number| company[number].changes.mark_written());
    }
}

impl Transaction {
    /// All that comes before a first try.
    async fn ready(&mut self, limits: CommitLimits) -> Stage {
        match self.life.begin_commit() {
            Ok(None) => {}
            Ok(Some(version)) => return Stage::Over(Ok(Outcome::Committed(version))),
            Err(error) => return Stage::Over(Err(error)),
        }
        if !self.has_writes() && !self.saved.has_record {
            return Stage::Ended(Ok(Outcome::Committed(self.base.number)));
        }
        let mut effort = self.effort_so_far(limits);
        let looked = within(effort.deadline_millis, async {
            if let Some(version) = self.record_chosen_id().await? {
                return Ok(Looked::Ended(Outcome::Committed(version)));
            }
            // As for a commit of its own: no root is ever created below a base.
            self.lakehouse.learn(self.base.clone());
            self.look(limits, &mut effort).await
        });
        match looked.await {
            Ok(Looked::Ended(outcome)) => Stage::Ended(Ok(outcome)),
            Ok(Looked::Fit(fit)) => Stage::Ready(effort, fit),
            Err(failure) => Stage::Ended(Err(failure)),
        }
    }
}
