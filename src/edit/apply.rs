//! Streams a file through an edit plan.

use super::plan::{Edit, EditPlan};
use crate::fault::Fault;

/// Zeros are written in pieces of this many bytes, so that no plan can make `apply` allocate much.
const ZEROS: &[u8] = &[0; 4096];

/// A plan in progress: feed it the input in order, in chunks of any size.
#[derive(Debug)]
pub struct Apply<'plan> {
    plan: &'plan EditPlan,
    /// Index of the current edit, and how many of its input bytes are consumed.
    edit: usize,
    within: u64,
    consumed: u64,
    produced: u64,
}

impl<'plan> Apply<'plan> {
    /// Starts at the first byte of the input.
    pub fn new(plan: &'plan EditPlan) -> Self {
        Self { plan, edit: 0, within: 0, consumed: 0, produced: 0 }
    }

    /// Consumes all of `input`, the next bytes of the file, and hands every piece of output to `sink` in order.
    /// An error of `sink` is returned as it is. More input than the plan was made for is a [`Fault`].
    pub fn feed<E: From<Fault>>(
        &mut self,
        mut input: &[u8],
        mut sink: impl FnMut(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        loop {
            let Some(edit) = self.plan.edits().get(self.edit) else {
                if input.is_empty() {
                    return Ok(());
                }
                return Err(Fault::malformed(
                    "edit plan",
                    self.consumed,
                    format!("the input goes on, the plan is for {} bytes", self.plan.input_len()),
                )
                .into());
            };
            let left = edit.consumes() - self.within;
            if left > 0 && input.is_empty() {
                return Ok(());
            }
            let take = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
            let (now, later) = input.split_at(take);
            match edit {
                Edit::Keep(_) => self.emit(now, &mut sink)?,
                Edit::Drop(_) => {}
                Edit::Zero(_) => {
                    for piece in now.chunks(ZEROS.len()) {
                        self.emit(&ZEROS[..piece.len()], &mut sink)?;
                    }
                }
                Edit::Replace(bytes) => {
                    let start = usize::try_from(self.within).unwrap_or(usize::MAX);
                    self.emit(&bytes[start..start + take], &mut sink)?;
                }
                Edit::Insert(bytes) => self.emit(bytes, &mut sink)?,
            }
            input = later;
            self.within += take as u64;
            self.consumed += take as u64;
            if self.within == edit.consumes() {
                self.edit += 1;
                self.within = 0;
            }
        }
    }

    /// Ends the input. A shortfall, on either side, is a [`Fault`].
    pub fn finish<E: From<Fault>>(
        mut self,
        sink: impl FnMut(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.feed(&[], sink)?; // inserts at the very end
        if self.consumed != self.plan.input_len() || self.produced != self.plan.output_len() {
            return Err(Fault::malformed(
                "edit plan",
                self.consumed,
                format!(
                    "{} of {} input bytes came and {} of {} output bytes were made",
                    self.consumed,
                    self.plan.input_len(),
                    self.produced,
                    self.plan.output_len()
                ),
            )
            .into());
        }
        Ok(())
    }

    fn emit<E>(
        &mut self,
        bytes: &[u8],
        sink: &mut impl FnMut(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        if !bytes.is_empty() {
            self.produced += bytes.len() as u64;
            sink(bytes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::PlanBuilder;
    use super::*;
    use crate::fault::Result;

    fn run(plan: &EditPlan, input: &[u8], chunk: usize) -> Result<Vec<u8>> {
        let mut output = Vec::new();
        let mut apply = Apply::new(plan);
        for piece in input.chunks(chunk) {
            apply.feed(piece, |bytes| {
                output.extend_from_slice(bytes);
                Ok::<_, Fault>(())
            })?;
        }
        apply.finish(|bytes| {
            output.extend_from_slice(bytes);
            Ok::<_, Fault>(())
        })?;
        Ok(output)
    }

    #[test]
    fn every_edit_at_every_chunk_size() {
        let input: Vec<u8> = (0..50).collect();
        let mut builder = PlanBuilder::new(50);
        builder.insert(0, *b"head").replace(3, *b"xyz").drop(10..20).zero(20..25).insert(50, *b"end");
        let plan = builder.finish().unwrap();
        let mut expected = b"head\x00\x01\x02xyz".to_vec();
        expected.extend(6..10);
        expected.extend([0; 5]);
        expected.extend(25..50);
        expected.extend(b"end");
        for chunk in 1..=50 {
            assert_eq!(run(&plan, &input, chunk).unwrap(), expected, "chunks of {chunk}");
        }
    }

    #[test]
    fn too_little_and_too_much_input_fail() {
        let plan = PlanBuilder::new(5).finish().unwrap();
        assert!(run(&plan, &[0; 4], 2).unwrap_err().message.contains("4 of 5"));
        assert!(run(&plan, &[0; 6], 2).unwrap_err().message.contains("goes on"));
    }
}
