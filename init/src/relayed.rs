//! Connections of the inside whose bytes go over the server's connection: where nothing but bytes comes to it.
//!
//! The server has one made to a port inside (`dial`), or waits for who connects to a port at which process 1 listens for it (`listen`,
//! `accept`).
//!
//! See "Ports" in `docs/protocol.md`. What waits is bounded each way: for the inside by a window of each connection, for the server by
//! its own window, and by what waits of all requests together. Who does not read holds up himself.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::io::{AsRawFd, OwnedFd};

use crate::connection::Source;
use crate::dial::{self, Dial, Dialled};
use crate::errors::{Fields, Refused};
use crate::event_loop::{Call, EventLoop, Timer, Token};
use crate::files::Open;
use crate::frames::{self, Head};
use crate::json::object;
use crate::supervisor::Supervisor;
use crate::sys;

/// So much a server may send ahead of what the inside has taken.
const WINDOW_BYTES: usize = 128 << 10;
const PIECE_BYTES: usize = 64 << 10;
/// So many at once, those on their way included, and no more than this share of the descriptors.
const MOST: u64 = 512;
const SHARE: u64 = 4;
/// Ports at which a server has this process listen.
const MOST_LISTENERS: usize = 16;
const BACKLOG: i32 = 128;
const ACCEPT_RETRY_SECONDS: f64 = 1.0;
/// Of a token, which has the number of a connection and its channel.
const CHANNEL_BITS: u32 = 16;

enum Stage {
    Dialling(Dial, Timer),
    /// For who connects from the inside.
    Waiting,
    Connected(TcpStream),
    /// Both sides have said all: nothing is left but the channel.
    Over,
}

pub struct Relayed {
    token: Token,
    /// Whether the server asked for it: what the inside begins by itself is no use of the sandbox.
    is_asked: bool,
    stage: Stage,
    /// What is watched for.
    wanted: u32,
    /// Whether it waits for its turn to be read.
    has_turn: bool,
    /// From the inside: how much may be ahead, was sent, and was taken.
    window: u64,
    sent: u64,
    credit: u64,
    inside_ended: bool,
    /// To the inside: what has come and is not written yet.
    waiting: Vec<u8>,
    /// Of `waiting`, what is written; of all, and as the server was told last.
    written: usize,
    taken: u64,
    told: u64,
    server_ended: bool,
    /// The inside was told that no more comes.
    is_shut: bool,
}

/// The connection is broken.
struct Broken;

impl Relayed {
    fn new(token: Token, stage: Stage, window: u64) -> Relayed {
        Relayed {
            token,
            is_asked: matches!(stage, Stage::Dialling(..)),
            stage,
            wanted: 0,
            has_turn: false,
            window,
            sent: 0,
            credit: 0,
            inside_ended: false,
            waiting: Vec::new(),
            written: 0,
            taken: 0,
            told: 0,
            server_ended: false,
            is_shut: false,
        }
    }

    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    pub fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// How much may be read now.
    fn room(&self) -> usize {
        let ahead = self.sent.saturating_sub(self.credit);
        self.window.saturating_sub(ahead).min(PIECE_BYTES as u64) as usize
    }

    /// Reads what there is; `None` where that is nothing yet, and nothing at the end.
    fn next_piece(&mut self) -> Result<Option<Vec<u8>>, Broken> {
        let room = if self.inside_ended { 0 } else { self.room() };
        match &mut self.stage {
            Stage::Connected(stream) if room > 0 => {
                let mut piece = vec![0; room];
                match stream.read(&mut piece) {
                    Ok(count) => {
                        piece.truncate(count);
                        self.inside_ended = count == 0;
                        Ok(Some(piece))
                    }
                    Err(error) if is_for_now(&error) => Ok(None),
                    Err(_) => Err(Broken),
                }
            }
            _ => Ok(None),
        }
    }

    /// Takes what is for the inside; false where that is more than it may be.
    fn take(&mut self, payload: &[u8]) -> bool {
        let there = self.waiting.len() - self.written;
        if self.server_ended || there + payload.len() > WINDOW_BYTES {
            return false;
        }
        self.waiting.drain(..self.written);
        self.written = 0;
        self.waiting.extend_from_slice(payload);
        true
    }

    /// Writes what it takes, and says the end once all is written; how much was taken, where the server is to know.
    fn write(&mut self) -> Result<Option<u64>, Broken> {
        let stream = match &mut self.stage {
            Stage::Connected(stream) => stream,
            _ => return Ok(None),
        };
        while self.written < self.waiting.len() {
            match stream.write(&self.waiting[self.written..]) {
                Ok(count) => {
                    self.written += count;
                    self.taken += count as u64;
                }
                Err(error) if is_for_now(&error) => break,
                Err(_) => return Err(Broken),
            }
        }
        let is_written = self.written == self.waiting.len();
        if is_written {
            self.waiting = Vec::new();
            self.written = 0;
        }
        if is_written && self.server_ended && !self.is_shut {
            stream.shutdown(Shutdown::Write).map_err(|_| Broken)?;
            self.is_shut = true;
            self.told = self.taken;
            return Ok(Some(self.taken));
        }
        if self.taken - self.told >= WINDOW_BYTES as u64 / 4 {
            self.told = self.taken;
            return Ok(Some(self.taken));
        }
        Ok(None)
    }

    /// Has the event loop tell of what it waits for, and of nothing else: a hang-up that is told of again and again would be all that
    /// this process does.
    fn watch(&mut self, looper: &mut EventLoop) {
        let is_over = self.inside_ended && self.is_shut;
        let reads = !self.inside_ended && !self.has_turn && self.room() > 0;
        let stream = match &self.stage {
            Stage::Connected(stream) => stream,
            _ => return,
        };
        let mut wanted = if reads { sys::EPOLLIN } else { 0 };
        if !self.waiting.is_empty() {
            wanted |= sys::EPOLLOUT;
        }
        let fd = stream.as_raw_fd();
        if wanted != self.wanted {
            match (self.wanted, wanted) {
                (_, 0) => looper.forget(fd),
                (0, _) => looper.watch(fd, wanted, self.token),
                _ => looper.change(fd, wanted),
            }
            self.wanted = wanted;
        }
        if is_over {
            self.stage = Stage::Over;
        }
    }

    /// Lets go of it; one that is not over is broken off.
    pub fn close(self, looper: &mut EventLoop) {
        match self.stage {
            Stage::Dialling(mut dial, timer) => {
                looper.cancel(timer);
                dial.give_up(looper);
            }
            Stage::Connected(stream) => {
                if self.wanted != 0 {
                    looper.forget(stream.as_raw_fd());
                }
                // It fails for nothing that is open.
                drop(sys::break_off_at_close(&stream));
            }
            Stage::Waiting | Stage::Over => {}
        }
    }
}

/// A port at which this process listens for the server, once and for all servers.
pub struct Listening {
    port: u16,
    socket: OwnedFd,
    /// Requests that wait for who connects, the oldest first, some of which may be over. Where there is none nobody is accepted.
    waiting: VecDeque<Token>,
    is_watched: bool,
}

impl Listening {
    fn watch(&mut self, is_wanted: bool, looper: &mut EventLoop) {
        if is_wanted && !self.is_watched {
            looper.watch(self.socket.as_raw_fd(), sys::EPOLLIN, Token::RelayedListener(self.port.into()));
        } else if !is_wanted && self.is_watched {
            looper.forget(self.socket.as_raw_fd());
        }
        self.is_watched = is_wanted;
    }
}

fn is_for_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// The channel of a request that waits still.
fn waits_on(open: &HashMap<u16, Open>, token: Token) -> Option<u16> {
    let channel = match token {
        Token::Relayed(number) => number as u16,
        _ => return None,
    };
    match open.get(&channel) {
        Some(Open::Relayed(one)) if one.token == token && matches!(one.stage, Stage::Waiting) => Some(channel),
        _ => None,
    }
}

impl Supervisor {
    /// Begins a connection to a port inside.
    pub fn dial(&mut self, channel: u16, fields: &Fields<'_>) -> Result<(), Refused> {
        let port = fields.number_up_to("port", u16::MAX.into())? as u16;
        let window = fields.size("window")?;
        self.only_networked()?;
        let own = self.newcomers.as_ref().map_or(0, |newcomers| newcomers.port);
        if port == own {
            self.relayed_failed(channel, sys::ECONNREFUSED); // What listens there is no program of the sandbox.
        } else if !self.has_room_for_relayed() {
            self.relayed_failed(channel, sys::EAGAIN);
        } else {
            let token = self.relayed_token(channel);
            let timer = self.looper.after(dial::SECONDS, Call::RelayedLate(channel));
            let mut dial = Dial::new(port);
            let dialled = dial.go_on(token, &mut self.looper);
            let one = Relayed::new(token, Stage::Dialling(dial, timer), window);
            self.open.insert(channel, Open::Relayed(Box::new(one)));
            self.relayed_dialled(channel, dialled);
        }
        Ok(())
    }

    /// Listens at a port of the inside for the server; one that it listens at already is no other.
    pub fn listen(&mut self, channel: u16, fields: &Fields<'_>) -> Result<(), Refused> {
        let port = fields.number_up_to("port", u16::MAX.into())? as u16;
        self.only_networked()?;
        if self.listening.iter().all(|one| one.port != port) {
            let made = if self.listening.len() < MOST_LISTENERS {
                sys::listen_on_loopback(port, BACKLOG)
            } else {
                Err(io::Error::from_raw_os_error(sys::EMFILE))
            };
            match made {
                Ok(socket) => {
                    self.listening.push(Listening { port, socket, waiting: VecDeque::new(), is_watched: false });
                }
                Err(error) => {
                    self.relayed_failed(channel, sys::number_of(&error));
                    return Ok(());
                }
            }
        }
        self.reply(channel, &object([]));
        Ok(())
    }

    /// Waits for the next who connects to a port at which this process listens.
    pub fn wait_for_relayed(&mut self, channel: u16, fields: &Fields<'_>) -> Result<(), Refused> {
        let port = fields.number_up_to("port", u16::MAX.into())? as u16;
        let window = fields.size("window")?;
        self.only_networked()?;
        let number = self.listening.iter().position(|one| one.port == port);
        let number = number.ok_or_else(|| Refused::invalid(format!("nobody has asked to listen at port {port}")))?;
        if !self.has_room_for_relayed() {
            self.relayed_failed(channel, sys::EAGAIN);
            return Ok(());
        }
        let token = self.relayed_token(channel);
        self.open.insert(channel, Open::Relayed(Box::new(Relayed::new(token, Stage::Waiting, window))));
        let open = &self.open;
        let listening = &mut self.listening[number];
        while listening.waiting.front().map_or(false, |first| waits_on(open, *first).is_none()) {
            listening.waiting.pop_front();
        }
        listening.waiting.push_back(token);
        listening.watch(true, &mut self.looper);
        Ok(())
    }

    /// Somebody inside has connected.
    pub fn accept_relayed(&mut self, port: u64) {
        let listening = match self.listening.iter_mut().find(|one| u64::from(one.port) == port) {
            Some(listening) => listening,
            None => return,
        };
        loop {
            let channel = match listening.waiting.front() {
                Some(first) => waits_on(&self.open, *first),
                None => return listening.watch(false, &mut self.looper),
            };
            let channel = match channel {
                Some(channel) => channel,
                None => {
                    listening.waiting.pop_front();
                    continue;
                }
            };
            match sys::accept(&listening.socket) {
                Ok(socket) => {
                    listening.waiting.pop_front();
                    if listening.waiting.is_empty() {
                        listening.watch(false, &mut self.looper);
                    }
                    return self.relayed_dialled(channel, Dialled::Connected(socket));
                }
                Err(error) => {
                    let number = sys::number_of(&error);
                    if matches!(number, sys::EMFILE | sys::ENFILE | sys::ENOMEM | sys::ENOBUFS) {
                        listening.watch(false, &mut self.looper);
                        self.looper.after(ACCEPT_RETRY_SECONDS, Call::AcceptRelayedAgain(port));
                    }
                    return;
                }
            }
        }
    }

    /// There may be descriptors again.
    pub fn accept_relayed_again(&mut self, port: u64) {
        if let Some(listening) = self.listening.iter_mut().find(|one| u64::from(one.port) == port) {
            listening.watch(true, &mut self.looper);
        }
    }

    fn only_networked(&self) -> Result<(), Refused> {
        match self.newcomers {
            Some(_) => Ok(()),
            None => Err(Refused::invalid("ports of this sandbox are reached by a socket of their own")),
        }
    }

    fn has_room_for_relayed(&self) -> bool {
        let there = self.open.values().filter(|open| matches!(open, Open::Relayed(one) if !one.is_over())).count();
        (there as u64) < MOST.min(sys::most_open_files() / SHARE)
    }

    fn relayed_token(&mut self, channel: u16) -> Token {
        Token::Relayed(self.next_number() << CHANNEL_BITS | u64::from(channel))
    }

    fn relayed_failed(&mut self, channel: u16, errno: i32) {
        self.reply(channel, &object([("errno", errno.into())]));
    }

    fn relayed(&mut self, channel: u16) -> Option<(&mut Relayed, &mut EventLoop)> {
        match self.open.get_mut(&channel) {
            Some(Open::Relayed(one)) => Some((one, &mut self.looper)),
            _ => None,
        }
    }

    fn relayed_dialled(&mut self, channel: u16, dialled: Dialled) {
        let error = match dialled {
            Dialled::Waits => return,
            Dialled::Failed(error) => error,
            Dialled::Connected(socket) => {
                let stream = TcpStream::from(socket);
                match stream.set_nodelay(true) {
                    Err(error) => sys::number_of(&error),
                    Ok(()) => {
                        if let Some((one, looper)) = self.relayed(channel) {
                            let before = std::mem::replace(&mut one.stage, Stage::Connected(stream));
                            if let Stage::Dialling(_, timer) = before {
                                looper.cancel(timer);
                            }
                            self.send_reply(channel);
                            self.relayed_written(channel);
                        }
                        return;
                    }
                }
            }
        };
        self.relayed_failed(channel, error);
    }

    /// The first of its frames, and not the last.
    fn send_reply(&mut self, channel: u16) {
        self.send(Head::of(frames::REPLY, channel), &object([]).to_bytes());
    }

    /// A program has accepted nothing for long.
    pub fn relayed_late(&mut self, channel: u16) {
        if let Some((Relayed { stage: Stage::Dialling(dial, _), .. }, looper)) = self.relayed(channel) {
            dial.give_up(looper);
            self.relayed_dialled(channel, Dialled::Failed(sys::ETIMEDOUT));
        }
    }

    /// Something happened to one, by the number of its token.
    pub fn relayed_happened(&mut self, number: u64, events: u32) {
        let channel = number as u16;
        let (one, looper) = match self.relayed(channel).filter(|(one, _)| one.token == Token::Relayed(number)) {
            Some(found) => found,
            None => return, // Of one that was before it on this channel.
        };
        if let Stage::Dialling(dial, _) = &mut one.stage {
            let dialled = dial.happened(Token::Relayed(number), looper);
            return self.relayed_dialled(channel, dialled);
        }
        if events & (sys::EPOLLIN | sys::EPOLLHUP | sys::EPOLLERR) != 0 && !one.inside_ended && one.room() > 0 {
            one.has_turn = true;
            self.feed_from(Source::Transfer(channel));
        }
        self.relayed_written(channel);
    }

    /// Writes what can be written, and waits for the rest.
    fn relayed_written(&mut self, channel: u16) {
        let (one, looper) = match self.relayed(channel) {
            Some(found) => found,
            None => return,
        };
        match one.write() {
            Ok(taken) => {
                one.watch(looper);
                if let Some(taken) = taken {
                    self.send(Head { offset: taken, ..Head::of(frames::CREDIT, channel) }, b"");
                }
            }
            Err(Broken) => self.relayed_broke(channel),
        }
    }

    fn relayed_broke(&mut self, channel: u16) {
        self.refuse(channel, &Refused::new("UNAVAILABLE", "reset", "the program inside has broken the connection off"));
    }

    /// Sends what the inside says, as far as it may; true to be asked again.
    pub fn pump_relayed(&mut self, channel: u16) -> bool {
        let (one, looper) = match self.relayed(channel) {
            Some(found) => found,
            None => return false,
        };
        let (kind, offset, piece) = match one.next_piece() {
            Ok(Some(piece)) if !piece.is_empty() => {
                let offset = one.sent;
                one.sent += piece.len() as u64;
                (frames::DATA, offset, piece)
            }
            Ok(Some(end)) => (frames::END, one.sent, end),
            Ok(None) => {
                one.has_turn = false;
                one.watch(looper);
                return false;
            }
            Err(Broken) => {
                self.relayed_broke(channel);
                return false;
            }
        };
        let more = kind == frames::DATA && one.room() > 0;
        one.has_turn = more;
        one.watch(looper);
        self.send(Head { offset, ..Head::of(kind, channel) }, &piece);
        more
    }

    /// A further frame of the server's.
    pub fn continue_relayed(&mut self, head: Head, payload: &[u8]) -> Result<(), Refused> {
        let one = match self.relayed(head.channel) {
            Some((one, _)) => one,
            None => return Ok(()),
        };
        match head.kind {
            frames::DATA if !one.take(payload) => {
                let message = format!("more than {WINDOW_BYTES} bytes ahead of what was taken, or behind an end");
                return Err(Refused::invalid(message));
            }
            frames::CREDIT => one.credit = one.credit.max(head.offset),
            frames::END => one.server_ended = true,
            _ => {}
        }
        self.relayed_written(head.channel);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(window: u64) -> Relayed {
        Relayed::new(Token::Relayed(1), Stage::Waiting, window)
    }

    #[test]
    fn no_more_is_taken_than_the_window() {
        let mut one = one(10);
        assert!(one.take(&[0; WINDOW_BYTES]));
        assert!(!one.take(b"x"));
        one.written = 5;
        assert!(one.take(b"12345") && !one.take(b"6"));
        assert_eq!(one.waiting.len(), WINDOW_BYTES);
        one.server_ended = true;
        one.written = 5;
        assert!(!one.take(b"x"));
    }

    #[test]
    fn no_more_is_read_than_the_servers_window() {
        let mut one = one(10);
        assert_eq!(one.room(), 10);
        one.sent = 8;
        assert_eq!(one.room(), 2);
        one.credit = 8;
        assert_eq!(one.room(), 10);
        one.window = u64::MAX;
        assert_eq!(one.room(), PIECE_BYTES);
        // More than was sent cannot have been taken.
        one.credit = u64::MAX;
        one.window = 1;
        assert_eq!(one.room(), 1);
    }
}
