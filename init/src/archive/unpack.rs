//! An archive as a directory tree, whatever the archive says.
//!
//! A tree arrives in a directory of its own, beside or in its place; only when it is whole it is put there. Every name is opened by
//! itself from the top and no link on the way is followed, so neither an archive nor somebody who swaps directories meanwhile
//! brings a file out of that directory.

use std::collections::HashSet;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

use super::pack::open_below;
use super::tar::{Item, Kind, Member, Reader};
use super::{Trouble, MOST_PENDING_BYTES};
use crate::directory::{self, hidden_name, Names, RemoveTree};
use crate::paths::Place;
use crate::sys::{self, O_CREAT, O_EXCL, O_NOFOLLOW, O_WRONLY};

const NEW: i32 = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW;
const STEPS_A_TURN: usize = 32;
/// What a name that is remembered takes beside its bytes.
const NAME_BYTES: usize = 100;

/// A directory that arrived.
struct Arrived {
    name: Vec<u8>,
    mode: u32,
    mtime: i64,
    owner: (u32, u32),
}

/// Puts members below a directory.
struct Unpacker {
    top: OwnedFd,
    reader: Reader,
    /// Whether owners, all bits of modes and second names of files are taken.
    exact: bool,
    /// Directories that arrived: what is to be set when nothing is put into them any more.
    directories: Vec<Arrived>,
    names_bytes: usize,
    /// The directory that was opened last.
    parent: Option<(Vec<u8>, OwnedFd)>,
    file: Option<(Member, OwnedFd)>,
}

impl Unpacker {
    fn take(&mut self, mut member: Member) -> Result<(), Trouble> {
        let names = checked(&member.name)?;
        member.name = names.join(&b'/');
        let path = member.name.clone();
        let (last, above) = match names.split_last() {
            Some((last, above)) => (last.as_slice(), above),
            None if member.kind == Kind::Directory => return self.remember(&member),
            None => return Err(Trouble::hostile(b".", "is no directory")),
        };
        match member.kind {
            Kind::Directory => {
                self.make_directory(above, last).map_err(|error| refusal(error, &path))?;
                self.remember(&member)
            }
            Kind::File => {
                let opened = self.parent_of(above).and_then(|parent| sys::open_at(parent, last, NEW, 0o600));
                self.file = Some((member, opened.map_err(|error| refusal(error, &path))?));
                if self.reader.contents_left() == 0 {
                    self.end_file()?;
                }
                Ok(())
            }
            Kind::Link => {
                let exact = self.exact;
                let parent = self.parent_of(above).map_err(|error| refusal(error, &path))?;
                sys::make_link(&member.target, parent, last).map_err(|error| refusal(error, &path))?;
                if exact {
                    sys::own_name(parent, last, member.uid, member.gid).map_err(not_owned(&path))?;
                }
                sys::set_time(parent, last, member.mtime).map_err(|error| refusal(error, &path))
            }
            Kind::Fifo | Kind::Device => self.count(&path),
            Kind::HardLink if self.exact => self.second_name(&member.target, above, last, &path),
            Kind::HardLink => Err(Trouble::hostile(&path, "is a second name of a file, which is not taken")),
        }
    }

    /// Of a file that arrived before.
    fn second_name(&mut self, target: &[u8], above: &[Vec<u8>], last: &[u8], path: &[u8]) -> Result<(), Trouble> {
        let names = checked(target)?;
        let (old, holder) = names.split_last().ok_or_else(|| Trouble::hostile(path, "is another name of the top"))?;
        let missing = || Trouble::hostile(path, "is another name of what did not come before");
        let from = open_below(&self.top, &holder.join(&b'/')).map_err(|_| missing())?;
        let is_file = sys::stat_at(from.as_raw_fd(), old).map_or(false, |found| found.kind() == sys::S_IFREG);
        if !is_file {
            return Err(missing());
        }
        let to = self.parent_of(above).map_err(|error| refusal(error, path))?;
        sys::make_hard_link(from.as_raw_fd(), old, to, last).map_err(|error| refusal(error, path))
    }

    /// Gives something that is open its owner and, after that, since another owner takes bits of it, its mode.
    fn settle(&self, fd: &OwnedFd, name: &[u8], mode: u32, (uid, gid): (u32, u32)) -> Result<(), Trouble> {
        if self.exact {
            sys::own_open(fd, uid, gid).map_err(not_owned(name))?;
        }
        sys::set_mode(fd, if self.exact { mode } else { mode & 0o777 }).map_err(Trouble::os(name))
    }

    fn make_directory(&mut self, above: &[Vec<u8>], last: &[u8]) -> io::Result<()> {
        let parent = self.parent_of(above)?;
        match sys::make_directory(parent, last, 0o700) {
            // Made on the way to something in it, or announced twice. A file or a link there is refused.
            Err(error) if sys::number_of(&error) == sys::EEXIST => {
                sys::open_at(parent, last, directory::OPEN, 0).map(drop)
            }
            made => made,
        }
    }

    fn parent_of(&mut self, names: &[Vec<u8>]) -> io::Result<RawFd> {
        let path = names.join(&b'/');
        if let Some((_, fd)) = self.parent.as_ref().filter(|(known, _)| *known == path) {
            return Ok(fd.as_raw_fd());
        }
        let mut current = sys::open_at(self.top.as_raw_fd(), b".", directory::OPEN, 0)?;
        for name in names {
            let at = current.as_raw_fd();
            current = match sys::open_at(at, name, directory::OPEN, 0) {
                Err(error) if sys::number_of(&error) == sys::ENOENT => {
                    sys::make_directory(at, name, 0o755)?;
                    sys::open_at(at, name, directory::OPEN, 0)?
                }
                opened => opened?,
            };
        }
        Ok(self.parent.insert((path, current)).1.as_raw_fd())
    }

    fn write(&mut self, piece: &[u8]) -> Result<(), Trouble> {
        if let Some((member, fd)) = &self.file {
            // Zeros become a hole: a file full of them takes no place on one side, and must not fill the other's disk.
            let is_zero = piece.first() == Some(&0) && piece.last() == Some(&0) && piece.iter().all(|byte| *byte == 0);
            let written = if is_zero { sys::skip(fd, piece.len()) } else { sys::write_all(fd, piece) };
            written.map_err(Trouble::os(&member.name))?;
            if self.reader.contents_left() == 0 {
                self.end_file()?;
            }
        }
        Ok(())
    }

    fn end_file(&mut self) -> Result<(), Trouble> {
        if let Some((member, fd)) = self.file.take() {
            sys::set_size(&fd, member.size).map_err(Trouble::os(&member.name))?;
            self.settle(&fd, &member.name, member.mode, (member.uid, member.gid))?;
            sys::set_time_of(&fd, member.mtime).map_err(Trouble::os(&member.name))?;
        }
        Ok(())
    }

    fn remember(&mut self, member: &Member) -> Result<(), Trouble> {
        self.count(&member.name)?;
        let Member { mode, mtime, uid, gid, .. } = *member;
        self.directories.push(Arrived { name: member.name.clone(), mode, mtime, owner: (uid, gid) });
        Ok(())
    }

    fn count(&mut self, name: &[u8]) -> Result<(), Trouble> {
        self.names_bytes += name.len() + NAME_BYTES;
        if self.names_bytes > 4 * MOST_PENDING_BYTES {
            return Err(Trouble::hostile(name, "is one directory or special file too many"));
        }
        Ok(())
    }
}

/// The names of a path that stays below.
fn checked(name: &[u8]) -> Result<Vec<Vec<u8>>, Trouble> {
    if name.starts_with(b"/") {
        return Err(Trouble::hostile(name, "is an absolute path"));
    }
    let names: Vec<Vec<u8>> =
        name.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").map(<[u8]>::to_vec).collect();
    if names.iter().any(|part| part == b"..") {
        return Err(Trouble::hostile(name, "leads out of the tree"));
    }
    if name.is_empty() || name.contains(&0) || names.iter().any(|part| part.len() > 255) {
        return Err(Trouble::hostile(name, "can be no name of a file"));
    }
    Ok(names)
}

/// What is said where something cannot be given to somebody.
fn not_owned(name: &[u8]) -> impl FnOnce(io::Error) -> Trouble + '_ {
    move |error| match sys::number_of(&error) {
        sys::EINVAL => Trouble::Tree {
            member: name.to_vec(),
            reason: "owner",
            message: "is to belong to a user that this sandbox cannot have".to_owned(),
        },
        _ => Trouble::Os { member: name.to_vec(), error },
    }
}

fn refusal(error: io::Error, name: &[u8]) -> Trouble {
    match sys::number_of(&error) {
        sys::EEXIST => Trouble::hostile(name, "comes twice"),
        sys::ELOOP | sys::ENOTDIR => Trouble::hostile(name, "leads through something that is no directory"),
        _ => Trouble::Os { member: name.to_vec(), error },
    }
}

/// What is done with a tree that is whole.
enum Stage {
    Coming,
    /// Looking whether it fits what is there, or with `moves` putting it there.
    Walking(Walk),
    /// Directories get their modes and times: last, since a mode may forbid to put anything into them.
    Settling(HashSet<Vec<u8>>),
    Removing(RemoveTree),
    Over,
}

/// A visit of what arrived beside what is there.
struct Walk {
    moves: bool,
    /// Directories that both have.
    merged: Vec<Vec<u8>>,
    merged_bytes: usize,
    position: usize,
    current: Option<(Vec<u8>, Names, OwnedFd)>,
}

impl Walk {
    fn new(moves: bool) -> Walk {
        Walk { moves, merged: vec![Vec::new()], merged_bytes: 0, position: 0, current: None }
    }
}

/// A tree on its way to its place: a new directory, or one that it is merged into.
///
/// Files and links replace those of the same name; what else is there stays. A directory that is there keeps its mode, unless the
/// tree is to be exactly what was sent; its place does even then. Nothing is touched before the tree
/// is whole and fits: a directory is never put in place of a file or link, nor the other way round.
pub struct Arrival {
    holder: OwnedFd,
    last: Vec<u8>,
    name: Vec<u8>,
    unpacker: Unpacker,
    stage: Stage,
}

impl Arrival {
    /// The place `.` is that directory itself, which is merged into.
    pub fn new(place: Place, exact: bool) -> io::Result<Arrival> {
        let name = hidden_name();
        let holder = place.directory;
        sys::make_directory(holder.as_raw_fd(), &name, 0o700)?;
        let top = sys::open_at(holder.as_raw_fd(), &name, directory::OPEN, 0)?;
        let unpacker = Unpacker {
            top,
            reader: if exact { Reader::with_owners() } else { Reader::default() },
            exact,
            directories: Vec::new(),
            names_bytes: 0,
            parent: None,
            file: None,
        };
        Ok(Arrival { holder, last: place.name, name, unpacker, stage: Stage::Coming })
    }

    /// Takes a few entries of a piece, which is cut by them.
    pub fn feed(&mut self, data: &mut &[u8]) -> Result<(), Trouble> {
        for _ in 0..STEPS_A_TURN {
            match self.unpacker.reader.next_item(data)? {
                Some(Item::Member(member)) => self.unpacker.take(member)?,
                Some(Item::Contents(piece)) => self.unpacker.write(piece)?,
                None => break,
            }
        }
        Ok(())
    }

    /// All has come: puts it in its place, in bounded steps; true once that is done.
    pub fn finish(&mut self) -> Result<bool, Trouble> {
        for _ in 0..STEPS_A_TURN {
            let stage = std::mem::replace(&mut self.stage, Stage::Over);
            self.stage = match stage {
                Stage::Coming => {
                    self.unpacker.reader.finish()?;
                    self.unpacker.parent = None;
                    if self.last == b"." {
                        Stage::Walking(Walk::new(false))
                    } else {
                        Stage::Settling(HashSet::new())
                    }
                }
                Stage::Walking(walk) => self.walk(walk)?,
                Stage::Settling(merged) => self.settle(merged)?,
                Stage::Removing(mut removal) => {
                    if removal.step().map_err(Trouble::os(b""))? {
                        return Ok(true);
                    }
                    self.stage = Stage::Removing(removal);
                    return Ok(false);
                }
                Stage::Over => return Ok(true),
            };
        }
        Ok(false)
    }

    /// Gives up: removes what has not been put in its place, in bounded steps; true once that is done.
    pub fn abort(&mut self) -> bool {
        self.unpacker.parent = None;
        self.unpacker.file = None;
        let mut removal = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Removing(removal) => removal,
            _ => match self.removal() {
                Ok(removal) => removal,
                Err(_) => return true,
            },
        };
        // Somebody inside may hold on to it, and keeps it.
        let over = removal.step().unwrap_or(true);
        if !over {
            self.stage = Stage::Removing(removal);
        }
        over
    }

    fn removal(&self) -> io::Result<RemoveTree> {
        RemoveTree::new(sys::duplicate(&self.holder)?, &self.name)
    }

    fn walk(&self, mut walk: Walk) -> Result<Stage, Trouble> {
        if let Some((path, names, theirs)) = &mut walk.current {
            let next = names.next_name().map_err(Trouble::os(path))?;
            if let Some((name, _)) = next {
                let below = if path.is_empty() { name.clone() } else { [path, &b"/"[..], &name].concat() };
                if self.place(names.fd.as_raw_fd(), theirs.as_raw_fd(), &name, &below, walk.moves)? {
                    walk.merged_bytes += below.len();
                    if walk.merged_bytes > MOST_PENDING_BYTES {
                        let message = "is one directory too many to merge".to_owned();
                        return Err(Trouble::Tree { member: below, reason: "too_large", message });
                    }
                    walk.merged.push(below);
                }
            } else {
                walk.current = None;
            }
            return Ok(Stage::Walking(walk));
        }
        match walk.merged.get(walk.position).cloned() {
            Some(path) => {
                walk.position += 1;
                let opened = open_below(&self.unpacker.top, &path)
                    .and_then(|ours| open_below(&self.holder, &path).map(|theirs| (ours, theirs)));
                let (ours, theirs) = opened.map_err(Trouble::os(&path))?;
                walk.current = Some((path, Names::new(ours), theirs));
                Ok(Stage::Walking(walk))
            }
            None if walk.moves => Ok(Stage::Settling(walk.merged.into_iter().collect())),
            None => Ok(Stage::Walking(Walk::new(true))),
        }
    }

    /// Whether this is a directory on both sides; if not, its place is free or it is moved there.
    fn place(&self, ours: RawFd, theirs: RawFd, name: &[u8], below: &[u8], moves: bool) -> Result<bool, Trouble> {
        let is_directory = sys::stat_at(ours, name).map_err(Trouble::os(below))?.is_directory();
        let found = match sys::stat_at(theirs, name) {
            Ok(found) => Some(found.is_directory()),
            Err(error) if sys::number_of(&error) == sys::ENOENT => None,
            Err(error) => return Err(Trouble::Os { member: below.to_vec(), error }),
        };
        match (is_directory, found) {
            (true, Some(true)) => return Ok(true),
            (true, Some(false)) | (false, Some(true)) => {
                let number = if is_directory { sys::ENOTDIR } else { sys::EISDIR };
                return Err(Trouble::Os { member: below.to_vec(), error: io::Error::from_raw_os_error(number) });
            }
            _ => {}
        }
        if moves {
            sys::rename(ours, name, theirs, name).map_err(Trouble::os(below))?;
        }
        Ok(false)
    }

    fn settle(&mut self, merged: HashSet<Vec<u8>>) -> Result<Stage, Trouble> {
        let merging = self.last == b".";
        if let Some(Arrived { name: path, mode, mtime, owner }) = self.unpacker.directories.pop() {
            if !merged.contains(&path) || (self.unpacker.exact && !path.is_empty()) {
                let top = if merging { &self.holder } else { &self.unpacker.top };
                let fd = open_below(top, &path).map_err(Trouble::os(&path))?;
                self.unpacker.settle(&fd, &path, mode, owner)?;
                sys::set_time_of(&fd, mtime).map_err(Trouble::os(&path))?;
            }
            return Ok(Stage::Settling(merged));
        }
        if merging {
            return self.removal().map(Stage::Removing).map_err(Trouble::os(b""));
        }
        let holder = self.holder.as_raw_fd();
        sys::rename(holder, &self.name, holder, &self.last).map_err(Trouble::os(b""))?;
        Ok(Stage::Over)
    }
}
