//! Rows of one column, worked on by all cores: each thread has a run of rows, and the bytes that these become.

use std::num::NonZero;
use std::ops::Range;
use std::panic::resume_unwind;
use std::thread;

use trinitylake_base::error::Result;

/// Fewer rows are done sooner than a thread begins.
const ROWS_PER_THREAD_MIN: usize = 1 << 15;

/// Runs `work` for all rows of a column, in as many runs as there are cores for them. Row i becomes the bytes from
/// `offsets[i]` on; `work` gets the rows of a run and the bytes of all of them. The error is that of the first run.
pub(crate) fn for_runs_of_rows(
    offsets: &[i32],
    output: &mut [u8],
    work: impl Fn(Range<usize>, &mut [u8]) -> Result<()> + Sync,
) -> Result<()> {
    let rows = offsets.len().saturating_sub(1);
    let most = rows / ROWS_PER_THREAD_MIN;
    let runs = if most > 1 { thread::available_parallelism().map_or(1, NonZero::get).min(most) } else { 1 };
    for_so_many_runs(runs, offsets, output, work)
}

fn for_so_many_runs(
    runs: usize,
    offsets: &[i32],
    output: &mut [u8],
    work: impl Fn(Range<usize>, &mut [u8]) -> Result<()> + Sync,
) -> Result<()> {
    let rows = offsets.len().saturating_sub(1);
    if runs <= 1 {
        return work(0..rows, output);
    }
    let work = &work;
    thread::scope(|scope| {
        let mut rest = output;
        let mut threads = Vec::with_capacity(runs);
        for run in 0..runs {
            let range = rows * run / runs..rows * (run + 1) / runs;
            let size = (offsets[range.end] - offsets[range.start]) as usize;
            let (bytes, others) = rest.split_at_mut(size);
            rest = others;
            threads.push(scope.spawn(move || work(range, bytes)));
        }
        // All of them end before the first error is told.
        let results: Vec<Result<()>> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect();
        results.into_iter().collect()
    })
}

#[cfg(test)]
mod tests {
    use trinitylake_base::error::Error;

    use super::*;

    /// Each run got the bytes of another one when rows had different sizes.
    #[test]
    fn every_run_writes_its_own_rows_and_the_first_error_counts() {
        let offsets: Vec<i32> = (0..100)
            .scan(0, |end, row| {
                *end += row % 7;
                Some(*end)
            })
            .collect();
        let write = |range: Range<usize>, bytes: &mut [u8]| {
            let start = offsets[range.start];
            for row in range {
                bytes[(offsets[row] - start) as usize..(offsets[row + 1] - start) as usize].fill(row as u8);
            }
            Ok(())
        };
        let mut expected = vec![0; offsets[99] as usize];
        for_so_many_runs(1, &offsets, &mut expected, write).unwrap();
        for runs in [2, 3, 7, 99] {
            let mut output = vec![0; expected.len()];
            for_so_many_runs(runs, &offsets, &mut output, write).unwrap();
            assert_eq!(output, expected, "{runs}");
        }
        let fail = |range: Range<usize>, _: &mut [u8]| match range.start {
            0 => Ok(()),
            start => Err(Error::InvalidName(start.to_string())),
        };
        let error = for_so_many_runs(3, &offsets, &mut expected, fail).unwrap_err();
        assert!(error.to_string().contains("33"), "{error}");
    }
}
