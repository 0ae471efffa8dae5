//! A directory tree as an archive, in bounded steps, while others may change it. With its owners and all else that a layer of an image
//! has, if it is one.

use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

use super::sparse::Pieces;
use super::tar::{self, Kind, Member};
use super::{Trouble, MOST_PENDING_BYTES};
use crate::directory::{self, Names};
use crate::layer::pack as layer;
use crate::paths::is_of_the_kernel;
use crate::sys::{self, Stat, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK, O_RDONLY};

const PIECE_BYTES: usize = 256 << 10;
const ENTRIES_A_PIECE: usize = 64;
/// What holes and hard links may make the copy longer than the tree is on disk.
const MOST_SURPLUS_BYTES: u64 = 4 << 30;
const BLOCK_BYTES: u64 = 512;

/// A file on its way.
struct File {
    fd: OwnedFd,
    name: Vec<u8>,
    /// Of the piece that is coming.
    left: u64,
    /// Those that follow, the last one first: where they begin, and how long they are.
    pieces: Pieces,
    padding: usize,
}

/// The archive of what is in a directory. What disappears meanwhile is left out; links are not followed.
pub struct Packer {
    top: OwnedFd,
    begun: bool,
    over: bool,
    pending: Vec<Vec<u8>>,
    pending_bytes: usize,
    folder: Option<(Vec<u8>, Names)>,
    file: Option<File>,
    surplus: u64,
    /// Of a layer, or of a tree that is to be the same elsewhere: whose files are, all bits of modes, and which are one file.
    first_names: Option<layer::FirstNames>,
    is_layer: bool,
    /// Of one file, which `top` is.
    is_file: bool,
    /// Of one that lies still: whether files belong to whom they do.
    stored: Option<bool>,
}

impl Packer {
    pub fn new(top: OwnedFd) -> Packer {
        Packer {
            top,
            begun: false,
            over: false,
            pending: vec![Vec::new()],
            pending_bytes: 0,
            folder: None,
            file: None,
            surplus: 0,
            first_names: None,
            is_layer: false,
            is_file: false,
            stored: None,
        }
    }

    /// With owners, all bits of modes, and files of several names as one.
    pub fn exact(top: OwnedFd) -> Packer {
        Packer { first_names: Some(layer::FirstNames::default()), ..Packer::new(top) }
    }

    /// Of one file, in the same way. It is called `file`.
    pub fn exact_file(fd: OwnedFd) -> Packer {
        Packer { is_file: true, pending: Vec::new(), ..Packer::exact(fd) }
    }

    /// Of a directory that is a layer in the form of overlayfs, as images have them.
    pub fn of_layer(top: OwnedFd) -> Packer {
        Packer { is_layer: true, ..Packer::exact(top) }
    }

    /// Of one that a store of images keeps. The same files always make the same archive, so it has them in order, times in
    /// whole seconds, as stores keep them, and holes as zeros: where file systems have some is their own affair. Without
    /// `owners` all belongs to root.
    pub fn of_stored_layer(top: OwnedFd, owners: bool) -> Packer {
        Packer { stored: Some(owners), ..Packer::of_layer(top) }
    }

    /// The next bytes; `None` at the end.
    pub fn next_piece(&mut self) -> Result<Option<Vec<u8>>, Trouble> {
        if self.over {
            return Ok(None);
        }
        let mut out = Vec::new();
        if !self.begun {
            self.begun = true;
            if self.is_layer {
                let top = open_below(&self.top, b"").map_err(Trouble::os(b""))?;
                self.layer_directory(&top, b"", &mut out)?;
            } else if self.is_file {
                let fd = sys::duplicate(&self.top).map_err(Trouble::os(b""))?;
                let found = sys::stat_open(&fd).map_err(Trouble::os(b""))?;
                self.take_file(fd, &found, b"file".to_vec(), &mut out)?;
            } else {
                let found = sys::stat_open(&self.top).map_err(Trouble::os(b""))?;
                self.announce(member_of(b".", Kind::Directory, &found, Vec::new()), &found, &mut out)?;
            }
        }
        for _ in 0..ENTRIES_A_PIECE {
            if self.over || out.len() >= PIECE_BYTES {
                break;
            }
            self.step(&mut out)?;
        }
        Ok(Some(out))
    }

    fn step(&mut self, out: &mut Vec<u8>) -> Result<(), Trouble> {
        if self.file.is_some() {
            return self.go_on_with_file(out);
        }
        let next = match &mut self.folder {
            Some((path, names)) => names.next_name().map_err(Trouble::os(path))?,
            None => return self.next_folder(out),
        };
        match next {
            Some((name, _)) => self.entry(&name, out),
            None => {
                self.folder = None;
                Ok(())
            }
        }
    }

    fn next_folder(&mut self, out: &mut Vec<u8>) -> Result<(), Trouble> {
        let path = match self.pending.pop() {
            Some(path) => path,
            None => {
                out.extend_from_slice(&tar::END);
                self.over = true;
                return Ok(());
            }
        };
        self.pending_bytes -= path.len();
        match open_below(&self.top, &path) {
            Ok(fd) if path.is_empty() || !is_of_the_kernel(&fd) => {
                let names = if self.stored.is_some() { Names::sorted(fd) } else { Ok(Names::new(fd)) };
                let names = names.map_err(Trouble::os(&path))?;
                self.folder = Some((path, names));
            }
            Ok(_) => {}
            Err(error) if was_swapped(&error) => {}
            Err(error) => return Err(Trouble::Os { member: path, error }),
        }
        Ok(())
    }

    fn entry(&mut self, name: &[u8], out: &mut Vec<u8>) -> Result<(), Trouble> {
        let (below, folder) = match &self.folder {
            Some((path, names)) if path.is_empty() => (name.to_vec(), names.fd.as_raw_fd()),
            Some((path, names)) => ([path, &b"/"[..], name].concat(), names.fd.as_raw_fd()),
            None => return Ok(()),
        };
        if below.len() >= tar::LONGEST_NAME_BYTES {
            let message =
                format!("has a path of more than {} bytes, the most that can be copied", tar::LONGEST_NAME_BYTES);
            return Err(Trouble::Tree { member: below, reason: "too_large", message });
        }
        let described = sys::stat_at(folder, name).and_then(|found| match found.kind() {
            sys::S_IFLNK => Ok((found, sys::read_link(folder, name)?)),
            _ => Ok((found, Vec::new())),
        });
        let (found, target) = match described {
            Ok(described) => described,
            Err(error) if was_swapped(&error) => return Ok(()),
            Err(error) => return Err(Trouble::Os { member: below, error }),
        };
        match found.kind() {
            sys::S_IFDIR => {
                if self.is_layer {
                    match sys::open_at(folder, name, directory::OPEN, 0) {
                        Ok(fd) => self.layer_directory(&fd, &below, out)?,
                        Err(error) if was_swapped(&error) => return Ok(()),
                        Err(error) => return Err(Trouble::Os { member: below, error }),
                    }
                } else {
                    self.announce(member_of(&below, Kind::Directory, &found, target), &found, out)?;
                }
                self.pending_bytes += below.len();
                if self.pending_bytes > MOST_PENDING_BYTES {
                    let message = "is one directory too many to copy".to_owned();
                    return Err(Trouble::Tree { member: below, reason: "too_large", message });
                }
                self.pending.push(below);
                Ok(())
            }
            sys::S_IFREG => self.begin_file(folder, name, below, out),
            sys::S_IFLNK => self.announce(member_of(&below, Kind::Link, &found, target), &found, out),
            sys::S_IFCHR if self.is_layer && found.number == 0 => {
                out.extend(layer::whiteout(&below)?);
                Ok(())
            }
            kind if self.is_layer && kind != sys::S_IFIFO => Ok(()),
            _ => self.announce(member_of(&below, Kind::Fifo, &found, target), &found, out),
        }
    }

    fn layer_directory(&mut self, fd: &OwnedFd, path: &[u8], out: &mut Vec<u8>) -> Result<(), Trouble> {
        let found = sys::stat_open(fd).map_err(Trouble::os(path))?;
        let name: &[u8] = if path.is_empty() { b"." } else { path };
        let member = member_of(name, Kind::Directory, &found, Vec::new());
        self.announce(Member { attributes: layer::attributes(fd, path)?, ..member }, &found, out)?;
        out.extend(layer::opaqueness(fd, path)?);
        Ok(())
    }

    fn announce(&mut self, member: Member, found: &Stat, out: &mut Vec<u8>) -> Result<(), Trouble> {
        let first_names = match &mut self.first_names {
            Some(first_names) if self.is_layer => first_names,
            Some(_) => {
                let owned = Member { mode: found.permissions(), uid: found.uid, gid: found.gid, ..member };
                out.extend(tar::header(&owned));
                return Ok(());
            }
            None => {
                out.extend(tar::header(&member));
                return Ok(());
            }
        };
        layer::check(&member.name)?;
        let first = match member.kind {
            Kind::Link | Kind::Fifo => first_names.of(found, &member.name)?,
            _ => None,
        };
        let member = match first {
            Some(target) => Member { kind: Kind::HardLink, target, ..member },
            None => member,
        };
        let owner = if self.stored == Some(false) { (0, 0) } else { (found.uid, found.gid) };
        out.extend(layer::announced(member, found, owner, self.stored.is_some())?);
        Ok(())
    }

    fn begin_file(&mut self, folder: i32, name: &[u8], below: Vec<u8>, out: &mut Vec<u8>) -> Result<(), Trouble> {
        // Opening a FIFO, a device or a file with a lease on it must wait for nobody.
        let opened = sys::open_at(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0)
            .and_then(|fd| sys::stat_open(&fd).map(|found| (fd, found)));
        let (fd, found) = match opened {
            Ok((_, found)) if found.kind() != sys::S_IFREG => return Ok(()), // Somebody has put something else there.
            Ok(opened) => opened,
            Err(error) if was_swapped(&error) => return Ok(()),
            Err(error) => return Err(Trouble::Os { member: below, error }),
        };
        self.take_file(fd, &found, below, out)
    }

    fn take_file(&mut self, fd: OwnedFd, found: &Stat, below: Vec<u8>, out: &mut Vec<u8>) -> Result<(), Trouble> {
        let mut member = member_of(&below, Kind::File, found, Vec::new());
        let mut on_disk = found.size.min(found.blocks * BLOCK_BYTES);
        if let Some(first_names) = &mut self.first_names {
            if let Some(target) = first_names.of(found, &below)? {
                let member = Member { kind: Kind::HardLink, size: 0, target, ..member };
                return self.announce(member, found, out);
            }
            if self.is_layer {
                member.attributes = layer::attributes(&fd, &below)?;
            }
            if self.is_layer && self.stored.is_none() {
                member.pieces = layer::pieces(&fd, found, on_disk, &below)?;
            }
        } else {
            on_disk /= u64::from(found.links.max(1));
        }
        let mut pieces = member.pieces.clone().unwrap_or_else(|| vec![(0, found.size)]);
        let size: u64 = pieces.iter().map(|(_, length)| length).sum();
        self.surplus += size.saturating_sub(on_disk);
        if self.surplus > MOST_SURPLUS_BYTES && self.stored.is_none() {
            let most = MOST_SURPLUS_BYTES >> 30;
            let message =
                format!("is one file too many: holes and hard links would make the copy over {most} GiB longer");
            return Err(Trouble::Tree { member: below, reason: "too_large", message });
        }
        self.announce(member, found, out)?;
        if size > 0 {
            pieces.reverse();
            self.file = Some(File { fd, name: below, left: 0, pieces, padding: tar::padding(size) });
        }
        Ok(())
    }

    fn go_on_with_file(&mut self, out: &mut Vec<u8>) -> Result<(), Trouble> {
        if let Some(file) = &mut self.file {
            while file.left == 0 {
                match file.pieces.pop() {
                    Some((begin, length)) => {
                        sys::seek(&file.fd, begin).map_err(Trouble::os(&file.name))?;
                        file.left = length;
                    }
                    None => {
                        out.resize(out.len() + file.padding, 0);
                        self.file = None;
                        return Ok(());
                    }
                }
            }
            let size = file.left.min(PIECE_BYTES as u64) as usize;
            let begin = out.len();
            out.resize(begin + size, 0);
            let count = sys::read_some(&file.fd, &mut out[begin..]).map_err(Trouble::os(&file.name))?;
            out.truncate(begin + count);
            if count == 0 {
                let message = "became shorter while it was read".to_owned();
                return Err(Trouble::Tree { member: std::mem::take(&mut file.name), reason: "file", message });
            }
            file.left -= count as u64;
        }
        Ok(())
    }
}

/// Whether an entry has gone, or has become something else since it was looked at.
fn was_swapped(error: &io::Error) -> bool {
    matches!(sys::number_of(error), sys::ENOENT | sys::ENOTDIR | sys::ELOOP | sys::ENXIO)
}

fn member_of(name: &[u8], kind: Kind, found: &Stat, target: Vec<u8>) -> Member {
    Member {
        name: name.to_vec(),
        kind,
        mode: found.permissions() & 0o777,
        uid: 0,
        gid: 0,
        size: if kind == Kind::File { found.size } else { 0 },
        mtime: (found.modified_nanoseconds / 1_000_000_000) as i64,
        target,
        attributes: Vec::new(),
        pieces: None,
    }
}

/// A directory below another one, each name on the way opened by itself and no link followed.
pub fn open_below(top: &OwnedFd, path: &[u8]) -> io::Result<OwnedFd> {
    let mut current = sys::open_at(top.as_raw_fd(), b".", directory::OPEN, 0)?;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        current = sys::open_at(current.as_raw_fd(), name, directory::OPEN, 0)?;
    }
    Ok(current)
}
