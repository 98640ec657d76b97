//! Runs the streams of a connection as futures in the connection's task.
//!
//! A runtime task per stream would allocate kilobytes per request, and would have to be aborted with its connection.
//! Here a future serves one stream after the other, so it is created and moved once instead of for each request (0.5 us
//! of copying), and dropping a connection drops its streams.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// Idle futures that are kept: as many as a browser's or API client's requests in flight.
const SPARE: usize = 8;

/// Futures that serve streams, and which of them to poll. `M` makes a future that takes its work from a mailbox.
pub(super) struct Tasks<W, O, F, M> {
    make: M,
    places: Vec<Slot<W, O, F>>,
    /// Slots without work.
    vacant: Vec<usize>,
    wakeups: Arc<Wakeups>,
    /// The slots polled in this turn; kept for its memory.
    turn: Vec<usize>,
}

struct Slot<W, O, F> {
    mailbox: Rc<Mailbox<W, O>>,
    /// `None` if its memory was freed.
    future: Option<Pin<Box<F>>>,
    waker: Waker,
}

/// A future's work and its result.
pub(super) struct Mailbox<W, O> {
    work: Cell<Option<W>>,
    outcome: Cell<Option<O>>,
}

impl<W, O> Mailbox<W, O> {
    /// Waits for work.
    pub(super) async fn receive(&self) -> W {
        // The future is polled when there is work.
        poll_fn(|_| self.work.take().map_or(Poll::Pending, Poll::Ready)).await
    }

    /// Reports the result.
    pub(super) fn done(&self, outcome: O) {
        self.outcome.set(Some(outcome));
    }
}

impl<W, O, F, M> Tasks<W, O, F, M>
where
    F: Future<Output = ()>,
    M: Fn(Rc<Mailbox<W, O>>) -> F,
{
    pub(super) const fn new(wakeups: Arc<Wakeups>, make: M) -> Self {
        Self { make, places: Vec::new(), vacant: Vec::new(), wakeups, turn: Vec::new() }
    }

    /// Gives work to a future, which is polled in the next turn.
    pub(super) fn start(&mut self, work: W) {
        let index = self.vacant.pop().unwrap_or_else(|| {
            let mailbox = Rc::new(Mailbox { work: Cell::new(None), outcome: Cell::new(None) });
            let waker = self.wakeups.waker(self.places.len());
            self.places.push(Slot { mailbox, future: None, waker });
            self.places.len() - 1
        });
        let Slot { mailbox, future, .. } = &mut self.places[index];
        future.get_or_insert_with(|| Box::pin((self.make)(mailbox.clone())));
        mailbox.work.set(Some(work));
        self.wakeups.wake(index);
    }

    /// Frees the futures that have no work.
    pub(super) fn free(&mut self) {
        self.vacant.iter().for_each(|index| self.places[*index].future = None);
    }

    /// Returns whether no future has work.
    pub(super) fn is_empty(&self) -> bool {
        self.places.len() == self.vacant.len()
    }

    /// Polls each future that was woken once. `done` receives the results.
    pub(super) fn turn(&mut self, mut done: impl FnMut(O)) {
        let mut turn = std::mem::take(&mut self.turn);
        self.wakeups.take(&mut turn);
        for index in turn.drain(..) {
            let Some(Slot { mailbox, future, waker }) = self.places.get_mut(index) else { continue };
            // A future may be woken late, when it has other work or none.
            let Some(working) = future else { continue };
            let ended = working.as_mut().poll(&mut Context::from_waker(waker)).is_ready();
            let outcome = mailbox.outcome.take();
            if ended || (outcome.is_some() && self.vacant.len() >= SPARE) {
                *future = None;
            }
            if let Some(outcome) = outcome {
                self.vacant.push(index);
                done(outcome);
            }
        }
        self.turn = turn;
    }

    /// Polls those that are woken when the connection has ended. Ready when no future has work.
    pub(super) fn poll_rest(&mut self, cx: &Context<'_>) -> Poll<()> {
        self.wakeups.run(cx.waker());
        self.turn(|_| {});
        if self.is_empty() {
            return Poll::Ready(());
        }
        // Streams that end wake the connection, which nobody polls any more.
        self.wakeups.take_signals();
        if !self.wakeups.pause() {
            self.wakeups.give_way();
        }
        Poll::Pending
    }
}

/// The parts of a connection that were woken: streams, the socket, the shutdown token.
#[derive(Debug, Default)]
pub(super) struct Wakeups {
    woken: Mutex<WakeupState>,
}

#[derive(Debug, Default)]
struct WakeupState {
    places: Vec<usize>,
    signals: Signals,
    /// True while the connection's task runs. It checks for wake-ups before it waits.
    is_running: bool,
    task: Option<Waker>,
}

/// Wake-ups other than those of streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Signals {
    /// The socket, or the library has something to write.
    pub(super) socket: bool,
    /// The shutdown token.
    pub(super) drain: bool,
}

/// The indexes of the socket and of the shutdown token among those of streams.
const SOCKET: usize = usize::MAX;
const DRAIN: usize = usize::MAX - 1;

impl Wakeups {
    pub(super) fn socket(self: &Arc<Self>) -> Waker {
        self.waker(SOCKET)
    }

    /// Returns the waker of the shutdown token.
    pub(super) fn drain(self: &Arc<Self>) -> Waker {
        self.waker(DRAIN)
    }

    fn waker(self: &Arc<Self>, place: usize) -> Waker {
        Waker::from(Arc::new(StreamWaker { wakeups: self.clone(), place }))
    }

    /// The connection's task runs. Wake-ups until [`Self::pause`] are found without waking the task.
    pub(super) fn run(&self, task: &Waker) {
        let mut woken = self.woken.lock();
        woken.is_running = true;
        if !woken.task.as_ref().is_some_and(|known| known.will_wake(task)) {
            woken.task = Some(task.clone());
        }
    }

    /// The connection's task is about to wait. Returns whether it may: nothing was woken in the meantime.
    pub(super) fn pause(&self) -> bool {
        let mut woken = self.woken.lock();
        woken.is_running = woken.signals != Signals::default() || !woken.places.is_empty();
        !woken.is_running
    }

    /// The connection's task yields although something was woken.
    pub(super) fn give_way(&self) {
        let mut woken = self.woken.lock();
        woken.is_running = false;
        if let Some(task) = &woken.task {
            task.wake_by_ref();
        }
    }

    /// Returns the wake-ups since the last call.
    pub(super) fn take_signals(&self) -> Signals {
        std::mem::take(&mut self.woken.lock().signals)
    }

    pub(super) fn wake_socket(&self) {
        self.wake(SOCKET);
    }

    fn wake(&self, place: usize) {
        let mut woken = self.woken.lock();
        if place == SOCKET {
            woken.signals.socket = true;
        } else if place == DRAIN {
            woken.signals.drain = true;
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
struct StreamWaker {
    wakeups: Arc<Wakeups>,
    place: usize,
}

impl Wake for StreamWaker {
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

    use super::*;

    #[test]
    fn only_who_was_woken_is_polled_and_places_are_used_again() {
        let log = RefCell::new(Vec::new());
        let (made, wakeups) = (Cell::new(0), Arc::new(Wakeups::default()));
        // Work is a name and how often it is to be polled.
        let mut tasks = Tasks::new(wakeups.clone(), |mailbox: Rc<Mailbox<(char, usize), char>>| {
            made.set(made.get() + 1);
            let log = &log;
            async move {
                loop {
                    let (name, polls) = mailbox.receive().await;
                    let mut left = polls;
                    poll_fn(|_| {
                        log.borrow_mut().push(name);
                        left -= 1;
                        if left == 0 { Poll::Ready(()) } else { Poll::Pending }
                    })
                    .await;
                    mailbox.done(name);
                }
            }
        });
        wakeups.run(Waker::noop());
        for work in [('a', 2), ('b', 1), ('c', 2)] {
            tasks.start(work);
        }
        let mut done = Vec::new();
        tasks.turn(|name| done.push(name));
        tasks.turn(|_| panic!("nobody was woken"));
        assert_eq!((log.take(), &done[..]), (vec!['a', 'b', 'c'], &['b'][..]));
        assert!(wakeups.pause());

        tasks.start(('d', 1));
        assert!(!wakeups.pause(), "there is work");
        let wakers: Vec<_> = tasks.places.iter().map(|place| place.waker.clone()).collect();
        assert_eq!((wakers.len(), made.get()), (3, 3));
        wakers.iter().chain(&wakers).for_each(Waker::wake_by_ref);
        tasks.turn(|name| done.push(name));
        assert_eq!((log.take(), tasks.is_empty()), (vec!['d', 'a', 'c'], true));
        assert_eq!(done, ['b', 'd', 'a', 'c']);
        wakers[0].wake_by_ref();
        tasks.turn(|_| panic!("it has no work"));
    }

    #[test]
    fn few_futures_are_kept_without_work() {
        let wakeups = Arc::new(Wakeups::default());
        let mut tasks = Tasks::new(wakeups.clone(), async |mailbox: Rc<Mailbox<(), ()>>| {
            loop {
                mailbox.receive().await;
                mailbox.done(());
            }
        });
        (0..SPARE + 5).for_each(|_| tasks.start(()));
        tasks.turn(|()| {});
        assert!(tasks.is_empty());
        let kept = |tasks: &Tasks<_, _, _, _>| tasks.places.iter().filter(|place| place.future.is_some()).count();
        assert_eq!(kept(&tasks), SPARE);
        tasks.start(());
        tasks.free();
        assert_eq!(kept(&tasks), 1, "one has work");
        tasks.turn(|()| {});
        let mut done = 0;
        (0..SPARE + 5).for_each(|_| tasks.start(()));
        tasks.turn(|()| done += 1);
        assert_eq!(done, SPARE + 5);
    }

    struct Count(Mutex<usize>);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            *self.0.lock() += 1;
        }
    }

    /// And how often the connection's task was woken meanwhile.
    fn poll_rest<F: Future<Output = ()>, M: Fn(Rc<Mailbox<(usize, bool), ()>>) -> F>(
        tasks: &mut Tasks<(usize, bool), (), F, M>,
        count: &Arc<Count>,
    ) -> (Poll<()>, usize) {
        let polled = tasks.poll_rest(&Context::from_waker(&Waker::from(count.clone())));
        (polled, std::mem::take(&mut *count.0.lock()))
    }

    #[test]
    fn the_rest_is_polled_when_it_is_woken_and_not_before() {
        let (count, wakeups) = (Arc::new(Count(Mutex::new(0))), Arc::new(Wakeups::default()));
        // Work is how often it is to be polled, and whether it wakes itself.
        let mut tasks = Tasks::new(wakeups.clone(), async |mailbox: Rc<Mailbox<(usize, bool), ()>>| {
            let (mut left, wakes) = mailbox.receive().await;
            poll_fn(|cx| {
                left -= 1;
                if wakes {
                    cx.waker().wake_by_ref();
                }
                if left == 0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            mailbox.done(());
        });
        tasks.start((2, false));
        tasks.start((3, true));
        wakeups.wake_socket();
        assert_eq!(poll_rest(&mut tasks, &count), (Poll::Pending, 1), "one has woken itself");
        assert_eq!(poll_rest(&mut tasks, &count), (Poll::Pending, 1));
        assert_eq!(poll_rest(&mut tasks, &count), (Poll::Pending, 1), "late, by the one that has ended");
        wakeups.socket().wake_by_ref();
        let _ = poll_rest(&mut tasks, &count);
        assert_eq!(poll_rest(&mut tasks, &count), (Poll::Pending, 0), "the connection's own wake-ups are not repeated");
        tasks.places[0].waker.wake_by_ref();
        assert_eq!(poll_rest(&mut tasks, &count), (Poll::Ready(()), 1));
    }

    #[test]
    fn the_task_is_woken_only_while_it_waits() {
        let count = Arc::new(Count(Mutex::new(0)));
        let wakeups = Arc::new(Wakeups::default());
        let socket = wakeups.socket();
        wakeups.run(&Waker::from(count.clone()));
        socket.wake_by_ref();
        assert_eq!((*count.0.lock(), wakeups.pause()), (0, false));
        assert_eq!(wakeups.take_signals(), Signals { socket: true, drain: false });
        assert_eq!(wakeups.take_signals(), Signals::default());
        assert!(wakeups.pause());
        wakeups.drain().wake_by_ref();
        assert_eq!((*count.0.lock(), wakeups.take_signals()), (1, Signals { socket: false, drain: true }));
    }
}
