//! Where new files go that may lie in any of many folders (format §3): one handle puts them into the same one for a while.
//!
//! On an object store such files are spread, and that is free. A disk would make a folder for nearly each of the first
//! thousands, and then find each of them in a folder that it has not seen for long (docs/decisions/0062).

use std::sync::{Arc, Mutex, PoisonError};

/// So many files go into a folder, one after the other: a folder that grew with the lakehouse would be listed as a whole.
const FILES_IN_A_ROW: usize = 1000;

/// The folder of the turn, and how many more files go there.
#[derive(Debug, Default)]
pub(super) struct Gathering(Mutex<Option<(Arc<str>, usize)>>);

impl Gathering {
    /// The first of a turn goes where its hash leads, so handles do not crowd into one folder.
    pub(super) fn folder_instead_of(&self, spread: &str) -> Option<Arc<str>> {
        let mut turn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *turn {
            Some((folder, left)) if *left > 0 => {
                *left -= 1;
                Some(folder.clone())
            }
            _ => {
                *turn = Some((spread.into(), FILES_IN_A_ROW - 1));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new folder costs a local disk as much as the definition in it, and each of the first thousands of definitions
    /// got one of its own. In one folder for all, each listing of it would be one of the lakehouse.
    #[test]
    fn a_handle_stays_with_a_folder_for_a_while() {
        let gathering = Gathering::default();
        for turn in 0..3 {
            let first = format!("0000/0000/{turn:04b}");
            assert_eq!(gathering.folder_instead_of(&first), None, "where its hash leads");
            for number in 1..FILES_IN_A_ROW {
                let other = format!("1111/{:04b}/{:04b}", number >> 4 & 15, number & 15);
                assert_eq!(gathering.folder_instead_of(&other).as_deref(), Some(&*first));
            }
        }
    }
}
