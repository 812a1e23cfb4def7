//! The edit plan: pure data, checked when it is built.

use std::ops::Range;

use crate::fault::{Fault, Result};

/// One step over the input, in input order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// The next `0` input bytes pass unchanged.
    Keep(u64),
    /// The next input bytes leave the file.
    Drop(u64),
    /// The next input bytes become zeros.
    Zero(u64),
    /// As many input bytes as this holds are replaced by it.
    Replace(Vec<u8>),
    /// These bytes come into the output; no input is consumed.
    Insert(Vec<u8>),
}

impl Edit {
    /// Input bytes that the edit consumes.
    pub fn consumes(&self) -> u64 {
        match self {
            Edit::Keep(length) | Edit::Drop(length) | Edit::Zero(length) => *length,
            Edit::Replace(bytes) => bytes.len() as u64,
            Edit::Insert(_) => 0,
        }
    }

    /// Output bytes that the edit produces.
    pub fn produces(&self) -> u64 {
        match self {
            Edit::Keep(length) | Edit::Zero(length) => *length,
            Edit::Replace(bytes) | Edit::Insert(bytes) => bytes.len() as u64,
            Edit::Drop(_) => 0,
        }
    }
}

/// A whole file's edits. Consumes exactly [`input_len`](Self::input_len) bytes and produces exactly
/// [`output_len`](Self::output_len).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditPlan {
    edits: Vec<Edit>,
    input_len: u64,
    output_len: u64,
}

impl EditPlan {
    /// The edits in input order; they cover the input without a gap.
    pub fn edits(&self) -> &[Edit] {
        &self.edits
    }

    /// Length of the file that the plan was made for, in bytes.
    pub fn input_len(&self) -> u64 {
        self.input_len
    }

    /// Length of the file that the plan produces, in bytes.
    pub fn output_len(&self) -> u64 {
        self.output_len
    }
}

/// Collects edits at absolute input offsets, in any order.
#[derive(Debug)]
pub struct PlanBuilder {
    input_len: u64,
    /// Input range, and what becomes of it. Inserts have an empty range.
    edits: Vec<(Range<u64>, Edit)>,
}

impl PlanBuilder {
    /// A plan for a file of `input_len` bytes that so far keeps all of them.
    pub fn new(input_len: u64) -> Self {
        Self { input_len, edits: Vec::new() }
    }

    /// The bytes of `range` (input offsets) leave the file.
    pub fn drop(&mut self, range: Range<u64>) -> &mut Self {
        let length = range.end.saturating_sub(range.start);
        self.push(range, Edit::Drop(length))
    }

    /// The bytes of `range` (input offsets) become zeros.
    pub fn zero(&mut self, range: Range<u64>) -> &mut Self {
        let length = range.end.saturating_sub(range.start);
        self.push(range, Edit::Zero(length))
    }

    /// The bytes from input offset `at` on are replaced by `bytes`, length for length.
    pub fn replace(&mut self, at: u64, bytes: impl Into<Vec<u8>>) -> &mut Self {
        let bytes = bytes.into();
        self.push(at..at.saturating_add(bytes.len() as u64), Edit::Replace(bytes))
    }

    /// `bytes` come in before the input byte at `at`. Several inserts at one place keep the order of the calls.
    pub fn insert(&mut self, at: u64, bytes: impl Into<Vec<u8>>) -> &mut Self {
        self.push(at..at, Edit::Insert(bytes.into()))
    }

    fn push(&mut self, range: Range<u64>, edit: Edit) -> &mut Self {
        if edit.consumes() > 0 || edit.produces() > 0 {
            self.edits.push((range, edit));
        }
        self
    }

    /// Sorts the edits, fills the gaps with [`Edit::Keep`] and checks that no two overlap and none ends past
    /// the input.
    pub fn finish(mut self) -> Result<EditPlan> {
        // Stable: an insert stands before an edit that starts at the same offset, inserts keep their order.
        self.edits.sort_by_key(|(range, _)| (range.start, range.end));
        let mut edits = Vec::with_capacity(2 * self.edits.len() + 1);
        let (mut at, mut output_len) = (0u64, 0u64);
        let overflow = || Fault::malformed("edit plan", None, "the output's length overflows 64 bits");
        for (range, edit) in self.edits {
            if range.start < at || range.end > self.input_len || range.end < range.start {
                return Err(Fault::unsupported(
                    "edit plan",
                    range.start,
                    format!(
                        "an edit of {:#x}..{:#x} overlaps the one before it, which ends at {at:#x}, or the end of the file at {:#x}",
                        range.start, range.end, self.input_len
                    ),
                ));
            }
            if range.start > at {
                edits.push(Edit::Keep(range.start - at));
                output_len = output_len.checked_add(range.start - at).ok_or_else(overflow)?;
            }
            output_len = output_len.checked_add(edit.produces()).ok_or_else(overflow)?;
            at = range.end;
            edits.push(edit);
        }
        if at < self.input_len {
            edits.push(Edit::Keep(self.input_len - at));
            output_len = output_len.checked_add(self.input_len - at).ok_or_else(overflow)?;
        }
        Ok(EditPlan { edits, input_len: self.input_len, output_len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_kept_and_lengths_add_up() {
        let mut builder = PlanBuilder::new(100);
        builder.drop(40..60).replace(10, *b"abc").insert(60, *b"tail").zero(60..61);
        let plan = builder.finish().unwrap();
        assert_eq!(
            plan.edits(),
            [
                Edit::Keep(10),
                Edit::Replace(b"abc".to_vec()),
                Edit::Keep(27),
                Edit::Drop(20),
                Edit::Insert(b"tail".to_vec()),
                Edit::Zero(1),
                Edit::Keep(39)
            ]
        );
        assert_eq!(plan.output_len(), 84);
    }

    #[test]
    fn overlaps_and_ranges_past_the_end_are_refused() {
        for (first, second) in [(0..10, 5..6), (0..10, 9..12), (95..101, 0..1), (5..101, 0..1)] {
            let mut builder = PlanBuilder::new(100);
            builder.push(first, Edit::Drop(10)).drop(second);
            assert!(builder.finish().is_err());
        }
    }
}
