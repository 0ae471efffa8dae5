//! Inputs out of others, by a seed: the same seed and number give the same input.

use super::Corpus;

/// What numbers are replaced by, in digits.
const NUMBERS: [&str; 10] =
    ["0", "-1", "7", "65536", "4294967295", "9223372036854775807", "18446744073709551615", "1e300", "1e-7", "0.5"];
/// The same in bytes.
const WORDS: [u64; 10] = [0, 1, 0x7f, 0x80, 0xff, 0x7fff_ffff, 0xffff_ffff, 1 << 22, (1 << 22) + 1, u64::MAX];
/// An input grows no further.
const MOST_BYTES: usize = 16 << 10;

/// SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64, number: u64) -> Random {
        let mut random = Random(seed);
        Random(random.next() ^ number.wrapping_mul(0xd134_2543_de82_ef95))
    }

    /// For what is drawn while an input runs: by its bytes alone, so that a file draws the same.
    pub fn of(input: &[u8]) -> Random {
        let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        Random::new(input.iter().fold(0xcbf2_9ce4_8422_2325, hash), 0)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `most`, or 0.
    pub fn below(&mut self, most: usize) -> usize {
        (self.next() % most.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub fn one_of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// An input: one of the corpus, changed in a few places.
pub fn mutated(corpus: &Corpus, random: &mut Random) -> Vec<u8> {
    let mut input = random.one_of(&corpus.inputs).clone();
    for _ in 0..1 + random.below(5) {
        change(&mut input, corpus, random);
    }
    input.truncate(MOST_BYTES);
    input
}

fn change(input: &mut Vec<u8>, corpus: &Corpus, random: &mut Random) {
    let at = random.below(input.len() + 1);
    let longest = if random.one_in(4) { 600 } else { 8 };
    let span = 1 + random.below(longest);
    let end = (at + span).min(input.len());
    match random.below(11) {
        0 if at < input.len() => input[at] ^= 1 << random.below(8),
        1 if at < input.len() => input[at] = random.next() as u8,
        2 => drop(input.drain(at..end)),
        3 => {
            let part = input[at..end].to_vec();
            insert(input, at, &part.repeat(1 + random.below(8)));
        }
        4 => {
            let byte = if random.one_in(2) { 0 } else { random.next() as u8 };
            insert(input, at, &vec![byte; span]);
        }
        5 => input.truncate(at),
        6 => {
            let other = random.one_of(&corpus.inputs);
            let from = random.below(other.len() + 1);
            let until = if random.one_in(2) { other.len() } else { (from + span).min(other.len()) };
            insert(input, at, &other[from..until]);
        }
        7 | 8 => {
            let token = random.one_of(&corpus.words);
            if random.one_in(2) {
                input.drain(at..(at + token.len()).min(input.len()));
            }
            insert(input, at, token);
        }
        9 => {
            let size = 1 << random.below(4);
            let word = random.one_of(&WORDS).wrapping_add(random.below(3) as u64).wrapping_sub(1);
            if at + size <= input.len() {
                let bytes = if random.one_in(2) { word.to_be_bytes() } else { word.to_le_bytes() };
                let from = if random.one_in(2) { 8 - size } else { 0 };
                input[at..at + size].copy_from_slice(&bytes[from..from + size]);
            }
        }
        _ => {
            // The next number there is.
            let is_digit = |byte: &u8| byte.is_ascii_digit();
            if let Some(begin) = input[at..].iter().position(is_digit).map(|found| at + found) {
                let digits = input[begin..].iter().take_while(|byte| is_digit(byte)).count();
                input.drain(begin..begin + digits);
                insert(input, begin, random.one_of(&NUMBERS).as_bytes());
            }
        }
    }
}

fn insert(input: &mut Vec<u8>, at: usize, part: &[u8]) {
    input.splice(at..at, part.iter().copied());
}
