//! What sockets hold on its way, which is memory of no process: a few hundred of them hold a GiB.
//!
//! The kernel tells it by netlink, for all sockets of a network namespace at once. Nobody inside can open such a socket.
//!
//! Of TCP and UDP all network namespaces of the machine have so much together, and so many connections that no process has any more and
//! whose last bytes nobody has taken: at that number the kernel resets each that is closed, anywhere.

use std::os::unix::io::OwnedFd;

use crate::limits::memory::parsed;
use crate::process_tree::Processes;
use crate::sys;

/// So many sockets are not looked at: most sandboxes have no more, and they hold some 40 MiB at most.
const FEW: u64 = 8;
const PIECE_BYTES: usize = 32 << 10;
/// At most so much is taken to be on its way from a Unix socket that was closed: it was that one's, and nothing tells it.
const HIDDEN_BYTES: u64 = 1 << 20;
/// So many that are in no table are not counted: sockets come and go while they are.
const UNSEEN: u64 = 16;
/// What one of TCP may keep of what had come before it was reset.
const RECEIVED_BYTES: u64 = 3 << 20;
/// What one of UDP may keep that was begun and never sent.
const BEGUN_BYTES: u64 = 64 << 10;
const PAGE_BYTES: u64 = 4096;
/// What a byte takes that was sent by itself.
const PACKET_BYTES: u64 = 1024;
const AF_UNIX: u8 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const TCP: u8 = 6;
const UDP: u8 = 17;
const HEAD_BYTES: usize = 16;
const DIAG_BY_FAMILY: u16 = 20;
const REQUEST_DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const UNIX_PEER: u16 = 2;
const UNIX_WAITING: u16 = 3;
const UNIX_LENGTHS: u16 = 4;
const UNIX_MEMORY: u16 = 5;
const INET_MEMORY: u16 = 7;
const DATAGRAM: u8 = 2;
const LISTENS: u8 = 10;
/// So many datagrams wait for one of them, of which the length of the first is told.
const QUEUE: u64 = 11;
/// FIN_WAIT1, FIN_WAIT2, LAST_ACK, CLOSING.
const CLOSING: [u8; 4] = [4, 5, 9, 11];
const INODE_AT: usize = 68;

/// Those of a sandbox, by the last look.
#[derive(Default)]
pub struct Sockets {
    pub bytes: u64,
    pub tcp_bytes: u64,
    pub udp_bytes: u64,
    /// Connections that no process has any more.
    pub orphans: u64,
    /// How many were told of.
    seen: u64,
    netlink: Option<OwnedFd>,
}

fn word(data: &[u8], at: usize) -> u64 {
    data.get(at..at + 4).map_or(0, |bytes| u64::from(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
}

fn half(data: &[u8], at: usize) -> u16 {
    data.get(at..at + 2).map_or(0, |bytes| u16::from_ne_bytes([bytes[0], bytes[1]]))
}

/// The request for all sockets of a kind.
fn request(family: u8, protocol: u8) -> Vec<u8> {
    let mut body = vec![family, protocol];
    if family == AF_UNIX {
        body.extend_from_slice(&[0, 0]);
        body.extend_from_slice(&u32::MAX.to_ne_bytes());
        body.extend_from_slice(&0_u32.to_ne_bytes());
        // Their peers, who waits to be accepted, their lengths and their memory.
        body.extend_from_slice(&0x3C_u32.to_ne_bytes());
        body.extend_from_slice(&[0; 8]);
    } else {
        body.extend_from_slice(&[0x40, 0]);
        body.extend_from_slice(&u32::MAX.to_ne_bytes());
        body.extend_from_slice(&[0; 48]);
    }
    let mut message = Vec::with_capacity(HEAD_BYTES + body.len());
    message.extend_from_slice(&((HEAD_BYTES + body.len()) as u32).to_ne_bytes());
    message.extend_from_slice(&DIAG_BY_FAMILY.to_ne_bytes());
    message.extend_from_slice(&REQUEST_DUMP.to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(&body);
    message
}

/// What is told of one socket.
struct Told<'a> {
    kind: u8,
    state: u8,
    inode: u64,
    attributes: Vec<(u16, &'a [u8])>,
}

impl Told<'_> {
    fn attribute(&self, kind: u16) -> Option<&[u8]> {
        self.attributes.iter().find(|(own, _)| *own == kind).map(|(_, value)| *value)
    }

    /// What it has received, what it has sent or queued, and its options; nothing of a connection of which the kernel keeps no more than
    /// its name.
    fn held(&self, memory: u16) -> Option<u64> {
        let told = self.attribute(memory).filter(|told| told.len() >= 32)?;
        Some(word(told, 0) + word(told, 8).max(word(told, 20)) + word(told, 24) + word(told, 28))
    }

    /// What waits for a Unix socket, or for who would accept a connection, and came from one that is closed.
    fn hidden(&self) -> u64 {
        if self.state == LISTENS {
            let waiting = self.attribute(UNIX_WAITING).unwrap_or(b"");
            return waiting.chunks_exact(4).filter(|peer| word(peer, 0) == 0).count() as u64 * HIDDEN_BYTES;
        }
        let lengths = self.attribute(UNIX_LENGTHS).filter(|lengths| lengths.len() >= 4);
        match lengths {
            Some(lengths) if self.attribute(UNIX_PEER).map_or(true, |peer| word(peer, 0) == 0) => {
                let length = word(lengths, 0) * if self.kind == DATAGRAM { QUEUE } else { 1 };
                length.max((length * PACKET_BYTES).min(HIDDEN_BYTES))
            }
            _ => 0,
        }
    }
}

/// Reads what is told in a piece of an answer; whether more follows.
fn read_piece(piece: &[u8], skipped: usize, mut each: impl FnMut(&Told<'_>)) -> bool {
    let mut at = 0;
    while at + HEAD_BYTES <= piece.len() {
        let length = word(piece, at) as usize;
        let kind = half(piece, at + 4);
        if matches!(kind, ERROR | DONE) || length < HEAD_BYTES {
            return false; // This kernel knows no sockets of the kind, or that was all.
        }
        let end = (at + length).min(piece.len());
        let body = &piece[at + HEAD_BYTES..end];
        let mut attributes = Vec::new();
        let mut place = skipped;
        while place + 4 <= body.len() {
            let size = usize::from(half(body, place));
            let value = body.get(place + 4..(place + size).min(body.len())).unwrap_or(b"");
            attributes.push((half(body, place + 2), value));
            place += ((size + 3) & !3).max(4);
        }
        let byte = |at: usize| body.get(at).copied().unwrap_or(0);
        each(&Told {
            kind: byte(1),
            state: if skipped == 16 { byte(2) } else { byte(1) },
            inode: word(body, INODE_AT),
            attributes,
        });
        at += (length + 3) & !3;
    }
    true
}

impl Sockets {
    pub fn new(netlink: Option<OwnedFd>) -> Sockets {
        if let Some(netlink) = &netlink {
            drop(sys::never_block(netlink));
        }
        Sockets { netlink, ..Sockets::default() }
    }

    /// Finds out what they hold.
    pub fn look(&mut self, processes: &Processes) {
        let netlink = self.netlink.take();
        *self = Sockets::new(netlink);
        let counts = processes.text("self/net/sockstat").unwrap_or_default();
        let count = number_in(&counts, b"sockets:", b"used");
        if self.netlink.is_none() || count <= FEW {
            return;
        }
        self.dump(AF_UNIX, 0);
        for family in [AF_INET, AF_INET6] {
            for protocol in [TCP, UDP] {
                self.dump(family, protocol);
            }
        }
        let (asking, bytes) = asked_for_routes(processes);
        self.bytes += bytes;
        self.add_unseen(&counts, count.saturating_sub(self.seen + asking + UNSEEN));
    }

    /// Of what is in no table any more the kernel tells how many there are, and what TCP holds on the whole machine.
    fn add_unseen(&mut self, counts: &[u8], unseen: u64) {
        let elsewhere = (number_in(counts, b"TCP:", b"mem") * PAGE_BYTES).saturating_sub(self.tcp_bytes);
        let received = elsewhere.min(unseen * RECEIVED_BYTES);
        self.tcp_bytes += received;
        self.bytes += received + unseen * BEGUN_BYTES;
    }

    fn dump(&mut self, family: u8, protocol: u8) {
        let netlink = match self.netlink.take() {
            Some(netlink) => netlink,
            None => return,
        };
        let (skipped, memory) = if family == AF_UNIX { (16, UNIX_MEMORY) } else { (72, INET_MEMORY) };
        let mut piece = vec![0; PIECE_BYTES];
        if sys::write_some(&netlink, &request(family, protocol)).is_ok() {
            while let Ok(count @ 1..) = sys::read_some(&netlink, &mut piece) {
                let more = read_piece(&piece[..count], skipped, |told| {
                    let held = told.held(memory);
                    self.seen += u64::from(held.is_some());
                    let hidden = if family == AF_UNIX { told.hidden() } else { 0 };
                    let bytes = held.unwrap_or(0) + hidden;
                    self.bytes += bytes;
                    match protocol {
                        TCP => self.tcp_bytes += bytes,
                        UDP => self.udp_bytes += bytes,
                        _ => {}
                    }
                    if protocol == TCP && held.is_some() && told.inode == 0 && CLOSING.contains(&told.state) {
                        self.orphans += 1;
                    }
                });
                if !more {
                    break;
                }
            }
        }
        self.netlink = Some(netlink);
    }
}

/// A number of a line of `sockstat`.
fn number_in(text: &[u8], line: &[u8], name: &[u8]) -> u64 {
    let line = text.split(|byte| *byte == b'\n').find(|own| own.starts_with(line)).unwrap_or(b"");
    let mut words = line.split(|byte| *byte == b' ').skip_while(|word| *word != name);
    words.nth(1).and_then(parsed).unwrap_or(0)
}

/// How many of netlink's own sockets there are, and what they hold: of those the kernel tells in a table.
fn asked_for_routes(processes: &Processes) -> (u64, u64) {
    let text = whole(processes, b"self/net/netlink");
    let fields = |line: &[u8]| -> u64 {
        line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).skip(4).take(2).filter_map(parsed).sum()
    };
    let lines = || text.split(|byte| *byte == b'\n').skip(1).filter(|line| !line.is_empty());
    (lines().count() as u64, lines().map(fields).sum())
}

/// A file of /proc of any length, as far as it can be read.
fn whole(processes: &Processes, path: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    let mut piece = vec![0; PIECE_BYTES];
    if let Ok(fd) = sys::open_at(processes.directory(), path, sys::O_RDONLY, 0) {
        while let Ok(count @ 1..) = sys::read_some(&fd, &mut piece) {
            text.extend_from_slice(&piece[..count]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_sockets() {
        let text = b"sockets: used 12\nTCP: inuse 3 orphan 0 tw 1 alloc 5 mem 70\nUDP: inuse 1 mem 4\n";
        assert_eq!(number_in(text, b"sockets:", b"used"), 12);
        assert_eq!((number_in(text, b"TCP:", b"mem"), number_in(text, b"UDP:", b"mem")), (70, 4));
        assert_eq!((number_in(text, b"RAW:", b"mem"), number_in(b"", b"TCP:", b"mem")), (0, 0));
    }

    #[test]
    fn a_long_table_is_read_whole() {
        let path = std::env::temp_dir().join(format!("aviato-table-{}", std::process::id()));
        std::fs::write(&path, vec![b'x'; 3 * PIECE_BYTES + 7]).unwrap();
        let read = whole(&Processes::new().unwrap(), path.to_str().unwrap().as_bytes());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read.len(), 3 * PIECE_BYTES + 7);
    }

    #[test]
    fn no_answer_of_the_kernel_can_be_read_amiss() {
        let mut random = 7_u64;
        let mut noise = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as u8
        };
        for size in 0..600 {
            let mut piece: Vec<u8> = (0..size).map(|_| noise()).collect();
            if size >= 4 {
                piece[..4].copy_from_slice(&(size as u32).to_ne_bytes());
            }
            for skipped in [16, 72] {
                read_piece(&piece, skipped, |told| {
                    told.held(UNIX_MEMORY);
                    told.hidden();
                });
            }
        }
    }
}
