//! Keeps the addresses of a route's names up to date.
//!
//! Names are resolved in the background, starting with the worker. So requests wait for a resolver only before the
//! first answer, and a resolver that is down does no harm as long as the servers do not move.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::address::{Server, ServerAddress};
use super::cluster::Cluster;
use crate::http::failure::UpstreamError;

/// The shortest time between two lookups of a name, even after failures.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// The state of a route's lookups.
#[derive(Debug, Default)]
pub(super) struct Resolution {
    /// Running lookups.
    running: Cell<usize>,
    /// Notified when a lookup ends.
    ended: Notify,
    /// Notified when the addresses may have become wrong.
    doubted: Notify,
    /// The error of the last failed lookup.
    error: RefCell<Option<Rc<io::Error>>>,
}

impl Resolution {
    /// Triggers the next lookup soon. Connections fail when a server has moved, and requests would fail until the
    /// regular lookup.
    pub(super) fn doubt(&self) {
        self.doubted.notify_waiters();
    }

    /// Waits for the end of a running lookup. Fails without one.
    pub(super) async fn wait(&self, patience: Duration) -> Result<(), UpstreamError> {
        if self.running.get() == 0 {
            let error = self.error.borrow().clone();
            return Err(UpstreamError::Unresolved(error.unwrap_or_else(|| Rc::new(none()))));
        }
        timeout(patience, self.ended.notified()).await.map_err(|_| UpstreamError::ResolveTimeout(patience))
    }

    /// Looks up a server's name every `interval` until dropped. Lookups that fail or return no address change nothing,
    /// because the known addresses are the best guess; `failed` is called.
    ///
    /// Lookups have no timeout of ours: they run on threads that cannot be stopped, and starting more would use up the
    /// threads. The system's resolver gives up by itself (resolv.conf(5): 5 s, twice).
    pub(super) fn keep(
        self: Rc<Self>,
        cluster: Rc<Cluster>,
        server: Rc<Server>,
        interval: Duration,
        lookup: impl AsyncFn(&str, u16) -> io::Result<Vec<SocketAddr>>,
        failed: impl Fn(),
    ) -> impl Future<Output = ()> {
        // Counted before the task first runs, so that even earlier requests know to wait.
        self.running.set(self.running.get() + 1);
        async move {
            let ServerAddress::Network { host, port } = &server.address else { return };
            let mut known = false;
            loop {
                let found = lookup(host, *port).await;
                self.running.set(self.running.get() - 1);
                match found.and_then(|addresses| if addresses.is_empty() { Err(none()) } else { Ok(addresses) }) {
                    Ok(addresses) => {
                        if cluster.set_addresses(&server, &addresses) && known {
                            tracing::info!(upstream = %server, addresses = addresses.len(), "the server's addresses have changed");
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
                    // Either way it is time for another lookup.
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

/// Looks up a name with the system's resolver, on one of the runtime's threads.
pub(super) async fn lookup(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok(tokio::net::lookup_host((host, port)).await?.collect())
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::runtime::{Builder, LocalOptions};
    use tokio::task::{spawn_local, yield_now};

    use super::super::cluster::Limits;
    use super::super::cluster::tests::CountedEjections;
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
            Rc::new(CountedEjections::default()),
        );
        let server = cluster.servers[0].clone();
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
                Err(UpstreamError::Unresolved(error)) => assert_eq!(error.to_string(), "no such name"),
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
            assert!(matches!(resolution.wait(INTERVAL).await, Err(UpstreamError::ResolveTimeout(_))));
        });
    }
}
