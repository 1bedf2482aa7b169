//! Fuzz test with damaged and malicious bytes: every decoder returns a valid value or one of the library's errors,
//! never panics, and allocates little memory.
//!
//! The seed n determines run n. `TRINITYLAKE_FUZZ_RUNS=n` sets the number of runs (`make fuzz`), and
//! `TRINITYLAKE_FUZZ_SEED=n` repeats one run.

mod allocation;
mod mutation;
mod targets;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use allocation::most_allocated_bytes;
use mutation::mutate;
use targets::TARGETS;

const RUNS: u64 = 200_000;
/// Maximum memory of one run. A small node may state a decompressed size of 4 MiB; the rest is for the LZ4 decoder.
const ALLOCATION_LIMIT_BYTES: usize = 32 << 20;

/// Results of the runs of one target.
#[derive(Default)]
struct Tally {
    accepted: u64,
    refused: u64,
    most_allocated_bytes: usize,
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn run(seed: u64, samples: &[Vec<Vec<u8>>], tallies: &mut BTreeMap<&'static str, Tally>) {
    let mut generator = StdRng::seed_from_u64(seed);
    let position = generator.random_range(0..TARGETS.len());
    let (target, samples) = (&TARGETS[position], &samples[position]);
    let sample = &samples[generator.random_range(0..samples.len())];
    let other = &samples[generator.random_range(0..samples.len())];
    let tally = tallies.entry(target.name).or_default();
    let bytes = mutate(sample, other, &mut generator);
    let (is_accepted, allocated) = most_allocated_bytes(|| (target.decode)(&bytes));
    assert!(allocated < ALLOCATION_LIMIT_BYTES, "{}: {} bytes allocated {allocated}", target.name, bytes.len());
    tally.most_allocated_bytes = tally.most_allocated_bytes.max(allocated);
    if is_accepted {
        tally.accepted += 1;
    } else {
        tally.refused += 1;
    }
}

/// Prints the run and the panic message if a check fails.
struct PrintOnPanic<'a> {
    seed: u64,
    last_panic: &'a Mutex<String>,
}

impl Drop for PrintOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let why = self.last_panic.lock().unwrap();
            eprintln!("{why}\nrepeat with TRINITYLAKE_FUZZ_SEED={}", self.seed);
        }
    }
}

#[test]
fn no_bytes_crash_a_decoder() {
    let samples: Vec<Vec<Vec<u8>>> = TARGETS.iter().map(|target| (target.samples)()).collect();
    for (target, samples) in TARGETS.iter().zip(&samples) {
        for sample in samples {
            assert!((target.decode)(sample), "{}: a sample is refused: {sample:?}", target.name);
        }
    }
    // Arrow panics on some damage, and the node decoder catches that, so such panics are not printed.
    let last_panic: Arc<Mutex<String>> = Arc::default();
    let message_of_panic = last_panic.clone();
    std::panic::set_hook(Box::new(move |info| *message_of_panic.lock().unwrap() = info.to_string()));
    let mut tallies = BTreeMap::new();
    let seeds = match number("TRINITYLAKE_FUZZ_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TRINITYLAKE_FUZZ_RUNS").unwrap_or(RUNS),
    };
    let runs = seeds.end - seeds.start;
    for seed in seeds {
        let _print = PrintOnPanic { seed, last_panic: &last_panic };
        run(seed, &samples, &mut tallies);
    }
    let _ = std::panic::take_hook();
    for (target, tally) in &tallies {
        let Tally { accepted, refused, most_allocated_bytes } = tally;
        println!("{target}: {accepted} accepted, {refused} refused, {most_allocated_bytes} bytes at most");
        // If all values have the same result, the mutations are too weak or too strong.
        assert!(runs < 10_000 || tally.accepted > 0, "{target}: all values were refused");
        assert!(runs < 10_000 || tally.refused > 0, "{target}: all values were accepted");
    }
    println!("{runs} runs");
}

/// The measurement includes memory that is requested but never touched. Otherwise it would miss allocations for
/// malicious lengths.
#[test]
fn untouched_memory_is_counted() {
    let (capacity, allocated) = most_allocated_bytes(|| Vec::<u8>::with_capacity(256 << 20).capacity());
    assert!(allocated >= capacity && capacity >= 256 << 20, "{allocated}");
    let (_, after) = most_allocated_bytes(|| vec![0u8; 100]);
    assert!((100..10_000).contains(&after), "{after}");
}
