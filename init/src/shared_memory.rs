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
