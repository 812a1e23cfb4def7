//! The threads that the passes share: workers and decoders.

use std::sync::Arc;
use std::thread::{Scope, ScopedJoinHandle};

use crossbeam_channel::{Sender, bounded, unbounded};

use super::budget::Budget;
use super::decode::{self, Decoders};
use super::item::{Compressed, HostStep};
use super::limits::Limits;
use super::unbundle::{Cutter, Output, join};
use super::{Context, compress, deflates};
use crate::error::{Error, Result};

/// Running workers and decoders. They end when all senders to them are gone: [`output`](Self::output), its clones,
/// and [`decoders`](Self::decoders).
pub struct Workers<'scope, 'env> {
    /// Where producers send to.
    pub output: Output<'env>,
    /// For compressed bundles.
    pub decoders: Decoders,
    /// The threads.
    pub threads: Threads<'scope>,
}

/// Threads to wait for.
pub struct Threads<'scope>(Vec<ScopedJoinHandle<'scope, Result<()>>>);

impl Threads<'_> {
    /// Waits for all of them. Their errors.
    pub fn join(self) -> impl Iterator<Item = Error> {
        self.0.into_iter().filter_map(|thread| join(thread).err())
    }
}

impl<'scope, 'env> Workers<'scope, 'env> {
    /// Starts as many threads as `limits` says. What they make goes to `frames` and `steps`.
    pub fn start(
        scope: &'scope Scope<'scope, 'env>,
        context: &Context<'env>,
        limits: &Limits,
        frames: Sender<Compressed>,
        steps: &Sender<(u64, HostStep)>,
    ) -> Self {
        let Context { options, cancel, stats } = *context;
        let budget = |capacity| Budget::new(capacity, Arc::clone(cancel));
        // What waits in the channels is bounded by the budgets, not by their capacity.
        let (jobs, to_do) = unbounded();
        // A bundle is handed over when a decoder is free.
        let (bundles, to_decode) = bounded(0);
        let mut threads = Vec::new();
        for _ in 0..limits.workers {
            let (to_do, frames, steps) = (to_do.clone(), frames.clone(), steps.clone());
            let (scheme, deflates) = (options.scheme, deflates(options));
            threads.push(scope.spawn(move || {
                cancel.watch(compress::work(&to_do, &frames, &steps, scheme, deflates, stats))
            }));
        }
        let verify_bundles = options.verify_bundles;
        let output = Output { jobs, frames, scheme: options.scheme, verify_bundles, cancel, stats };
        for _ in 0..limits.decoders {
            let to_decode = to_decode.clone();
            let cutter = Cutter::new(scope, output.clone(), budget(limits.decoded));
            threads.push(scope.spawn(move || cancel.watch(decode::decompress(&to_decode, cutter))));
        }
        let decoders = Decoders {
            bundles,
            payloads: budget(limits.payloads),
            windows: budget(limits.windows),
            capacity: limits.decoded,
            open: None,
        };
        Self { output, decoders, threads: Threads(threads) }
    }
}
