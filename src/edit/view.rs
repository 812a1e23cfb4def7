//! The planned output, readable before it is written.

use super::plan::{Edit, EditPlan};
use crate::fault::{Fault, Result};
use crate::source::ReadAt;

/// The file that `plan` makes of `input`, as random-access bytes.
#[derive(Debug)]
pub struct Planned<'plan, R> {
    plan: &'plan EditPlan,
    input: R,
    /// For every edit: the output and the input offset it starts at.
    starts: Vec<(u64, u64)>,
}

impl<'plan, R: ReadAt> Planned<'plan, R> {
    /// Shows `input`, the file that the plan was made for, through `plan`.
    pub fn new(plan: &'plan EditPlan, input: R) -> Self {
        let (mut output_at, mut input_at) = (0, 0);
        let mut starts = Vec::with_capacity(plan.edits().len());
        for edit in plan.edits() {
            starts.push((output_at, input_at));
            output_at += edit.produces();
            input_at += edit.consumes();
        }
        Self { plan, input, starts }
    }
}

impl<R: ReadAt> ReadAt for Planned<'_, R> {
    fn len(&self) -> u64 {
        self.plan.output_len()
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        if offset.checked_add(buffer.len() as u64).is_none_or(|end| end > self.len()) {
            return Err(Fault::malformed(
                "planned file",
                offset,
                format!("{} bytes wanted, the file has {} bytes", buffer.len(), self.len()),
            ));
        }
        let mut index = self.starts.partition_point(|&(output_at, _)| output_at <= offset).saturating_sub(1);
        let (mut offset, mut buffer) = (offset, buffer);
        while !buffer.is_empty() {
            let (output_at, input_at) = self.starts[index];
            let edit = &self.plan.edits()[index];
            index += 1;
            let left = (output_at + edit.produces()).saturating_sub(offset);
            if left == 0 {
                continue;
            }
            let take = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let (now, later) = buffer.split_at_mut(take);
            let within = offset - output_at;
            match edit {
                Edit::Keep(_) => self.input.read_at(input_at + within, now)?,
                Edit::Zero(_) => now.fill(0),
                Edit::Replace(bytes) | Edit::Insert(bytes) => {
                    let start = usize::try_from(within).unwrap_or(usize::MAX);
                    now.copy_from_slice(&bytes[start..start + take]);
                }
                Edit::Drop(_) => {}
            }
            offset += take as u64;
            buffer = later;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::apply::Apply;
    use super::super::plan::PlanBuilder;
    use super::*;

    #[test]
    fn shows_what_apply_writes() {
        let input: Vec<u8> = (0..64).collect();
        let mut builder = PlanBuilder::new(64);
        builder.replace(1, [9, 9]).drop(8..32).zero(32..34).insert(40, *b"new").drop(60..64);
        let plan = builder.finish().unwrap();
        let mut written = Vec::new();
        let mut apply = Apply::new(&plan);
        let mut sink = |bytes: &[u8]| {
            written.extend_from_slice(bytes);
            Ok::<_, Fault>(())
        };
        apply.feed(&input, &mut sink).unwrap();
        apply.finish(&mut sink).unwrap();
        let mut view = Planned::new(&plan, input.as_slice());
        for start in 0..=written.len() {
            for end in start..=written.len() {
                let bytes = view.read_vec(start as u64, (end - start) as u64, "test").unwrap();
                assert_eq!(bytes, written[start..end]);
            }
        }
        assert!(view.read_vec(written.len() as u64, 1, "test").is_err());
    }
}
