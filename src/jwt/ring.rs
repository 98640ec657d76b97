//! The key sets that are fetched by URL, shared by all workers. The server fetches them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::KeySet;

/// The key sets by URL.
pub(super) type FetchedKeys = HashMap<String, Arc<KeySet>>;

/// The key sets that were fetched last.
#[derive(Debug, Default)]
pub struct KeyRing {
    pub(super) fetched: Arc<ArcSwap<FetchedKeys>>,
    /// The URLs whose keys lacked one that a token names. At most one for each issuer.
    wanted: Mutex<HashSet<String>>,
}

impl KeyRing {
    /// Puts keys in force.
    pub fn put(&self, url: &str, keys: KeySet) {
        let mut all = FetchedKeys::clone(&self.fetched.load());
        all.insert(url.to_owned(), Arc::new(keys));
        self.fetched.store(Arc::new(all));
    }

    /// Forgets the keys of all URLs but these.
    pub fn retain(&self, urls: &HashSet<String>) {
        let current = self.fetched.load();
        if current.keys().any(|url| !urls.contains(url)) {
            let mut all = FetchedKeys::clone(&current);
            all.retain(|url, _| urls.contains(url));
            self.fetched.store(Arc::new(all));
        }
    }

    /// Returns whether there are keys of a URL.
    pub fn has(&self, url: &str) -> bool {
        self.fetched.load().contains_key(url)
    }

    /// The fetched keys that cannot be used.
    pub fn unusable(&self) -> usize {
        self.fetched.load().values().map(|keys| keys.unusable()).sum()
    }

    /// Asks for newer keys. The server decides when.
    pub(super) fn want(&self, url: &str) {
        let mut wanted = self.wanted.lock();
        if !wanted.contains(url) {
            wanted.insert(url.to_owned());
        }
    }

    /// Takes the request for newer keys of a URL, if there is one.
    pub fn take_wanted(&self, url: &str) -> bool {
        self.wanted.lock().remove(url)
    }
}
