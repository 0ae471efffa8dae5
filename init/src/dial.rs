//! A connection on its way to a port inside: first to 127.0.0.1, then to ::1.

use std::os::unix::io::{AsRawFd, OwnedFd};

use crate::event_loop::{EventLoop, Token};
use crate::sys;

/// For a program that listens and never accepts: its queue is full, and the kernel drops what comes.
pub const SECONDS: f64 = 10.0;

/// What has become of one.
pub enum Dialled {
    /// The event loop tells when to look again.
    Waits,
    Connected(OwnedFd),
    /// The number of the first error.
    Failed(i32),
}

pub struct Dial {
    port: u16,
    /// Which address is next.
    next: usize,
    socket: Option<OwnedFd>,
    error: i32,
}

impl Dial {
    pub fn new(port: u16) -> Dial {
        Dial { port, next: 0, socket: None, error: 0 }
    }

    /// Tries the next address.
    pub fn go_on(&mut self, token: Token, looper: &mut EventLoop) -> Dialled {
        while self.next <= 1 {
            let by_version_6 = self.next == 1;
            self.next += 1;
            match sys::connect_to_loopback(self.port, by_version_6) {
                Ok(socket) => {
                    looper.watch(socket.as_raw_fd(), sys::EPOLLOUT, token);
                    self.socket = Some(socket);
                    return Dialled::Waits;
                }
                Err(error) => self.note(sys::number_of(&error)),
            }
        }
        Dialled::Failed(self.error)
    }

    /// A connection came about, or did not.
    pub fn happened(&mut self, token: Token, looper: &mut EventLoop) -> Dialled {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => return Dialled::Waits,
        };
        looper.forget(socket.as_raw_fd());
        let error = sys::socket_error(&socket);
        // Where nobody listens, the kernel may give a connection the very port that it goes to.
        if error == 0 && !sys::has_met_itself(&socket) {
            return Dialled::Connected(socket);
        }
        self.note(if error == 0 { sys::ECONNREFUSED } else { error });
        self.go_on(token, looper)
    }

    /// Tries no more.
    pub fn give_up(&mut self, looper: &mut EventLoop) {
        if let Some(socket) = self.socket.take() {
            looper.forget(socket.as_raw_fd());
        }
    }

    fn note(&mut self, error: i32) {
        if self.error == 0 {
            self.error = error;
        }
    }
}
