//! What process 1 waits for: descriptors and times.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::io::RawFd;

use crate::sys::{self, Epoll, Event};

/// Descriptors that epoll has no room for (code inside can use up its user's share) are tried at this interval.
const BLIND_SECONDS: f64 = 0.01;
/// A limit that is so late tells that nothing ran here meanwhile.
pub const STOOD_STILL_SECONDS: f64 = 1.0;

const LONGEST_WAIT_NANOSECONDS: u64 = 3_600_000_000_000;

/// Who is told what happened to a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    Listener,
    Connection,
    Children,
    /// Stream 0 or 1 of a command, by its number.
    Output(u64, u8),
    Input(u64),
    Drain(u64),
    /// Pipe 0 to 3 of what runs the cases of a command, by its number.
    Case(u64, u8),
    PortsListener,
    Ports,
    /// A connection on its way, by its number.
    Dial(u64),
    /// Of a command, by its number.
    Subreaper(u64),
    Asked,
    /// A connection that has not proved the key, by its number.
    Newcomer(u64),
    /// One that has, and that has not said the plan, by its number.
    Server(u64),
    /// A connection to a port inside, by a number that ends with its channel.
    Relayed(u64),
    /// Of those who connect to a port at which this process listens for the server, by the port.
    RelayedListener(u64),
}

impl Token {
    fn encode(self) -> u64 {
        let (kind, number, stream) = match self {
            Token::Listener => (0, 0, 0),
            Token::Connection => (1, 0, 0),
            Token::Children => (2, 0, 0),
            Token::Output(number, stream) => (3, number, stream),
            Token::Input(number) => (4, number, 0),
            Token::Server(number) => (5, number, 0),
            Token::Drain(number) => (6, number, 0),
            Token::Case(number, pipe) => (7, number, pipe),
            Token::PortsListener => (8, 0, 0),
            Token::Ports => (9, 0, 0),
            Token::Dial(number) => (10, number, 0),
            Token::Subreaper(number) => (11, number, 0),
            Token::Asked => (12, 0, 0),
            Token::Newcomer(number) => (13, number, 0),
            Token::Relayed(number) => (14, number, 0),
            Token::RelayedListener(port) => (15, port, 0),
        };
        kind << 60 | u64::from(stream) << 56 | number
    }

    fn decode(data: u64) -> Token {
        let (number, stream) = (data & ((1 << 56) - 1), (data >> 56 & 0xf) as u8);
        match data >> 60 {
            0 => Token::Listener,
            1 => Token::Connection,
            2 => Token::Children,
            3 => Token::Output(number, stream),
            4 => Token::Input(number),
            5 => Token::Server(number),
            6 => Token::Drain(number),
            7 => Token::Case(number, stream),
            8 => Token::PortsListener,
            9 => Token::Ports,
            10 => Token::Dial(number),
            11 => Token::Subreaper(number),
            13 => Token::Newcomer(number),
            14 => Token::Relayed(number),
            15 => Token::RelayedListener(number),
            _ => Token::Asked,
        }
    }
}

/// What is done at its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    LookForServer,
    LiveNoLonger,
    LookForUse,
    EndOn,
    HangUp,
    LeaveWhenSent,
    AcceptAgain,
    NewcomerLate(u64),
    ServerLate(u64),
    Reap,
    TryBlindly,
    Job(u64),
    /// Of commands, by their numbers.
    TooLate(u64),
    LingerOver(u64),
    ScreenAgain(u64),
    KeyboardAgain(u64),
    Birth(u64),
    CaseLate(u64),
    CaseUnheard(u64),
    Starved(u64),
    PortsAcceptAgain,
    PortsFlush,
    DialLate(u64),
    /// Of a connection to a port, by its channel.
    RelayedLate(u16),
    AcceptRelayedAgain(u64),
    CountDisk,
    WaitedLong,
    GiveMemoryBack,
    /// Of a command, by its number: its reader may have confirmed in shared memory.
    LookInMemory(u64),
    /// Of a command, by its number: little lies in shared memory, and waits for no more.
    TellOfLittle(u64),
    /// A file that has come in part, by its key.
    PartOver(Vec<u8>),
}

/// A call in the future, by its number.
pub type Timer = u64;

struct Entry {
    call: Call,
    /// Of a limit: what it gets anew, once, where nothing ran here meanwhile.
    anew_seconds: Option<f64>,
}

pub struct EventLoop {
    epoll: Epoll,
    watched: HashMap<RawFd, Token>,
    blind: HashMap<RawFd, (u32, Token)>,
    timers: BTreeMap<(u64, Timer), Entry>,
    due: HashMap<Timer, u64>,
    count: u64,
    busy: bool,
}

impl EventLoop {
    pub fn new() -> io::Result<EventLoop> {
        Ok(EventLoop {
            epoll: Epoll::new()?,
            watched: HashMap::new(),
            blind: HashMap::new(),
            timers: BTreeMap::new(),
            due: HashMap::new(),
            count: 0,
            busy: false,
        })
    }

    pub fn now(&self) -> f64 {
        sys::now() as f64 / 1e9
    }

    /// Tells of the events of a descriptor from now on; a hang-up always counts.
    pub fn watch(&mut self, fd: RawFd, events: u32, token: Token) {
        if self.epoll.add(fd, events, token.encode()).is_err() {
            if self.blind.is_empty() {
                self.after(BLIND_SECONDS, Call::TryBlindly);
            }
            self.blind.insert(fd, (events, token));
        }
        self.watched.insert(fd, token);
    }

    /// Tells of other events from now on.
    pub fn change(&mut self, fd: RawFd, events: u32) {
        let token = match self.watched.get(&fd) {
            Some(token) => *token,
            None => return,
        };
        match self.blind.get_mut(&fd) {
            Some(wanted) => wanted.0 = events,
            // It fails for nothing that is watched.
            None => drop(self.epoll.change(fd, events, token.encode())),
        }
    }

    /// Tells of it no more; to be called before the descriptor is closed.
    pub fn forget(&mut self, fd: RawFd) {
        if self.watched.remove(&fd).is_some() && self.blind.remove(&fd).is_none() {
            // It fails for nothing that is watched.
            drop(self.epoll.remove(fd));
        }
    }

    pub fn after(&mut self, seconds: f64, call: Call) -> Timer {
        self.count += 1;
        self.set(self.count, seconds, Entry { call, anew_seconds: None });
        self.count
    }

    /// Calls once so much time has passed in which things ran here; see `after`.
    ///
    /// What is limited had none of the time that this process, and the machine with it, stood still. So it gets all of its time anew
    /// then; once, or whoever keeps this process busy would be let run on for ever.
    pub fn limit(&mut self, seconds: f64, call: Call) -> Timer {
        self.count += 1;
        self.set(self.count, seconds, Entry { call, anew_seconds: Some(seconds) });
        self.count
    }

    fn set(&mut self, timer: Timer, seconds: f64, entry: Entry) {
        let due = sys::now().saturating_add((seconds.max(0.0) * 1e9) as u64);
        self.timers.insert((due, timer), entry);
        self.due.insert(timer, due);
    }

    /// When it is called, in seconds of `now`.
    pub fn due_of(&self, timer: Timer) -> Option<f64> {
        self.due.get(&timer).map(|due| *due as f64 / 1e9)
    }

    pub fn cancel(&mut self, timer: Timer) {
        if let Some(due) = self.due.remove(&timer) {
            self.timers.remove(&(due, timer));
        }
    }

    /// Does not wait in the next turn.
    pub fn hurry(&mut self) {
        self.busy = true;
    }

    /// Waits for something to do.
    pub fn wait(&mut self, found: &mut Vec<Event>) {
        let patience = if std::mem::take(&mut self.busy) {
            Some(0)
        } else {
            // Rounded up: whoever wakes too early waits again.
            self.timers.keys().next().map(|(due, _)| milliseconds(due.saturating_sub(sys::now())))
        };
        self.epoll.wait(patience, found);
    }

    /// Now, if a call is due; then also what has happened before that time and was not found yet. Who stood still meanwhile does
    /// first what came in time.
    pub fn look(&mut self, found: &mut Vec<Event>) -> Option<u64> {
        let now = sys::now();
        self.timers.keys().next().filter(|(due, _)| *due <= now)?;
        self.epoll.wait(Some(0), found);
        Some(now)
    }

    pub fn token_of(event: Event) -> Token {
        Token::decode(event.data)
    }

    /// The next call whose time has come by then.
    pub fn due(&mut self, now: u64) -> Option<Call> {
        loop {
            let (due, timer) = *self.timers.keys().next().filter(|(due, _)| *due <= now)?;
            let entry = self.timers.remove(&(due, timer))?;
            self.due.remove(&timer);
            match entry.anew_seconds {
                Some(seconds) if now - due > (STOOD_STILL_SECONDS * 1e9) as u64 => {
                    self.set(timer, seconds, Entry { call: entry.call, anew_seconds: None });
                }
                _ => return Some(entry.call),
            }
        }
    }

    /// Those that epoll has no room for, as if all had happened to them.
    pub fn try_blindly(&mut self) -> Vec<(Token, u32)> {
        let mut ready = Vec::new();
        for (fd, (events, token)) in std::mem::take(&mut self.blind) {
            if self.epoll.add(fd, events, token.encode()).is_err() {
                ready.push((token, events));
                self.blind.insert(fd, (events, token));
            }
        }
        if !self.blind.is_empty() {
            self.after(BLIND_SECONDS, Call::TryBlindly);
        }
        ready
    }
}

/// Of nanoseconds, an hour at most.
fn milliseconds(nanoseconds: u64) -> i32 {
    ((nanoseconds.min(LONGEST_WAIT_NANOSECONDS) + 999_999) / 1_000_000) as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::io::AsRawFd;

    #[test]
    fn tokens_come_back() {
        for token in [
            Token::Listener,
            Token::Connection,
            Token::Children,
            Token::Output(7, 1),
            Token::Input(1 << 40),
            Token::Drain(9),
            Token::Newcomer(1 << 50),
            Token::Server(3),
            Token::Relayed(1 << 55 | 7),
            Token::RelayedListener(3128),
        ] {
            assert_eq!(Token::decode(token.encode()), token);
        }
    }

    #[test]
    fn a_wait_is_as_long_as_it_was_meant() {
        for (nanoseconds, expected) in
            [(0, 0), (1, 1), (1_000_000, 1), (3_000_000_000, 3000), (600_000_000_001, 600_001), (u64::MAX, 3_600_000)]
        {
            assert_eq!(milliseconds(nanoseconds), expected);
        }
    }

    #[test]
    fn calls_come_in_the_order_of_their_times() {
        let mut looper = EventLoop::new().unwrap();
        looper.after(0.002, Call::EndOn);
        looper.after(0.001, Call::HangUp);
        let cancelled = looper.after(0.0, Call::LookForUse);
        looper.cancel(cancelled);
        let later = sys::now() + 1_000_000_000;
        assert_eq!(looper.due(sys::now() - 1_000_000_000), None);
        assert_eq!(
            [looper.due(later), looper.due(later), looper.due(later)],
            [Some(Call::HangUp), Some(Call::EndOn), None]
        );
    }

    #[test]
    fn a_descriptor_is_told_of_until_it_is_forgotten() {
        let mut looper = EventLoop::new().unwrap();
        let (read, write) = sys::make_pipe().unwrap();
        looper.watch(read.as_raw_fd(), sys::EPOLLIN, Token::Input(5));
        sys::write_some(&write, b"x").unwrap();
        let mut found = Vec::new();
        looper.wait(&mut found);
        assert_eq!(EventLoop::token_of(found[0]), Token::Input(5));
        looper.forget(read.as_raw_fd());
        looper.hurry();
        looper.wait(&mut found);
        assert!(found.is_empty());
    }
}
