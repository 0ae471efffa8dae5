//! Files and trees on their way in.

use std::collections::VecDeque;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

use super::Open;
use crate::archive::unpack::Arrival;
use crate::archive::Trouble;
use crate::directory::hidden_name;
use crate::errors::{Fields, Refused};
use crate::event_loop::EventLoop;
use crate::frames::{self, Head};
use crate::idempotency::Again;
use crate::json::{object, Value};
use crate::limits::disk::Disk;
use crate::paths::{find_place, open_path, Place, Whose, DIRECTORY};
use crate::process_tree::Step;
use crate::shared_memory;
use crate::supervisor::{Job, Supervisor};
use crate::sys::{self, AT_FDCWD, O_CREAT, O_EXCL, O_NOFOLLOW, O_PATH, O_WRONLY};

/// A quarter of what a server sends ahead; each wakes it.
const CREDIT_BYTES: u64 = 256 << 10;
/// Of the old file: one that lies below the writable layer is copied there when names are exchanged, so it must not be large.
const MOST_EXCHANGED_BYTES: u64 = 4 << 20;
const BLOCK_BYTES: u64 = 512;

/// A file on its way in: written beside its place, renamed over it when it is whole.
pub struct Upload {
    path: Vec<u8>,
    place: Place,
    written: u64,
    temporary: Option<Vec<u8>>,
    fd: OwnedFd,
    mode: u32,
    /// Holds the file that was there: the kernel takes its time to give up what it had.
    _replaced: Option<OwnedFd>,
}

impl Upload {
    fn new(path: &[u8], mode: Option<u32>, disk: &mut Disk, looper: &mut EventLoop) -> Result<Upload, Refused> {
        disk.take(path, 0, looper)?;
        let refused = |error: io::Error| disk.error_of(path, &error);
        let place = find_place(path).map_err(refused)?;
        let at = place.directory.as_raw_fd();
        let before = match sys::stat_at(at, &place.name) {
            Ok(found) if found.is_directory() => return Err(refused(io::Error::from_raw_os_error(sys::EISDIR))),
            Ok(found) if found.kind() != sys::S_IFREG => {
                return Err(Refused::file(path, "not_a_regular_file", "Not a regular file"));
            }
            Ok(found) => Some(found.permissions()),
            Err(error) if sys::number_of(&error) == sys::ENOENT => None,
            Err(error) => return Err(refused(error)),
        };
        let temporary = hidden_name();
        let fd = sys::open_at(at, &temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600).map_err(refused)?;
        let mode = mode.or(before).unwrap_or(0o644);
        let temporary = Some(temporary);
        Ok(Upload { path: path.to_vec(), place, written: 0, temporary, fd, mode, _replaced: None })
    }

    fn take(&mut self, piece: &[u8], disk: &mut Disk, looper: &mut EventLoop) -> Result<(), Refused> {
        disk.take(&self.path, piece.len() as u64, looper)?;
        sys::write_all(&self.fd, piece).map_err(|error| disk.error_of(&self.path, &error))?;
        self.written += piece.len() as u64;
        Ok(())
    }

    /// Nothing more of it comes.
    fn discard(self, disk: &mut Disk) {
        if self.temporary.is_some() {
            disk.give_back(self.written);
        }
    }

    /// All has come: so many bytes, if that is known.
    fn put_in_place(&mut self, size: Option<u64>, disk: &mut Disk) -> Result<(), Refused> {
        if let Some(size) = size.filter(|size| *size != self.written) {
            let message = format!("{} bytes arrived where {size} were announced", self.written);
            return Err(Refused::file(&self.path, "file", message));
        }
        let temporary = match &self.temporary {
            Some(temporary) => temporary,
            None => return Ok(()),
        };
        let at = self.place.directory.as_raw_fd();
        let name = &self.place.name;
        let old = sys::stat_at(at, name).map_or(0, |found| found.blocks * BLOCK_BYTES);
        disk.give_back(old);
        let refused = |error: io::Error| disk.error_of(&self.path, &error);
        sys::set_mode(&self.fd, self.mode).map_err(refused)?;
        if old > 0 {
            self._replaced = sys::open_at(at, name, O_PATH | O_NOFOLLOW, 0).ok();
        }
        if !(0 < old && old <= MOST_EXCHANGED_BYTES && self.exchange(temporary)) {
            sys::rename(at, temporary, at, name).map_err(refused)?;
        }
        self.temporary = None;
        Ok(())
    }

    /// Puts it in the place of another file, in one step, as a rename does; false where that is left to it.
    ///
    /// A rename over a file has ext4 write the new one to disk first, for the sake of programs that do not: four times as long as
    /// all the rest of a MiB takes. When two names are exchanged it does not.
    fn exchange(&self, temporary: &[u8]) -> bool {
        let at = self.place.directory.as_raw_fd();
        if sys::exchange(at, temporary, &self.place.name).is_err() {
            return false;
        }
        match sys::unlink(at, temporary) {
            Ok(()) => true,
            // Somebody inside has removed it.
            Err(error) if sys::number_of(&error) == sys::ENOENT => true,
            Err(_) => {
                // It was no file any more, but a directory that somebody inside has put there.
                drop(sys::exchange(at, temporary, &self.place.name));
                false
            }
        }
    }
}

impl Drop for Upload {
    /// Leaves things as they were, if they are not as they should be.
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            drop(sys::unlink(self.place.directory.as_raw_fd(), temporary));
        }
    }
}

enum Kind {
    Whole(Upload),
    /// One part of a file. What has come of it stays when it is cut off, if the file has several.
    Part {
        key: Vec<u8>,
        upload: Option<Upload>,
        offset: u64,
        position: u64,
        last: bool,
        single: bool,
    },
    /// What was done already comes again, and means nothing.
    Repeated {
        taken: u64,
    },
}

/// A file that comes in.
pub struct Incoming {
    kind: Kind,
    size: Option<u64>,
    credited: u64,
    /// In which its bytes lie once the end has come.
    memory: Option<OwnedFd>,
}

impl Incoming {
    /// A further piece; how much has been taken, where the server is to be told.
    pub fn data(&mut self, piece: &[u8], disk: &mut Disk, looper: &mut EventLoop) -> Result<Option<u64>, Refused> {
        let taken = match &mut self.kind {
            Kind::Whole(upload) => {
                upload.take(piece, disk, looper)?;
                upload.written
            }
            Kind::Repeated { taken } => {
                *taken += piece.len() as u64;
                *taken
            }
            Kind::Part { upload: place, offset, position, .. } => {
                let upload = match place {
                    Some(upload) => upload,
                    None => return Ok(None),
                };
                if *position > upload.written {
                    let message = format!("offset {position} leaves a gap after {}", upload.written);
                    return Err(Refused::invalid(message));
                }
                let known = (upload.written - *position).min(piece.len() as u64);
                if let Err(refused) = upload.take(&piece[known as usize..], disk, looper) {
                    // What does not fit need not wait for more.
                    if let Some(upload) = place.take() {
                        upload.discard(disk);
                    }
                    return Err(refused);
                }
                *position += piece.len() as u64;
                *position - *offset
            }
        };
        if taken - self.credited < CREDIT_BYTES {
            return Ok(None);
        }
        self.credited = taken;
        Ok(Some(taken))
    }

    /// All has come in; the key of what is done by that.
    pub fn end(&mut self, disk: &mut Disk, looper: &mut EventLoop) -> Result<Option<Vec<u8>>, Refused> {
        if let Some(memory) = self.memory.take() {
            let size = self.size.unwrap_or(0);
            shared_memory::take(&memory, size, |piece| self.data(piece, disk, looper).map(drop))?;
        }
        match &mut self.kind {
            Kind::Repeated { .. } => Ok(None),
            Kind::Whole(upload) => upload.put_in_place(self.size, disk).map(|()| None),
            Kind::Part { upload: None, .. } => {
                // What came later may be a copy that a proxy made, so that this is the one whose caller waits: he asks again.
                Err(Refused::unavailable("replaced", "the same part came again on another connection", true))
            }
            Kind::Part { key, upload: Some(upload), offset, position, last, single } => {
                let arrived = *position - *offset;
                if let Some(size) = self.size.filter(|size| *size != arrived) {
                    let message = format!("{arrived} bytes arrived where {size} were announced");
                    return Err(Refused::invalid(message));
                }
                if !*last {
                    return Ok(None);
                }
                *single = true; // Whether it gets to its place or not, nothing of it waits for more.
                upload.put_in_place(Some(*position), disk)?;
                Ok(Some(key.clone()))
            }
        }
    }

    /// The request is over, whole or not.
    pub fn close(self, again: &mut Again, disk: &mut Disk, looper: &mut EventLoop) {
        match self.kind {
            Kind::Whole(upload) => upload.discard(disk),
            Kind::Part { key, upload: Some(upload), single, .. } => {
                again.coming.remove(&key);
                if single {
                    upload.discard(disk);
                } else {
                    again.put(&key, upload, looper);
                }
            }
            _ => {}
        }
    }
}

/// A tree on its way in, as an archive. What has arrived is worked off by a job, a few entries a turn.
pub struct TreeUpload {
    path: Vec<u8>,
    channel: u16,
    key: Option<Vec<u8>>,
    arrival: Option<Arrival>,
    pieces: VecDeque<Vec<u8>>,
    /// How much of the first piece is worked off.
    position: usize,
    taken: u64,
    credited: u64,
    ended: bool,
    closed: bool,
    busy: bool,
    /// Why it cannot be done; that is said once nothing of it is left.
    refused: Option<Refused>,
}

/// How far a tree has come.
enum Come {
    More,
    /// It waits for the server.
    Waits,
    Whole,
    Gone,
}

impl TreeUpload {
    fn step(&mut self) -> Result<Come, Trouble> {
        let arrival = match &mut self.arrival {
            Some(arrival) => arrival,
            None => return Ok(Come::Gone),
        };
        if self.closed {
            return Ok(if arrival.abort() { Come::Gone } else { Come::More });
        }
        if let Some(piece) = self.pieces.front() {
            let mut rest = &piece[self.position..];
            let before = rest.len();
            arrival.feed(&mut rest)?;
            let used = before - rest.len();
            self.position += used;
            self.taken += used as u64;
            if rest.is_empty() {
                self.pieces.pop_front();
                self.position = 0;
            }
            return Ok(Come::More);
        }
        if !self.ended {
            return Ok(Come::Waits);
        }
        Ok(if arrival.finish()? { Come::Whole } else { Come::More })
    }
}

struct WorkOff(u64);

impl Job for WorkOff {
    fn step(&mut self, supervisor: &mut Supervisor) -> Step {
        let tree = match supervisor.trees.get_mut(&self.0) {
            Some(tree) => tree,
            None => return Step::Done,
        };
        let channel = tree.channel;
        if let Some(piece) = tree.pieces.front().filter(|_| tree.position == 0 && !tree.closed) {
            let taken = supervisor.watch.disk.take(&tree.path, piece.len() as u64, &mut supervisor.looper);
            if let Err(refused) = taken {
                tree.closed = true;
                tree.refused = Some(refused);
                return Step::Again;
            }
        }
        match tree.step() {
            Ok(Come::More) => {
                let taken = tree.taken;
                if !tree.closed && taken - tree.credited >= CREDIT_BYTES {
                    tree.credited = taken;
                    supervisor.send(Head { offset: taken, ..Head::of(frames::CREDIT, channel) }, b"");
                }
                return Step::Again;
            }
            Ok(Come::Waits) => tree.busy = false,
            Ok(Come::Whole) => {
                tree.arrival = None;
                let key = tree.key.take();
                supervisor.again.done(key.as_deref());
                supervisor.reply(channel, &object([]));
                supervisor.trees.remove(&self.0);
            }
            Ok(Come::Gone) => {
                if let Some(refused) = supervisor.trees.remove(&self.0).and_then(|tree| tree.refused) {
                    supervisor.refuse(channel, &refused);
                }
            }
            Err(trouble) => {
                let refused = match &trouble {
                    Trouble::Os { error, .. } if sys::number_of(error) == sys::ENOSPC => {
                        supervisor.watch.disk.error_of(&tree.path, error)
                    }
                    trouble => trouble.refusal(&tree.path),
                };
                tree.closed = true;
                tree.refused = Some(refused);
                return Step::Again;
            }
        }
        Step::Done
    }
}

/// Where a tree is put: into a directory that is there, or beside what a path names.
fn place_of_tree(path: &[u8]) -> io::Result<Place> {
    match open_path(path, DIRECTORY, AT_FDCWD, Whose::TheSandboxs) {
        Ok(directory) => Ok(Place { directory, name: b".".to_vec() }),
        Err(error) if sys::number_of(&error) == sys::ENOENT => {
            let mut path = path;
            while path.ends_with(b"/") || path.ends_with(b"/.") {
                path = &path[..path.len() - 1];
            }
            find_place(path)
        }
        Err(error) => Err(error),
    }
}

impl Supervisor {
    pub fn begin_write(&mut self, channel: u16, fields: &Fields<'_>) -> Result<(), Refused> {
        let path = &self.path_in(fields)?[..];
        fields.value("mode")?;
        let mode = fields.size_or_none("mode")?.map(|mode| mode as u32 & 0o7777);
        let size = fields.size_or_none("size")?;
        let memory = match fields.0.get("memory") {
            None | Some(Value::Null) => None,
            Some(_) => Some(self.memory_of(fields)?.ok_or_else(shared_memory::none_came)?),
        };
        let kind = match fields.text_or_none("key")? {
            None => Kind::Whole(Upload::new(path, mode, &mut self.watch.disk, &mut self.looper)?),
            Some(key) if self.again.is_done(Some(key)) => Kind::Repeated { taken: 0 },
            Some(key) => {
                let (offset, last) = (fields.size("offset")?, fields.flag("last")?);
                self.take_from_others(key);
                let upload = match self.again.take(key, offset, &mut self.looper)? {
                    Some(upload) => upload,
                    None => Upload::new(path, mode, &mut self.watch.disk, &mut self.looper)?,
                };
                self.again.coming.insert(key.to_vec(), channel);
                let single = last && offset == 0;
                Kind::Part { key: key.to_vec(), upload: Some(upload), offset, position: offset, last, single }
            }
        };
        self.open.insert(channel, Open::Incoming(Incoming { kind, size, credited: 0, memory }));
        Ok(())
    }

    /// What an earlier request of this key has goes to the one that comes now.
    fn take_from_others(&mut self, key: &[u8]) {
        let channel = match self.again.coming.remove(key) {
            Some(channel) => channel,
            None => return,
        };
        if let Some(Open::Incoming(Incoming { kind: Kind::Part { upload, single, .. }, .. })) =
            self.open.get_mut(&channel)
        {
            if let Some(upload) = upload.take().filter(|_| !*single) {
                self.again.put(key, upload, &mut self.looper);
            }
        }
    }

    pub fn begin_write_tree(&mut self, channel: u16, fields: &Fields<'_>) -> Result<(), Refused> {
        let path = self.path_in(fields)?;
        let key = fields.text_or_none("key")?;
        let exact = fields.flag_or("exact", Some(false))?;
        if self.again.is_done(key) {
            let incoming = Incoming { kind: Kind::Repeated { taken: 0 }, size: None, credited: 0, memory: None };
            self.open.insert(channel, Open::Incoming(incoming));
            return Ok(());
        }
        self.watch.disk.take(&path, 0, &mut self.looper)?;
        let disk = &self.watch.disk;
        let arrival = place_of_tree(&path).and_then(|place| Arrival::new(place, exact));
        let arrival = arrival.map_err(|error| disk.error_of(&path, &error))?;
        let number = self.next_number();
        let tree = TreeUpload {
            path,
            channel,
            key: key.map(<[u8]>::to_vec),
            arrival: Some(arrival),
            pieces: VecDeque::new(),
            position: 0,
            taken: 0,
            credited: 0,
            ended: false,
            closed: false,
            busy: false,
            refused: None,
        };
        self.trees.insert(number, tree);
        self.open.insert(channel, Open::Tree(number));
        Ok(())
    }

    /// A further piece of a tree; `None`: all has come.
    pub(super) fn feed_tree(&mut self, number: u64, piece: Option<&[u8]>) {
        if let Some(tree) = self.trees.get_mut(&number) {
            match piece {
                Some(piece) => tree.pieces.push_back(piece.to_vec()),
                None => tree.ended = true,
            }
        }
        self.work_off(number);
    }

    /// Its request is over: what has not been put in its place goes.
    pub(super) fn close_tree(&mut self, number: u64) {
        if let Some(tree) = self.trees.get_mut(&number) {
            tree.closed = true;
        }
        self.work_off(number);
    }

    fn work_off(&mut self, number: u64) {
        if let Some(tree) = self.trees.get_mut(&number) {
            if !std::mem::replace(&mut tree.busy, true) {
                self.start_job(Box::new(WorkOff(number)));
            }
        }
    }
}
