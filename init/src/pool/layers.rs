//! Writable layers that one sandbox after the other can have.
//!
//! A sandbox's root is an overlay: layers of its own above what all have in common. Its directories, the mount and their end are a tenth of
//! what a short command takes, and most of these commands write nothing there. So process 1 sends its root here when it has mounted it, before
//! anybody else is inside, and a sandbox whose layers are as they were made leaves them to the next one: the same mount, by the same id, below
//! another process 1. Whatever differs, or cannot be seen, it goes and the next one has a new one.
//!
//! What is written, removed or changed anywhere in the tree is first of all an entry in the upper directory. So that directory says it all: it
//! is empty, has no property but those that it was made with, and its times are set back. And no open file outlives its sandbox: where a socket
//! of its network is left, descriptors may be on their way in it, with their locks and what they count for.

use std::os::unix::io::{AsRawFd, OwnedFd};

use super::milliseconds_until;
use crate::sys::{self, DirectoryProperties, AT_FDCWD, O_DIRECTORY, O_NOATIME, O_NOFOLLOW, O_RDONLY};

/// Of those that live, too: beyond it the oldest is forgotten, and its layers go with it.
const MOST: usize = 64;
/// Longer than the server has one at hand, and than it takes to bury what is dead.
const KEPT_NANOSECONDS: u64 = 6_000_000_000;
const LOOK: i32 = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NOATIME;

struct Layer {
    number: u64,
    uid: u32,
    gid: u32,
    /// By which the root comes, until the sandbox is buried.
    sock: Option<OwnedFd>,
    /// The list of its network's Unix sockets, until then.
    sockets: Option<OwnedFd>,
    /// The root, from then on.
    mount: Option<OwnedFd>,
    /// As long as the sandbox lives.
    pid: i32,
    since: u64,
    modified_nanoseconds: i128,
    size: u64,
    blocks: u64,
}

#[derive(Default)]
pub struct Layers {
    all: Vec<Layer>,
    /// What an empty directory has that was made here; the first one tells.
    fresh: Option<DirectoryProperties>,
}

fn upper() -> Option<OwnedFd> {
    sys::open_at(AT_FDCWD, b"upper", LOOK, 0).ok()
}

fn names_in(fd: &OwnedFd) -> Option<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    while sys::read_names(fd, &mut names).ok()? {
        if names.len() > 1 {
            break; // It is not to be given away in any case.
        }
    }
    Some(names.into_iter().map(|(name, _)| name).collect())
}

/// Nothing but the line above all.
fn has_no_sockets(list: &OwnedFd) -> bool {
    let mut text = [0; 1024];
    match sys::read_from(list, &mut text, 0) {
        Ok(count @ 1..) => text[..count].iter().position(|byte| *byte == b'\n') == Some(count - 1),
        _ => false,
    }
}

/// The kernel copies there what it is about to put above; who is killed meanwhile might leave some of it.
fn has_unused_work() -> bool {
    match sys::open_at(AT_FDCWD, b"work/work", LOOK, 0) {
        // An ordinary user has no right to it, and nothing in it is ever shown.
        Err(error) => sys::number_of(&error) == sys::EACCES,
        // In one that is `volatile` there is a directory that says so. Others would be written to disk to be looked at.
        Ok(fd) => names_in(&fd).map_or(false, |names| names == [b"incompat".to_vec()]),
    }
}

fn has_own_note() -> bool {
    sys::stat_at(AT_FDCWD, b"note").map_or(false, |found| found.kind() == sys::S_IFREG && found.links == 1)
}

/// The kernel's own attributes alone, with which a new one begins as well.
fn has_no_attributes(fd: &OwnedFd) -> bool {
    match sys::attribute_names(fd) {
        Ok(names) => names.is_empty() || names == b"user.overlay.uuid\0",
        Err(_) => false,
    }
}

impl Layers {
    /// A sandbox has begun whose place is the current directory; its root comes by the socket.
    pub fn wait_for(&mut self, number: u64, pid: i32, (uid, gid): (u32, u32), sock: OwnedFd) {
        let upper = match upper() {
            Some(upper) => upper,
            None => return,
        };
        let found = match sys::stat_open(&upper) {
            Ok(found) => found,
            Err(_) => return,
        };
        self.fresh.get_or_insert_with(|| sys::directory_properties(&upper));
        if sys::never_block(&sock).is_err() {
            return;
        }
        if self.all.len() >= MOST {
            self.all.remove(0);
        }
        self.all.push(Layer {
            number,
            uid,
            gid,
            sock: Some(sock),
            sockets: sys::open_at(AT_FDCWD, format!("/proc/{pid}/net/unix").as_bytes(), O_RDONLY, 0).ok(),
            mount: None,
            pid,
            since: 0,
            modified_nanoseconds: found.modified_nanoseconds,
            size: found.size,
            blocks: found.blocks,
        });
    }

    pub fn ended(&mut self, pid: i32) {
        if let Some(layer) = self.all.iter_mut().find(|layer| layer.pid == pid) {
            layer.pid = 0;
            layer.since = sys::now();
        }
    }

    fn is_untouched(&self, layer: &Layer, fd: &OwnedFd) -> bool {
        let is_as_made = sys::stat_open(fd).map_or(false, |found| {
            found.mode == sys::S_IFDIR | 0o755
                && (found.uid, found.gid) == (layer.uid, layer.gid)
                && found.modified_nanoseconds == layer.modified_nanoseconds
                && (found.size, found.blocks) == (layer.size, layer.blocks)
        });
        let is_empty = || names_in(fd).map_or(false, |names| names.is_empty());
        let is_fresh = || self.fresh.as_ref().map_or(false, |fresh| sys::directory_properties(fd) == *fresh);
        if !(is_as_made && is_empty() && has_no_attributes(fd) && is_fresh()) {
            return false;
        }
        // When it was read last is what whoever reads it says, or sets, and when it was changed can be chosen, too: by trying until the clock
        // says what is wanted. The next one is to find nothing of that.
        sys::set_both_times(fd, layer.modified_nanoseconds).is_ok()
    }

    /// Whether another sandbox can have the layers of this one, which is dead and whose place is the current directory; else what held them.
    pub fn bury(&mut self, number: u64) -> Result<(), Option<OwnedFd>> {
        let at = self.all.iter().rposition(|layer| layer.number == number).ok_or(None)?;
        let mut layer = self.all.remove(at);
        let sock = match layer.sock.take() {
            Some(sock) => sock,
            None => return Err(layer.mount),
        };
        let has_none = layer.sockets.as_ref().map_or(false, has_no_sockets);
        let is_free = layer.pid == 0
            && has_none
            && has_own_note()
            && has_unused_work()
            && upper().map_or(false, |fd| self.is_untouched(&layer, &fd));
        if !is_free {
            return Err(Some(sock));
        }
        let came = sys::receive_message(&sock, &mut [0; 8]).ok().and_then(|(_, came)| came.into_iter().next());
        match came {
            None => Err(Some(sock)),
            Some(mount) => {
                layer.sockets = None;
                layer.mount = Some(mount);
                layer.since = sys::now();
                self.all.push(layer);
                Ok(())
            }
        }
    }

    /// The root that was kept of a sandbox.
    pub fn take(&mut self, number: u64) -> Option<OwnedFd> {
        let at = self.all.iter().rposition(|layer| layer.number == number && layer.mount.is_some())?;
        self.all.remove(at).mount
    }

    pub fn expire(&mut self) -> Option<i32> {
        let is_over = |layer: &Layer| layer.pid == 0 && layer.since + KEPT_NANOSECONDS <= sys::now();
        self.all.retain(|layer| !is_over(layer));
        let dead = self.all.iter().filter(|layer| layer.pid == 0);
        dead.map(|layer| milliseconds_until(layer.since + KEPT_NANOSECONDS)).min()
    }
}

/// Whether a disk has told nobody of an error that these layers had.
pub fn is_sound(mount: &OwnedFd) -> bool {
    sys::open_at(mount.as_raw_fd(), b".", O_RDONLY | O_DIRECTORY, 0).map_or(false, |fd| sys::synchronise(&fd).is_ok())
}
