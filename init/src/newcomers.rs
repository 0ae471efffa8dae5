//! Connections over a network, of which anybody can make one: who does not prove the key is none.
//!
//! See "Over a network" in `docs/protocol.md`.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::io::{AsRawFd, OwnedFd};

use crate::event_loop::{Call, EventLoop, Timer, Token};
use crate::sha256::{are_same, hmac, DIGEST_BYTES};
use crate::sys;

const NONCE_BYTES: usize = 32;
const SAID_BYTES: usize = 1 + NONCE_BYTES + DIGEST_BYTES;
const CONTROL: u8 = b'c';
const QUESTION: u8 = b'q';
/// So many are heard at once. The oldest of the origin that has most of them goes for a newer one.
const MOST: usize = 256;
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

/// Where one comes from. All of the inside is one: it has as many addresses as there are numbers behind 127.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Origin {
    Inside,
    Outside(IpAddr),
}

impl Origin {
    fn of(mut peer: SocketAddr) -> Origin {
        peer.set_port(0);
        match UdpSocket::bind(peer) {
            // It is no address of this machine.
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Origin::Outside(peer.ip()),
            // One of which there is no port left is an address, too.
            _ => Origin::Inside,
        }
    }
}

/// One that has not proved the key yet.
struct Newcomer {
    socket: OwnedFd,
    origin: Origin,
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
    fn new(socket: OwnedFd) -> io::Result<Newcomer> {
        sys::never_block(&socket)?;
        let stream = TcpStream::from(socket);
        let origin = Origin::of(stream.peer_addr()?);
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
        Ok(Newcomer { socket, origin, nonce, said: Vec::with_capacity(SAID_BYTES) })
    }

    /// Hears what has come, and nothing that comes behind it.
    fn hear(&mut self, key: &[u8], has_begun: bool) -> Progress {
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

/// All that have not proved the key yet.
///
/// Who fills their places, be it as fast as it can, must not have others go whose words are on their way. So nobody goes for who comes
/// from elsewhere, unless he has come from where most have.
pub struct Newcomers {
    /// At which they come.
    pub port: u16,
    key: Vec<u8>,
    has_begun: bool,
    /// With what ends their time: kept for all who went before, those would be memory that anybody can have this process use.
    waiting: BTreeMap<u64, (Newcomer, Timer)>,
    count: u64,
}

impl Newcomers {
    /// Until `begin` those who come hear that the sandbox does not run.
    pub fn new(port: u16, key: Vec<u8>) -> Newcomers {
        Newcomers { port, key, has_begun: false, waiting: BTreeMap::new(), count: 0 }
    }

    /// The sandbox runs, by another loop. Who came before that and has not said all goes on there.
    pub fn begin(&mut self, looper: &mut EventLoop) {
        self.has_begun = true;
        for (number, (newcomer, timer)) in &mut self.waiting {
            *timer = listen_to(newcomer, *number, looper);
        }
    }

    /// Begins to hear one.
    pub fn take(&mut self, socket: OwnedFd, looper: &mut EventLoop) {
        let newcomer = match Newcomer::new(socket) {
            Ok(newcomer) => newcomer,
            Err(_) => return,
        };
        self.count += 1;
        let timer = listen_to(&newcomer, self.count, looper);
        self.waiting.insert(self.count, (newcomer, timer));
        if self.waiting.len() > MOST {
            let goes = first_of_most(self.waiting.iter().map(|(number, (newcomer, _))| (*number, newcomer.origin)));
            goes.into_iter().for_each(|number| drop(self.let_go(number, looper)));
        }
    }

    /// Hears one; gives its connection once it has proved the key.
    pub fn hear(&mut self, number: u64, looper: &mut EventLoop) -> (Progress, Option<OwnedFd>) {
        let progress = match self.waiting.get_mut(&number) {
            Some((newcomer, _)) => newcomer.hear(&self.key, self.has_begun),
            None => return (Progress::Waits, None),
        };
        let socket = if progress == Progress::Waits { None } else { self.let_go(number, looper) };
        let has_proved = progress == Progress::Proved;
        (progress, socket.filter(|_| has_proved))
    }

    /// Hears one no longer; gives its socket.
    pub fn let_go(&mut self, number: u64, looper: &mut EventLoop) -> Option<OwnedFd> {
        let (newcomer, timer) = self.waiting.remove(&number)?;
        looper.cancel(timer);
        looper.forget(newcomer.socket.as_raw_fd());
        Some(newcomer.socket)
    }
}

fn listen_to(newcomer: &Newcomer, number: u64, looper: &mut EventLoop) -> Timer {
    looper.watch(newcomer.socket.as_raw_fd(), sys::EPOLLIN, Token::Newcomer(number));
    looper.after(PATIENCE_SECONDS, Call::NewcomerLate(number))
}

/// The first of those of whose origin there are most, of numbers in their order.
fn first_of_most(waiting: impl Iterator<Item = (u64, Origin)>) -> Option<u64> {
    let mut found: HashMap<Origin, (usize, u64)> = HashMap::new();
    for (number, origin) in waiting {
        found.entry(origin).or_insert((0, number)).0 += 1;
    }
    found.into_values().max_by_key(|(count, first)| (*count, std::cmp::Reverse(*first))).map(|(_, first)| first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_commonest_origin_goes() {
        let outside = |last| Origin::Outside(IpAddr::from([192, 0, 2, last]));
        let goes = |origins: &[Origin]| first_of_most((7..).zip(origins.iter().copied()));
        assert_eq!(goes(&[outside(1), Origin::Inside, Origin::Inside]), Some(8));
        assert_eq!(goes(&[Origin::Inside, outside(1), outside(2), outside(1)]), Some(8));
        assert_eq!(goes(&[outside(1), Origin::Inside]), Some(7));
        assert_eq!(goes(&[]), None);
    }

    #[test]
    fn every_address_of_its_own_is_the_inside() {
        let of = |text: &str| Origin::of(text.parse().unwrap());
        for own in ["127.0.0.1:1", "127.200.3.4:65535", "[::ffff:127.0.0.9]:7"] {
            assert_eq!(of(own), Origin::Inside, "{own}");
        }
        assert_eq!(of("192.0.2.1:1"), Origin::Outside(IpAddr::from([192, 0, 2, 1])));
    }
}
