//! Decides what stays mapped, what leaves and what moves: holes, room for headers and the place of the marker.
//!
//! A hole in the middle of a PT_LOAD needs one more program header; room for that may mean that something moves into
//! the bundle section's kept part, which then has to be larger. So holes and room are found in turns until they
//! agree. A bundle section for which that fails is zeroed where it is: the file keeps its length, and nothing can
//! break.

use super::headers::*;
use super::holes::{Bundle, Holes, bundles};
use super::locate::{BUNDLE_SECTION, ElfLayout};
use super::room::Room;
use super::view::ElfView;
use crate::fault::{Fault, Result};
use crate::source::ReadAt;

/// The decisions, one entry per bundle section where it says so.
#[derive(Clone, Debug)]
pub(super) struct Arrangement {
    pub(super) bundles: Vec<Bundle>,
    pub(super) holes: Holes,
    pub(super) room: Room,
    /// Per bundle section: the address of its copy of the marker; `None` if it is too small for one.
    pub(super) markers: Vec<Option<u64>>,
    /// The address that every wrapper will point at.
    pub(super) marker: u64,
    /// The new address of each block that moves.
    pub(super) moved_to: Vec<u64>,
    /// What the user should know.
    pub(super) notes: Vec<String>,
}

impl Arrangement {
    /// Decides. Reads what stands directly behind the program header table.
    pub(super) fn find(source: &mut dyn ReadAt, layout: &ElfLayout, marker_len: u64) -> Result<Self> {
        let view = &layout.view;
        let bundles = bundles(layout)?;
        // Bundles that get no hole: for want of a program header, or because the mapped program header table behind
        // them would move (a program finds it by its offset, which must fit its address).
        let behind = table_behind(view, &bundles);
        let mut closed = behind.clone();
        let mut blocks = Vec::new();
        let mut may_move = true;
        // Every turn that does not end the loop adds to `closed` or `blocks`, or clears `may_move`.
        loop {
            let mut need = marker_len;
            for block in &blocks {
                let block: &super::room::Block = block;
                need = need.saturating_add(block.len()).saturating_add(block.align);
            }
            let Some(primary) = bundles.iter().position(|bundle| bundle.len() >= need) else {
                if blocks.is_empty() {
                    return Self::squeeze(source, view, bundles, marker_len);
                }
                may_move = false;
                blocks.clear();
                continue;
            };
            let needs: Vec<Option<u64>> = (0..bundles.len())
                .map(|index| match (closed[index], index == primary) {
                    (true, _) => None,
                    (false, true) => Some(need),
                    (false, false) => Some(marker_len.min(bundles[index].len())),
                })
                .collect();
            let holes = Holes::cut(view, &bundles, &needs)?;
            match Room::find(source, view, holes.extra_headers(), may_move)? {
                Some(room) if blocks.starts_with(&room.moved) => {
                    return Ok(Self::settle(view, bundles, holes, room, primary, marker_len, &closed));
                }
                Some(room) => blocks = room.moved,
                None => {
                    let splits = |&index: &usize| holes.holes[index].as_ref().is_some_and(|hole| hole.splits);
                    let smallest =
                        (0..bundles.len()).filter(splits).min_by_key(|&index| bundles[index].len());
                    // There is one: no room is needed for no header.
                    if let Some(smallest) = smallest {
                        closed[smallest] = true;
                    }
                    blocks.clear();
                }
            }
        }
    }

    fn settle(
        view: &ElfView,
        bundles: Vec<Bundle>,
        holes: Holes,
        room: Room,
        primary: usize,
        marker_len: u64,
        closed: &[bool],
    ) -> Self {
        let start = |index: usize| {
            let bundle = &bundles[index];
            let room = bundle.room(holes.holes[index].as_ref());
            (bundle.address + (room.start - bundle.file.start), room.end - room.start)
        };
        let markers: Vec<Option<u64>> = (0..bundles.len())
            .map(|index| {
                let (address, size) = start(index);
                (size >= marker_len).then_some(address)
            })
            .collect();
        let (marker, _) = start(primary);
        let mut free = marker + marker_len;
        let mut moved_to = Vec::with_capacity(room.moved.len());
        for block in &room.moved {
            let address = free + (block.address.wrapping_sub(free) & (block.align - 1));
            moved_to.push(address);
            free = address + block.len();
        }
        let mut notes = Vec::new();
        if let Some(align) = holes.lowered
            && view.loads().any(|(_, load)| load.align > align)
        {
            notes.push(format!("p_align of the segments behind the device code is lowered to {align:#x}"));
        }
        let behind = table_behind(view, &bundles);
        for (why, counts) in [
            ("no room for another program header", false),
            ("the program header table stands behind them", true),
        ] {
            let all = bundles.iter().zip(closed.iter().zip(&behind));
            let kept: u64 = all
                .filter(|(_, (closed, behind))| **closed && **behind == counts)
                .map(|(bundle, _)| bundle.len())
                .sum();
            if kept > 0 {
                notes.push(format!(
                    "{why}: {kept} bytes of device code are zeroed in place and the file keeps its length"
                ));
            }
        }
        Self { bundles, holes, room, markers, marker, moved_to, notes }
    }

    /// The marker does not fit into any bundle section. It may go on into zero bytes behind one.
    fn squeeze(
        source: &mut dyn ReadAt,
        view: &ElfView,
        bundles: Vec<Bundle>,
        marker_len: u64,
    ) -> Result<Self> {
        for index in 0..bundles.len() {
            let bundle = &bundles[index];
            let load = &view.segments[bundle.load];
            let end = bundle.address.saturating_add(marker_len);
            // Without section headers nobody knows whether zeros behind it are used.
            if end > load.address.saturating_add(load.file_size) || view.sections.is_empty() {
                continue;
            }
            let gap = bundle.address_end()..end;
            let used = view.sections.iter().any(|section| {
                section.in_memory() && section.address < gap.end && section.memory_end() > gap.start
            }) || view.segments.iter().any(|segment| {
                !segment.is_load()
                    && !matches!(segment.kind, PT_NULL | PT_GNU_STACK)
                    && segment.address < gap.end
                    && segment.memory_end() > gap.start
            });
            if used {
                continue;
            }
            let bytes = source.read_vec(bundle.file.end, gap.end - gap.start, BUNDLE_SECTION)?;
            if bytes.iter().any(|&byte| byte != 0) {
                continue;
            }
            let mut markers = vec![None; bundles.len()];
            markers[index] = Some(bundle.address);
            return Ok(Self {
                marker: bundle.address,
                holes: Holes { holes: vec![None; bundles.len()], lowered: None },
                bundles,
                room: Room::default(),
                markers,
                moved_to: Vec::new(),
                notes: Vec::new(),
            });
        }
        Err(Fault::unsupported(
            BUNDLE_SECTION,
            bundles.first().map(|bundle| bundle.file.start),
            format!("the marker of {marker_len} bytes does not fit in the section, nor in padding behind it"),
        ))
    }
}

/// For each bundle section, whether the program header table is mapped and stands behind it in the file, as llvm-bolt
/// has it.
fn table_behind(view: &ElfView, bundles: &[Bundle]) -> Vec<bool> {
    let table = view.segment_table();
    let mapped = view.loads().any(|(_, load)| load.offset <= table.start && table.end <= load.file_end());
    bundles.iter().map(|bundle| mapped && table.start >= bundle.file.end).collect()
}
