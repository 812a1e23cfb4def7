//! Stage *unbundle*, for compressed bundles: decoder threads, and how a reader hands payloads to them.
//!
//! The reader waits until a decoder is free, then gives it the whole payload before it reads on. So decoders run in
//! parallel across bundles, and none waits for bytes that stand behind another's.

use std::ops::Range;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use md5::{Digest, Md5};

use super::budget::{Budget, Buffer, Grant, size_class};
use super::cancel::hung_up;
use super::spot::Registry;
use super::unbundle::{Cutter, Piece};
use crate::error::{Error, ErrorKind, Result};
use crate::fatbin::HeaderParse;
use crate::fatbin::bundle::BundleHeader;
use crate::fatbin::ccob::{CcobDecoder, CcobHeader, Method, WholeDecoder};
use crate::fault::Fault;

/// A decoder thread keeps a window of up to this size for the next bundle, in bytes: what zstd's usual levels use.
const KEPT_WINDOW: usize = 8 << 20;

/// One compressed bundle for a decoder thread.
#[derive(Debug)]
pub struct Bundle {
    /// The member it is in, for errors.
    member: String,
    header: CcobHeader,
    /// The payload's bytes of the member.
    range: Range<u64>,
    objects: Objects,
    /// The payload, in order.
    payload: Receiver<(Vec<u8>, Grant)>,
    /// For the decoder's window; `None` if the bundle is decoded at once, which needs no window.
    window: Option<Grant>,
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
    /// Bytes that each decoder may have in flight.
    pub(super) capacity: usize,
    /// Bundles do not overlap, so there is at most one.
    pub(super) open: Option<Handover>,
}

impl Decoders {
    /// The same decoders for another reader.
    pub fn share(&self) -> Self {
        Self {
            bundles: self.bundles.clone(),
            payloads: Arc::clone(&self.payloads),
            windows: Arc::clone(&self.windows),
            capacity: self.capacity,
            open: None,
        }
    }

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
        let window = match fits_whole(&header, &payload, self.capacity) {
            true => None,
            false => Some(self.windows.acquire(usize::try_from(window).unwrap_or(usize::MAX))?),
        };
        let range = payload.clone();
        let bundle = Bundle { member: member.to_owned(), header, range, objects, payload: receiver, window };
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

/// Whether a bundle is decoded into one buffer, of which the code objects are parts, by a decoder that may have
/// `capacity` bytes in flight. A fresh window for each bundle costs as much in page faults as decoding does, and every
/// object would be copied out of it.
fn fits_whole(header: &CcobHeader, payload: &Range<u64>, capacity: usize) -> bool {
    let fits = |size: u64, share: usize| {
        usize::try_from(size).is_ok_and(|size| size < capacity && size_class(size) <= capacity / share)
    };
    header.method == Method::Zstd && fits(header.uncompressed, 2) && fits(payload.end - payload.start, 4)
}

/// What a decoder thread keeps from bundle to bundle.
#[derive(Default)]
struct Kept {
    whole: Option<WholeDecoder>,
    streaming: Option<CcobDecoder>,
}

/// Decompresses bundles, one after the other, and cuts them.
pub fn decompress(bundles: &Receiver<Bundle>, mut cutter: Cutter<'_, '_>) -> Result<()> {
    let mut kept = Kept::default();
    for bundle in bundles {
        let in_member = |error: Error| error.in_member(&bundle.member);
        if bundle.window.is_some() {
            let payload = bundle.payload.iter();
            in_parts(&bundle, payload, &mut kept.streaming, &mut cutter).map_err(in_member)?;
        } else if let Some(payload) = at_once(&bundle, &mut kept, &mut cutter).map_err(in_member)? {
            // It is damaged. Why, the other decoder says.
            in_parts(&bundle, std::iter::once((payload, ())), &mut kept.streaming, &mut cutter)
                .map_err(in_member)?;
        }
    }
    cutter.finish()
}

/// Decompresses a bundle in one go. Gives the payload back if that does not succeed.
fn at_once(bundle: &Bundle, kept: &mut Kept, cutter: &mut Cutter<'_, '_>) -> Result<Option<Buffer>> {
    let mut lap = cutter.output.stats.unbundle.lap();
    let before = cutter.waited();
    // Both fit, see `fits_whole`.
    let mut payload = cutter.budget.buffer((bundle.range.end - bundle.range.start) as usize)?;
    for (chunk, grant) in &bundle.payload {
        payload.extend_from_slice(&chunk);
        drop(grant);
    }
    let mut content = cutter.budget.buffer(bundle.header.uncompressed as usize)?;
    lap.waited();
    lap.less(cutter.waited() - before);
    cutter.output.cancel.check()?;
    let decoder = match &mut kept.whole {
        Some(decoder) => decoder,
        none => none.insert(WholeDecoder::new()?),
    };
    if !decoder.decode(&bundle.header, &payload, &mut content) {
        return Ok(Some(payload));
    }
    // What the objects need is left for them: a large one takes more memory than its bytes.
    drop(payload);
    if cutter.output.verify_bundles {
        let verified = check_hash(bundle, &Md5::digest(&*content).into());
        match &bundle.objects {
            Objects::Planned(_) => verified?,
            // The second pass says so, unless it is a wrong guess.
            Objects::Spotted(_) if verified.is_err() => return Ok(None),
            Objects::Spotted(_) => {}
        }
    }
    lap.worked(bundle.header.uncompressed);
    let pieces = match &bundle.objects {
        Objects::Planned(pieces) => pieces.clone(),
        Objects::Spotted(registry) => {
            match BundleHeader::parse(&content, Some(bundle.header.uncompressed)) {
                Ok(HeaderParse::Complete(header)) => registry.register(Some(bundle.range.start), 0, &header),
                // A wrong guess.
                _ => Vec::new(),
            }
        }
    };
    cutter.whole(pieces, content)?;
    Ok(None)
}

/// Decompresses a bundle whose content is too large for one buffer, and cuts it as it comes.
fn in_parts<P: AsRef<[u8]>, G>(
    bundle: &Bundle,
    payload: impl Iterator<Item = (P, G)>,
    decoder: &mut Option<CcobDecoder>,
    cutter: &mut Cutter<'_, '_>,
) -> Result<()> {
    match bundle.objects.clone() {
        Objects::Planned(pieces) => {
            cutter.expect(pieces);
            decode(bundle, payload, decoder, cutter, |_, _, _| Ok(()))?;
            cutter.end()
        }
        Objects::Spotted(registry) => {
            cutter.expect([]);
            let mut prefix = Some(Vec::new());
            let decoded = decode(bundle, payload, decoder, cutter, |cutter, position, bytes| {
                register(&registry, bundle, &mut prefix, cutter, position, bytes)
            });
            cutter.output.cancel.check()?;
            match decoded {
                Ok(()) => cutter.end(),
                Err(error) if matches!(error.kind(), ErrorKind::Input(_)) => {
                    // The reader must be able to go on. If it was no wrong guess, the second pass says what is wrong:
                    // what has come out so far must not keep it from looking.
                    bundle.payload.iter().for_each(drop);
                    cutter.abandon();
                    registry.forget(bundle.range.start);
                    Ok(())
                }
                Err(error) => Err(error),
            }
        }
    }
}

fn decode<P: AsRef<[u8]>, G>(
    bundle: &Bundle,
    payload: impl Iterator<Item = (P, G)>,
    decoder: &mut Option<CcobDecoder>,
    cutter: &mut Cutter<'_, '_>,
    mut look: impl FnMut(&mut Cutter<'_, '_>, u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut lap = cutter.output.stats.unbundle.lap();
    let offset = bundle.range.start;
    // A decoder with a large window is not kept: the window is granted to one bundle only.
    let mut own = match decoder.take() {
        Some(mut known) => {
            known.restart(bundle.header, offset)?;
            known
        }
        None => CcobDecoder::new(bundle.header, offset)?,
    };
    let mut md5 = cutter.output.verify_bundles.then(Md5::new);
    let mut position = 0;
    for (chunk, grant) in payload {
        lap.waited();
        cutter.output.cancel.check()?;
        let waited = cutter.waited();
        let before = position;
        own.feed(chunk.as_ref(), |bytes: &[u8]| {
            if let Some(md5) = &mut md5 {
                md5.update(bytes);
            }
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
    if let Some(md5) = md5 {
        check_hash(bundle, &md5.finalize().into())?;
    }
    if bundle.window.as_ref().is_some_and(|window| window.bytes() <= KEPT_WINDOW) {
        *decoder = Some(own);
    }
    Ok(())
}

/// The header has the first 8 bytes of the MD5 of the uncompressed bundle.
fn check_hash(bundle: &Bundle, md5: &[u8; 16]) -> Result<()> {
    let found = md5.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
    let expected = bundle.header.hash;
    if found == Some(expected) {
        return Ok(());
    }
    let message =
        format!("its content has the MD5 {:016x}..., its header says {expected:016x}...", found.unwrap_or(0));
    Err(Fault::malformed("compressed offload bundle", bundle.range.start, message).into())
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
        let pieces = registry.register(Some(bundle.range.start), 0, &header);
        // An object whose first bytes are gone by already cannot be cut any more.
        cutter.expect_more(pieces.into_iter().filter(|piece| piece.range.start >= position));
        *prefix = None;
    }
    Ok(())
}
