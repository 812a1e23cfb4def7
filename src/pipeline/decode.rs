//! Stage *unbundle*, for compressed bundles: decoder threads, and how a reader hands payloads to them.
//!
//! The reader waits until a decoder is free, then gives it the whole payload before it reads on. So decoders run in
//! parallel across bundles, and none waits for bytes that stand behind another's.

use std::ops::Range;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::budget::{Budget, Grant};
use super::cancel::hung_up;
use super::spot::Registry;
use super::unbundle::{Cutter, Piece};
use crate::error::{Error, Result};
use crate::fatbin::HeaderParse;
use crate::fatbin::bundle::BundleHeader;
use crate::fatbin::ccob::{CcobDecoder, CcobHeader};

/// A decoder thread keeps a window of up to this size for the next bundle, in bytes: what zstd's usual levels use.
const KEPT_WINDOW: usize = 8 << 20;

/// One compressed bundle for a decoder thread.
#[derive(Debug)]
pub struct Bundle {
    /// The member it is in, for errors.
    member: String,
    header: CcobHeader,
    /// Offset of the payload in the member, for errors.
    offset: u64,
    objects: Objects,
    /// The payload, in order.
    payload: Receiver<(Vec<u8>, Grant)>,
    /// For the decoder's window.
    window: Grant,
}

/// The objects of a compressed bundle.
#[derive(Clone, Debug)]
pub enum Objects {
    /// As the plan has them.
    Planned(Vec<Piece>),
    /// Unknown before the bundle is decoded; they get their numbers from the registry. Whatever is wrong with such a
    /// bundle is no error, since it may be none at all.
    Spotted(Arc<Registry>),
}

/// A payload that is being handed over: the bytes of the member that it takes, and where they go.
type Handover = (Range<u64>, Sender<(Vec<u8>, Grant)>);

/// The reader's side: gives payloads to decoders.
#[derive(Debug)]
pub struct Decoders {
    /// To whichever decoder is free.
    pub(super) bundles: Sender<Bundle>,
    /// Payload on its way.
    pub(super) payloads: Arc<Budget>,
    /// Decoder windows: those of ordinary size all fit, of the largest one at a time.
    pub(super) windows: Arc<Budget>,
    /// Bundles do not overlap, so there is at most one.
    pub(super) open: Option<Handover>,
}

impl Decoders {
    /// Time that [`start`](Self::start) and [`feed`](Self::feed) have waited for memory so far.
    pub fn waited(&self) -> std::time::Duration {
        self.payloads.waited() + self.windows.waited()
    }

    /// Whether a payload is incomplete.
    pub fn is_busy(&self) -> bool {
        self.open.is_some()
    }

    /// Waits for a decoder for the bundle whose payload is the bytes `payload` of `member`.
    pub fn start(
        &mut self,
        member: &str,
        header: CcobHeader,
        payload: Range<u64>,
        window: u64,
        objects: Objects,
    ) -> Result<()> {
        let (sender, receiver) = unbounded();
        let window = self.windows.acquire(usize::try_from(window).unwrap_or(usize::MAX))?;
        let offset = payload.start;
        let bundle = Bundle { member: member.to_owned(), header, offset, objects, payload: receiver, window };
        self.bundles.send(bundle).map_err(hung_up)?;
        self.open = Some((payload, sender));
        Ok(())
    }

    /// Hands on what belongs to the present payload of `chunk`, which stands at `position` of the member.
    pub fn feed(&mut self, position: u64, chunk: &[u8]) -> Result<()> {
        let Some((range, sender)) = &self.open else { return Ok(()) };
        let end = position + chunk.len() as u64;
        // Both are at most the chunk's length.
        let to = range.end.min(end).saturating_sub(position) as usize;
        let from = (range.start.saturating_sub(position) as usize).min(to);
        if from < to {
            let grant = self.payloads.acquire(to - from)?;
            sender.send((chunk[from..to].to_vec(), grant)).map_err(hung_up)?;
        }
        if range.end <= end {
            self.open = None;
        }
        Ok(())
    }

    /// Gives up on a payload that does not end before its member does.
    pub fn abandon(&mut self) {
        self.open = None;
    }
}

/// Decompresses bundles, one after the other, and cuts them.
pub fn decompress(bundles: &Receiver<Bundle>, mut cutter: Cutter<'_, '_>) -> Result<()> {
    let mut decoder = None;
    for bundle in bundles {
        match bundle.objects.clone() {
            Objects::Planned(pieces) => {
                cutter.expect(pieces);
                let in_member = |error: Error| error.in_member(&bundle.member);
                decode(&bundle, &mut decoder, &mut cutter, |_, _, _| Ok(())).map_err(in_member)?;
                cutter.end()?;
            }
            Objects::Spotted(registry) => {
                cutter.expect([]);
                let mut prefix = Some(Vec::new());
                let decoded = decode(&bundle, &mut decoder, &mut cutter, |cutter, position, bytes| {
                    register(&registry, &bundle, &mut prefix, cutter, position, bytes)
                });
                cutter.output.cancel.check()?;
                if decoded.is_err() {
                    // The reader must be able to go on, and the guess was wrong.
                    bundle.payload.iter().for_each(drop);
                }
                cutter.end()?;
                cutter.abandon();
            }
        }
    }
    cutter.finish()
}

fn decode(
    bundle: &Bundle,
    decoder: &mut Option<CcobDecoder>,
    cutter: &mut Cutter<'_, '_>,
    mut look: impl FnMut(&mut Cutter<'_, '_>, u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut lap = cutter.output.stats.unbundle.lap();
    // A decoder with a large window is not kept: the window is granted to one bundle only.
    let mut own = match decoder.take() {
        Some(mut known) => {
            known.restart(bundle.header, bundle.offset)?;
            known
        }
        None => CcobDecoder::new(bundle.header, bundle.offset)?,
    };
    let mut position = 0;
    for (chunk, grant) in &bundle.payload {
        lap.waited();
        cutter.output.cancel.check()?;
        let waited = cutter.waited();
        let before = position;
        own.feed(&chunk, |bytes: &[u8]| {
            look(cutter, position, bytes)?;
            cutter.feed(position, bytes)?;
            position += bytes.len() as u64;
            Ok::<_, Error>(())
        })?;
        drop(grant);
        lap.less(cutter.waited() - waited);
        lap.worked(position - before);
    }
    own.finish()?;
    if bundle.window.bytes() <= KEPT_WINDOW {
        *decoder = Some(own);
    }
    Ok(())
}

/// Tells the cutter what to cut as soon as the entry table has been decoded.
fn register(
    registry: &Registry,
    bundle: &Bundle,
    prefix: &mut Option<Vec<u8>>,
    cutter: &mut Cutter<'_, '_>,
    position: u64,
    bytes: &[u8],
) -> Result<()> {
    let Some(so_far) = prefix else { return Ok(()) };
    so_far.extend_from_slice(bytes);
    if let HeaderParse::Complete(header) = BundleHeader::parse(so_far, Some(bundle.header.uncompressed))? {
        let pieces = registry.register(Some(bundle.offset), 0, &header);
        // An object whose first bytes are gone by already cannot be cut any more.
        cutter.expect_more(pieces.into_iter().filter(|piece| piece.range.start >= position));
        *prefix = None;
    }
    Ok(())
}
