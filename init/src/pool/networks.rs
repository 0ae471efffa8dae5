//! Network namespaces that one sandbox after the other can have.
//!
//! To make one and to take it apart costs the kernel a twentieth of a short command's processor time, most of it long after the sandbox is
//! gone, and next to none of these commands ever opens a socket. So a namespace whose sandbox has ended is given to the next one if it
//! cannot be told from a new one: no socket lives in it, and all that the kernel counts and lists of it is what it was when it was made.
//! Nobody inside has any capability in it, since it belongs to the zygote's user namespace: addresses, routes, rules and settings are as
//! they were made. Whatever else is seen, or cannot be seen, it goes and a new one is made.
//!
//! Only where the zygote may make network namespaces of its own (`CAP_SYS_ADMIN`); elsewhere each child has one with its clone.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::unix::io::OwnedFd;

use super::milliseconds_until;
use crate::sys::{self, AT_FDCWD, O_RDONLY, O_WRONLY};

/// Beyond these they go with their sandboxes.
const MOST_TAKEN: usize = 64;
const MOST_RESTING: usize = 24;
const SEEN_BYTES: usize = 32 << 10;
/// That a multicast group was joined and left is told about some turns of the kernel's clock later, and seen only then. And a closed
/// netlink socket, of which process 1 has one, is counted until the kernel's readers have gone by.
const REST_NANOSECONDS: u64 = 150_000_000;
const LONGEST_REST_NANOSECONDS: u64 = 1_000_000_000;
/// Where nobody asks for sandboxes none is held: each is some hundred KiB of the kernel's.
const KEPT_NANOSECONDS: u64 = 5_000_000_000;
/// For IPv4 the kernel keeps the ways that it found, and tells by netlink alone since when: with this all become invalid.
const FIRST_PORT: &[u8] = b"/proc/sys/net/ipv4/ip_unprivileged_port_start";
const ROUTES: &[u8] = b"/proc/sys/net/ipv4/route/flush";
/// Whether a socket of anybody's lives: its other lines count for the whole machine.
const SOCKETS_USED: &[u8] = b"/proc/self/net/sockstat";
const NO_SOCKET: &[u8] = b"sockets: used 0\n";
/// Packets and what became of them, and what a socket can leave behind without having sent any: to have looked for a way is enough for IPv6
/// to keep one for that processor, and some kernels count who looks for one of IPv4.
const SEEN: [&[u8]; 9] = [
    b"/proc/self/net/dev",
    b"/proc/self/net/snmp",
    b"/proc/self/net/snmp6",
    b"/proc/self/net/netstat",
    b"/proc/self/net/igmp",
    b"/proc/self/net/igmp6",
    b"/proc/self/net/ip6_flowlabel",
    b"/proc/self/net/rt6_stats",
    b"/proc/self/net/fib_triestat",
];

struct Network {
    fd: OwnedFd,
    ended: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Unknown,
    Possible,
    Impossible,
}

pub struct Networks {
    state: State,
    home: Option<OwnedFd>,
    entered: Option<Network>,
    taken: HashMap<i32, Network>,
    resting: VecDeque<Network>,
    /// What a new one looks like.
    of_new: Vec<u8>,
}

impl Default for Networks {
    fn default() -> Networks {
        Networks {
            state: State::Unknown,
            home: None,
            entered: None,
            taken: HashMap::new(),
            resting: VecDeque::new(),
            of_new: Vec::new(),
        }
    }
}

/// What a file has; nothing of one that this kernel lacks.
fn read(path: &[u8], room: usize) -> io::Result<Vec<u8>> {
    let fd = match sys::open_at(AT_FDCWD, path, O_RDONLY, 0) {
        Err(error) if sys::number_of(&error) == sys::ENOENT => return Ok(Vec::new()),
        opened => opened?,
    };
    let mut text = vec![0; room];
    let mut size = 0;
    loop {
        match sys::read_some(&fd, &mut text[size..])? {
            0 => break,
            count => size += count,
        }
        if size == room {
            return Err(io::Error::from_raw_os_error(sys::EFBIG));
        }
    }
    text.truncate(size);
    Ok(text)
}

fn has_sockets() -> bool {
    read(SOCKETS_USED, 1024).map_or(true, |text| !text.starts_with(NO_SOCKET))
}

fn forget_routes() -> io::Result<()> {
    match sys::open_at(AT_FDCWD, ROUTES, O_WRONLY, 0) {
        Err(error) if sys::number_of(&error) == sys::ENOENT => Ok(()),
        opened => sys::write_some(&opened?, b"-1").map(drop),
    }
}

fn see() -> io::Result<Vec<u8>> {
    let mut seen = Vec::new();
    for path in SEEN {
        seen.extend(read(path, SEEN_BYTES)?);
    }
    Ok(seen)
}

/// Makes a new one what programs expect: with a loopback that is up, and no port that is root's alone.
fn furnish() -> io::Result<()> {
    sys::raise_loopback()?;
    // The plan's `kernel_counts` says the same of one that belongs to its sandbox. Elsewhere ports below 1024 stay nobody's.
    if let Ok(first) = sys::open_at(AT_FDCWD, FIRST_PORT, O_WRONLY, 0) {
        drop(sys::write_some(&first, b"0"));
    }
    Ok(())
}

fn here() -> io::Result<OwnedFd> {
    sys::open_at(AT_FDCWD, b"/proc/self/ns/net", O_RDONLY, 0)
}

/// Is in a new one.
fn enter_new() -> io::Result<Network> {
    sys::leave_for_new(sys::CLONE_NEWNET)?;
    furnish()?;
    Ok(Network { fd: here()?, ended: 0 })
}

impl Networks {
    /// What a new one looks like, and whether there is a way back from it.
    fn begin(&mut self) -> bool {
        if self.state != State::Unknown {
            return self.state == State::Possible;
        }
        self.state = State::Impossible;
        let home = match here() {
            // In a user namespace that shares another's network there is no way back.
            Ok(home) if sys::enter_namespace(&home, sys::CLONE_NEWNET).is_ok() => home,
            _ => return false,
        };
        let made = enter_new();
        let seen = if made.is_ok() && !has_sockets() && forget_routes().is_ok() { see() } else { Ok(Vec::new()) };
        let is_home = sys::enter_namespace(&home, sys::CLONE_NEWNET).is_ok();
        if let (Ok(made), Ok(seen), true) = (made, seen, is_home) {
            if !seen.is_empty() {
                self.state = State::Possible;
                self.of_new = seen;
                self.home = Some(home);
                self.resting.push_back(made);
            }
        }
        self.state == State::Possible
    }

    /// Is in one that nobody has; false where that cannot be had.
    pub fn enter(&mut self) -> bool {
        if !self.begin() {
            return false;
        }
        while let Some(first) = self.resting.front() {
            let rested = sys::now().saturating_sub(first.ended);
            if rested < REST_NANOSECONDS {
                break;
            }
            let is_in = sys::enter_namespace(&first.fd, sys::CLONE_NEWNET).is_ok();
            let is_used = is_in && has_sockets();
            if is_used && rested < LONGEST_REST_NANOSECONDS {
                break;
            }
            let network = self.resting.pop_front();
            let is_as_new =
                is_in && !is_used && forget_routes().is_ok() && see().map_or(false, |seen| seen == self.of_new);
            if is_as_new {
                self.entered = network;
                return true;
            }
        }
        match enter_new() {
            Ok(network) => {
                self.entered = Some(network);
                true
            }
            Err(_) => {
                self.leave(0);
                false
            }
        }
    }

    /// Is at home again; what was entered is now a child's, or rests where there is none.
    pub fn leave(&mut self, pid: i32) {
        let home = match &self.home {
            Some(home) if self.state == State::Possible => home,
            _ => return,
        };
        if sys::enter_namespace(home, sys::CLONE_NEWNET).is_err() {
            // It went before; whatever has changed, no namespace is given twice from here on.
            self.state = State::Impossible;
        }
        if let Some(network) = self.entered.take() {
            if pid == 0 {
                self.rest(network);
            } else if self.taken.len() < MOST_TAKEN {
                self.taken.insert(pid, network);
            }
        }
    }

    fn rest(&mut self, network: Network) {
        if self.resting.len() < MOST_RESTING {
            self.resting.push_back(Network { ended: sys::now(), ..network });
        }
    }

    pub fn ended(&mut self, pid: i32) {
        if let Some(network) = self.taken.remove(&pid) {
            self.rest(network);
        }
    }

    pub fn expire(&mut self) -> Option<i32> {
        while let Some(first) = self.resting.front() {
            let until = first.ended + KEPT_NANOSECONDS;
            if until > sys::now() {
                return Some(milliseconds_until(until));
            }
            self.resting.pop_front();
        }
        None
    }
}
