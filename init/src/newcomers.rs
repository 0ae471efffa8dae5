//! Connections over a network, of which anybody can make one: who does not prove the key is none.
//!
//! See "Over a network" in `docs/protocol.md`.

use std::collections::BTreeMap;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::io::{AsRawFd, OwnedFd};

use crate::event_loop::{Call, EventLoop, Timer, Token};
use crate::sha256::{are_same, hmac, DIGEST_BYTES};
use crate::sys;

const NONCE_BYTES: usize = 32;
const SAID_BYTES: usize = 1 + NONCE_BYTES + DIGEST_BYTES;
const CONTROL: u8 = b'c';
const QUESTION: u8 = b'q';
/// So many are heard at once; the oldest goes for a newer one.
pub const MOST: usize = 16;
/// So long one may take.
pub const PATIENCE_SECONDS: f64 = 10.0;

/// Listens at a port of all addresses.
///
/// # Errors
/// It is taken.
pub fn listen(port: u16) -> io::Result<OwnedFd> {
    let listener = TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)))?;
    Ok(listener.into())
}

/// One that has not proved the key yet.
pub struct Newcomer {
    pub socket: OwnedFd,
    nonce: [u8; NONCE_BYTES],
    said: Vec<u8>,
}

/// What has become of one.
#[derive(PartialEq, Eq, Debug)]
pub enum Progress {
    /// It has more to say.
    Waits,
    /// It knows the key, and has been shown that this side does.
    Proved,
    /// The same; it has heard the state, wants no more, and takes nobody's place.
    Asked,
    /// It is let go of, without a word.
    Refused,
}

impl Newcomer {
    /// # Errors
    /// It is gone already.
    pub fn new(socket: OwnedFd) -> io::Result<Newcomer> {
        sys::never_block(&socket)?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        let socket = OwnedFd::from(stream);
        sys::keep_alive(&socket)?;
        let mut nonce = [0; NONCE_BYTES];
        sys::random(&mut nonce);
        if nonce == [0; NONCE_BYTES] {
            // The kernel gives none. An answer to what is known beforehand would prove nothing.
            return Err(io::ErrorKind::Other.into());
        }
        if sys::write_some(&socket, &nonce)? != NONCE_BYTES {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(Newcomer { socket, nonce, said: Vec::with_capacity(SAID_BYTES) })
    }

    /// Hears what has come, and nothing that comes behind it.
    pub fn hear(&mut self, key: &[u8], has_begun: bool) -> Progress {
        let mut room = [0; SAID_BYTES];
        match sys::read_some(&self.socket, &mut room[..SAID_BYTES - self.said.len()]) {
            Ok(0) => return Progress::Refused,
            Ok(count) => self.said.extend_from_slice(&room[..count]),
            Err(error) if matches!(sys::number_of(&error), sys::EAGAIN | sys::EINTR) => return Progress::Waits,
            Err(_) => return Progress::Refused,
        }
        if self.said.len() < SAID_BYTES {
            return Progress::Waits;
        }
        let (kind, rest) = self.said.split_at(1);
        let (theirs, proof) = rest.split_at(NONCE_BYTES);
        let wanted = hmac(key, &[b"aviato server 1\0", kind, &self.nonce, theirs]);
        let progress = match kind[0] {
            CONTROL => Progress::Proved,
            QUESTION => Progress::Asked,
            _ => return Progress::Refused,
        };
        if !are_same(proof, &wanted) {
            return Progress::Refused;
        }
        let state = if has_begun { b"r" } else { b"n" };
        let own = hmac(key, &[b"aviato process 1\0", kind, state, &self.nonce, theirs]);
        match sys::write_some(&self.socket, &[&state[..], &own].concat()) {
            Ok(count) if count == 1 + DIGEST_BYTES => progress,
            _ => Progress::Refused,
        }
    }
}

/// All that have not proved the key yet, while a sandbox runs.
pub struct Newcomers {
    /// At which they come.
    pub port: u16,
    key: Vec<u8>,
    /// With what ends their time: kept for all who went before, those would be memory that anybody can have this process use.
    waiting: BTreeMap<u64, (Newcomer, Timer)>,
    count: u64,
}

impl Newcomers {
    pub fn new(port: u16, key: Vec<u8>) -> Newcomers {
        Newcomers { port, key, waiting: BTreeMap::new(), count: 0 }
    }

    /// Begins to hear one.
    pub fn take(&mut self, socket: OwnedFd, looper: &mut EventLoop) {
        let newcomer = match Newcomer::new(socket) {
            Ok(newcomer) => newcomer,
            Err(_) => return,
        };
        if self.waiting.len() >= MOST {
            let oldest = self.waiting.keys().next().copied();
            oldest.into_iter().for_each(|number| drop(self.let_go(number, looper)));
        }
        self.count += 1;
        looper.watch(newcomer.socket.as_raw_fd(), sys::EPOLLIN, Token::Newcomer(self.count));
        let timer = looper.after(PATIENCE_SECONDS, Call::NewcomerLate(self.count));
        self.waiting.insert(self.count, (newcomer, timer));
    }

    /// Hears one; gives its connection once it has proved the key.
    pub fn hear(&mut self, number: u64, looper: &mut EventLoop) -> Option<OwnedFd> {
        match self.waiting.get_mut(&number)?.0.hear(&self.key, true) {
            Progress::Waits => None,
            Progress::Refused | Progress::Asked => {
                drop(self.let_go(number, looper));
                None
            }
            Progress::Proved => self.let_go(number, looper),
        }
    }

    /// Hears one no longer; gives its socket.
    pub fn let_go(&mut self, number: u64, looper: &mut EventLoop) -> Option<OwnedFd> {
        let (newcomer, timer) = self.waiting.remove(&number)?;
        looper.cancel(timer);
        looper.forget(newcomer.socket.as_raw_fd());
        Some(newcomer.socket)
    }
}
