//! Files with holes, in the forms that GNU tar gives them: where each piece of their contents belongs.

use super::tar::number;

/// Offsets and lengths.
pub type Pieces = Vec<(u64, u64)>;

pub const WRONG: &str = "has a map of its holes that cannot be read";
/// Whoever writes more of them into one file wants memory to run out.
const MOST_PIECES: usize = 1 << 17;
const FIELD_BYTES: usize = 12;
const LONGEST_NUMBER: usize = 20;

/// Of a head of the old form: pairs of fields up to one that is empty. `None`: it cannot be read.
pub fn read_fields(fields: &[u8], pieces: &mut Pieces) -> Option<()> {
    for pair in fields.chunks_exact(2 * FIELD_BYTES) {
        let (offset, length) = pair.split_at(FIELD_BYTES);
        if length[0] == 0 {
            break;
        }
        let value = |field: &[u8]| number(field, b"").ok().and_then(|value| u64::try_from(value).ok());
        add(pieces, value(offset)?, value(length)?)?;
    }
    Some(())
}

/// Of pax, version 0.1: numbers with commas between them.
pub fn read_map(map: &[u8]) -> Option<Pieces> {
    let mut pieces = Pieces::new();
    let mut numbers = map.split(|byte| *byte == b',').map(decimal);
    while let Some(offset) = numbers.next() {
        add(&mut pieces, offset?, numbers.next()??)?;
    }
    Some(pieces)
}

/// Of pax, version 1.0: how many pieces there are, then their numbers, each on a line, up to the end of a block.
#[derive(Default)]
pub struct Lines {
    line: Vec<u8>,
    /// How many numbers are still to come.
    left: Option<u64>,
    offset: Option<u64>,
}

impl Lines {
    /// Whether all of them are there with this block.
    pub fn read(&mut self, block: &[u8], pieces: &mut Pieces) -> Option<bool> {
        for byte in block {
            if *byte != b'\n' {
                self.line.push(*byte);
                if self.line.len() > LONGEST_NUMBER {
                    return None;
                }
                continue;
            }
            let value = decimal(&std::mem::take(&mut self.line))?;
            match (self.left, self.offset.take()) {
                (None, _) => self.left = Some(value.checked_mul(2)?),
                (Some(left), None) => {
                    self.offset = Some(value);
                    self.left = Some(left - 1);
                }
                (Some(left), Some(offset)) => {
                    add(pieces, offset, value)?;
                    self.left = Some(left - 1);
                }
            }
            if self.left == Some(0) {
                return Some(true);
            }
        }
        Some(false)
    }
}

/// The same, to be written.
pub fn lines_of(pieces: &Pieces) -> Vec<u8> {
    let numbers = pieces.iter().flat_map(|(offset, length)| [*offset, *length]);
    std::iter::once(pieces.len() as u64).chain(numbers).flat_map(|number| format!("{number}\n").into_bytes()).collect()
}

fn decimal(digits: &[u8]) -> Option<u64> {
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn add(pieces: &mut Pieces, offset: u64, length: u64) -> Option<()> {
    let end = pieces.last().map_or(0, |(offset, length)| offset + length);
    let is_next = offset >= end && offset.checked_add(length).map_or(false, |end| end <= i64::MAX as u64);
    if !is_next || pieces.len() >= MOST_PIECES {
        return None;
    }
    pieces.push((offset, length));
    Some(())
}

/// Whether a map is one of so many bytes in a file of a size.
pub fn fits(pieces: &Pieces, contents: u64, size: u64) -> bool {
    let end = pieces.last().map_or(0, |(offset, length)| offset + length);
    // They follow one another, so that their sum is no more than their end.
    end <= size && size <= i64::MAX as u64 && pieces.iter().map(|(_, length)| length).sum::<u64>() == contents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_read_in_order_or_not_at_all() {
        assert_eq!(read_map(b"0,5,10,2,20,0"), Some(vec![(0, 5), (10, 2), (20, 0)]));
        for wrong in
            [&b""[..], b"1", b"1,2,3", b"a,b", b"5,5,3,1", b"-1,2", b"0,9223372036854775808", b"18446744073709551615,1"]
        {
            assert_eq!(read_map(wrong), None, "{}", String::from_utf8_lossy(wrong));
        }
        assert!(fits(&vec![(0, 5), (10, 2)], 7, 12) && !fits(&vec![(0, 5), (10, 2)], 7, 11));
        assert!(!fits(&vec![(0, 5)], 4, 12) && fits(&vec![], 0, 1 << 40) && !fits(&vec![], 0, u64::MAX));
    }

    #[test]
    fn lines_are_read_however_the_blocks_fall() {
        let text = b"3\n0\n5\n10\n2\n20\n0\nrest";
        assert!(text.starts_with(&lines_of(&vec![(0, 5), (10, 2), (20, 0)])));
        for size in 1..text.len() {
            let (mut lines, mut pieces) = (Lines::default(), Pieces::new());
            let is_whole = text.chunks(size).find_map(|block| lines.read(block, &mut pieces).filter(|whole| *whole));
            assert_eq!((is_whole, pieces), (Some(true), vec![(0, 5), (10, 2), (20, 0)]));
        }
        for wrong in
            [&b"x\n"[..], b"1\n5\nx\n", b"99999999999999999999999", b"18446744073709551615\n", b"2\n5\n5\n3\n1\n"]
        {
            assert_eq!(Lines::default().read(wrong, &mut Pieces::new()), None);
        }
    }

    #[test]
    fn so_many_pieces_are_too_many() {
        let text: String = (0..MOST_PIECES + 1).map(|at| format!("{at},1,")).collect();
        assert!(read_map(text.trim_end_matches(',').as_bytes()).is_none());
    }
}
