//! Watches the files of the rules for changes.
//!
//! Files are polled by path: a Kubernetes volume changes by swapping a symbolic link to a directory, which file system
//! notifications miss. All calls block, so the caller needs a thread for them.

use std::fs::Metadata;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use super::directory;
use super::named_files::{self, NamedFile};
use super::problem::Problem;
use super::runtime_directory::RuntimeDirectory;
use super::teams::{self, OwnedFile};
use super::{Source, read, read_from, read_rules};

/// A file that changed less than this before it was read may change again without a later timestamp: file systems' clocks
/// tick every 4 ms to 2 s.
const COARSEST_CLOCK: Duration = Duration::from_secs(3);

/// The occasions on which [`Watcher::poll`] reads the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollMode {
    /// Only if their timestamps, sizes or inodes differ: reading 70 MB every two seconds would be wasteful.
    IfTouched,
    /// Always, as on SIGHUP.
    Always,
}

/// The change of the files since the last poll.
#[derive(Debug)]
pub enum Change {
    /// The content is the same, or the files are still unreadable for the same reason.
    Same,
    /// The content changed, or the files can be read again.
    New(Sources),
    /// A file cannot be read. Reported once per reason.
    Unreadable(Problem),
}

/// The paths of the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    pub limits: Option<PathBuf>,
    pub overrides: Vec<PathBuf>,
    /// The copies of overrides that come by URL.
    pub copies: Vec<OverridesCopy>,
    /// Files of envoyproxy/ratelimit and directories of such files.
    pub envoy_ratelimit: Vec<PathBuf>,
    /// In the place of that service, its directory instead.
    pub runtime: Option<RuntimeDirectory>,
    /// The configuration of a management server, in the place of such files.
    pub pushed: PushedSources,
}

/// Sources that come from elsewhere while the process runs. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct PushedSources(Arc<Mutex<Vec<Source>>>);

impl PushedSources {
    pub fn get(&self) -> Vec<Source> {
        self.0.lock().clone()
    }

    /// A reload puts them in force.
    pub fn set(&self, sources: Vec<Source>) {
        *self.0.lock() = sources;
    }
}

impl PartialEq for PushedSources {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for PushedSources {}

/// The last good overrides of a URL, on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverridesCopy {
    /// For messages.
    pub url: String,
    /// Absent until the first fetch succeeds.
    pub path: PathBuf,
}

/// All files of the rules, read together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sources {
    pub limits: Option<Source>,
    /// The files of a directory in place of `limits`.
    pub teams: Vec<OwnedFile>,
    pub overrides: Vec<Source>,
    pub envoy_ratelimit: Vec<Source>,
    /// The other files that the rules file names.
    pub named_files: Vec<NamedFile>,
}

impl Files {
    /// Reads all files. The error is that of the first unreadable one.
    pub fn read(&self) -> Result<Sources, Problem> {
        self.read_with(self.pushed.get())
    }

    /// Reads all files, with these sources in the place of pushed ones.
    pub fn read_with(&self, pushed: Vec<Source>) -> Result<Sources, Problem> {
        let all = |paths: &[PathBuf]| paths.iter().map(|path| read(path)).collect::<Result<_, _>>();
        let mut overrides: Vec<Source> = all(&self.overrides)?;
        overrides.extend(self.copies.iter().filter_map(OverridesCopy::read).collect::<Result<Vec<_>, _>>()?);
        let mut envoy_ratelimit: Vec<Source> = all(&self.envoy_ratelimit_files()?)?;
        envoy_ratelimit.extend(pushed);
        if let Some(teams) = self.directory().map(teams::read).transpose()? {
            return Ok(Sources { teams, overrides, envoy_ratelimit, ..Sources::default() });
        }
        let limits = self.limits.as_deref().map(read_rules).transpose()?;
        let named_files = match (&self.limits, &limits) {
            (Some(path), Some(source)) => named_files::read_all(path, &source.text),
            _ => Vec::new(),
        };
        Ok(Sources { limits, overrides, envoy_ratelimit, named_files, ..Sources::default() })
    }

    /// Reads all files, the limits from `input`. The files that it names are relative to the working directory.
    pub fn read_with_limits(&self, input: impl Read) -> Result<Sources, Problem> {
        let limits = read_from(input)?;
        let others = Self { limits: None, ..self.clone() };
        let named_files = named_files::read_all(Path::new(""), &limits.text);
        Ok(Sources { limits: Some(limits), named_files, ..others.read()? })
    }

    /// Returns whether the rules are those of a directory with this file.
    pub fn has_rules_of(&self, file: &Path) -> bool {
        self.directory().is_some_and(|directory| file.parent() == Some(directory))
    }

    fn envoy_ratelimit_files(&self) -> Result<Vec<PathBuf>, Problem> {
        self.runtime.as_ref().map_or_else(|| directory::expand(&self.envoy_ratelimit), RuntimeDirectory::files)
    }

    /// Returns the directory of rules files, if there is one.
    fn directory(&self) -> Option<&Path> {
        self.limits.as_deref().filter(|path| path.is_dir())
    }

    /// Returns the files. A directory that cannot be listed stands for itself: reading it reports why.
    fn paths(&self) -> Vec<PathBuf> {
        let domains = self.envoy_ratelimit_files().unwrap_or_else(|_| self.envoy_ratelimit.clone());
        let limits =
            directory::expand(self.limits.as_slice()).unwrap_or_else(|_| self.limits.clone().into_iter().collect());
        let copies = self.copies.iter().filter(|copy| copy.path.exists()).map(|copy| &copy.path);
        limits.into_iter().chain(self.overrides.iter().chain(copies).cloned()).chain(domains).collect()
    }
}

impl OverridesCopy {
    /// Returns `None` if nothing was fetched yet.
    fn read(&self) -> Option<Result<Source, Problem>> {
        let read = || read(&self.path).map(|source| Source { name: self.url.clone(), ..source });
        self.path.exists().then(read)
    }
}

impl Sources {
    /// Replaces the overrides of a URL, or adds them.
    pub fn set_overrides(&mut self, url: &str, text: String) {
        match self.overrides.iter_mut().find(|source| source.name == url) {
            Some(known) => known.text = text,
            None => self.overrides.push(Source { name: url.to_owned(), text }),
        }
    }
}

/// Watches the files of the rules.
#[derive(Debug)]
pub struct Watcher {
    files: Files,
    /// The files that the rules file named at the last poll.
    named_files: Vec<PathBuf>,
    last_poll: LastPoll,
}

/// The state at the last poll.
#[derive(Debug)]
enum LastPoll {
    Nothing,
    Read { stamps: Option<Vec<Stamp>>, hash: u64 },
    Failed(Problem),
}

/// Shows a change without reading the file: device, inode, size, and the times of the last change to the content and to the
/// metadata, in seconds and nanoseconds. The latter shows copies that keep the former.
type Stamp = (u64, u64, u64, (i64, i64), (i64, i64));

impl Watcher {
    /// Returns a watcher of these files; the first [`Self::poll`] reads them.
    pub fn new(files: Files) -> Self {
        Self { files, named_files: Vec::new(), last_poll: LastPoll::Nothing }
    }

    /// Returns the change since the last call.
    pub fn poll(&mut self, mode: PollMode) -> Change {
        let now = SystemTime::now();
        let before = self.stamps();
        if let LastPoll::Read { stamps: Some(seen), .. } = &self.last_poll
            && mode == PollMode::IfTouched
            && before.as_ref().is_some_and(|stamps| stamps == seen)
        {
            return Change::Same;
        }
        let sources = match self.files.read() {
            Ok(sources) => sources,
            Err(problem) => {
                if matches!(&self.last_poll, LastPoll::Failed(known) if *known == problem) {
                    return Change::Same;
                }
                self.last_poll = LastPoll::Failed(problem.clone());
                return Change::Unreadable(problem);
            }
        };
        let named = |limits: &Path| {
            let of_teams = sources
                .teams
                .iter()
                .flat_map(|file| named_files::paths(Path::new(&file.source.name), &file.named_files));
            of_teams.chain(named_files::paths(limits, &sources.named_files)).collect()
        };
        self.named_files = self.files.limits.as_deref().map_or_else(Vec::new, named);
        // Stamps that changed while the files were read, or may not change with the files, are useless at the next poll.
        let stamps = before.filter(|stamps| Some(stamps) == self.stamps().as_ref() && settled(stamps, now));
        let hash = hash(&sources);
        let same = matches!(self.last_poll, LastPoll::Read { hash: known, .. } if known == hash);
        self.last_poll = LastPoll::Read { stamps, hash };
        if same { Change::Same } else { Change::New(sources) }
    }

    fn stamps(&self) -> Option<Vec<Stamp>> {
        let paths = self.files.paths();
        paths.iter().chain(&self.named_files).map(|path| std::fs::metadata(path).ok().as_ref().map(stamp)).collect()
    }
}

fn stamp(metadata: &Metadata) -> Stamp {
    let modified = (metadata.mtime(), metadata.mtime_nsec());
    (metadata.dev(), metadata.ino(), metadata.size(), modified, (metadata.ctime(), metadata.ctime_nsec()))
}

fn settled(stamps: &[Stamp], now: SystemTime) -> bool {
    let Ok(now) = now.duration_since(SystemTime::UNIX_EPOCH) else { return false };
    let quiet_since = i64::try_from(now.saturating_sub(COARSEST_CLOCK).as_secs()).unwrap_or(i64::MAX);
    stamps.iter().all(|(.., modified, changed)| modified.0.max(changed.0) < quiet_since)
}

/// Nobody gains from a collision here, and a restart forgets the value: 64 bits without a secret are enough.
fn hash(sources: &Sources) -> u64 {
    let mut hasher = DefaultHasher::new();
    sources.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    fn only(limits: &Path) -> Files {
        Files { limits: Some(limits.to_owned()), ..Files::default() }
    }

    /// Polls and compares what was found: the text of the rules file, `Err` for unreadable, `None` for no change.
    #[track_caller]
    fn polls(watcher: &mut Watcher, mode: PollMode, expected: Option<Result<&str, ()>>) {
        let found = match watcher.poll(mode) {
            Change::Same => None,
            Change::New(sources) => Some(Ok(sources.limits.unwrap().text)),
            Change::Unreadable(_) => Some(Err(())),
        };
        let expected = expected.map(|expected| expected.map(str::to_owned));
        assert_eq!(found, expected);
    }

    #[test]
    fn changed_content_is_new_and_touched_files_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let (limits, overrides) = (directory.path().join("limits.yaml"), directory.path().join("overrides.yaml"));
        fs::write(&limits, "a").unwrap();
        fs::write(&overrides, "b").unwrap();
        let (limits_path, overrides_paths) = (Some(limits.clone()), vec![overrides.clone()]);
        let files = Files { limits: limits_path, overrides: overrides_paths, ..Files::default() };
        let mut watcher = Watcher::new(files);
        polls(&mut watcher, PollMode::IfTouched, Some(Ok("a")));
        polls(&mut watcher, PollMode::IfTouched, None);
        fs::write(&limits, "a").unwrap();
        polls(&mut watcher, PollMode::IfTouched, None);
        polls(&mut watcher, PollMode::Always, None);
        // The same length within the same tick of the clock must be noticed too.
        fs::write(&limits, "c").unwrap();
        polls(&mut watcher, PollMode::IfTouched, Some(Ok("c")));
        fs::write(&overrides, "d").unwrap();
        polls(&mut watcher, PollMode::IfTouched, Some(Ok("c")));
    }

    #[test]
    fn settled_files_are_not_read_unless_asked_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limits.yaml");
        fs::write(&path, "a").unwrap();
        let mut watcher = Watcher::new(only(&path));
        // As if `b` had been read long ago at the time of these stamps.
        let sources = Sources { limits: Some(Source { name: String::new(), text: "b".into() }), ..Sources::default() };
        watcher.last_poll = LastPoll::Read { stamps: watcher.stamps(), hash: hash(&sources) };
        polls(&mut watcher, PollMode::IfTouched, None);
        polls(&mut watcher, PollMode::Always, Some(Ok("a")));
        let stamps = watcher.stamps().unwrap();
        assert!(!settled(&stamps, SystemTime::now()));
        assert!(settled(&stamps, SystemTime::now() + Duration::from_secs(10)));
    }

    #[test]
    fn an_unreadable_file_is_said_once_and_its_return_is_new() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limits.yaml");
        let mut watcher = Watcher::new(only(&path));
        polls(&mut watcher, PollMode::IfTouched, Some(Err(())));
        polls(&mut watcher, PollMode::IfTouched, None);
        fs::write(&path, "a").unwrap();
        polls(&mut watcher, PollMode::IfTouched, Some(Ok("a")));
        fs::write(&path, [0xff]).unwrap();
        polls(&mut watcher, PollMode::IfTouched, Some(Err(())));
        fs::write(&path, "a").unwrap();
        polls(&mut watcher, PollMode::IfTouched, Some(Ok("a")));
    }

    #[test]
    fn a_file_that_comes_into_a_directory_is_new() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files { envoy_ratelimit: vec![directory.path().to_owned()], ..Files::default() };
        let mut watcher = Watcher::new(files);
        assert!(matches!(watcher.poll(PollMode::IfTouched), Change::Unreadable(_)));
        for count in 1..=2 {
            fs::write(directory.path().join(format!("{count}.yaml")), format!("domain: d{count}")).unwrap();
            let Change::New(sources) = watcher.poll(PollMode::IfTouched) else { panic!("{count}") };
            assert_eq!(sources.envoy_ratelimit.len(), count);
        }
        fs::remove_file(directory.path().join("1.yaml")).unwrap();
        let Change::New(sources) = watcher.poll(PollMode::IfTouched) else { panic!("the file is gone") };
        assert_eq!(sources.envoy_ratelimit.len(), 1);
    }

    #[test]
    fn a_swapped_symbolic_link_is_followed() {
        // What a kubelet does: `limits.yaml` -> `..data/limits.yaml`, and `..data` is renamed over.
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for version in ["1", "2"] {
            fs::create_dir(root.join(version)).unwrap();
            fs::write(root.join(version).join("limits.yaml"), version).unwrap();
        }
        symlink("1", root.join("..data")).unwrap();
        symlink("..data/limits.yaml", root.join("limits.yaml")).unwrap();
        let mut watcher = Watcher::new(only(&root.join("limits.yaml")));
        polls(&mut watcher, PollMode::IfTouched, Some(Ok("1")));
        symlink("2", root.join("..data_tmp")).unwrap();
        fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
        polls(&mut watcher, PollMode::IfTouched, Some(Ok("2")));
    }
}
