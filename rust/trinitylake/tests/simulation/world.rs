//! The shared store, and the connection and clocks of each process.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;
use trinitylake::environment::{Environment, Task};
use trinitylake::error::{Error, Result};
use trinitylake::file_names::{boundary_version, root_version};
use trinitylake::storage::response_dates::answered;
use trinitylake::storage::{FileInfo, PutOutcome, Storage};
use uuid::Uuid;

pub const FAULTS: [&str; 9] = [
    "request lost",
    "reply lost",
    "own creation reported as another's",
    "late write",
    "torn hint",
    "slow request",
    "denied",
    "broken disk",
    "late delete",
];
/// Text in the paths of files whose changes are printed.
static TRACED: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("TRINITYLAKE_TRACE").ok());
const START_MILLIS: u64 = 1_700_000_000_000;
const DAY_MILLIS: u64 = 24 * 3600 * 1000;

/// Collections and their results.
#[derive(Clone, Copy, Debug, Default)]
pub struct Collections {
    pub begun: u64,
    /// Collections that ended.
    pub finished: u64,
    /// Collections that died at one of their requests.
    pub died: u64,
    /// Files that ended collections deleted, by their reports.
    pub reported: u64,
    /// Files that were deleted, also by collections that died.
    pub deleted: u64,
}

/// A deleted file, and the versions that were retained at that moment.
#[derive(Clone, Debug)]
pub struct Deletion {
    pub path: String,
    pub oldest: u64,
    pub latest: u64,
}

/// Content and store time by path.
type Files = BTreeMap<String, (Bytes, u64)>;

#[derive(Debug)]
pub struct World {
    generator: Mutex<StdRng>,
    files: Mutex<Files>,
    /// The first content of every path that ever existed.
    history: Mutex<BTreeMap<String, Bytes>>,
    /// All paths that ever existed, in the order of their creation.
    births: Mutex<BTreeMap<String, usize>>,
    /// Deleted files, in order.
    deletions: Mutex<Vec<Deletion>>,
    collections: Mutex<Collections>,
    /// The boundary at the moment when each root was created.
    boundaries: Mutex<BTreeMap<u64, u64>>,
    faults: Mutex<BTreeMap<&'static str, u64>>,
    is_healthy: AtomicBool,
    /// Number of faults per thousand requests.
    fault_rate: u64,
    /// Whether nodes are compressed. This is so in one of eight worlds only, because compression takes a tenth of the
    /// time and does not affect the result.
    pub is_compressed: bool,
    /// Whether writers use the intent queue.
    pub queues: bool,
    /// Percentage of roots that are delayed: the machine is suspended just before the request, or the store dates its
    /// answer and executes the request late. A quarter of this percentage applies to other files.
    pub stops: u64,
    start: Instant,
}

impl World {
    pub fn new(seed: u64) -> Arc<World> {
        World::that_stops(seed, if seed % 4 == 1 { 4 } else { 0 })
    }

    pub fn that_stops(seed: u64, stops: u64) -> Arc<World> {
        let mut generator = StdRng::seed_from_u64(seed);
        let fault_rate = [0, 5, 30, 80][generator.random_range(0..4)];
        Arc::new(World {
            generator: Mutex::new(generator),
            files: Mutex::default(),
            history: Mutex::default(),
            births: Mutex::default(),
            deletions: Mutex::default(),
            collections: Mutex::default(),
            boundaries: Mutex::default(),
            faults: Mutex::default(),
            is_healthy: AtomicBool::new(true),
            fault_rate,
            is_compressed: seed.is_multiple_of(8),
            queues: seed % 2 == 1,
            stops,
            start: Instant::now(),
        })
    }

    /// A number below the bound.
    pub fn below(&self, bound: u64) -> u64 {
        self.generator.lock().unwrap().random_range(0..bound)
    }

    pub fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Requests may fail from now on.
    pub fn infect(&self) {
        self.is_healthy.store(false, Ordering::SeqCst);
    }

    pub fn heal(&self) {
        self.is_healthy.store(true, Ordering::SeqCst);
    }

    pub fn faults(&self) -> BTreeMap<&'static str, u64> {
        self.faults.lock().unwrap().clone()
    }

    /// Whether `path` was created before `other`.
    pub fn was_before(&self, path: &str, other: &str) -> bool {
        let births = self.births.lock().unwrap();
        births.get(path).is_some_and(|born| births.get(other).is_some_and(|other| born < other))
    }

    pub fn boundary(&self) -> u64 {
        oldest_kept(&self.files())
    }

    /// Existing root files.
    pub fn roots(&self) -> BTreeSet<u64> {
        self.files().keys().filter_map(|path| root_version(path)).collect()
    }

    pub fn note_collection(&self, note: impl FnOnce(&mut Collections)) {
        note(&mut self.collections.lock().unwrap());
    }

    pub fn collections(&self) -> Collections {
        *self.collections.lock().unwrap()
    }

    /// Returns the boundary at the moment when the first root of a version was created.
    pub fn boundary_at(&self, version: u64) -> u64 {
        self.boundaries.lock().unwrap()[&version]
    }

    pub fn deletions(&self) -> Vec<Deletion> {
        self.deletions.lock().unwrap().clone()
    }

    /// All existing files.
    pub fn paths(&self) -> BTreeSet<String> {
        self.files().keys().cloned().collect()
    }

    /// A file, without a request.
    pub fn content(&self, path: &str) -> Option<Bytes> {
        self.files().get(path).map(|(bytes, _)| bytes.clone())
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap()
    }

    /// A store with every file that ever existed and no boundary, so that expired versions can be read.
    pub fn everything(self: &Arc<Self>) -> Arc<World> {
        let archive = World::new(0);
        let kept = self.history.lock().unwrap().clone();
        *archive.files() = kept.into_iter().map(|(path, bytes)| (path, (bytes, 0))).collect();
        archive.files().retain(|path, _| boundary_version(path).is_none());
        archive
    }

    fn create(&self, path: &str, bytes: Bytes) -> PutOutcome {
        let mut files = self.files();
        if files.contains_key(path) {
            return PutOutcome::AlreadyExists;
        }
        self.history.lock().unwrap().entry(path.to_string()).or_insert_with(|| bytes.clone());
        let mut births = self.births.lock().unwrap();
        let next = births.len();
        births.entry(path.to_string()).or_insert(next);
        self.trace("created", path);
        if let Some(version) = root_version(path) {
            let boundary = oldest_kept(&files);
            self.boundaries.lock().unwrap().entry(version).or_insert(boundary);
        }
        files.insert(path.to_string(), (bytes, self.store_millis()));
        PutOutcome::Created
    }

    /// Dates an answer in whole seconds, as if one of several machines with slightly different clocks answered.
    fn date_answer(&self) {
        answered(Some((self.store_millis() + self.below(500)) / 1000 * 1000));
    }

    fn remove(&self, path: &str) {
        let mut files = self.files();
        if files.remove(path).is_some() {
            self.trace("deleted", path);
            let oldest = oldest_kept(&files);
            let latest = files.keys().filter_map(|path| root_version(path)).max().unwrap_or(0);
            self.deletions.lock().unwrap().push(Deletion { path: path.to_string(), oldest, latest });
        }
    }

    /// Prints a change of a traced file.
    fn trace(&self, what: &str, path: &str) {
        if TRACED.as_ref().is_some_and(|text| path.contains(text.as_str())) {
            eprintln!("{:>9} ms: {what} {path}", self.start.elapsed().as_millis());
        }
    }

    fn store_millis(&self) -> u64 {
        START_MILLIS + self.start.elapsed().as_millis() as u64
    }

    fn fault(&self, candidates: &[usize]) -> Option<&'static str> {
        if self.is_healthy.load(Ordering::SeqCst) || self.below(1000) >= self.fault_rate {
            return None;
        }
        let fault = FAULTS[candidates[self.below(candidates.len() as u64) as usize]];
        *self.faults.lock().unwrap().entry(fault).or_default() += 1;
        Some(fault)
    }
}

fn oldest_kept(files: &Files) -> u64 {
    let boundaries = files.range("_expired/".to_string()..).map_while(|(path, _)| boundary_version(path));
    boundaries.max().unwrap_or(0)
}

fn info(path: &str, (bytes, modified_millis): &(Bytes, u64)) -> FileInfo {
    let size_bytes = bytes.len() as u64;
    FileInfo { path: path.to_string(), size_bytes, modified_millis: *modified_millis }
}

fn lost(what: &str, path: &str) -> Error {
    Error::Storage { message: format!("injected fault: {what} ({path})"), retryable: true }
}

/// A permanent error with an unknown outcome.
fn broken(what: &str, path: &str) -> Error {
    Error::Storage { message: format!("injected fault: {what} ({path})"), retryable: false }
}

/// Connection of one process to the store.
#[derive(Debug)]
pub struct Line(Arc<World>, Option<Arc<Process>>);

impl Line {
    pub fn new(world: &Arc<World>) -> Arc<Line> {
        Arc::new(Line(world.clone(), None))
    }

    pub fn of(process: &Arc<Process>) -> Arc<Line> {
        Arc::new(Line(process.world.clone(), Some(process.clone())))
    }

    async fn travel(&self) {
        let world = &self.0;
        let micros = if world.chance(5) { world.below(200_000) } else { world.below(8_000) };
        tokio::time::sleep(Duration::from_micros(micros)).await;
        if let Some(process) = &self.1 {
            process.wait_while_stopped().await;
        }
    }

    /// Delays the creation of a file.
    async fn hold_up(&self, percent: u64) {
        let world = &self.0;
        if !world.chance(percent) {
            return;
        }
        *world.faults.lock().unwrap().entry("held up").or_default() += 1;
        match &self.1 {
            Some(process) if world.chance(70) => {
                process.stop_for(world.below(20_000));
                process.wait_while_stopped().await;
            }
            _ => {
                world.date_answer();
                tokio::time::sleep(Duration::from_millis(world.below(20_000))).await;
            }
        }
    }

    async fn read<T>(&self, path: &str, read: impl FnOnce(&World) -> Result<T>) -> Result<T> {
        self.travel().await;
        let fault = self.0.fault(&[0, 1, 5, 7]);
        if fault == Some("slow request") {
            tokio::time::sleep(Duration::from_secs(self.0.below(40))).await;
        }
        let answer = read(&self.0);
        self.0.date_answer();
        self.travel().await;
        match fault {
            Some(fault @ ("request lost" | "reply lost")) => Err(lost(fault, path)),
            Some(fault @ "broken disk") => Err(broken(fault, path)),
            _ => answer,
        }
    }
}

#[async_trait]
impl Storage for Line {
    fn root(&self) -> &str {
        "s3://world/lake/"
    }

    async fn get(&self, path: &str) -> Result<Bytes> {
        self.read(path, |world| {
            let file = world.files().get(path).map(|(bytes, _)| bytes.clone());
            file.ok_or_else(|| Error::FileNotFound { path: path.to_string() })
        })
        .await
    }

    async fn get_range(&self, path: &str, range: Range<u64>) -> Result<Bytes> {
        Ok(self.get(path).await?.slice(range.start as usize..range.end as usize))
    }

    async fn head(&self, path: &str) -> Result<FileInfo> {
        self.read(path, |world| {
            let files = world.files();
            let file = files.get(path).ok_or_else(|| Error::FileNotFound { path: path.to_string() });
            file.map(|file| info(path, file))
        })
        .await
    }

    async fn put_if_absent(&self, path: &str, bytes: Bytes) -> Result<PutOutcome> {
        self.travel().await;
        self.hold_up(if root_version(path).is_some() { self.0.stops } else { self.0.stops / 4 }).await;
        let fault = self.0.fault(&[0, 1, 2, 3, 5, 6, 7]);
        match fault {
            Some("denied") => {
                return Err(Error::PermissionDenied(format!("injected fault: denied ({path})")));
            }
            Some("broken disk") if self.0.chance(50) => return Err(broken("broken disk", path)),
            Some("request lost") => return Err(lost("request lost", path)),
            Some("late write") => {
                let (world, path, pause) = (self.0.clone(), path.to_string(), self.0.below(60_000));
                tokio::spawn({
                    let (world, path) = (world, path.clone());
                    async move {
                        tokio::time::sleep(Duration::from_millis(pause)).await;
                        world.create(&path, bytes);
                    }
                });
                return Err(lost("late write", &path));
            }
            Some("slow request") => tokio::time::sleep(Duration::from_secs(self.0.below(40))).await,
            _ => {}
        }
        let outcome = self.0.create(path, bytes);
        self.0.date_answer();
        self.travel().await;
        match fault {
            Some("reply lost") => Err(lost("reply lost", path)),
            Some("broken disk") => Err(broken("broken disk", path)),
            Some("own creation reported as another's") => Ok(PutOutcome::AlreadyExists),
            _ => Ok(outcome),
        }
    }

    async fn sync(&self, paths: &[String]) -> Result<()> {
        let files = self.0.files();
        match paths.iter().find(|path| !files.contains_key(*path)) {
            Some(missing) => Err(Error::FileNotFound { path: missing.clone() }),
            None => Ok(()),
        }
    }

    async fn put_hint(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.travel().await;
        let fault = self.0.fault(&[0, 1, 4]);
        let bytes = match fault {
            Some("request lost") => return Err(lost("request lost", path)),
            Some("torn hint") => Bytes::from(format!("{}junk", self.0.below(9_999))),
            _ => bytes,
        };
        self.0.files().insert(path.to_string(), (bytes, self.0.store_millis()));
        self.travel().await;
        if fault == Some("reply lost") { Err(lost("reply lost", path)) } else { Ok(()) }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        self.read(prefix, |world| {
            let files = world.files();
            let below = files.range(prefix.to_string()..).take_while(|(path, _)| path.starts_with(prefix));
            Ok(below.map(|(path, file)| info(path, file)).collect())
        })
        .await
    }

    async fn delete(&self, path: &str) -> Result<()> {
        self.travel().await;
        match self.0.fault(&[0, 8]) {
            None => {}
            Some(fault @ "late delete") => {
                let (world, late_path, pause) = (self.0.clone(), path.to_string(), self.0.below(60_000));
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                    world.remove(&late_path);
                });
                return Err(lost(fault, path));
            }
            Some(fault) => return Err(lost(fault, path)),
        }
        self.0.remove(path);
        Ok(())
    }
}

/// A process. Its wall clock is wrong by up to five days in either direction. In a world with suspended machines, the
/// wall clock also jumps once, both clocks run up to a quarter too fast or a fifth too slow, and the elapsed clock
/// stops for some time.
#[derive(Debug)]
pub struct Process {
    world: Arc<World>,
    /// Wall clock of the process when the world began.
    began_millis: u64,
    /// Speed of its clocks, per mille.
    speed: u64,
    /// Period in which the elapsed clock stops, in milliseconds of the world.
    sleep: Range<u64>,
    /// Time and amount of the jump of the wall clock.
    jump: (u64, i64),
    /// Periods in which the process and its clocks were suspended, like a virtual machine.
    stopped: Mutex<Vec<Range<u64>>>,
}

impl Process {
    pub fn new(world: &Arc<World>) -> Arc<Process> {
        let began_millis = START_MILLIS - 5 * DAY_MILLIS + world.below(10 * DAY_MILLIS);
        if world.stops == 0 {
            let (world, never) = (world.clone(), u64::MAX);
            let (sleep, jump) = (never..never, (never, 0));
            return Arc::new(Process { world, began_millis, speed: 1000, sleep, jump, stopped: Mutex::default() });
        }
        let asleep_at = world.below(20_000);
        let sleep = asleep_at..asleep_at + world.below(10_000);
        let jump = (world.below(30_000), world.below(7_200_000) as i64 - 3_600_000);
        let (world, speed) = (world.clone(), 800 + world.below(451));
        Arc::new(Process { world, began_millis, speed, sleep, jump, stopped: Mutex::default() })
    }

    fn stop_for(&self, millis: u64) {
        let now = self.world.start.elapsed().as_millis() as u64;
        self.stopped.lock().unwrap().push(now..now + millis);
    }

    async fn wait_while_stopped(&self) {
        loop {
            let now = self.world.start.elapsed().as_millis() as u64;
            let end = self.stopped.lock().unwrap().iter().map(|stop| stop.end).max().unwrap_or_default();
            if end <= now {
                return;
            }
            tokio::time::sleep(Duration::from_millis(end - now)).await;
        }
    }

    /// Time of the world without the periods in which the process was suspended.
    fn world_millis(&self) -> u64 {
        let now = self.world.start.elapsed().as_millis() as u64;
        let passed = |stop: &Range<u64>| now.clamp(stop.start, stop.end) - stop.start;
        now - self.stopped.lock().unwrap().iter().map(passed).sum::<u64>()
    }

    fn on_its_clock(&self, world_millis: u64) -> u64 {
        world_millis * self.speed / 1000
    }

    fn sleep_for(&self, duration: Duration) -> Task {
        Box::pin(tokio::time::sleep(duration * 1000 / self.speed as u32))
    }
}

impl Environment for Process {
    fn now_millis(&self) -> u64 {
        let now = self.world_millis();
        let jumped = if now >= self.jump.0 { self.jump.1 } else { 0 };
        (self.began_millis + self.on_its_clock(now)).saturating_add_signed(jumped)
    }

    fn elapsed_millis(&self) -> u64 {
        let now = self.world_millis();
        let asleep = now.clamp(self.sleep.start, self.sleep.end) - self.sleep.start;
        self.on_its_clock(now - asleep)
    }

    fn uuid(&self) -> Uuid {
        uuid::Builder::from_random_bytes(self.world.generator.lock().unwrap().random()).into_uuid()
    }

    fn random_below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.world.below(bound) }
    }

    fn sleep(&self, duration: Duration) -> Task {
        self.sleep_for(duration)
    }

    fn background(&self, work: Task) -> Task {
        tokio::spawn(work);
        Box::pin(std::future::ready(()))
    }
}
