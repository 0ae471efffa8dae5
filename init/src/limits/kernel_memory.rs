//! What the kernel holds for processes beside their memory: mappings, files, locks, pipes, epoll.
//!
//! A process that maps 65,000 pages by turns has 14 MiB of descriptions of them, and a set of epoll takes a quarter of a KiB for each
//! descriptor that it waits for. The kernel counts the latter for each user, too, so watches may have a limit of their own; and so may
//! filters of system calls, whose compiled forms all users of the machine have one store for.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

use crate::directory::Names;
use crate::limits::memory::number;
use crate::process_tree::Processes;
use crate::sys::{self, O_DIRECTORY, O_NONBLOCK, O_RDONLY, O_WRONLY};

const MAPPING_BYTES: u64 = 256;
/// An overlay opens a file twice.
const FILE_BYTES: u64 = 512;
/// Of a socket, a pipe or a file that has no name, without what is in it.
const NODE_BYTES: u64 = 2048;
/// Of an open file of /proc: the kernel keeps the text that it made for its reader.
const TEXT_BYTES: u64 = 32 << 10;
const LOCK_BYTES: u64 = 256;
/// Of the longest filter, as it came, as it is checked and as it is compiled.
const FILTER_BYTES: u64 = 160 << 10;
const WATCH_BYTES: u64 = 256;
const DESCRIPTORS_A_TURN: usize = 256;
/// So many times as long as a look took of the processor there is no other.
const REST: u64 = 4;
/// What fits into a pipe as it is made.
const PIPE_BYTES: u64 = 64 << 10;
const PIECE_BYTES: usize = 64 << 10;
const THREADS: &[u8] = b"\nThreads:";
const FILTERS: &[u8] = b"\nSeccomp_filters:";

/// What one process has.
#[derive(Default)]
struct Held {
    /// How long it had run.
    ran: u64,
    /// What is its own alone.
    alone_bytes: u64,
    /// Of all its sets of epoll.
    watches: u64,
    /// Of all its threads, without those that every command has.
    filters: u64,
    /// Its sockets, pipes and files without a name, by name; others may have them as well.
    nodes: HashSet<Vec<u8>>,
    /// What is in its pipes.
    piped: HashMap<Vec<u8>, u64>,
}

/// What is done next with a process that is looked at.
enum Part {
    Filters,
    Maps(Option<OwnedFd>),
    /// Descriptors at one of its places, and those places that are left.
    Descriptors(Option<(String, Names, bool)>, Vec<String>),
    Pipes(usize),
}

/// A process that is being looked at.
struct Look {
    pid: i32,
    held: Held,
    part: Part,
    pipes: Vec<(Vec<u8>, String)>,
    locks: u64,
}

/// Of all processes of a sandbox.
#[derive(Default)]
pub struct KernelMemory {
    /// Of all sets of epoll; one that many processes share counts for each of them.
    pub watches: u64,
    /// Of system calls; one that many threads share counts for each of them.
    pub filters: u64,
    /// So many does each command get beside those that process 1 has.
    pub given_filters: u64,
    /// By process; what many share is that of one of them.
    pub bytes: HashMap<i32, u64>,
    held: BTreeMap<i32, Held>,
    due: u64,
    usual_filters: Option<u64>,
    stale: Vec<i32>,
    look: Option<Look>,
    spent: u64,
}

impl KernelMemory {
    /// Begins to look at those who have run since they were looked at, if it is time; whether anything changed at once.
    pub fn begin(&mut self, ran: &BTreeMap<i32, u64>) -> bool {
        let before = self.held.len();
        self.held.retain(|pid, _| ran.contains_key(pid));
        let gone = self.held.len() < before;
        let is_stale = |(pid, spent): &(&i32, &u64)| self.held.get(pid).map_or(true, |held| held.ran != **spent);
        self.stale = ran.iter().filter(is_stale).map(|(pid, _)| *pid).collect();
        self.spent = 0;
        if self.stale.is_empty() || sys::now() < self.due {
            self.stale.clear();
            if gone {
                self.add_up();
            }
        }
        gone
    }

    /// Goes on; once all were looked at, whether there was any. With `all_of_it` false the kernel counts the memory, and only filters are looked for.
    pub fn step(
        &mut self,
        processes: &Processes,
        ran: &BTreeMap<i32, u64>,
        all_of_it: bool,
    ) -> io::Result<Option<bool>> {
        let began = sys::own_processor_time(); // Who waits for a processor meanwhile need not rest for it.
        let mut look = match self.look.take() {
            Some(look) => look,
            None => match self.stale.pop() {
                Some(pid) => {
                    let held = Held { ran: ran.get(&pid).copied().unwrap_or(0), ..Held::default() };
                    Look { pid, held, part: Part::Filters, pipes: Vec::new(), locks: 0 }
                }
                None => {
                    let any = self.spent > 0;
                    if any {
                        self.add_up();
                        self.due = sys::now() + REST * self.spent;
                        self.spent = 0;
                    }
                    return Ok(Some(any));
                }
            },
        };
        let over = self.go_on(&mut look, processes, all_of_it)?;
        if over {
            look.held.alone_bytes += look.held.watches * WATCH_BYTES + look.locks * LOCK_BYTES;
            self.held.insert(look.pid, look.held);
        } else {
            self.look = Some(look);
        }
        self.spent += sys::own_processor_time().saturating_sub(began).max(1);
        Ok(None)
    }

    fn add_up(&mut self) {
        let mut seen: HashSet<&[u8]> = HashSet::new();
        let mut bytes = HashMap::new();
        for (pid, held) in &self.held {
            let mut total = held.alone_bytes;
            for node in &held.nodes {
                if seen.insert(node) {
                    total += NODE_BYTES + held.piped.get(node).copied().unwrap_or(0);
                }
            }
            bytes.insert(*pid, total);
        }
        self.bytes = bytes;
        self.watches = self.held.values().map(|held| held.watches).sum();
        self.filters = self.held.values().map(|held| held.filters).sum();
    }

    /// Does a bounded part of it; true once the process was looked at whole.
    fn go_on(&mut self, look: &mut Look, processes: &Processes, all_of_it: bool) -> io::Result<bool> {
        let pid = look.pid;
        match &mut look.part {
            Part::Filters => {
                let (most, total) = self.filters_of(pid, processes);
                look.held.filters = total;
                if !all_of_it {
                    return Ok(true);
                }
                look.held.alone_bytes += most * FILTER_BYTES;
                look.part = Part::Maps(open(processes, &format!("{pid}/maps"))?);
                Ok(false)
            }
            Part::Maps(fd) => {
                let mut piece = vec![0; PIECE_BYTES];
                let count = fd.as_ref().map_or(0, |fd| sys::read_some(fd, &mut piece).unwrap_or(0));
                if count == 0 {
                    let mut places = processes.places(pid);
                    places.reverse();
                    look.part = Part::Descriptors(None, places);
                    return Ok(false);
                }
                let lines = piece[..count].iter().filter(|byte| **byte == b'\n').count() as u64;
                look.held.alone_bytes += lines * MAPPING_BYTES;
                Ok(false)
            }
            Part::Descriptors(current, places) => {
                let (place, mut names, mut any) = match current.take() {
                    Some(current) => current,
                    None => match places.pop() {
                        Some(place) => match open_directory(processes, &format!("{place}/fd"))? {
                            Some(fd) => (place, Names::new(fd), false),
                            None => return Ok(false),
                        },
                        None => {
                            look.part = Part::Pipes(0);
                            return Ok(false);
                        }
                    },
                };
                for _ in 0..DESCRIPTORS_A_TURN {
                    match names.next_name() {
                        Ok(Some((name, _))) => {
                            any = true;
                            let target = sys::read_link(names.fd.as_raw_fd(), &name).unwrap_or_default();
                            descriptor(
                                &mut look.held,
                                &mut look.pipes,
                                &mut look.locks,
                                processes,
                                (&place, &name, target),
                            )?;
                        }
                        // Its other threads show the same, if this one shows any.
                        Ok(None) | Err(_) => {
                            look.part =
                                if any { Part::Pipes(0) } else { Part::Descriptors(None, std::mem::take(places)) };
                            return Ok(false);
                        }
                    }
                }
                *current = Some((place, names, any));
                Ok(false)
            }
            Part::Pipes(at) => {
                let end = (*at + DESCRIPTORS_A_TURN).min(look.pipes.len());
                for (node, path) in &look.pipes[*at..end] {
                    look.held.piped.insert(node.clone(), in_pipe(processes, path)?);
                }
                *at = end;
                Ok(end == look.pipes.len())
            }
        }
    }

    /// How many the thread has that has most, and all threads together: each may have its own.
    fn filters_of(&mut self, pid: i32, processes: &Processes) -> (u64, u64) {
        let given = self.given_filters;
        let own = || number(&processes.text("self/status").unwrap_or_default(), FILTERS) + given;
        let usual = *self.usual_filters.get_or_insert_with(own);
        let text = processes.told(pid, "status").unwrap_or_default();
        let mut most = number(&text, FILTERS).saturating_sub(usual);
        let mut total = most;
        if number(&text, THREADS) > 1 {
            for place in processes.places(pid).iter().skip(1) {
                let text = processes.text(&format!("{place}/status")).unwrap_or_default();
                let found = number(&text, FILTERS).saturating_sub(usual);
                most = most.max(found);
                total += found;
            }
        }
        (most, total)
    }
}

/// Takes note of one descriptor: its place, its number and what it is of.
fn descriptor(
    held: &mut Held,
    pipes: &mut Vec<(Vec<u8>, String)>,
    locks: &mut u64,
    processes: &Processes,
    (place, name, target): (&str, &[u8], Vec<u8>),
) -> io::Result<()> {
    let name = String::from_utf8_lossy(name);
    held.alone_bytes += FILE_BYTES;
    if target.starts_with(b"socket:[") || target.starts_with(b"pipe:[") {
        if held.nodes.insert(target.clone()) && target.starts_with(b"pipe:[") {
            pipes.push((target, format!("{place}/fd/{name}")));
        }
    } else if target == b"anon_inode:[eventpoll]" {
        held.watches += count(processes, &format!("{place}/fdinfo/{name}"), b"tfd:")?;
    } else if target.starts_with(b"/proc/") {
        held.alone_bytes += TEXT_BYTES;
    } else if target.starts_with(b"/") {
        *locks += count(processes, &format!("{place}/fdinfo/{name}"), b"lock:")?;
        if target.starts_with(b"/memfd:") || target.ends_with(b" (deleted)") {
            held.alone_bytes += NODE_BYTES;
        }
    }
    Ok(())
}

/// A file of /proc; nothing of a process that is gone or hides it.
fn open(processes: &Processes, path: &str) -> io::Result<Option<OwnedFd>> {
    opened(sys::open_at(processes.directory(), path.as_bytes(), O_RDONLY | O_NONBLOCK, 0))
}

fn open_directory(processes: &Processes, path: &str) -> io::Result<Option<OwnedFd>> {
    opened(sys::open_at(processes.directory(), path.as_bytes(), O_RDONLY | O_DIRECTORY, 0))
}

fn opened(result: io::Result<OwnedFd>) -> io::Result<Option<OwnedFd>> {
    match result {
        Ok(fd) => Ok(Some(fd)),
        // The kernel has nothing left to open a file by.
        Err(error) if matches!(sys::number_of(&error), sys::EMFILE | sys::ENFILE | sys::ENOMEM) => Err(error),
        Err(_) => Ok(None),
    }
}

/// How often something is in a file of /proc.
fn count(processes: &Processes, path: &str, what: &[u8]) -> io::Result<u64> {
    let fd = match open(processes, path)? {
        Some(fd) => fd,
        None => return Ok(0),
    };
    let mut total = 0;
    let mut text: Vec<u8> = Vec::new();
    let mut piece = vec![0; PIECE_BYTES];
    while let Ok(size @ 1..) = sys::read_some(&fd, &mut piece) {
        text.extend_from_slice(&piece[..size]);
        total += text.windows(what.len()).filter(|part| *part == what).count() as u64;
        let keep = text.len().min(what.len() - 1);
        text.drain(..text.len() - keep);
    }
    Ok(total)
}

/// The pages that may lie in it: a byte that was written by itself may have one of its own.
///
/// It is opened to write: who reads meanwhile waits for the end a moment longer. With another reader, who writes to nobody would not be told.
fn in_pipe(processes: &Processes, path: &str) -> io::Result<u64> {
    let found = sys::open_at(processes.directory(), path.as_bytes(), O_WRONLY | O_NONBLOCK, 0);
    if matches!(&found, Err(error) if sys::number_of(error) == sys::ENXIO) {
        return Ok(PIPE_BYTES); // Nobody reads, so that nobody writes any more.
    }
    Ok(match opened(found)? {
        Some(fd) => (sys::unread_bytes(&fd) * 4096).min(sys::pipe_size(&fd).unwrap_or(0)),
        None => 0,
    })
}
