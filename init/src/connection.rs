//! The connection to a server: frames out with bounded memory, bytes in.

use std::collections::VecDeque;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

use crate::event_loop::{Call, EventLoop, Token};
use crate::frames::{Decoder, Head, HEAD_BYTES};
use crate::json::Value;
use crate::sys;

/// Sources are asked for more only while less than this waits to be sent, so that a slow server holds the writers back.
pub const HIGH_BYTES: usize = 256 << 10;
/// At most about this much is sent in a turn: a fast reader must not keep the others waiting.
const TURN_BYTES: usize = 1 << 20;
const MOST_PIECES: usize = 64;

/// A payload of so much leaves memory behind that is worth giving back.
pub const LARGE_BYTES: usize = 16 << 10;

/// So long at most frames wait that may wait for others. Each message wakes the server, which is dearer than all that is in it.
const TOGETHER_SECONDS: f64 = 0.1;

/// Something with bytes to send when there is room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Output of a command, by its number.
    Command(u64),
    /// What a request reads, of a file or a port, by its channel.
    Transfer(u16),
}

pub struct Connection {
    pub last_heard: f64,
    pub decoder: Decoder,
    /// Tells one connection from another.
    pub number: u64,
    pub sources: VecDeque<Source>,
    socket: OwnedFd,
    /// That have come, and that no request has asked for yet.
    descriptors: VecDeque<OwnedFd>,
    out: VecDeque<Vec<u8>>,
    /// How much of the first piece is sent.
    sent: usize,
    out_bytes: usize,
    blocked: bool,
    /// Until when all that is queued may wait.
    waits_until: Option<f64>,
    is_timed: bool,
    /// Much has passed since somebody asked.
    had_much: bool,
}

/// How far sending came.
#[derive(PartialEq, Eq)]
pub enum Sent {
    All,
    /// The turn's share is sent.
    Enough,
    Blocked,
    Broken,
}

impl Connection {
    pub fn new(socket: OwnedFd, number: u64, looper: &mut EventLoop) -> io::Result<Connection> {
        sys::never_block(&socket)?;
        looper.watch(socket.as_raw_fd(), sys::EPOLLIN, Token::Connection);
        Ok(Connection {
            last_heard: looper.now(),
            decoder: Decoder::default(),
            number,
            sources: VecDeque::new(),
            socket,
            descriptors: VecDeque::new(),
            out: VecDeque::new(),
            sent: 0,
            out_bytes: 0,
            blocked: false,
            waits_until: None,
            is_timed: false,
            had_much: false,
        })
    }

    /// Whether everything has been handed to the kernel.
    pub fn is_idle(&self) -> bool {
        self.out.is_empty() && self.sources.is_empty()
    }

    /// Whether it is time to wait for the other side to read.
    pub fn is_full(&self) -> bool {
        self.out_bytes >= HIGH_BYTES
    }

    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Queues a frame; it goes out at the end of the turn, with all that has waited.
    pub fn send(&mut self, head: Head, payload: &[u8]) {
        self.waits_until = None;
        self.queue(head, payload);
    }

    /// Queues a frame that goes with the next one, or in a while.
    pub fn send_with_next(&mut self, head: Head, payload: &[u8], looper: &mut EventLoop) {
        if self.out.is_empty() {
            self.waits_until = Some(looper.now() + TOGETHER_SECONDS);
            if !self.is_timed {
                self.is_timed = true;
                looper.after(TOGETHER_SECONDS, Call::WaitedLong);
            }
        }
        self.queue(head, payload);
    }

    /// Frames may have waited long enough.
    pub fn waited(&mut self, looper: &mut EventLoop) {
        self.is_timed = false;
        if let Some(until) = self.waits_until {
            let left = until - looper.now();
            if left > 0.0 {
                self.is_timed = true;
                looper.after(left, Call::WaitedLong);
            } else {
                self.waits_until = None;
            }
        }
    }

    fn queue(&mut self, head: Head, payload: &[u8]) {
        let size = HEAD_BYTES + payload.len();
        let small = self.out.back().map_or(false, |last| last.len() + size <= last.capacity());
        if !small {
            self.out.push_back(Vec::with_capacity(size.max(512)));
        }
        if let Some(last) = self.out.back_mut() {
            last.extend_from_slice(&head.encode(payload.len()));
            last.extend_from_slice(payload);
        }
        self.out_bytes += size;
    }

    pub fn send_json(&mut self, kind: u8, value: &Value, channel: u16) {
        self.send(Head::of(kind, channel), &value.to_bytes());
    }

    /// Asks a source for bytes as soon as there is room, in turn with the others.
    pub fn feed_from(&mut self, source: Source) {
        if !self.sources.contains(&source) {
            self.sources.push_back(source);
        }
    }

    /// Sends what is queued; `budget` is what is left of the turn's share.
    pub fn push(&mut self, budget: &mut usize, looper: &mut EventLoop) -> Sent {
        while !self.out.is_empty() && self.waits_until.is_none() {
            if *budget == 0 {
                return Sent::Enough;
            }
            let sent = self.sent;
            let pieces =
                self.out
                    .iter()
                    .take(MOST_PIECES)
                    .enumerate()
                    .map(|(number, piece)| if number == 0 { &piece[sent..] } else { piece });
            match sys::write_pieces(&self.socket, pieces) {
                Ok(count) => {
                    *budget = budget.saturating_sub(count);
                    self.take_off(count);
                }
                Err(error) if sys::number_of(&error) == sys::EAGAIN => {
                    self.blocked = true;
                    looper.change(self.socket.as_raw_fd(), sys::EPOLLIN | sys::EPOLLOUT);
                    return Sent::Blocked;
                }
                Err(error) if sys::number_of(&error) == sys::EINTR => {}
                Err(_) => return Sent::Broken,
            }
        }
        Sent::All
    }

    /// What one turn sends.
    pub fn budget() -> usize {
        TURN_BYTES
    }

    fn take_off(&mut self, mut count: usize) {
        self.out_bytes -= count;
        while let Some(first) = self.out.front() {
            let left = first.len() - self.sent;
            if count < left {
                self.sent += count;
                return;
            }
            count -= left;
            self.sent = 0;
            // Whoever reads may be slow: what was queued is memory until then.
            self.had_much |= first.len() > LARGE_BYTES;
            self.out.pop_front();
        }
    }

    /// There is room again.
    pub fn unblock(&mut self, looper: &mut EventLoop) {
        self.blocked = false;
        looper.change(self.socket.as_raw_fd(), sys::EPOLLIN);
    }

    /// What has come; 0 at the end.
    pub fn receive(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let (count, descriptors) = sys::receive_message(&self.socket, room)?;
        self.descriptors.extend(descriptors);
        self.had_much |= count > LARGE_BYTES;
        Ok(count)
    }

    /// Takes what has come, which nobody asks for any more: the kernel breaks a connection off that is closed before, and what was said last
    /// may be lost on its way.
    pub fn hear_out(&mut self, room: &mut [u8]) {
        for _ in 0..MOST_PIECES {
            if !matches!(self.receive(room), Ok(count) if count > 0) {
                return;
            }
        }
    }

    /// What came with a request, of this inode; `None` where none came.
    pub fn take_descriptor(&mut self, inode: u64) -> Option<OwnedFd> {
        while let Some(fd) = self.descriptors.pop_front() {
            if sys::stat_open(&fd).map_or(false, |found| found.inode == inode) {
                return Some(fd);
            }
            // It is of a request that was refused before it asked for it.
        }
        None
    }

    /// Whether much has passed either way since the last time.
    pub fn take_had_much(&mut self) -> bool {
        std::mem::take(&mut self.had_much)
    }

    /// Lets go of the socket.
    pub fn close(self, looper: &mut EventLoop) {
        looper.forget(self.socket.as_raw_fd());
    }
}
