//! A redis-server for benchmarks, and processes' processor time.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::runtime::Runtime;
use weir::clock::Clock;
use weir::store::redis::{RedisOptions, RedisStore};

/// A server on its own socket. It is killed when this is dropped.
pub(crate) struct Server {
    child: Child,
    directory: TempDir,
}

impl Server {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket", "redis"]);
        let child = command.current_dir(&directory).stdout(Stdio::null()).spawn().expect("redis-server is installed");
        Self { child, directory }
    }

    /// A connected store on it.
    pub(crate) fn connect(&self, runtime: &Runtime) -> Arc<RedisStore> {
        connect(runtime, self.url())
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+unix://{}/redis", self.directory.path().display())
    }

    pub(crate) fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connected store.
pub(crate) fn connect(runtime: &Runtime, url: String) -> Arc<RedisStore> {
    let options = RedisOptions { timeout: Duration::from_secs(1), ..RedisOptions::new("", Clock::machine()) };
    let target = RedisOptions { url, ..options }.target().unwrap();
    let store = runtime.block_on(async { RedisStore::connect(&target) });
    let begun = Instant::now();
    while !store.health().connected {
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", store.health());
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
    }
    store
}

/// The processor time of a process' threads in microseconds.
pub(crate) fn processor_time(pid: &str) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let spent = |thread: std::io::Result<std::fs::DirEntry>| -> f64 {
        let text = std::fs::read_to_string(thread.unwrap().path().join("schedstat")).unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    };
    threads.map(spent).sum::<f64>() / 1_000.0
}
