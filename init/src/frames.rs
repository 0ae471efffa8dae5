//! Frames: a head of 16 bytes, big-endian, and a payload. See docs/protocol.md.

pub const HEAD_BYTES: usize = 16;
pub const MOST_PAYLOAD_BYTES: usize = 4 << 20;

pub const ACCEPTED: u8 = 1;
pub const STARTED: u8 = 2;
pub const DATA: u8 = 3;
pub const GAP: u8 = 4;
pub const EXIT: u8 = 5;
pub const ERROR: u8 = 6;
/// Of bytes that lie in shared memory.
pub const SHARED: u8 = 10;
pub const HELLO: u8 = 32;
pub const REQUEST: u8 = 33;
pub const REPLY: u8 = 34;
pub const END: u8 = 35;
pub const ACK: u8 = 36;
pub const CREDIT: u8 = 37;
pub const CLOSE: u8 = 38;
pub const ENDED: u8 = 39;
pub const DESCRIPTORS: u8 = 40;
pub const REPLACED: u8 = 41;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub kind: u8,
    pub stream: u8,
    pub channel: u16,
    pub offset: u64,
}

impl Head {
    pub fn of(kind: u8, channel: u16) -> Head {
        Head { kind, channel, ..Head::default() }
    }

    pub fn encode(&self, length: usize) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[0] = self.kind;
        bytes[1] = self.stream;
        bytes[2..4].copy_from_slice(&self.channel.to_be_bytes());
        bytes[4..8].copy_from_slice(&(length as u32).to_be_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> (Head, usize) {
        let mut length = [0; 4];
        length.copy_from_slice(&bytes[4..8]);
        let mut offset = [0; 8];
        offset.copy_from_slice(&bytes[8..16]);
        let head = Head {
            kind: bytes[0],
            stream: bytes[1],
            channel: u16::from_be_bytes([bytes[2], bytes[3]]),
            offset: u64::from_be_bytes(offset),
        };
        (head, u32::from_be_bytes(length) as usize)
    }
}

/// The other side speaks something else.
#[derive(Debug, PartialEq, Eq)]
pub struct NoFrame;

/// Cuts a stream into frames, however its pieces fall. What is no whole frame yet is kept.
#[derive(Default)]
pub struct Decoder {
    kept: Vec<u8>,
    /// The place of what is to come of a DATA frame that is handed on piece by piece, and how much that is.
    piece: Option<(Head, usize)>,
}

impl Decoder {
    /// Hands each frame on, in order.
    ///
    /// # Errors
    /// A head announces a payload that is too long; nothing behind it means anything.
    pub fn feed(&mut self, mut data: &[u8], sink: &mut impl Sink) -> Result<(), NoFrame> {
        while !data.is_empty() {
            if let Some((head, left)) = self.piece {
                let count = left.min(data.len());
                self.piece = (count < left)
                    .then(|| (Head { offset: head.offset.wrapping_add(count as u64), ..head }, left - count));
                sink.frame(head, &data[..count]);
                data = &data[count..];
                continue;
            }
            if self.kept.is_empty() && data.len() >= HEAD_BYTES {
                let (head, length) = checked(data)?;
                if head.kind == DATA && length > 0 && sink.in_pieces(head.channel) {
                    self.piece = Some((head, length));
                    data = &data[HEAD_BYTES..];
                    continue;
                }
                if data.len() >= HEAD_BYTES + length {
                    sink.frame(head, &data[HEAD_BYTES..HEAD_BYTES + length]);
                    data = &data[HEAD_BYTES + length..];
                    continue;
                }
            }
            data = self.keep(data, sink)?;
        }
        Ok(())
    }

    /// Adds to the frame that is not whole; gives what lies behind it.
    fn keep<'a>(&mut self, data: &'a [u8], sink: &mut impl Sink) -> Result<&'a [u8], NoFrame> {
        let missing = HEAD_BYTES.saturating_sub(self.kept.len()).min(data.len());
        self.kept.extend_from_slice(&data[..missing]);
        let data = &data[missing..];
        if self.kept.len() < HEAD_BYTES {
            return Ok(data);
        }
        let (head, length) = checked(&self.kept)?;
        if self.kept.len() == HEAD_BYTES && head.kind == DATA && length > 0 && sink.in_pieces(head.channel) {
            self.kept = Vec::new();
            self.piece = Some((head, length));
            return Ok(data);
        }
        let wanted = (HEAD_BYTES + length - self.kept.len()).min(data.len());
        self.kept.extend_from_slice(&data[..wanted]);
        if self.kept.len() == HEAD_BYTES + length {
            let whole = std::mem::take(&mut self.kept);
            sink.frame(head, &whole[HEAD_BYTES..]);
        }
        Ok(&data[wanted..])
    }
}

fn checked(data: &[u8]) -> Result<(Head, usize), NoFrame> {
    let (head, length) = Head::decode(data);
    if length > MOST_PAYLOAD_BYTES {
        return Err(NoFrame);
    }
    Ok((head, length))
}

/// Who takes frames.
pub trait Sink {
    /// Whether the DATA of a channel is handed on as it comes; asked when a frame begins.
    fn in_pieces(&self, channel: u16) -> bool;
    fn frame(&mut self, head: Head, payload: &[u8]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Seen {
        frames: Vec<(Head, Vec<u8>)>,
        pieces_of: Option<u16>,
    }

    impl Sink for Seen {
        fn in_pieces(&self, channel: u16) -> bool {
            self.pieces_of == Some(channel)
        }
        fn frame(&mut self, head: Head, payload: &[u8]) {
            self.frames.push((head, payload.to_vec()));
        }
    }

    fn encoded(kind: u8, channel: u16, offset: u64, payload: &[u8]) -> Vec<u8> {
        let head = Head { kind, stream: 1, channel, offset };
        [&head.encode(payload.len())[..], payload].concat()
    }

    #[test]
    fn frames_come_whole_however_they_are_cut() {
        let stream =
            [encoded(DATA, 7, 5, b"hello"), encoded(REQUEST, 2, 0, b""), encoded(ACK, 3, 9, &[1; 300])].concat();
        for size in 1..stream.len() {
            let (mut decoder, mut seen) = (Decoder::default(), Seen::default());
            for piece in stream.chunks(size) {
                decoder.feed(piece, &mut seen).unwrap();
            }
            let shapes: Vec<_> = seen.frames.iter().map(|(head, data)| (head.kind, head.channel, data.len())).collect();
            assert_eq!(shapes, [(DATA, 7, 5), (REQUEST, 2, 0), (ACK, 3, 300)], "cut by {size}");
        }
    }

    #[test]
    fn data_of_a_transfer_comes_as_it_arrives_and_knows_its_place() {
        let stream = [encoded(DATA, 7, 100, b"0123456789"), encoded(DATA, 8, 0, b"whole")].concat();
        for size in 1..stream.len() {
            let (mut decoder, mut seen) = (Decoder::default(), Seen { pieces_of: Some(7), ..Seen::default() });
            for piece in stream.chunks(size) {
                decoder.feed(piece, &mut seen).unwrap();
            }
            let mut found = Vec::new();
            for (head, data) in seen.frames.iter().filter(|(head, _)| head.channel == 7) {
                assert_eq!(head.offset, 100 + found.len() as u64);
                found.extend_from_slice(data);
            }
            assert_eq!(found, b"0123456789");
            assert_eq!(seen.frames.last().unwrap().1, b"whole");
        }
    }

    #[test]
    fn what_announces_too_much_is_no_frame() {
        let head = Head::of(REQUEST, 1).encode(MOST_PAYLOAD_BYTES + 1);
        for size in [1, 15, 16] {
            let (mut decoder, mut seen) = (Decoder::default(), Seen::default());
            let results: Vec<_> = head.chunks(size).map(|piece| decoder.feed(piece, &mut seen)).collect();
            assert_eq!(results.last(), Some(&Err(NoFrame)));
            assert!(seen.frames.is_empty());
        }
    }
}
