//! Ports: sockets of the inside for the server, and its own listening ones kept over its restarts.
//!
//! The server speaks over a connection of its own, since descriptors travel on it: a message is one request or one answer in JSON.
//! What it gets is a connected socket, so no byte of a connection passes through this process.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

use crate::dial::{self, Dial, Dialled};
use crate::errors::Fields;
use crate::event_loop::{Call, EventLoop, Timer, Token};
use crate::json::{self, object, Value};
use crate::sys;

const BACKLOG: i32 = 16;
const LISTEN_BACKLOG: i32 = 128;
const MOST_DIALS: usize = 1024;
const MOST_MESSAGE_BYTES: usize = 4096;
const RETRY_SECONDS: f64 = 0.05;
const ACCEPT_RETRY_SECONDS: f64 = 1.0;
const ETOOMANYREFS: i32 = 109;

/// What is sent beside an answer.
enum Sent {
    Nothing,
    /// Given away.
    Connection(OwnedFd),
    /// Kept here as well.
    Ours(Vec<RawFd>),
}

/// A connection on its way for a request.
struct Asked {
    request: i64,
    dial: Dial,
    timer: Timer,
}

/// What the server can ask for on its second connection, where a newer one replaces the older.
///
/// `dial` makes a connection inside, and `release` says that one of them is over; `keep` leaves a listening socket here, and `kept`
/// gives those back; `listen` makes a listening socket inside, once, and gives it out each time.
pub struct Ports {
    /// How many connections the server holds, as far as it has told.
    pub connections: i64,
    listener: OwnedFd,
    socket: Option<OwnedFd>,
    kept: Vec<(Value, OwnedFd)>,
    listening: HashMap<u16, OwnedFd>,
    dials: HashMap<u64, Asked>,
    count: u64,
    answers: VecDeque<(Vec<u8>, Sent)>,
    waiting: bool,
}

impl Ports {
    pub fn new(listener: OwnedFd, looper: &mut EventLoop) -> io::Result<Ports> {
        sys::never_block(&listener)?;
        sys::listen_again(&listener, BACKLOG)?;
        looper.watch(listener.as_raw_fd(), sys::EPOLLIN, Token::PortsListener);
        Ok(Ports {
            connections: 0,
            listener,
            socket: None,
            kept: Vec::new(),
            listening: HashMap::new(),
            dials: HashMap::new(),
            count: 0,
            answers: VecDeque::new(),
            waiting: false,
        })
    }

    pub fn watch_listener(&mut self, looper: &mut EventLoop) {
        looper.watch(self.listener.as_raw_fd(), sys::EPOLLIN, Token::PortsListener);
    }

    pub fn accept(&mut self, looper: &mut EventLoop) {
        match sys::accept(&self.listener) {
            Ok(socket) => {
                self.close(looper);
                looper.watch(socket.as_raw_fd(), sys::EPOLLIN, Token::Ports);
                self.socket = Some(socket);
            }
            Err(error) if sys::number_of(&error) == sys::EAGAIN => {}
            Err(_) => {
                looper.forget(self.listener.as_raw_fd());
                looper.after(ACCEPT_RETRY_SECONDS, Call::PortsAcceptAgain);
            }
        }
    }

    fn close(&mut self, looper: &mut EventLoop) {
        if let Some(socket) = self.socket.take() {
            looper.forget(socket.as_raw_fd());
        }
        for (_, mut asked) in self.dials.drain() {
            looper.cancel(asked.timer);
            asked.dial.give_up(looper);
        }
        self.answers.clear();
        self.waiting = false;
        self.connections = 0;
    }

    /// Something happened to the connection.
    pub fn happened(&mut self, events: u32, looper: &mut EventLoop) {
        if events & sys::EPOLLOUT != 0 {
            self.waiting = false;
            if let Some(socket) = &self.socket {
                looper.change(socket.as_raw_fd(), sys::EPOLLIN);
            }
            self.flush(looper);
        }
        if events & (sys::EPOLLIN | sys::EPOLLHUP | sys::EPOLLERR) == 0 {
            return;
        }
        let mut buffer = [0; MOST_MESSAGE_BYTES];
        let received = match &self.socket {
            Some(socket) => sys::receive_message(socket, &mut buffer),
            None => return,
        };
        match received {
            Err(error) if sys::number_of(&error) == sys::EAGAIN => {}
            Ok((count, came)) if count > 0 => {
                let done = json::parse(&buffer[..count]).ok().and_then(|request| self.serve(&request, came, looper));
                if done.is_none() {
                    self.close(looper);
                }
            }
            _ => self.close(looper),
        }
    }

    /// Does what is asked for; nothing where it cannot be understood.
    fn serve(&mut self, request: &Value, came: Vec<OwnedFd>, looper: &mut EventLoop) -> Option<()> {
        let fields = Fields(request);
        let number = fields.int("id").ok()?;
        match fields.text("op").ok()? {
            b"keep" => {
                let port = fields.value("port").ok()?.clone();
                let answer = match came.into_iter().next() {
                    // There was no room for it in the table of this process.
                    None => object([("errno", sys::EMFILE.into())]),
                    Some(fd) => {
                        self.kept.retain(|(own, _)| *own != port);
                        self.kept.push((port, fd));
                        object([])
                    }
                };
                self.answer(number, answer, Sent::Nothing, looper);
            }
            b"kept" => {
                let ports = Value::Array(self.kept.iter().map(|(port, _)| port.clone()).collect());
                let fds = self.kept.iter().map(|(_, fd)| fd.as_raw_fd()).collect();
                self.answer(number, object([("ports", ports)]), Sent::Ours(fds), looper);
            }
            b"listen" => {
                let port = u16::try_from(fields.int("port").ok()?).ok()?;
                self.listen(number, port, looper);
            }
            b"release" => self.connections -= 1,
            b"dial" if self.dials.len() >= MOST_DIALS => {
                self.answer(number, object([("errno", sys::EAGAIN.into())]), Sent::Nothing, looper);
            }
            b"dial" => {
                let port = u16::try_from(fields.int("port").ok()?).ok()?;
                self.count += 1;
                let timer = looper.after(dial::SECONDS, Call::DialLate(self.count));
                let mut asked = Asked { request: number, dial: Dial::new(port), timer };
                let dialled = asked.dial.go_on(Token::Dial(self.count), looper);
                self.dials.insert(self.count, asked);
                self.dialled(self.count, dialled, looper);
            }
            _ => return None,
        }
        Some(())
    }

    /// At the loopback inside. No option lets a program of the inside have the port as well.
    fn listen(&mut self, number: i64, port: u16, looper: &mut EventLoop) {
        let socket = match self.listening.entry(port) {
            Entry::Occupied(there) => there.get().as_raw_fd(),
            Entry::Vacant(free) => match sys::listen_on_loopback(port, LISTEN_BACKLOG) {
                Ok(fd) => free.insert(fd).as_raw_fd(),
                Err(error) => {
                    let answer = object([("errno", sys::number_of(&error).into())]);
                    return self.answer(number, answer, Sent::Nothing, looper);
                }
            },
        };
        let ports = Value::Array(vec![i64::from(port).into()]);
        self.answer(number, object([("ports", ports)]), Sent::Ours(vec![socket]), looper);
    }

    // -- connections on their way -----------------------------------------------------------------------------------------

    pub fn dial_happened(&mut self, id: u64, looper: &mut EventLoop) {
        if let Some(asked) = self.dials.get_mut(&id) {
            let dialled = asked.dial.happened(Token::Dial(id), looper);
            self.dialled(id, dialled, looper);
        }
    }

    pub fn dial_late(&mut self, id: u64, looper: &mut EventLoop) {
        if let Some(asked) = self.dials.get_mut(&id) {
            asked.dial.give_up(looper);
            self.dialled(id, Dialled::Failed(sys::ETIMEDOUT), looper);
        }
    }

    fn dialled(&mut self, id: u64, dialled: Dialled, looper: &mut EventLoop) {
        let (answer, sent) = match dialled {
            Dialled::Waits => return,
            Dialled::Connected(socket) => (object([]), Sent::Connection(socket)),
            Dialled::Failed(error) => (object([("errno", error.into())]), Sent::Nothing),
        };
        if let Some(asked) = self.dials.remove(&id) {
            looper.cancel(asked.timer);
            self.connections += i64::from(matches!(sent, Sent::Connection(_)));
            self.answer(asked.request, answer, sent, looper);
        }
    }

    // -- answers ----------------------------------------------------------------------------------------------------------

    fn answer(&mut self, number: i64, value: Value, sent: Sent, looper: &mut EventLoop) {
        self.answers.push_back((value.with([("id", number.into())]).to_bytes(), sent));
        self.flush(looper);
    }

    /// Sends answers as far as there is room.
    pub fn flush(&mut self, looper: &mut EventLoop) {
        while let (Some((data, sent)), Some(socket), false) = (self.answers.front(), &self.socket, self.waiting) {
            let descriptors: Vec<RawFd> = match sent {
                Sent::Nothing => Vec::new(),
                Sent::Connection(fd) => vec![fd.as_raw_fd()],
                Sent::Ours(fds) => fds.clone(),
            };
            match sys::send_message(socket, data, &descriptors) {
                Ok(()) => drop(self.answers.pop_front()),
                Err(error) => match sys::number_of(&error) {
                    sys::EAGAIN => {
                        self.waiting = true;
                        looper.change(socket.as_raw_fd(), sys::EPOLLIN | sys::EPOLLOUT);
                    }
                    // Of this user, too many descriptors are on their way.
                    ETOOMANYREFS => {
                        looper.after(RETRY_SECONDS, Call::PortsFlush);
                        return;
                    }
                    _ => return self.close(looper),
                },
            }
        }
    }
}
