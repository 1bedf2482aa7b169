//! A crash at every storage operation. Each scenario runs once without faults to list its operations, and then once for
//! each operation and each possible fault of it. Afterwards another process opens the remaining files, checks them
//! (`check.rs`), and continues.
//!
//! `TRINITYLAKE_DEEP=1` tries many more pairs of faults in one run.

mod check;
mod process;
mod scenarios;
mod store;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use trinitylake::error::Error;
use trinitylake::file_names::{LATEST_HINT_PATH, root_version};
use trinitylake::key::ObjectKind::Namespace;
use trinitylake::storage::Storage;
use trinitylake::storage::faulty::{Action, Fault, Operation, Trigger, Verb};
use trinitylake::transaction::Transaction;
use trinitylake::transaction::saved::list;

use check::{Start, check};
use process::{Process, Statement};
use scenarios::{SCENARIOS, Scenario, settle};
use store::{Loss, Store};

/// Number of files that were not synced when the power was cut, in all trials.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Fault of an operation, and its effect on the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FaultKind {
    NotDone,
    ReplyLost,
    /// The client sent the request twice, and the second request found the file that the first one had created.
    OwnReportedAsAnothers,
    /// The request fails, and is applied later while another process runs.
    Late,
    StopsBefore,
    StopsAfter,
    StopsWithItUnderWay,
}

const FAULT_KINDS: [FaultKind; 7] = [
    FaultKind::NotDone,
    FaultKind::ReplyLost,
    FaultKind::OwnReportedAsAnothers,
    FaultKind::Late,
    FaultKind::StopsBefore,
    FaultKind::StopsAfter,
    FaultKind::StopsWithItUnderWay,
];

impl FaultKind {
    fn applies_to(self, verb: Verb) -> bool {
        match self {
            FaultKind::NotDone | FaultKind::StopsBefore => true,
            FaultKind::OwnReportedAsAnothers => verb == Verb::PutIfAbsent,
            FaultKind::ReplyLost | FaultKind::Late | FaultKind::StopsAfter | FaultKind::StopsWithItUnderWay => {
                verb.writes()
            }
        }
    }

    fn at(self, index: u64) -> Vec<Fault> {
        let fault = |index, action| Fault::new(Trigger::at(index), action);
        match self {
            FaultKind::NotDone => vec![fault(index, Action::FailBefore)],
            FaultKind::ReplyLost => vec![fault(index, Action::FailAfter)],
            FaultKind::OwnReportedAsAnothers => vec![fault(index, Action::AlreadyExistsAfter)],
            FaultKind::Late => vec![fault(index, Action::Late)],
            FaultKind::StopsBefore => vec![fault(index, Action::DieBefore)],
            FaultKind::StopsAfter => vec![fault(index, Action::DieAfter)],
            FaultKind::StopsWithItUnderWay => {
                vec![fault(index, Action::Late), fault(index + 1, Action::DieBefore)]
            }
        }
    }
}

#[derive(Default)]
struct Tally {
    trials: BTreeMap<(&'static str, FaultKind), u64>,
    /// Number of committed transactions whose process got no answer.
    found_out: u64,
}

async fn start_of(scenario: &Scenario) -> Start {
    if scenario.begins_empty {
        return Start::default();
    }
    let store = Store::empty();
    settle(&Process::new(&store, Vec::new(), 1)).await.unwrap();
    Start::of(store).await
}

/// The operations of a run without faults.
async fn operations(scenario: &Scenario, start: &Start) -> Vec<Operation> {
    let store = start.store.copy();
    let process = Process::new(&store, Vec::new(), 2);
    (scenario.life)(&process).await.unwrap_or_else(|| panic!("{:?}", process.attempts()));
    let operations = process.storage.log();
    check(start, &store, &process.attempts()).await;
    operations
}

/// One run with faults, the check by another process, and its own work afterwards.
async fn trial(scenario: &Scenario, start: &Start, faults: Vec<Fault>, hint: Option<Bytes>) -> u64 {
    let store = start.store.copy();
    let process = Process::new(&store, faults, 2);
    (scenario.life)(&process).await;
    let fired = process.storage.fired();
    assert!(!fired.is_empty(), "no fault fired: {:?}", process.storage.unfired());
    if let Some(hint) = hint {
        store.overwrite(LATEST_HINT_PATH, hint);
    }
    // Everything that was acknowledged or is visible survives a power cut.
    let mut generator = StdRng::seed_from_u64(fired[0].operation.index);
    let losses = [Loss::Whole, Loss::Whole, Loss::Torn, Loss::None];
    let lost = store.lose_power(|| losses[generator.random_range(0..losses.len())]);
    LOST.fetch_add(lost as u64, Ordering::SeqCst);
    settle_hint(&store).await;

    let next = Process::new(&store, Vec::new(), 3);
    let exists = store.paths().iter().any(|path| root_version(path).is_some());
    assert!(exists || process.handles().is_empty(), "the lakehouse existed, and is lost");
    let lakehouse = if exists { next.open().await.unwrap() } else { next.create().await.unwrap() };
    for saved in list::saved(&lakehouse).await.unwrap() {
        let resumed = Transaction::resume(&lakehouse, &saved.id).await;
        assert!(!matches!(resumed, Err(Error::CorruptFile { .. })), "{}: {resumed:?}", saved.id);
    }
    process.sleep();
    for handle in process.handles() {
        // This request may meet a fault that has not fired yet.
        let latest = [handle.latest().await, handle.latest().await].into_iter().find_map(Result::ok);
        if let Some(latest) = latest.filter(|_| !process.storage.is_dead()) {
            assert_eq!(latest.number, lakehouse.known().number, "an open handle does not find the latest version");
        }
    }
    process.storage.deliver_late().await;
    let afterwards = [Statement::Create(Namespace, ("afterwards", ""))];
    assert!(next.transact(&lakehouse, &afterwards).await.is_some(), "{:?}", next.attempts());
    check(start, &store, &[process.attempts(), next.attempts()].concat()).await
}

/// Deletes a hint above all roots, as an operator would do, after checking that it stops writes.
async fn settle_hint(store: &Arc<Store>) {
    if !store.paths().iter().any(|path| root_version(path).is_some()) {
        return;
    }
    let lakehouse = check::open(store).await;
    if lakehouse.check_intact().is_err() {
        let paths = store.paths();
        let refused = lakehouse.rollback(lakehouse.known().number, "", "").await;
        assert!(matches!(refused, Err(Error::CorruptFile { .. })), "{refused:?}");
        assert_eq!(store.paths(), paths, "a file was written");
        store.delete(LATEST_HINT_PATH).await.unwrap();
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Prints the trial if a check panics.
struct PrintOnPanic(String);

impl Drop for PrintOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in the trial: {}", self.0);
        }
    }
}

fn enumerate(scenario: &Scenario) -> Tally {
    block_on(async {
        let start = start_of(scenario).await;
        let mut tally = Tally::default();
        for operation in operations(scenario, &start).await {
            for kind in FAULT_KINDS.into_iter().filter(|kind| kind.applies_to(operation.verb)) {
                let _print = PrintOnPanic(format!("{}: {kind:?} at {operation:?}", scenario.name));
                tally.found_out += trial(scenario, &start, kind.at(operation.index), None).await;
                *tally.trials.entry((scenario.name, kind)).or_default() += 1;
            }
        }
        tally
    })
}

#[test]
fn no_single_fault_loses_a_commit() {
    let tallies: Vec<Tally> = std::thread::scope(|scope| {
        let threads: Vec<_> = SCENARIOS.iter().map(|scenario| scope.spawn(move || enumerate(scenario))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut trials: BTreeMap<(&'static str, FaultKind), u64> = BTreeMap::new();
    tallies.iter().for_each(|tally| trials.extend(&tally.trials));
    let total: u64 = trials.values().sum();
    let found_out: u64 = tallies.iter().map(|tally| tally.found_out).sum();
    println!("{total} trials, {found_out} commits without an answer: {trials:?}");
    for scenario in &SCENARIOS {
        for kind in FAULT_KINDS {
            assert!(trials.contains_key(&(scenario.name, kind)), "{}: never {kind:?}", scenario.name);
        }
    }
    assert!(total >= 1500, "only {total} trials");
    let lost = LOST.load(Ordering::SeqCst);
    println!("{lost} files were lost with the power");
    assert!(lost >= 500, "only {lost} files were not synced when the power failed");
    assert!(found_out >= 50, "only {found_out} commits without an answer were committed");
}

/// Two faults in one run: the second one occurs while a process handles the first.
#[test]
fn no_pair_of_faults_loses_a_commit() {
    let is_deep = std::env::var("TRINITYLAKE_DEEP").is_ok();
    let pairs = if is_deep { 9_000 } else { 60 };
    std::thread::scope(|scope| {
        for (seed, scenario) in SCENARIOS.iter().enumerate() {
            scope.spawn(move || block_on(two_faults(scenario, seed as u64, pairs)));
        }
    });
}

async fn two_faults(scenario: &Scenario, seed: u64, pairs: u64) {
    let mut generator = StdRng::seed_from_u64(seed);
    let start = start_of(scenario).await;
    let operations = operations(scenario, &start).await;
    for _ in 0..pairs {
        let first = &operations[generator.random_range(0..operations.len())];
        let survived = [FaultKind::NotDone, FaultKind::ReplyLost, FaultKind::OwnReportedAsAnothers, FaultKind::Late];
        let survived: Vec<FaultKind> = survived.into_iter().filter(|kind| kind.applies_to(first.verb)).collect();
        let kind = survived[generator.random_range(0..survived.len())];
        // The second fault is at one of the next operations, because these usually handle the first fault.
        let second = first.index + 1 + generator.random_range(0..12);
        let other = FAULT_KINDS[generator.random_range(0..FAULT_KINDS.len())];
        let _print = PrintOnPanic(format!("{}: {kind:?} at {first:?}, then {other:?} at {second}", scenario.name));
        trial(scenario, &start, [kind.at(first.index), other.at(second)].concat(), None).await;
    }
}

/// A partly written hint loses no commit, whether it replaces the old hint or overwrites its first bytes. If the hint
/// names a version above all roots, writes are refused until it is deleted.
#[test]
fn a_torn_hint_loses_no_commit() {
    let visited = block_on(async {
        let scenario = &SCENARIOS[1];
        let start = start_of(scenario).await;
        let mut visited = 0;
        for operation in operations(scenario, &start).await {
            if operation.verb != Verb::PutHint {
                continue;
            }
            let latest = start.latest.as_ref().map_or(0, |(number, _)| *number) + 1;
            for number in [latest - 1, latest, latest + 1, 9, 10, 99, 100, 199] {
                let (old, new) = ((number - 1).to_string(), number.to_string());
                let torn = (0..=new.len()).flat_map(|kept| {
                    [new[..kept].to_string(), format!("{}{}", &new[..kept], old.get(kept..).unwrap_or(""))]
                });
                for hint in torn.chain(["4x".into(), "\0\0".into(), u64::MAX.to_string()]) {
                    let _print = PrintOnPanic(format!("the hint is {hint:?} at {operation:?}"));
                    trial(scenario, &start, FaultKind::StopsBefore.at(operation.index), Some(hint.into())).await;
                    visited += 1;
                }
            }
        }
        visited
    });
    println!("{visited} torn hints");
    assert!(visited >= 300, "only {visited} torn hints were tried");
}
