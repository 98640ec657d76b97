//! The streams of a connection, as futures that run in the connection's task.
//!
//! A task of the runtime for each stream would be an allocation of some kilobytes a request, and would have to be found
//! and ended when its connection ends. Here a stream's place is used again by the next stream, and a connection that is
//! dropped drops its streams.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// Vacant places that keep their memory for the next stream: what a browser or a client of an API has in flight.
const SPARE: usize = 8;

/// Futures, and who of them is to be polled.
#[derive(Debug)]
pub(super) struct Tasks<F> {
    places: Vec<Place<F>>,
    vacant: Vec<usize>,
    wakeups: Arc<Wakeups>,
    /// Who is polled in this turn; kept for its memory.
    turn: Vec<usize>,
}

#[derive(Debug)]
struct Place<F> {
    /// `None` in a place that gave its memory back.
    future: Option<Pin<Box<Option<F>>>>,
    waker: Waker,
}

impl<F: Future> Tasks<F> {
    pub(super) const fn new(wakeups: Arc<Wakeups>) -> Self {
        Self { places: Vec::new(), vacant: Vec::new(), wakeups, turn: Vec::new() }
    }

    /// Starts a future; it is polled in the next turn.
    pub(super) fn start(&mut self, future: F) {
        let index = self.vacant.pop().unwrap_or_else(|| {
            let waker = self.wakeups.waker(self.places.len());
            self.places.push(Place { future: None, waker });
            self.places.len() - 1
        });
        let place = &mut self.places[index];
        match &mut place.future {
            Some(kept) => kept.as_mut().set(Some(future)),
            None => place.future = Some(Box::pin(Some(future))),
        }
        self.wakeups.wake(index);
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.places.len() == self.vacant.len()
    }

    /// Polls those that were woken, each once. `done` takes what those return that are done.
    pub(super) fn turn(&mut self, mut done: impl FnMut(F::Output)) {
        let mut turn = std::mem::take(&mut self.turn);
        self.wakeups.take(&mut turn);
        for index in turn.drain(..) {
            let Some(place) = self.places.get_mut(index) else { continue };
            // A wake-up may come late, when the place is vacant or has another future.
            let Some(future) = place.future.as_mut().and_then(|kept| kept.as_mut().as_pin_mut()) else { continue };
            if let Poll::Ready(output) = future.poll(&mut Context::from_waker(&place.waker)) {
                self.vacate(index);
                done(output);
            }
        }
        self.turn = turn;
    }

    fn vacate(&mut self, index: usize) {
        let kept = &mut self.places[index].future;
        match kept {
            Some(kept) if self.vacant.len() < SPARE => kept.as_mut().set(None),
            _ => *kept = None,
        }
        self.vacant.push(index);
    }
}

/// Who of a connection was woken: its streams by their places, and its socket.
#[derive(Debug, Default)]
pub(super) struct Wakeups {
    woken: Mutex<Woken>,
}

#[derive(Debug, Default)]
struct Woken {
    places: Vec<usize>,
    is_socket: bool,
    /// Whether the connection's task runs: it looks here before it waits.
    is_running: bool,
    task: Option<Waker>,
}

/// The place of the socket among those of streams.
const SOCKET: usize = usize::MAX;

impl Wakeups {
    /// The waker of the socket.
    pub(super) fn socket(self: &Arc<Self>) -> Waker {
        self.waker(SOCKET)
    }

    fn waker(self: &Arc<Self>, place: usize) -> Waker {
        Waker::from(Arc::new(Woke { wakeups: self.clone(), place }))
    }

    /// The connection's task runs. Whatever is woken until [`Self::pause`] is found without waking the task.
    pub(super) fn run(&self, task: &Waker) {
        let mut woken = self.woken.lock();
        woken.is_running = true;
        if !woken.task.as_ref().is_some_and(|known| known.will_wake(task)) {
            woken.task = Some(task.clone());
        }
    }

    /// The connection's task is about to wait: returns whether it may, because nobody was woken in the meantime.
    pub(super) fn pause(&self) -> bool {
        let mut woken = self.woken.lock();
        woken.is_running = woken.is_socket || !woken.places.is_empty();
        !woken.is_running
    }

    /// The connection's task lets others have a turn, although somebody was woken.
    pub(super) fn give_way(&self) {
        let mut woken = self.woken.lock();
        woken.is_running = false;
        if let Some(task) = &woken.task {
            task.wake_by_ref();
        }
    }

    /// Whether the socket was woken since this was asked last.
    pub(super) fn take_socket(&self) -> bool {
        std::mem::take(&mut self.woken.lock().is_socket)
    }

    /// The socket is to be looked at.
    pub(super) fn wake_socket(&self) {
        self.wake(SOCKET);
    }

    fn wake(&self, place: usize) {
        let mut woken = self.woken.lock();
        if place == SOCKET {
            woken.is_socket = true;
        } else if !woken.places.contains(&place) {
            woken.places.push(place);
        }
        if !woken.is_running
            && let Some(task) = &woken.task
        {
            task.wake_by_ref();
        }
    }

    fn take(&self, turn: &mut Vec<usize>) {
        std::mem::swap(&mut self.woken.lock().places, turn);
    }
}

#[derive(Debug)]
struct Woke {
    wakeups: Arc<Wakeups>,
    place: usize,
}

impl Wake for Woke {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wakeups.wake(self.place);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::poll_fn;

    use super::*;

    /// Futures that note each poll, and are done at the one that is given.
    fn countdown(log: &RefCell<Vec<char>>, name: char, polls: usize) -> impl Future<Output = char> {
        let mut left = polls;
        poll_fn(move |_| {
            log.borrow_mut().push(name);
            left -= 1;
            if left == 0 { Poll::Ready(name) } else { Poll::Pending }
        })
    }

    #[test]
    fn only_who_was_woken_is_polled_and_places_are_used_again() {
        let log = RefCell::default();
        let wakeups = Arc::new(Wakeups::default());
        let mut tasks = Tasks::new(wakeups.clone());
        wakeups.run(Waker::noop());
        for (name, polls) in [('a', 2), ('b', 1), ('c', 2)] {
            tasks.start(countdown(&log, name, polls));
        }
        let mut done = Vec::new();
        tasks.turn(|name| done.push(name));
        tasks.turn(|_| panic!("nobody was woken"));
        assert_eq!((log.take(), &done[..]), (vec!['a', 'b', 'c'], &['b'][..]));
        assert!(wakeups.pause());

        tasks.start(countdown(&log, 'd', 1));
        assert!(!wakeups.pause(), "a new one is ready");
        let wakers: Vec<_> = tasks.places.iter().map(|place| place.waker.clone()).collect();
        assert_eq!(wakers.len(), 3);
        wakers.iter().chain(&wakers).for_each(Waker::wake_by_ref);
        tasks.turn(|name| done.push(name));
        assert_eq!((log.take(), tasks.is_empty()), (vec!['d', 'a', 'c'], true));
        assert_eq!(done, ['b', 'd', 'a', 'c']);
        wakers[0].wake_by_ref();
        tasks.turn(|_| panic!("its place is vacant"));
    }

    #[test]
    fn the_task_is_woken_only_while_it_waits() {
        struct Count(Mutex<usize>);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                *self.0.lock() += 1;
            }
        }
        let count = Arc::new(Count(Mutex::new(0)));
        let wakeups = Arc::new(Wakeups::default());
        let socket = wakeups.socket();
        wakeups.run(&Waker::from(count.clone()));
        socket.wake_by_ref();
        assert_eq!((*count.0.lock(), wakeups.pause()), (0, false));
        assert!(wakeups.take_socket() && !wakeups.take_socket());
        assert!(wakeups.pause());
        socket.wake_by_ref();
        assert_eq!((*count.0.lock(), wakeups.take_socket()), (1, true));
    }
}
