//! What a command writes: kept in a window until it is confirmed.

use std::os::unix::io::{AsRawFd, OwnedFd};

use crate::event_loop::{Call, EventLoop, Token};
use crate::shared_memory::{Ring, RING_BYTES};
use crate::sys::{self, Room};

pub const WINDOW_BYTES: usize = 1 << 20;
/// Once as much was confirmed: somebody reads, and who confirms less often reads faster.
pub const WIDE_WINDOW_BYTES: usize = 4 << 20;
/// What is read at once.
pub const PIECE_BYTES: usize = 64 << 10;
/// The same once there is much, and what is sent in one frame.
const LARGE_PIECE_BYTES: usize = 256 << 10;
/// Of a pipe that was full: each of its ends then waits for the other less often.
const PIPE_BYTES: usize = 1 << 20;
/// By which pauses between two looks at what a reader confirms in shared memory grow, from the one to the other.
const LOOK_SECONDS: f64 = 0.001;
const LONGEST_LOOK_SECONDS: f64 = 0.2;

/// The bytes that nobody has confirmed. A little lies in a vector; once there is much, in a ring.
struct Window {
    limit: usize,
    small: Vec<u8>,
    ring: Option<Room>,
    begin: usize,
    length: usize,
}

impl Window {
    fn new() -> Window {
        Window { limit: WINDOW_BYTES, small: Vec::new(), ring: None, begin: 0, length: 0 }
    }

    fn len(&self) -> usize {
        if self.ring.is_some() {
            self.length
        } else {
            self.small.len()
        }
    }

    /// Where a part lies that begins so far behind the first byte, and where it ends in one piece.
    fn part(&self, begin: usize, most: usize) -> &[u8] {
        match &self.ring {
            None => {
                let rest = &self.small[begin..];
                &rest[..rest.len().min(most)]
            }
            Some(ring) => {
                let at = (self.begin + begin) % ring.len();
                let size = (self.length - begin).min(most).min(ring.len() - at);
                &ring[at..at + size]
            }
        }
    }

    /// Becomes a ring, or a larger one. Without memory for it things stay as they are.
    fn grow(&mut self) {
        if self.len() > self.limit || self.ring.as_ref().map_or(false, |ring| ring.len() == self.limit) {
            return;
        }
        if let Ok(mut ring) = Room::new(self.limit) {
            let mut length = 0;
            while length < self.len() {
                let part = self.part(length, usize::MAX);
                ring[length..length + part.len()].copy_from_slice(part);
                length += part.len();
            }
            self.ring = Some(ring);
            self.small = Vec::new();
            self.begin = 0;
            self.length = length;
        }
    }

    /// Reads a piece; as `sys::read_some`.
    fn read(&mut self, fd: &OwnedFd) -> std::io::Result<usize> {
        let room = self.limit - self.len();
        match &mut self.ring {
            None => {
                // No more room than there is to read: most commands say little.
                let size = (sys::unread_bytes(fd).max(1) as usize).min(room).min(PIECE_BYTES);
                let before = self.small.len();
                self.small.resize(before + size, 0);
                let result = sys::read_some(fd, &mut self.small[before..]);
                self.small.truncate(before + result.as_ref().map_or(0, |count| *count));
                result
            }
            Some(ring) => {
                let at = (self.begin + self.length) % ring.len();
                let end = (at + room.min(LARGE_PIECE_BYTES)).min(ring.len());
                let count = sys::read_some(fd, &mut ring[at..end])?;
                self.length += count;
                Ok(count)
            }
        }
    }

    /// Adds something, whether there is room or not.
    fn put(&mut self, data: &[u8]) {
        if self.ring.is_some() {
            self.small = self.all();
            self.ring = None;
        }
        self.small.extend_from_slice(data);
    }

    fn drop_first(&mut self, count: usize) {
        match &self.ring {
            None => drop(self.small.drain(..count)),
            Some(ring) => {
                self.begin = (self.begin + count) % ring.len();
                self.length -= count;
            }
        }
    }

    fn all(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len());
        while all.len() < self.len() {
            all.extend_from_slice(self.part(all.len(), usize::MAX));
        }
        all
    }
}

/// One stream: `base` ≤ what its listener has been sent ≤ `end`; bytes before `base` are confirmed and gone.
pub struct Output {
    pub base: u64,
    /// Once the command has exited: where what was in the pipe then ends.
    pub target: Option<u64>,
    window: Window,
    /// Of which whoever listens has shared the memory; what is in the window lies behind what is in it.
    shared: Option<Ring>,
    is_looking: bool,
    pause: f64,
    fd: Option<OwnedFd>,
    token: Token,
    is_terminal: bool,
    watched: bool,
    /// There is nothing to be read for the moment, whatever the kernel says.
    resting: bool,
}

/// What came of reading.
#[derive(PartialEq, Eq, Clone, Copy)]
pub enum Took {
    Some,
    Nothing,
    /// A terminal that nobody has open for the moment: it is looked at again in a while.
    Rest,
}

impl Output {
    pub fn new(fd: Option<OwnedFd>, token: Token, is_terminal: bool, looper: &mut EventLoop) -> Output {
        let mut output = Output {
            base: 0,
            target: None,
            window: Window::new(),
            shared: None,
            is_looking: false,
            pause: LOOK_SECONDS,
            fd,
            token,
            is_terminal,
            watched: false,
            resting: false,
        };
        output.sync(looper);
        output
    }

    /// How many bytes the command has written, as far as they were read.
    pub fn end(&self) -> u64 {
        self.base + self.waiting_bytes()
    }

    /// How much is not confirmed.
    pub fn waiting_bytes(&self) -> u64 {
        (self.shared_bytes() + self.window.len()) as u64
    }

    fn shared_bytes(&self) -> usize {
        self.shared.as_ref().map_or(0, Ring::len)
    }

    /// Has memory for large output, until `give_back`.
    pub fn share(&mut self, memory: OwnedFd) {
        self.shared = Some(Ring::new(memory));
    }

    pub fn has_memory(&self) -> bool {
        self.shared.is_some()
    }

    /// Whether output lies in shared memory.
    pub fn is_in_memory(&self) -> bool {
        self.shared.as_ref().map_or(false, Ring::is_used)
    }

    /// Lets go of shared memory; what is in it is kept here.
    pub fn give_back(&mut self, looper: &mut EventLoop) {
        self.leave_memory();
        self.shared = None;
        self.sync(looper);
    }

    /// It takes no more: all goes by the connection again.
    fn leave_memory(&mut self) {
        if let Some(ring) = self.shared.as_mut().filter(|ring| ring.is_used()) {
            let mut all = ring.leave();
            all.extend_from_slice(&self.window.all());
            self.window = Window { limit: WIDE_WINDOW_BYTES, small: all, ..Window::new() };
        }
    }

    /// Where in shared memory an offset lies, and how much from there on in one piece.
    pub fn place(&self, offset: u64) -> Option<(usize, usize)> {
        self.shared.as_ref().and_then(|ring| ring.place((offset - self.base) as usize))
    }

    /// Whoever reads says there what he has; where there is no room otherwise it is looked for at intervals.
    fn look_in_memory(&mut self, looper: &mut EventLoop) {
        let said = match &self.shared {
            Some(ring) if ring.was_used() && !self.is_looking => ring.confirmed(),
            _ => return,
        };
        self.forget(said);
        if !self.is_full() {
            self.pause = LOOK_SECONDS;
        } else if let Token::Output(number, _) = self.token {
            self.is_looking = true;
            looper.after(self.pause, Call::LookInMemory(number));
            self.pause = (2.0 * self.pause).min(LONGEST_LOOK_SECONDS);
        }
    }

    /// It is time to look again.
    pub fn look_again(&mut self, looper: &mut EventLoop) {
        self.is_looking = false;
        if self.fd.is_some() {
            self.look_in_memory(looper);
            if self.target.is_some() {
                self.catch_up(looper);
            }
            self.sync(looper);
        }
    }

    /// Whether nothing is read before something is confirmed.
    pub fn is_full(&self) -> bool {
        let limit = if self.is_in_memory() { RING_BYTES } else { self.window.limit };
        self.waiting_bytes() >= limit as u64
    }

    /// Whether no more will be read.
    pub fn at_end(&self) -> bool {
        self.fd.is_none()
    }

    pub fn terminal(&self) -> Option<&OwnedFd> {
        self.fd.as_ref().filter(|_| self.is_terminal)
    }

    /// All that was not confirmed.
    pub fn rest(&self) -> Vec<u8> {
        let mut all = self.shared.as_ref().map(Ring::content).unwrap_or_default();
        all.extend_from_slice(&self.window.all());
        all
    }

    /// A line of process 1's own.
    pub fn put(&mut self, data: &[u8]) {
        self.window.put(data);
    }

    /// A piece from an offset on, which must not lie before `base`.
    pub fn peek(&self, offset: u64) -> &[u8] {
        self.window.part(
            (offset - self.base) as usize - self.shared_bytes(),
            if self.window.ring.is_some() { LARGE_PIECE_BYTES } else { PIECE_BYTES },
        )
    }

    /// Forgets what lies before an offset, and reads on if the window was full.
    pub fn confirm(&mut self, offset: u64, looper: &mut EventLoop) {
        if self.forget(offset) {
            if self.target.is_some() {
                self.catch_up(looper);
            }
            self.sync(looper);
        }
    }

    /// Forgets what lies before an offset; whether that is anything.
    fn forget(&mut self, offset: u64) -> bool {
        let count = offset.min(self.end()).saturating_sub(self.base);
        if count == 0 {
            return false;
        }
        let shared = self.shared.as_mut().map_or(0, |ring| ring.drop_first(count as usize));
        self.window.drop_first(count as usize - shared);
        self.base += count;
        if self.base >= WIDE_WINDOW_BYTES as u64 && self.window.limit < WIDE_WINDOW_BYTES {
            self.window.limit = WIDE_WINDOW_BYTES;
            if self.window.ring.is_some() {
                self.window.grow();
            }
        }
        true
    }

    /// The command has exited: notes what is still in the pipe, and takes what fits the window.
    pub fn mark_exit(&mut self, looper: &mut EventLoop) {
        if let Some(fd) = &self.fd {
            self.target = Some(self.end() + sys::unread_bytes(fd));
            self.catch_up(looper);
        }
    }

    fn catch_up(&mut self, looper: &mut EventLoop) {
        while self.read(looper) == Took::Some {}
    }

    /// Gives the descriptor away; nothing more is read here.
    pub fn release(&mut self, looper: &mut EventLoop) -> Option<OwnedFd> {
        let fd = self.fd.take();
        if let Some(fd) = fd.as_ref().filter(|_| self.watched) {
            looper.forget(fd.as_raw_fd());
            self.watched = false;
        }
        fd
    }

    fn sync(&mut self, looper: &mut EventLoop) {
        if let Some(fd) = &self.fd {
            let wanted = !self.is_full() && !self.resting;
            if wanted != self.watched {
                self.watched = wanted;
                if wanted {
                    looper.watch(fd.as_raw_fd(), sys::EPOLLIN, self.token);
                } else {
                    looper.forget(fd.as_raw_fd());
                }
            }
        }
    }

    /// Looks again at a terminal that nobody had open.
    pub fn wake(&mut self, looper: &mut EventLoop) {
        self.resting = false;
        self.sync(looper);
    }

    /// Reads one piece.
    pub fn read(&mut self, looper: &mut EventLoop) -> Took {
        if self.is_full() {
            return Took::Nothing;
        }
        let fd = match &self.fd {
            Some(fd) => fd,
            None => return Took::Nothing,
        };
        let ring = self.shared.as_mut().filter(|ring| ring.is_used());
        let in_memory = ring.is_some();
        let read = ring.map_or_else(|| self.window.read(fd), |ring| ring.read(fd));
        match read {
            Ok(count) if count > 0 => {
                if count == PIECE_BYTES && self.window.ring.is_none() && !in_memory {
                    if !self.is_terminal {
                        sys::widen_pipe(fd, PIPE_BYTES);
                    }
                    let small = &self.window.small;
                    if self.shared.as_mut().map_or(false, |ring| ring.enter(small)) {
                        self.window = Window::new();
                    } else {
                        self.window.grow();
                    }
                }
                self.look_in_memory(looper);
                self.sync(looper);
                Took::Some
            }
            Err(error) if sys::number_of(&error) == sys::EAGAIN => {
                // Empty before its time: someone inside opened the pipe by /proc and took what had been in it.
                self.target = self.target.map(|target| target.min(self.end()));
                Took::Nothing
            }
            Err(_) if in_memory => {
                self.leave_memory();
                self.sync(looper);
                Took::Some
            }
            // That nobody has a terminal open is its end only once the command has exited.
            _ if self.is_terminal && self.target.is_none() => {
                let rests = !self.resting;
                self.resting = true;
                self.sync(looper);
                if rests {
                    Took::Rest
                } else {
                    Took::Nothing
                }
            }
            _ => {
                drop(self.release(looper));
                Took::Nothing
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piped() -> (EventLoop, Output, OwnedFd) {
        let mut looper = EventLoop::new().unwrap();
        let (read, write) = sys::make_pipe().unwrap();
        sys::never_block(&read).unwrap();
        let output = Output::new(Some(read), Token::Output(1, 0), false, &mut looper);
        (looper, output, write)
    }

    #[test]
    fn what_is_confirmed_is_forgotten_and_the_rest_keeps_its_place() {
        let (mut looper, mut output, write) = piped();
        sys::write_all(&write, b"0123456789").unwrap();
        assert!(output.read(&mut looper) == Took::Some);
        assert_eq!((output.base, output.end(), output.peek(3)), (0, 10, &b"3456789"[..]));
        output.confirm(4, &mut looper);
        output.confirm(2, &mut looper);
        assert_eq!((output.base, output.end(), output.rest()), (4, 10, b"456789".to_vec()));
        output.confirm(99, &mut looper);
        assert_eq!((output.base, output.end()), (10, 10));
    }

    #[test]
    fn much_goes_around_a_ring_and_comes_out_as_it_was() {
        let (mut looper, mut output, write) = piped();
        sys::widen_pipe(&write, PIPE_BYTES);
        let (mut written, mut found) = (0_u32, Vec::new());
        for _ in 0..200 {
            let piece: Vec<u8> = (0..PIECE_BYTES / 4).flat_map(|at| (written + at as u32).to_le_bytes()).collect();
            written += (PIECE_BYTES / 4) as u32;
            sys::write_all(&write, &piece).unwrap();
            while output.read(&mut looper) == Took::Some {}
            while found.len() as u64 != output.end() {
                found.extend_from_slice(output.peek(found.len() as u64));
            }
            output.confirm(found.len() as u64, &mut looper);
        }
        let whole = found.chunks(4).enumerate().all(|(at, bytes)| bytes == (at as u32).to_le_bytes());
        assert!(whole && found.len() == 200 * PIECE_BYTES);
        assert_eq!(output.window.limit, WIDE_WINDOW_BYTES);
    }

    #[test]
    fn nothing_is_read_beyond_the_window() {
        let (mut looper, mut output, write) = piped();
        sys::never_block(&write).unwrap();
        let mut written = 0;
        loop {
            match sys::write_some(&write, &[7; PIECE_BYTES]) {
                Ok(count) => written += count,
                Err(_) if output.is_full() => break,
                Err(_) => while output.read(&mut looper) == Took::Some {},
            }
        }
        assert!(output.end() == WINDOW_BYTES as u64 && written > WINDOW_BYTES);
        output.put(b"words");
        assert!(output.rest().ends_with(b"\x07words"));
    }

    #[test]
    fn its_end_is_where_all_writers_are_gone() {
        let (mut looper, mut output, write) = piped();
        sys::write_all(&write, b"last").unwrap();
        output.mark_exit(&mut looper);
        assert!(output.target == Some(4) && output.end() == 4 && !output.at_end());
        drop(write);
        output.read(&mut looper);
        assert!(output.at_end());
    }
}
