//! A command's stdin: what was accepted and not written yet, and the writers that wait for room.

use std::collections::VecDeque;
use std::os::unix::io::{AsRawFd, OwnedFd};

use crate::errors::Refused;
use crate::event_loop::{EventLoop, Token};
use crate::sys;

/// So much waits for a command that does not read.
pub const MOST_BYTES: usize = 256 << 10;
const PIECE_BYTES: usize = 64 << 10;
/// The key that ends a terminal's input, unless a program chose another.
const END_OF_FILE: u8 = 4;
/// Pauses between two such keys, which are typed until the command has ended; they double from the one to the other.
const FIRST_END_SECONDS: f64 = 0.05;
const LAST_END_SECONDS: f64 = 1.0;
/// Pause between two looks at a terminal that nobody inside has open.
pub const REOPEN_SECONDS: f64 = 0.01;

/// Whom the answer to a write goes to: a connection, by its number, and a channel of it. None: nobody asked.
pub type Asker = Option<(u64, u16)>;
/// Answers to writes that were accepted or refused.
pub type Answers = Vec<(Asker, Option<Refused>)>;

struct Write {
    offset: u64,
    data: Vec<u8>,
    eof: bool,
    asker: Asker,
}

pub struct Input {
    /// How far into the stream it has come.
    pub accepted: u64,
    fd: Option<OwnedFd>,
    token: Token,
    buffer: Vec<u8>,
    /// Of the buffer's first bytes, what is written.
    written: usize,
    eof: bool,
    watched: bool,
    waiting: VecDeque<Write>,
    /// Of a terminal.
    is_terminal: bool,
    resting: bool,
    pause: f64,
    /// When to look again; the command's clock is told of it.
    pub wake_after: Option<f64>,
    /// A copy of all that was accepted, where it will be wanted again.
    pub kept: Option<Vec<u8>>,
}

impl Input {
    pub fn new(fd: Option<OwnedFd>, token: Token, is_terminal: bool) -> Input {
        Input {
            accepted: 0,
            fd,
            token,
            buffer: Vec::new(),
            written: 0,
            eof: false,
            watched: false,
            waiting: VecDeque::new(),
            is_terminal,
            resting: false,
            pause: FIRST_END_SECONDS,
            wake_after: None,
            kept: None,
        }
    }

    /// Takes bytes that belong at an offset of the stream; they are answered once they are accepted.
    pub fn write(&mut self, offset: u64, data: Vec<u8>, eof: bool, asker: Asker, looper: &mut EventLoop) -> Answers {
        self.waiting.push_back(Write { offset, data, eof, asker });
        self.admit(looper)
    }

    /// No more can be written: the command has exited or closed its end.
    pub fn close(&mut self, looper: &mut EventLoop) -> Answers {
        self.let_go(looper);
        self.admit(looper)
    }

    fn let_go(&mut self, looper: &mut EventLoop) {
        if let Some(fd) = self.fd.take() {
            if self.watched {
                looper.forget(fd.as_raw_fd());
                self.watched = false;
            }
        }
        self.buffer = Vec::new();
        self.written = 0;
    }

    /// It can be written to, or it is time to look again.
    pub fn go_on(&mut self, looper: &mut EventLoop) -> Answers {
        if std::mem::take(&mut self.resting) && self.eof && self.pending() == 0 && self.fd.is_some() {
            self.pause = (2.0 * self.pause).min(LAST_END_SECONDS);
            self.buffer.push(END_OF_FILE);
        }
        self.push(looper);
        self.admit(looper)
    }

    fn pending(&self) -> usize {
        self.buffer.len() - self.written
    }

    fn admit(&mut self, looper: &mut EventLoop) -> Answers {
        let mut answers = Answers::new();
        while let Some(write) = self.waiting.front() {
            let known = self.accepted.saturating_sub(write.offset).min(write.data.len() as u64) as usize;
            let fresh = &write.data[known..];
            let mut problem = None;
            // Before gaps: what follows a piece that was refused as this one is leaves one, which is no mistake.
            if (!fresh.is_empty() || (write.eof && !self.eof)) && (self.fd.is_none() || self.eof) {
                problem = Some(Refused::new("EXECUTION", "stdin_closed", "stdin is closed"));
            } else if write.offset > self.accepted {
                let message = format!("stdin: offset {} leaves a gap after {}", write.offset, self.accepted);
                problem = Some(Refused::invalid(message));
            } else if !fresh.is_empty() && self.pending() > 0 && self.pending() + fresh.len() > MOST_BYTES {
                return answers;
            } else {
                if self.written > 0 {
                    self.buffer.drain(..self.written);
                    self.written = 0;
                }
                self.buffer.extend_from_slice(fresh);
                if let Some(kept) = &mut self.kept {
                    kept.extend_from_slice(fresh);
                }
                self.accepted += fresh.len() as u64;
                if write.eof && !self.eof {
                    self.eof = true;
                    if self.is_terminal {
                        self.buffer.push(END_OF_FILE);
                    }
                }
            }
            if let Some(write) = self.waiting.pop_front() {
                answers.push((write.asker, problem));
            }
            self.push(looper);
        }
        answers
    }

    fn push(&mut self, looper: &mut EventLoop) {
        let fd = match &self.fd {
            Some(fd) => fd,
            None => return,
        };
        while self.pending() > 0 {
            let end = self.buffer.len().min(self.written + PIECE_BYTES);
            match sys::write_some(fd, &self.buffer[self.written..end]) {
                Ok(count) => self.written += count,
                Err(error) if sys::number_of(&error) == sys::EAGAIN => break,
                // Nobody can read what was written; of a terminal that may change.
                Err(_) if self.is_terminal => return self.rest(REOPEN_SECONDS, looper),
                Err(_) => return self.let_go(looper),
            }
        }
        if self.pending() == 0 {
            self.buffer = Vec::new();
            self.written = 0;
            if self.eof {
                // A terminal's first key may only hand over an unfinished line, be lost while a shell takes over from a program,
                // or end the program before the shell. The end of a pipe is there for everyone and for good.
                return if self.is_terminal { self.rest(self.pause, looper) } else { self.let_go(looper) };
            }
        }
        let (wanted, fd) = (self.pending() > 0, fd.as_raw_fd());
        if wanted != self.watched {
            self.watched = wanted;
            if wanted {
                looper.watch(fd, sys::EPOLLOUT, self.token);
            } else {
                looper.forget(fd);
            }
        }
    }

    fn rest(&mut self, seconds: f64, looper: &mut EventLoop) {
        if let Some(fd) = self.fd.as_ref().filter(|_| self.watched) {
            looper.forget(fd.as_raw_fd());
            self.watched = false;
        }
        if !self.resting {
            self.resting = true;
            self.wake_after = Some(seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piped() -> (EventLoop, Input, OwnedFd) {
        let (read, write) = sys::make_pipe().unwrap();
        sys::never_block(&write).unwrap();
        sys::never_block(&read).unwrap();
        (EventLoop::new().unwrap(), Input::new(Some(write), Token::Input(1), false), read)
    }

    fn read_all(fd: &OwnedFd) -> Vec<u8> {
        let mut buffer = vec![0; 1 << 20];
        let count = sys::read_some(fd, &mut buffer).unwrap_or(0);
        buffer.truncate(count);
        buffer
    }

    fn refusals(answers: &Answers) -> Vec<Option<&'static str>> {
        answers.iter().map(|(_, refused)| refused.as_ref().map(|refused| refused.reason)).collect()
    }

    #[test]
    fn bytes_belong_at_their_offset() {
        let (mut looper, mut input, read) = piped();
        for (offset, data) in [(0, "abc"), (0, "abc"), (1, "bcde"), (5, "f")] {
            let answers = input.write(offset, data.into(), false, Some((1, 1)), &mut looper);
            assert_eq!(refusals(&answers), [None]);
        }
        assert_eq!(read_all(&read), b"abcdef");
        assert_eq!(refusals(&input.write(9, b"z".to_vec(), false, None, &mut looper)), [Some("invalid")]);
        assert_eq!(refusals(&input.write(6, Vec::new(), true, None, &mut looper)), [None]);
        assert_eq!(refusals(&input.write(0, b"abc".to_vec(), true, None, &mut looper)), [None]);
        assert_eq!(refusals(&input.write(6, b"x".to_vec(), false, None, &mut looper)), [Some("stdin_closed")]);
    }

    #[test]
    fn who_does_not_read_makes_writers_wait() {
        let (mut looper, mut input, read) = piped();
        let (mut sent, mut waits) = (0, false);
        while !waits {
            waits = input.write(sent, vec![1; PIECE_BYTES], false, Some((1, 1)), &mut looper).is_empty();
            sent += PIECE_BYTES as u64;
            assert!(sent < 4 << 20);
        }
        let mut got = 0;
        while got < sent {
            got += read_all(&read).len() as u64;
            input.go_on(&mut looper);
        }
        assert_eq!(input.accepted, sent);
    }

    #[test]
    fn writers_that_wait_are_answered_when_it_closes() {
        let (mut looper, mut input, _read) = piped();
        let mut sent = 0;
        while !input.write(sent, vec![1; PIECE_BYTES], false, Some((1, 1)), &mut looper).is_empty() {
            sent += PIECE_BYTES as u64;
        }
        assert_eq!(refusals(&input.close(&mut looper)), [Some("stdin_closed")]);
        assert_eq!(refusals(&input.write(2 * sent, vec![1], false, None, &mut looper)), [Some("stdin_closed")]);
        assert_eq!(refusals(&input.write(2 * sent, Vec::new(), true, None, &mut looper)), [Some("stdin_closed")]);
    }
}
