//! Stage *unbundle*, ahead of the plan: cuts code objects out of members that are being read for the first time, so
//! that fat members need not be inflated a second time for them.
//!
//! It is a guess, see [`spot`](super::spot): whether a frame counts is decided when the plan is there, by
//! [`early`](super::early). So nothing here is an error of the wheel.

use std::fs::File;
use std::sync::{Arc, Mutex};
use std::thread::{Scope, ScopedJoinHandle};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};

use super::Context;
use super::budget::Budget;
use super::cancel::{LOOK, cause, stopped};
use super::decode::{Decoders, Objects};
use super::early::Early;
use super::limits::{Kinds, Limits};
use super::spot::{Key, Registry, Spotted};
use super::unbundle::{Cutter, join};
use super::workers::{Threads, Workers};
use crate::error::{Error, Result};

/// What claims to be compressed more than so many to one is left to the plan: real bundles reach 100, and a guess must
/// not make a file that only looks like one cost hours.
const MAX_RATIO: u64 = 256;

/// What cuts one member at a time.
pub struct Anticipator<'scope, 'env> {
    decoders: Decoders,
    cutter: Cutter<'scope, 'env>,
}

/// The anticipators of a split; each is with one reader at a time. There are as many as memory allows.
pub struct Anticipators<'scope, 'env> {
    give: Sender<Anticipator<'scope, 'env>>,
    take: Receiver<Anticipator<'scope, 'env>>,
    /// The keys of all objects so far, by number.
    keys: Arc<Mutex<Vec<Key>>>,
}

impl<'scope, 'env> Anticipators<'scope, 'env> {
    /// Shares `all`; the objects that they cut get the numbers of their `keys`.
    fn new(all: Vec<Anticipator<'scope, 'env>>, keys: Arc<Mutex<Vec<Key>>>) -> Self {
        let (give, take) = bounded(all.len());
        for anticipator in all {
            // There is room for all.
            let _ = give.send(anticipator);
        }
        Self { give, take, keys }
    }

    /// Waits for one that is free, for the member that is known as `member`, see [`Key::member`].
    pub fn lease(&self, context: &Context<'_>, name: &str, member: u64) -> Result<Lease<'_, 'scope, 'env>> {
        loop {
            match self.take.recv_timeout(LOOK) {
                Ok(mut own) => {
                    own.cutter.expect([]);
                    let registry = Arc::new(Registry::new(member, Arc::clone(&self.keys)));
                    return Ok(Lease { own: Some(own), give: &self.give, name: name.to_owned(), registry });
                }
                Err(RecvTimeoutError::Timeout) => context.cancel.check()?,
                Err(RecvTimeoutError::Disconnected) => return Err(stopped()),
            }
        }
    }

    /// Waits for everything that was begun. All leases must be over.
    fn finish(self) -> Result<()> {
        drop(self.give);
        self.take.into_iter().try_for_each(|anticipator| anticipator.cutter.finish())
    }
}

/// An anticipator for the rest of one member. On drop it goes back, and objects that are not complete are forgotten.
pub struct Lease<'a, 'scope, 'env> {
    own: Option<Anticipator<'scope, 'env>>,
    give: &'a Sender<Anticipator<'scope, 'env>>,
    /// The member's name, for errors.
    name: String,
    registry: Arc<Registry>,
}

impl Lease<'_, '_, '_> {
    /// Takes `chunk`, which stands at `position`, and the bundles whose headers end in it.
    pub fn feed(&mut self, position: u64, chunk: &[u8], spotted: Vec<Spotted>) -> Result<()> {
        let Some(Anticipator { decoders, cutter }) = &mut self.own else { return Ok(()) };
        decoders.feed(position, chunk)?;
        for bundle in spotted {
            match bundle {
                Spotted::Plain { offset, header } => {
                    let pieces = self.registry.register(None, offset, &header);
                    // An object whose first bytes are gone by already cannot be cut any more.
                    cutter.expect_more(pieces.into_iter().filter(|piece| piece.range.start >= position));
                }
                Spotted::Compressed { header, payload, window } => {
                    let plausible =
                        header.uncompressed / MAX_RATIO <= payload.end.saturating_sub(payload.start);
                    if payload.start < position || decoders.is_busy() || !plausible {
                        continue;
                    }
                    let objects = Objects::Spotted(Arc::clone(&self.registry));
                    decoders.start(&self.name, header, payload, window, objects)?;
                    decoders.feed(position, chunk)?;
                }
            }
        }
        cutter.feed(position, chunk)
    }

    /// The member is complete.
    pub fn end(mut self) -> Result<()> {
        match &mut self.own {
            Some(own) => own.cutter.end(),
            None => Ok(()),
        }
    }
}

impl Drop for Lease<'_, '_, '_> {
    fn drop(&mut self) {
        if let Some(mut own) = self.own.take() {
            own.cutter.abandon();
            own.decoders.abandon();
            // There is room for all; nobody may want it any more.
            let _ = self.give.try_send(own);
        }
    }
}

/// The threads behind the anticipators: workers, decoders, and the one that keeps the frames.
pub struct Anticipating<'scope> {
    threads: Threads<'scope>,
    keeper: ScopedJoinHandle<'scope, Result<Early>>,
}

impl<'scope> Anticipating<'scope> {
    /// Starts them. Frames are kept in `file`.
    pub fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        context: &Context<'env>,
        file: File,
    ) -> (Self, Anticipators<'scope, 'env>) {
        let Context { options, cancel, .. } = *context;
        let limits = Limits::of(options, Kinds::Unknown);
        let (to_keep, frames) = unbounded();
        // No host block is made here.
        let (no_steps, _) = unbounded();
        let Workers { output, decoders, threads } =
            Workers::start(scope, context, &limits, to_keep, &no_steps);
        let keys = Arc::new(Mutex::new(Vec::new()));
        let known = Arc::clone(&keys);
        let keeper = scope.spawn(move || cancel.watch(Early::keep(file, &frames, &known)));
        let count = limits.anticipators();
        let anticipator = |_| Anticipator {
            decoders: decoders.share(),
            cutter: Cutter::new(
                scope,
                output.clone(),
                Budget::new(limits.objects / count, Arc::clone(cancel)),
            ),
        };
        let anticipators = Anticipators::new((0..count).map(anticipator).collect(), keys);
        (Self { threads, keeper }, anticipators)
    }

    /// Waits for all threads. `error`: what has gone wrong before.
    pub fn finish(self, anticipators: Anticipators<'scope, '_>, error: Option<Error>) -> Result<Early> {
        let mut errors: Vec<Error> = error.into_iter().collect();
        errors.extend(anticipators.finish().err());
        errors.extend(self.threads.join());
        let early = join(self.keeper).map_err(|error| errors.push(error)).ok();
        match cause(errors) {
            Some(error) => Err(error),
            None => early.ok_or_else(stopped),
        }
    }
}
