//! Galloping search for the latest version (format §7): decides the next probes, and sends no requests.
//!
//! From the boundary on, versions are contiguous: if one is missing, so are all above it. So the latest is found from one
//! that is there by galloping (steps that grow) and bisection. Who searches asks for [`GallopingSearch::probes`], all at once, and
//! tells the galloping_search which of them are there, until there is nothing to ask: the library, which lists where a hint leads
//! nowhere, and a browser, which cannot.

use trinitylake_format::path::VERSION_MAX;

/// A hint is one number; a longer file is not a hint.
const HINT_MAX_SIZE_BYTES: usize = 20;
/// Steps of the first probes where one or two versions are likely. Rounds cost time, probes only a cheap request each.
const NEAR: [u64; 6] = [1, 2, 4, 8, 16, 32];
/// Steps of the first probes above a hint that is old: up to 384 versions on, the second round finds the last one.
pub const FAR: [u64; 16] = [1, 2, 4, 8, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384];
/// Probes in a gap that is too wide to ask for all that lie in it.
const CUTS: u64 = 6;
/// A gap of that many versions takes one round.
const NARROW: u64 = 32;

/// The version that the content of a hint file names, if it is a number.
pub fn version_of_hint(content: &[u8]) -> Option<u64> {
    if content.len() > HINT_MAX_SIZE_BYTES {
        return None;
    }
    std::str::from_utf8(content).ok()?.trim().parse().ok()
}

/// From a version that is there to the last one.
#[derive(Clone, Debug)]
pub struct GallopingSearch {
    /// The highest version that is known to be there.
    low: u64,
    phase: Phase,
}

#[derive(Clone, Debug)]
enum Phase {
    /// All are there so far: these many versions further on?
    Gallop { steps: Vec<u64> },
    /// This one is not there.
    Bisection { high: u64 },
}

impl GallopingSearch {
    /// From a version that is there, and probably not many behind the last one.
    pub fn near(known: u64) -> GallopingSearch {
        GallopingSearch { low: known, phase: Phase::Gallop { steps: NEAR.to_vec() } }
    }

    /// From a version that is there, and perhaps hundreds behind the last one.
    pub fn far(known: u64) -> GallopingSearch {
        GallopingSearch { low: known, phase: Phase::Gallop { steps: FAR.to_vec() } }
    }

    /// The versions to ask for next, ascending; none if [`GallopingSearch::last`] is known.
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

    /// For each probe whether the version exists.
    pub fn learn(&mut self, exist: &[bool]) {
        let probes = self.probes();
        // Versions appear while one looks: a lower probe may have come too early and a higher one not.
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

    /// The last version, once there is nothing more to ask for.
    pub fn last(&self) -> u64 {
        self.low
    }
}

#[cfg(test)]
mod tests;
