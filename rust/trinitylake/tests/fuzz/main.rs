//! Damaged and hostile bytes, run by run: every decoder answers with a value that makes sense or with its own
//! error, never dies, and takes little memory.
//!
//! Run n is decided by the seed n. `TRINITYLAKE_FUZZ_RUNS=n` sets how many there are (`make fuzz`), and
//! `TRINITYLAKE_FUZZ_SEED=n` repeats one.

mod mutation;
mod targets;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use mutation::mutate;
use targets::TARGETS;

const RUNS: u64 = 200_000;
/// What all runs together may add to the memory of the process.
const MEMORY_LIMIT_BYTES: u64 = 64 << 20;

/// What became of the runs of one target.
#[derive(Default)]
struct Tally {
    accepted: u64,
    refused: u64,
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
    if (target.decode)(&mutate(sample, other, &mut generator)) {
        tally.accepted += 1;
    } else {
        tally.refused += 1;
    }
}

/// Says which run it was, and why, when a check fails in the middle of it.
struct Told<'a> {
    seed: u64,
    last_panic: &'a Mutex<String>,
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let why = self.last_panic.lock().unwrap();
            eprintln!("{why}\nrepeat with TRINITYLAKE_FUZZ_SEED={}", self.seed);
        }
    }
}

/// The most memory that this process ever had, where that can be told.
fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

#[test]
fn no_bytes_break_a_decoder() {
    let samples: Vec<Vec<Vec<u8>>> = TARGETS.iter().map(|target| (target.samples)()).collect();
    for (target, samples) in TARGETS.iter().zip(&samples) {
        for sample in samples {
            assert!((target.decode)(sample), "{}: a sample is refused: {sample:?}", target.name);
        }
    }
    // Arrow panics on some damage, and the node decoder catches that: such panics are not worth a line each.
    let last_panic: Arc<Mutex<String>> = Arc::default();
    let told = last_panic.clone();
    std::panic::set_hook(Box::new(move |info| *told.lock().unwrap() = info.to_string()));
    let mut tallies = BTreeMap::new();
    let seeds = match number("TRINITYLAKE_FUZZ_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TRINITYLAKE_FUZZ_RUNS").unwrap_or(RUNS),
    };
    let (before, runs) = (peak_memory_bytes(), seeds.end - seeds.start);
    for seed in seeds {
        let _told = Told { seed, last_panic: &last_panic };
        run(seed, &samples, &mut tallies);
    }
    let _ = std::panic::take_hook();
    let grown = peak_memory_bytes().zip(before).map(|(after, before)| after - before);
    for (target, tally) in &tallies {
        println!("{target}: {} accepted, {} refused", tally.accepted, tally.refused);
        // Else the mutations are too harmless, or too wild, to test anything.
        assert!(runs < 10_000 || tally.accepted > 0, "{target}: all was refused");
        assert!(runs < 10_000 || tally.refused > 0, "{target}: all was accepted");
    }
    println!("{runs} runs; {grown:?} bytes of memory more than before");
    assert!(grown.is_none_or(|bytes| bytes < MEMORY_LIMIT_BYTES), "{grown:?} bytes");
}
