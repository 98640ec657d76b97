//! The addresses of a route's names, kept up to date.
//!
//! Names are resolved in the background, the first time when the worker starts. So a request waits for a resolver only
//! when there is no address at all yet, and a resolver that is down costs nothing as long as the servers stay where they
//! are.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::address::{Place, Server};
use super::cluster::Cluster;

/// The least time between two lookups of a name, however much it is asked for and even if it fails.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// How far the lookups of the names are.
#[derive(Debug, Default)]
pub(super) struct Resolution {
    /// Lookups that run.
    running: Cell<usize>,
    /// A lookup has ended.
    ended: Notify,
    /// Somebody has reason to believe that the addresses are no longer right.
    doubted: Notify,
    /// Why the last lookup that failed did.
    error: RefCell<Option<Rc<io::Error>>>,
}

/// Why there is no address.
#[derive(Debug)]
pub(super) enum Unresolved {
    /// The lookup failed.
    Failed(Rc<io::Error>),
    /// It takes too long.
    Late,
}

impl Resolution {
    /// Makes the next lookup come soon. Connections fail when a server has moved; to wait for the regular time would
    /// fail requests until then.
    pub(super) fn doubt(&self) {
        self.doubted.notify_waiters();
    }

    /// Waits for the end of a lookup that runs. An error if none does.
    pub(super) async fn wait(&self, patience: Duration) -> Result<(), Unresolved> {
        if self.running.get() == 0 {
            let error = self.error.borrow().clone();
            return Err(Unresolved::Failed(error.unwrap_or_else(|| Rc::new(none()))));
        }
        timeout(patience, self.ended.notified()).await.map_err(|_| Unresolved::Late)
    }

    /// Looks a server's name up every `interval`, until dropped. A lookup that fails or finds no address changes nothing:
    /// the addresses that worked so far are the best guess. `failed` hears of it.
    ///
    /// A lookup has no deadline of ours. It runs on a thread that cannot be stopped, so another beside it would only fill
    /// the threads up; the system's resolver gives up by itself (resolv.conf(5): 5 s, twice).
    pub(super) fn keep(
        self: Rc<Self>,
        cluster: Rc<Cluster>,
        server: Rc<Server>,
        interval: Duration,
        lookup: impl AsyncFn(&str, u16) -> io::Result<Vec<SocketAddr>>,
        failed: impl Fn(),
    ) -> impl Future<Output = ()> {
        // Before the task has its first turn, so that a request that comes even earlier knows that there is something to
        // wait for.
        self.running.set(self.running.get() + 1);
        async move {
            let Place::Network { host, port } = &server.place else { return };
            let mut known = false;
            loop {
                let found = lookup(host, *port).await;
                self.running.set(self.running.get() - 1);
                match found.and_then(|addresses| if addresses.is_empty() { Err(none()) } else { Ok(addresses) }) {
                    Ok(addresses) => {
                        if cluster.set_addresses(&server, &addresses) && known {
                            tracing::info!(upstream = %server, addresses = addresses.len(), "the addresses have changed");
                        }
                        known = true;
                    }
                    Err(error) => {
                        failed();
                        tracing::warn!(upstream = %server, "cannot resolve the name: {error}");
                        *self.error.borrow_mut() = Some(Rc::new(error));
                    }
                }
                self.ended.notify_waiters();
                sleep(MIN_INTERVAL.min(interval)).await;
                if known {
                    // Either way it is time to look again.
                    let _ = timeout(interval.saturating_sub(MIN_INTERVAL), self.doubted.notified()).await;
                }
                self.running.set(self.running.get() + 1);
            }
        }
    }
}

fn none() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the name has no address")
}

/// Asks the system's resolver, on a thread of the runtime's.
pub(super) async fn lookup(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok(tokio::net::lookup_host((host, port)).await?.collect())
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::runtime::{Builder, LocalOptions};
    use tokio::task::{spawn_local, yield_now};

    use super::super::cluster::Limits;
    use super::super::observed::Observed;
    use super::*;

    const INTERVAL: Duration = Duration::from_micros(1);
    const PATIENCE: Duration = Duration::from_secs(5);

    fn addresses(last: &[u8]) -> Vec<SocketAddr> {
        last.iter().map(|last| SocketAddr::from(([10, 0, 0, *last], 80))).collect()
    }

    fn cluster() -> (Rc<Cluster>, Rc<Server>) {
        let cluster = Cluster::new(
            &[Server::parse("http://name").unwrap()],
            Limits { connections: 1, idle_time: PATIENCE },
            Rc::new(Observed::default()),
        );
        let server = cluster.servers()[0].clone();
        (cluster, server)
    }

    fn shown(cluster: &Cluster) -> Vec<String> {
        cluster.endpoints().iter().map(ToString::to_string).collect()
    }

    fn run(test: impl Future<Output = ()>) {
        Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap().block_on(test);
    }

    #[test]
    fn answers_are_followed_and_failures_change_nothing() {
        run(async {
            let (cluster, server) = cluster();
            let steps = [Ok(vec![1, 2]), Err("down"), Ok(vec![]), Ok(vec![2, 3])];
            let left = Rc::new(RefCell::new(VecDeque::from(steps)));
            let seen: Rc<RefCell<Vec<Vec<String>>>> = Rc::default();
            let lookup = {
                let (left, seen, cluster) = (left.clone(), seen.clone(), cluster.clone());
                async move |host: &str, port: u16| {
                    assert_eq!((host, port), ("name", 80));
                    seen.borrow_mut().push(shown(&cluster));
                    let step = left.borrow_mut().pop_front();
                    match step {
                        Some(Ok(last)) => Ok(addresses(&last)),
                        Some(Err(error)) => Err(io::Error::other(error)),
                        None => std::future::pending().await,
                    }
                }
            };
            let resolution: Rc<Resolution> = Rc::default();
            spawn_local(resolution.clone().keep(cluster.clone(), server, INTERVAL, lookup, || {}));
            timeout(PATIENCE, async {
                while seen.borrow().len() < 5 {
                    sleep(INTERVAL).await;
                }
            })
            .await
            .unwrap();
            let (one, two) = ("http://name:80 (10.0.0.1:80)", "http://name:80 (10.0.0.2:80)");
            let three = "http://name:80 (10.0.0.3:80)";
            assert_eq!(*seen.borrow(), [vec![], vec![one, two], vec![one, two], vec![one, two], vec![two, three]]);
        });
    }

    #[test]
    fn whoever_comes_before_the_first_answer_waits_for_it() {
        run(async {
            let (cluster, server) = cluster();
            let resolution: Rc<Resolution> = Rc::default();
            let lookup = async |_: &str, _: u16| {
                yield_now().await;
                Err(io::Error::other("no such name"))
            };
            spawn_local(resolution.clone().keep(cluster, server, PATIENCE, lookup, || {}));
            resolution.wait(PATIENCE).await.unwrap();
            // The next lookup is not yet due, so nobody waits for it.
            match resolution.wait(PATIENCE).await {
                Err(Unresolved::Failed(error)) => assert_eq!(error.to_string(), "no such name"),
                other => panic!("{other:?}"),
            }
        });
    }

    #[test]
    fn nobody_waits_for_ever() {
        run(async {
            let (cluster, server) = cluster();
            let resolution: Rc<Resolution> = Rc::default();
            let lookup = async |_: &str, _: u16| std::future::pending().await;
            spawn_local(resolution.clone().keep(cluster, server, PATIENCE, lookup, || {}));
            assert!(matches!(resolution.wait(INTERVAL).await, Err(Unresolved::Late)));
        });
    }
}
