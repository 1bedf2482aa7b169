//! Galloping search for the latest version (format §7): decides the next probes, and sends no requests.
//!
//! From the boundary on, versions are contiguous: if one is missing, all higher ones are missing as well. Therefore
//! growing steps upwards from an existing version, followed by a bisection, find the latest version. The caller
//! requests all [`GallopingSearch::probes`] at the same time and passes the answers to [`GallopingSearch::learn`],
//! until no probe is left. The library and the web page use this search; the page cannot list roots.

use trinitylake_format::file_names::VERSION_MAX;

/// Maximum size of a hint, which is one number. A longer file is not a hint.
const HINT_MAX_SIZE_BYTES: usize = 20;
/// Steps of the first probes if probably one or two newer versions exist. Many probes save rounds: a round takes time,
/// and a probe is a cheap request.
const NEAR: [u64; 6] = [1, 2, 4, 8, 16, 32];
/// Steps of the first probes above an old hint. If the latest version is at most 384 higher, the second round finds it.
pub const FAR: [u64; 16] = [1, 2, 4, 8, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384];
/// Number of probes between two versions that are too far apart to request all versions between them.
const CUTS: u64 = 6;
/// Maximum distance of two versions for which all versions between them are requested in one round.
const NARROW: u64 = 32;

/// The version that the content of a hint file names, if it is a number.
pub fn version_of_hint(content: &[u8]) -> Option<u64> {
    if content.len() > HINT_MAX_SIZE_BYTES {
        return None;
    }
    std::str::from_utf8(content).ok()?.trim().parse().ok()
}

/// Search from an existing version to the last one.
#[derive(Clone, Debug)]
pub struct GallopingSearch {
    /// The highest version that is known to exist.
    low: u64,
    phase: Phase,
}

#[derive(Clone, Debug)]
enum Phase {
    /// All probed versions exist so far. The next probes are higher than `low` by these steps.
    Gallop { steps: Vec<u64> },
    /// Version `high` is missing.
    Bisection { high: u64 },
}

impl GallopingSearch {
    /// Starts at an existing version that is probably a little lower than the last one.
    pub fn near(known: u64) -> GallopingSearch {
        GallopingSearch { low: known, phase: Phase::Gallop { steps: NEAR.to_vec() } }
    }

    /// Starts at an existing version that may be hundreds below the last one.
    pub fn far(known: u64) -> GallopingSearch {
        GallopingSearch { low: known, phase: Phase::Gallop { steps: FAR.to_vec() } }
    }

    /// The versions to request next, ascending; none if [`GallopingSearch::last`] is known.
    pub fn probes(&self) -> Vec<u64> {
        match &self.phase {
            Phase::Gallop { steps } => {
                let further = |step: &u64| self.low.saturating_add(*step).min(VERSION_MAX);
                let mut probes: Vec<u64> = steps.iter().map(further).collect();
                probes.dedup();
                probes.retain(|probe| *probe > self.low);
                probes
            }
            Phase::Bisection { high } => {
                let gap = high - self.low;
                let cuts = if gap <= NARROW { gap - 1 } else { CUTS };
                (1..=cuts).map(|i| self.low + gap / (cuts + 1) * i).collect()
            }
        }
    }

    /// Takes the answers to the probes: whether each version exists.
    pub fn learn(&mut self, exist: &[bool]) {
        let probes = self.probes();
        // Versions may be created during the round, so a lower probe may be missing although a higher one exists.
        let highest = probes.iter().zip(exist).rposition(|(_, exists)| *exists);
        let above = probes.get(highest.map_or(0, |i| i + 1)).copied();
        if let Some(i) = highest {
            self.low = probes[i];
        }
        match (&mut self.phase, above) {
            (phase, Some(high)) => *phase = Phase::Bisection { high },
            (Phase::Gallop { steps }, None) => {
                let last = steps.last().copied().unwrap_or(1);
                *steps = NEAR.map(|near| last.saturating_mul(near)).to_vec();
            }
            (Phase::Bisection { .. }, None) => {}
        }
    }

    /// The last version, once no probe is left.
    pub fn last(&self) -> u64 {
        self.low
    }
}

#[cfg(test)]
mod tests;
