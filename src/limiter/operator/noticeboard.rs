//! The noticeboard: what operators post while gateways run, and gateways at one store share.
//!
//! Notices are few and rarely change, so each process has a copy of all, and asks the store for the versions of all kinds at once, and
//! for notices only if their version is new. It asks when the store sends a notification, and at an interval, which is longer for an
//! idle process. Without a shared store, the copy is all there is. [`Notice`] says what differs between the kinds.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep, timeout};

use super::OperatorError;
use crate::clock::Clock;
use crate::engine::algorithms::micros::Micros;
use crate::engine::text::quote::quoted;
use crate::limiter::Shared;
use crate::store::{Note, Store, StoreError};
use crate::telemetry::metrics::SharedNote;

/// The notices of a kind that may be posted at once. People list and review them, and a change compiles all of them; files take
/// more.
pub(super) const MOST_NOTICES: usize = 10_000;

/// The interval at which the store is asked for other gateways' notices, so that they hold everywhere within a second.
const INTERVAL: Duration = Duration::from_millis(500);

/// The interval of an idle process whose store sends notifications. A connection that looks alive may be dead and bring none.
const IDLE_INTERVAL: Duration = Duration::from_secs(4);

/// The time to wait for more changes after the first one.
const CHANGING: Duration = Duration::from_millis(50);

/// The interval until the store has answered once: the connection is still being made.
const FIRST_INTERVAL: Duration = Duration::from_millis(20);

/// A block, a live override, or a reset.
pub(super) trait Notice: Clone + PartialEq {
    const KIND: SharedNote;
    /// The name of the notes in the store.
    const NOTES: &'static str;
    /// For messages.
    const PLURAL: &'static str;

    /// No two notices of a kind have the same.
    fn key(&self) -> &str;

    fn until(&self) -> Micros;

    /// The rest, for other gateways and for people.
    fn text(&self) -> Value;

    /// The inverse. `None` if it is no such notice.
    fn read(key: &str, until: Micros, text: &Value) -> Option<Self>;

    /// Those that are posted here, ended ones too.
    fn posted(shared: &Shared) -> Vec<Self>;

    /// Puts these in force here, and no others. `since` is when they changed.
    fn apply(shared: &Shared, list: Vec<Self>, since: Micros);

    /// The file that keeps them over a restart.
    fn file(_shared: &Shared) -> Option<PathBuf> {
        None
    }

    /// Called when they are in step with the store.
    fn synced(_shared: &Shared, _now: Micros) {}
}

pub(super) struct Noticeboard {
    shared: Arc<Shared>,
    store: Store,
    clock: Clock,
    /// By kind. Locked while notices of the kind change.
    known: [Mutex<KnownVersion>; SharedNote::ALL.len()],
    /// True once it was logged that the store does not tell the versions.
    is_logged: AtomicBool,
    looked: parking_lot::Mutex<Looked>,
}

/// The last look at the versions.
#[derive(Default)]
struct Looked {
    /// `None` if the next one is due.
    at: Option<Instant>,
    /// The number of decisions by then. A process is idle if it has not grown.
    decisions: u64,
}

/// The state of a kind of notices in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// Their version.
    Version(u64),
    /// Nothing: this process has all there are.
    Here,
    /// No connection to the store yet.
    Down,
    /// Not asked, or no answer.
    Unknown,
}

/// This process's copy of what the store has.
#[derive(Debug, Default)]
struct KnownVersion {
    version: Option<u64>,
    /// True once an unreadable copy was logged.
    is_logged: bool,
}

/// The notices of a kind, locked for a change.
pub(super) struct OpenBoard<'a, T> {
    board: &'a Noticeboard,
    known: MutexGuard<'a, KnownVersion>,
    now: Micros,
    /// Those in force.
    pub(super) list: Vec<T>,
}

impl Noticeboard {
    pub(super) fn new(shared: Arc<Shared>, store: Store, clock: Clock) -> Self {
        store.watch_notes();
        let known = <[_; SharedNote::ALL.len()]>::default();
        Self { shared, store, clock, known, is_logged: AtomicBool::new(false), looked: parking_lot::Mutex::default() }
    }

    /// Waits for a time, or for a notification.
    pub(super) async fn wait(&self, span: Duration) {
        if timeout(span, self.store.notes_changed()).await.is_ok() {
            self.look_again();
            self.gather().await;
        }
    }

    /// Waits for more changes.
    pub(super) async fn gather(&self) {
        sleep(CHANGING).await;
    }

    fn look_again(&self) {
        self.looked.lock().at = None;
    }

    /// Returns true if the store is to be asked now.
    fn is_due(&self) -> bool {
        if !self.store.is_notified_of_notes() {
            return true;
        }
        let mut looked = self.looked.lock();
        let decisions = self.shared.decisions();
        let has_decided = std::mem::replace(&mut looked.decisions, decisions) != decisions;
        let is_due = has_decided || looked.at.is_none_or(|at| at.elapsed() >= IDLE_INTERVAL);
        if is_due {
            looked.at = Some(Instant::now());
        }
        is_due
    }

    /// Asks the store for the state of these kinds of notices, if they may have changed.
    pub(super) async fn versions<const KINDS: usize>(&self, kinds: [&'static str; KINDS]) -> [Stored; KINDS] {
        if !self.is_due() {
            return [Stored::Unknown; KINDS];
        }
        match self.store.note_versions(kinds).await {
            Ok(versions) => {
                self.is_logged.store(false, Ordering::Relaxed);
                versions.map_or([Stored::Here; KINDS], |versions| versions.map(Stored::Version))
            }
            // The connection's own task logs that it is lost.
            Err(StoreError::Down) => [Stored::Down; KINDS],
            Err(error) => {
                self.look_again();
                if !self.is_logged.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "cannot ask the store for new blocks, live overrides and resets: {error}; the known ones stay in force"
                    );
                }
                [Stored::Unknown; KINDS]
            }
        }
    }

    /// The notices in force here.
    pub(super) fn in_force<T: Notice>(&self, now: Micros) -> Vec<T> {
        let mut list = T::posted(&self.shared);
        list.retain(|notice| notice.until() > now);
        list
    }

    /// Locks the notices of a kind, in step with the store's.
    pub(super) async fn open<T: Notice>(&self) -> Result<OpenBoard<'_, T>, StoreError> {
        let mut known = self.known[T::KIND as usize].lock().await;
        self.catch_up::<T>(&mut known).await?;
        let now = self.clock.now();
        Ok(OpenBoard { board: self, known, now, list: self.in_force(now) })
    }

    /// Learns other gateways' notices, and drops those that have ended. Returns how long to wait until the next call.
    pub(super) async fn keep_up<T: Notice>(&self, stored: Stored) -> Duration {
        let mut known = self.known[T::KIND as usize].lock().await;
        let read = match stored {
            Stored::Version(version) if known.version != Some(version) => {
                self.catch_up::<T>(&mut known).await.map(|()| true)
            }
            Stored::Version(_) | Stored::Here => Ok(true),
            Stored::Down | Stored::Unknown => Ok(false),
        };
        let now = self.clock.now();
        let (list, ended): (Vec<T>, Vec<T>) = T::posted(&self.shared).into_iter().partition(|it| it.until() > now);
        if let Some(last_end) = ended.iter().map(T::until).max() {
            T::apply(&self.shared, list, last_end);
        }
        match read {
            Ok(true) => {
                known.is_logged = false;
                T::synced(&self.shared, now);
            }
            Ok(false) => {}
            Err(error) => {
                self.look_again();
                if !std::mem::replace(&mut known.is_logged, true) {
                    let plural = T::PLURAL;
                    tracing::warn!("cannot read the {plural} from the store: {error}; the known ones stay in force");
                }
            }
        }
        if stored == Stored::Down && known.version.is_none() { FIRST_INTERVAL } else { INTERVAL }
    }

    /// Applies the store's notices, if gateways share them and their version has changed. A store with an older version has lost
    /// them, for example by a restart without persistence; then they are written back.
    async fn catch_up<T: Notice>(&self, known: &mut KnownVersion) -> Result<(), StoreError> {
        let Some(notes) = self.store.shared_notes(T::NOTES) else { return Ok(()) };
        let Some(mut stored) = notes.read(known.version, &self.clock).await? else { return Ok(()) };
        let now = self.clock.now();
        let mut ours: Vec<T> = self.in_force(now);
        if let Some(version) = known.version.filter(|known| *known > stored.0)
            && !ours.is_empty()
        {
            if notes.restore(version, &ours.iter().map(note).collect::<Vec<_>>(), now).await? {
                tracing::warn!(notices = ours.len(), "Redis had lost the {}; restored them", T::PLURAL);
                return Ok(());
            }
            // Another gateway was faster.
            stored = notes.read(None, &self.clock).await?.unwrap_or(stored);
        }
        let (version, notes) = stored;
        let mut list = self.read_all::<T>(notes);
        list.retain(|notice| notice.until() > now);
        list.sort_by(|a, b| a.key().cmp(b.key()));
        ours.sort_by(|a, b| a.key().cmp(b.key()));
        if ours != list {
            T::apply(&self.shared, list, now);
        }
        known.version = Some(version);
        Ok(())
    }

    /// Reads what the store has. Counts what this process cannot read, such as notes of another version of Weir, and tells of it in
    /// the log.
    fn read_all<T: Notice>(&self, notes: Vec<Note>) -> Vec<T> {
        let (mut list, mut unread) = (Vec::with_capacity(notes.len()), Vec::new());
        for note in notes {
            let text = serde_json::from_slice(&note.text).unwrap_or_default();
            match T::read(&note.key, note.until, &text).filter(|_| list.len() < MOST_NOTICES) {
                Some(notice) => list.push(notice),
                None => unread.push(note.key),
            }
        }
        let count = &self.shared.metrics.listeners.shared_notes_unread[T::KIND];
        count.set(i64::try_from(unread.len()).unwrap_or(i64::MAX));
        if let [first, ..] = &unread[..] {
            tracing::warn!(
                unread = unread.len(),
                "the store has {}s that cannot be read and have no effect here, such as {}; another version of Weir may have written them",
                T::KIND.label(),
                quoted(first)
            );
        }
        list
    }
}

impl<T: Notice> OpenBoard<'_, T> {
    /// Posts notices in place of those of the same keys.
    pub(super) async fn post(mut self, notices: &[T]) -> Result<(), OperatorError> {
        let known = self.known.version.unwrap_or(0);
        for notice in notices {
            self.list.retain(|other| other.key() != notice.key());
            let is_posted = match self.board.store.shared_notes(T::NOTES) {
                Some(notes) => notes.put(&note(notice), MOST_NOTICES, known, self.now).await?,
                None => self.list.len() < MOST_NOTICES,
            };
            if !is_posted {
                let reason = format!("there are {MOST_NOTICES} {}, which is the maximum", T::PLURAL);
                return Err(OperatorError::Unsupported(reason));
            }
            self.list.push(notice.clone());
        }
        self.close().await
    }

    /// Removes the notice of this key. Returns false if it was not posted.
    pub(super) async fn remove(mut self, key: &str) -> Result<bool, OperatorError> {
        let before = self.list.len();
        self.list.retain(|other| other.key() != key);
        let mut was_posted = self.list.len() < before;
        if let Some(notes) = self.board.store.shared_notes(T::NOTES) {
            was_posted |= notes.remove(key, self.known.version.unwrap_or(0)).await?;
        }
        self.close().await?;
        Ok(was_posted)
    }

    /// Applies the change: here at once, even if the store cannot be asked again.
    async fn close(mut self) -> Result<(), OperatorError> {
        let shared = &self.board.shared;
        if let Some(path) = T::file(shared) {
            keep(path, &self.list).await?;
        }
        T::apply(shared, self.list, self.now);
        let _ = self.board.catch_up::<T>(&mut self.known).await;
        Ok(())
    }
}

fn note<T: Notice>(notice: &T) -> Note {
    Note { key: notice.key().to_owned(), until: notice.until(), text: notice.text().to_string().into_bytes() }
}

/// Writes notices to the file that keeps them.
async fn keep<T: Notice>(path: PathBuf, list: &[T]) -> Result<(), OperatorError> {
    let text = json!({ T::NOTES: list.iter().map(T::text).collect::<Vec<_>>() }).to_string() + "\n";
    let name = path.display().to_string();
    let written = tokio::task::spawn_blocking(move || write_whole(&path, &text)).await;
    let written = written.unwrap_or_else(|error| Err(io::Error::other(error)));
    written.map_err(|error| OperatorError::File(format!("cannot write the {} to {name}: {error}", T::PLURAL)))
}

/// Replaces a file as a whole: after a crash it is the old one or the new one.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::limit::blocks::Block;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::limit::live::LiveOverride;
    use crate::engine::limit::resets::LimitReset;
    use crate::engine::limit::rules::Rules;
    use crate::store::memory::MemoryStore;
    use crate::telemetry::metrics::Metrics;

    const END: Micros = Micros(60_000_000);

    /// Drives a kind that has no shared store. `make` makes the notice of a key; those that can end do so at [`END`].
    async fn check<T: Notice>(make: impl Fn(usize) -> T) {
        let rules = Rules::new(Vec::new(), Fingerprinter::new((1, 2)), Micros(0), Vec::new());
        let store = || MemoryStore::new(10);
        let shared = Arc::new(Shared::new(rules, Arc::new(Metrics::new().unwrap()), store()));
        let clock = Clock::set(Micros(1));
        let board = Noticeboard::new(shared.clone(), Store::Memory(Arc::new(store())), clock.clone());
        let post = async |place| board.open::<T>().await.unwrap().post(&[make(place)]).await;
        let remove = async |place| board.open::<T>().await.unwrap().remove(make(place).key()).await.unwrap();
        let posted = || T::posted(&shared).len();
        let name = T::PLURAL;

        post(0).await.unwrap();
        assert!(T::posted(&shared) == [make(0)], "one of the {name} is posted");
        T::apply(&shared, (0..MOST_NOTICES - 1).map(&make).collect(), Micros(1));
        post(MOST_NOTICES).await.unwrap();
        post(0).await.unwrap();
        assert_eq!(posted(), MOST_NOTICES, "the last of the {name}, and one in place of an older one");
        let refused = post(MOST_NOTICES + 1).await.unwrap_err().to_string();
        assert_eq!(refused, format!("there are {MOST_NOTICES} {name}, which is the maximum"));
        assert_eq!((remove(1).await, remove(1).await, posted()), (true, false, MOST_NOTICES - 1), "{name}");

        let end = make(0).until();
        let Clock::Set(now) = &clock else { return };
        for (time, left) in [(END.0 - 1, MOST_NOTICES - 1), (END.0, if end == END { 0 } else { MOST_NOTICES - 1 })] {
            now.store(time, std::sync::atomic::Ordering::Relaxed);
            board.keep_up::<T>(Stored::Here).await;
            assert_eq!(posted(), left, "{name} at {time}");
        }
    }

    #[tokio::test]
    async fn notices_of_each_kind_are_bounded_replaced_and_dropped_at_their_end() {
        let text = |place: usize| format!("L:{place}");
        check(|place| Block {
            key: text(place),
            until: END,
            bucket: text(place),
            reason: None,
            by: "me".into(),
            is_ban: false,
        })
        .await;
        check(|place| LiveOverride {
            bucket: text(place),
            numbers: r#"{"deny":true}"#.into(),
            until: Some(END),
            comment: None,
            by: "me".into(),
            at: Micros(1),
        })
        .await;
        check(|place| LimitReset { short: text(place), generation: 1, limit: text(place), by: "me".into(), at: END })
            .await;
    }
}
