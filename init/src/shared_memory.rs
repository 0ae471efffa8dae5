//! Memory that a client on the same machine shares for one request: contents then go by no socket.
//!
//! It is read and written by calls, and never mapped: whoever shortens it meanwhile gets less, and kills nobody. Which one a request
//! means is known by its inode.

use std::io;
use std::os::unix::io::OwnedFd;

use crate::errors::Refused;
use crate::sys::{self, Room};

/// Of a file that goes this way, so that little else waits for it.
pub const MOST_BYTES: u64 = 4 << 20;
/// What is less costs as much by a socket.
pub const LEAST_BYTES: u64 = 128 << 10;
/// The reason of an error that says: send it by the socket.
const REFUSED: &str = "memory";
const PIECE_BYTES: usize = 256 << 10;

/// What was to come with a request has not.
pub fn none_came() -> Refused {
    Refused::new("VALIDATION", REFUSED, "no memory came with the request; send the bytes")
}

/// Hands its first bytes on, so many of them at most; what it lacks, whoever knows the size misses.
pub fn take(memory: &OwnedFd, size: u64, mut sink: impl FnMut(&[u8]) -> Result<(), Refused>) -> Result<(), Refused> {
    let refused = |error: io::Error| {
        let message = format!("what was shared cannot be read: {error}; send the bytes");
        Refused::new("VALIDATION", REFUSED, message)
    };
    let mut room = Room::new(PIECE_BYTES).map_err(refused)?;
    let mut taken = 0;
    while taken < size {
        let most = (size - taken).min(PIECE_BYTES as u64) as usize;
        let count = sys::read_from(memory, &mut room[..most], taken).map_err(refused)?;
        if count == 0 {
            break;
        }
        sink(&room[..count])?;
        taken += count as u64;
    }
    Ok(())
}

/// Puts a file into it, from where that stands to its end; the size, or `None` where it does not take so much.
///
/// # Errors
/// The file cannot be read.
pub fn fill(memory: &OwnedFd, file: &OwnedFd) -> io::Result<Option<u64>> {
    let mut room = Room::new(PIECE_BYTES)?;
    let mut size = 0;
    loop {
        let count = sys::read_some(file, &mut room)?;
        if count == 0 {
            return Ok(Some(size));
        }
        let whole = size + count as u64 <= MOST_BYTES && write_whole(memory, &room[..count], size);
        if !whole {
            return Ok(None);
        }
        size += count as u64;
    }
}

/// Whether it has taken all of it: the kernel tells by how much it took that it takes no more.
fn write_whole(memory: &OwnedFd, data: &[u8], offset: u64) -> bool {
    sys::write_to(memory, data, offset).map_or(false, |count| count == data.len())
}

/// The size of a ring of output. Behind it the reader says up to which offset of the stream it has all: no request is needed.
pub const RING_BYTES: usize = 4 << 20;

/// Memory in which large output lies, and no further copy of it.
pub struct Ring {
    memory: OwnedFd,
    begin: usize,
    length: usize,
    state: State,
}

#[derive(PartialEq, Eq)]
enum State {
    Unused,
    Used,
    /// Its reader may not have read yet what it was told lies there: it is entered once.
    Left,
}

impl Ring {
    pub fn new(memory: OwnedFd) -> Ring {
        Ring { memory, begin: 0, length: 0, state: State::Unused }
    }

    pub fn is_used(&self) -> bool {
        self.state == State::Used
    }

    pub fn was_used(&self) -> bool {
        self.state != State::Unused
    }

    pub fn len(&self) -> usize {
        self.length
    }

    /// Takes what there is so far; false where the memory takes too little.
    pub fn enter(&mut self, content: &[u8]) -> bool {
        let enters = !self.was_used() && content.len() <= RING_BYTES && write_whole(&self.memory, content, 0);
        if enters {
            self.state = State::Used;
            self.length = content.len();
        }
        enters
    }

    /// As `content`; nothing is put there any more.
    pub fn leave(&mut self) -> Vec<u8> {
        let all = self.content();
        self.length = 0;
        self.state = State::Left;
        all
    }

    /// All that lies there, with zeros where the memory was shortened.
    pub fn content(&self) -> Vec<u8> {
        let mut all = vec![0; self.length];
        let mut taken = 0;
        while let Some((at, size)) = self.place(taken) {
            // What cannot be read stays zero: who shares the memory harms itself alone.
            drop(sys::read_from(&self.memory, &mut all[taken..taken + size], at as u64));
            taken += size;
        }
        all
    }

    /// Where in the memory lies what begins so far behind the first byte, and how much in one piece.
    pub fn place(&self, begin: usize) -> Option<(usize, usize)> {
        let at = (self.begin + begin) % RING_BYTES;
        (begin < self.length).then(|| (at, (self.length - begin).min(RING_BYTES - at)))
    }

    /// Moves a piece there; as `sys::read_some`.
    pub fn read(&mut self, fd: &OwnedFd) -> io::Result<usize> {
        let at = (self.begin + self.length) % RING_BYTES;
        let count = sys::move_to(fd, &self.memory, at as u64, (RING_BYTES - self.length).min(RING_BYTES - at))?;
        self.length += count;
        Ok(count)
    }

    /// Forgets the first bytes; how many.
    pub fn drop_first(&mut self, count: usize) -> usize {
        let count = count.min(self.length);
        self.begin = (self.begin + count) % RING_BYTES;
        self.length -= count;
        count
    }

    /// Up to which offset of the stream the reader says to have all; 0 where it has said nothing whole.
    pub fn confirmed(&self) -> u64 {
        let mut said = [[0; 8]; 2];
        let mut room = [0; 16];
        if sys::read_from(&self.memory, &mut room, RING_BYTES as u64).ok() != Some(16) {
            return 0;
        }
        said[0].copy_from_slice(&room[..8]);
        said[1].copy_from_slice(&room[8..]);
        let [offset, complement] = said.map(u64::from_le_bytes);
        // It may have been read in the middle of a write.
        if offset == !complement {
            offset
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_of(content: &[u8]) -> OwnedFd {
        let file = sys::make_memory_file().unwrap();
        assert!(write_whole(&file, content, 0));
        file
    }

    #[test]
    fn a_file_goes_in_and_out_again() {
        let content: Vec<u8> = (0..PIECE_BYTES + 1000).map(|at| (at / 7) as u8).collect();
        let (memory, file) = (sys::make_memory_file().unwrap(), file_of(&content));
        assert_eq!(fill(&memory, &file).unwrap(), Some(content.len() as u64));
        let mut found = Vec::new();
        let taken = take(&memory, content.len() as u64, |piece| {
            found.extend_from_slice(piece);
            Ok(())
        });
        assert!(taken.is_ok() && found == content);
    }

    #[test]
    fn what_is_not_there_is_not_handed_on() {
        let mut count = 0;
        let taken = take(&file_of(b"short"), 1 << 20, |piece| {
            count += piece.len();
            Ok(())
        });
        assert!(taken.is_ok() && count == 5);
    }

    #[test]
    fn memory_that_takes_nothing_is_left_alone() {
        let memory = sys::make_memory_file().unwrap();
        sys::seal(&memory).unwrap();
        assert_eq!(fill(&memory, &file_of(b"content")).unwrap(), None);
    }

    #[test]
    fn a_file_that_is_too_large_does_not_go_in() {
        let large = vec![1; MOST_BYTES as usize + 1];
        let (memory, file) = (sys::make_memory_file().unwrap(), file_of(&large));
        assert_eq!(fill(&memory, &file).unwrap(), None);
    }
}
