//! The optional header's CheckSum: the 16-bit words of the file added with end-around carry, the field itself
//! taken as zero, plus the length of the file.

use crate::edit::{Edit, EditPlan};
use crate::fault::Result;
use crate::source::ReadAt;

/// Bytes read at a time.
const STEP: u64 = 64 << 10;

/// A sum in progress, fed in pieces of any length.
#[derive(Debug, Default)]
struct Sum {
    words: u64,
    length: u64,
}

impl Sum {
    fn update(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if !self.length.is_multiple_of(2)
            && let Some((&high, after)) = rest.split_first()
        {
            self.words += u64::from(high) << 8;
            rest = after;
        }
        // Adding 32-bit words gives the same sum modulo 0xffff as adding their halves. A step's words, and
        // those of all steps of a file that a 64-bit offset can reach in practice, do not overflow once each
        // step is folded.
        let mut words = rest.chunks_exact(4);
        let sum: u64 = words
            .by_ref()
            .map(|word| u64::from(u32::from_le_bytes([word[0], word[1], word[2], word[3]])))
            .sum();
        let mut tail = [0; 4];
        let left = words.remainder();
        tail[..left.len()].copy_from_slice(left);
        self.words += fold(sum) + u64::from(u32::from_le_bytes(tail));
        self.length += bytes.len() as u64;
        self.words = fold(self.words);
    }

    fn skip_zeros(&mut self, length: u64) {
        self.length += length;
    }

    /// The checksum; the length is added modulo 2^32 as the field has no room for more.
    fn finish(self) -> u32 {
        (self.words as u32).wrapping_add(self.length as u32)
    }
}

/// Reduces a sum to 16 bits with end-around carry; only 0 becomes 0.
fn fold(mut sum: u64) -> u64 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

/// The checksum of the file that `plan`, in which the checksum field is zero, makes of `source`. Reads what
/// the plan keeps, in ascending order, and nothing that it drops.
pub(super) fn of_plan(source: &mut dyn ReadAt, plan: &EditPlan) -> Result<u32> {
    let mut sum = Sum::default();
    let mut buffer = vec![0; STEP as usize];
    let mut offset = 0;
    for edit in plan.edits() {
        match edit {
            Edit::Keep(length) => {
                let end = offset + length;
                let mut at = offset;
                while at < end {
                    let piece = &mut buffer[..(end - at).min(STEP) as usize];
                    source.read_at(at, piece)?;
                    sum.update(piece);
                    at += piece.len() as u64;
                }
            }
            Edit::Replace(bytes) | Edit::Insert(bytes) => sum.update(bytes),
            Edit::Zero(length) => sum.skip_zeros(*length),
            Edit::Drop(_) => {}
        }
        offset += edit.consumes();
    }
    Ok(sum.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edit::PlanBuilder;
    use proptest::prelude::*;

    /// As the reference says: one 16-bit word after the other.
    fn word_by_word(bytes: &[u8]) -> u32 {
        let mut sum = 0u32;
        for word in bytes.chunks(2) {
            sum += u32::from(word[0]) | u32::from(word.get(1).copied().unwrap_or(0)) << 8;
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum + bytes.len() as u32
    }

    #[test]
    fn a_full_sum_stays_full() {
        // 0xffff is the other zero of ones' complement; the reference never turns it into 0.
        let plan = PlanBuilder::new(4).finish().unwrap();
        assert_eq!(of_plan(&mut [0xff_u8; 4].as_slice(), &plan).unwrap(), 0xffff + 4);
    }

    proptest! {
        #[test]
        fn equals_the_sum_word_by_word(
            bytes in prop::collection::vec(any::<u8>(), 0..2000),
            pieces in prop::collection::vec(0usize..300, 0..20),
        ) {
            let mut sum = Sum::default();
            let mut rest = bytes.as_slice();
            for piece in pieces {
                let (now, later) = rest.split_at(piece.min(rest.len()));
                sum.update(now);
                rest = later;
            }
            sum.update(rest);
            prop_assert_eq!(sum.finish(), word_by_word(&bytes));
        }

        #[test]
        fn a_plan_sums_to_what_it_writes(seed in any::<u32>(), drop in 0u64..1000, length in 150_000usize..150_003) {
            let bytes = crate::pe::testing::builder::pattern(seed, length);
            let mut builder = PlanBuilder::new(length as u64);
            builder.drop(10..10 + drop).zero(2001..2010).insert(5001, *b"odd").replace(70_001, *b"literal");
            let plan = builder.finish().unwrap();
            let mut output = bytes.clone();
            output[70_001..70_008].copy_from_slice(b"literal");
            output.splice(5001..5001, *b"odd");
            output[2001..2010].fill(0);
            output.drain(10..10 + drop as usize);
            prop_assert_eq!(of_plan(&mut bytes.as_slice(), &plan).unwrap(), word_by_word(&output));
        }
    }
}
