//! Worker threads whose results come back in the order in which the work was handed in, a bounded number at a time.

use std::collections::VecDeque;
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

type Work = Box<dyn FnOnce() + Send>;

/// The threads. They end when the pool is dropped.
pub(crate) struct Pool {
    work: Sender<Work>,
    threads: usize,
}

impl Pool {
    pub(crate) fn new(threads: usize) -> Self {
        let (work, queue) = unbounded::<Work>();
        for _ in 0..threads {
            let queue = queue.clone();
            thread::spawn(move || queue.into_iter().for_each(|work| work()));
        }
        Self { work, threads }
    }

    /// A line of results that come back in order.
    pub(crate) fn line<T: Send + 'static>(&self) -> Line<T> {
        Line { work: self.work.clone(), waiting: VecDeque::new(), at_most: 2 * self.threads }
    }
}

/// Results that are still to come, in order.
pub(crate) struct Line<T> {
    work: Sender<Work>,
    waiting: VecDeque<Receiver<T>>,
    at_most: usize,
}

impl<T: Send + 'static> Line<T> {
    /// Hands `work` in. Results that are in the way of the bound go to `done` first.
    pub(crate) fn push(&mut self, work: impl FnOnce() -> T + Send + 'static, mut done: impl FnMut(T)) {
        while self.waiting.len() >= self.at_most {
            self.pop(&mut done);
        }
        let (result, receiver) = bounded(1);
        let work = Box::new(move || {
            // Nobody waits any more if the consumer has failed.
            let _ = result.send(work());
        });
        self.work.send(work).expect("the threads live as long as the pool");
        self.waiting.push_back(receiver);
    }

    /// Waits for all that is left.
    pub(crate) fn finish(&mut self, mut done: impl FnMut(T)) {
        while !self.waiting.is_empty() {
            self.pop(&mut done);
        }
    }

    fn pop(&mut self, done: &mut impl FnMut(T)) {
        if let Some(receiver) = self.waiting.pop_front() {
            done(receiver.recv().expect("a worker failed"));
        }
    }
}
