//! One file of a layer: its contents, extended attributes and owner.

use std::io;
use std::os::unix::io::OwnedFd;

use super::unpack::too_large;
use crate::archive::tar::Member;
use crate::archive::Trouble;
use crate::sys;

/// Bits of a mode beside permissions.
pub const SPECIAL: u32 = 0o7000;
/// Zeros of such a length, where they begin at a multiple of it, become a hole.
const HOLE_BYTES: u64 = 64 << 10;
const FREE_BYTES: u64 = 1 << 20;

/// A file that is coming.
pub struct File {
    member: Member,
    fd: OwnedFd,
    /// How much has come; of a file with holes, of the piece that is coming.
    offset: u64,
    piece: usize,
    written: Written,
}

/// What of a file was written, and is no hole.
#[derive(Default)]
struct Written {
    bytes: u64,
    end: u64,
}

impl File {
    /// The mode that it is made with. It gets another one where it has to be written to again first, and where an owner takes bits away.
    pub fn first_mode(member: &Member) -> u32 {
        if member.mode & SPECIAL == 0 && member.attributes.is_empty() {
            member.mode
        } else {
            0o600
        }
    }

    pub fn new(member: Member, fd: OwnedFd) -> File {
        File { member, fd, offset: 0, piece: 0, written: Written::default() }
    }

    /// The next bytes of the archive's.
    pub fn write(&mut self, data: &[u8]) -> Result<(), Trouble> {
        self.place(data).map_err(Trouble::os(&self.member.name))
    }

    fn place(&mut self, mut data: &[u8]) -> io::Result<()> {
        let pieces = match &self.member.pieces {
            Some(pieces) => pieces,
            None => {
                put_contents(&self.fd, data, self.offset, &mut self.written)?;
                self.offset += data.len() as u64;
                return Ok(());
            }
        };
        while let Some((start, length)) = pieces.get(self.piece) {
            let (now, rest) = data.split_at((length - self.offset).min(data.len() as u64) as usize);
            put_contents(&self.fd, now, start + self.offset, &mut self.written)?;
            self.offset += now.len() as u64;
            data = rest;
            if self.offset < *length {
                break;
            }
            self.piece += 1;
            self.offset = 0;
        }
        Ok(())
    }

    /// All has come; says how many bytes of it take place on the disk. A change of owner takes bits of the mode, and either forbids
    /// writing.
    pub fn finish(self, owners: Option<(u32, u32)>) -> Result<u64, Trouble> {
        let File { member, fd, written, .. } = self;
        set_attributes(&fd, &member.name, &member.attributes)?;
        let finish = || {
            let is_owned = is_given((member.uid, member.gid), owners, |uid, gid| sys::own_open(&fd, uid, gid))?;
            if written.end != member.size {
                sys::set_size(&fd, member.size)?;
            }
            if File::first_mode(&member) != member.mode {
                sys::set_mode(&fd, if is_owned { member.mode } else { member.mode & !SPECIAL })?;
            }
            sys::set_time_of(&fd, member.mtime)
        };
        finish().map_err(Trouble::os(&member.name))?;
        Ok(written.bytes.min(member.size))
    }
}

/// Gives what is open those attributes that are taken.
pub fn set_attributes(fd: &OwnedFd, path: &[u8], attributes: &[(Vec<u8>, Vec<u8>)]) -> Result<(), Trouble> {
    for (name, value) in attributes.iter().filter(|(name, _)| is_kept(name)) {
        match sys::set_attribute(fd, name, value) {
            Err(error) if sys::number_of(&error) == sys::EOPNOTSUPP => {}
            Err(error) if has_no_room(&error, fd) => {
                let message = "has an extended attribute that this file system has no room for".to_owned();
                return Err(too_large(path, message));
            }
            result => result.map_err(Trouble::os(path))?,
        }
    }
    Ok(())
}

/// Whether an extended attribute is taken: what overlayfs reads would let a layer reach what is not its own.
pub fn is_kept(name: &[u8]) -> bool {
    name.starts_with(b"user.") && !name.starts_with(b"user.overlay.") && name.len() <= 255 && !name.contains(&0)
}

fn has_no_room(error: &io::Error, fd: &OwnedFd) -> bool {
    match sys::number_of(error) {
        sys::E2BIG | sys::ERANGE => true,
        // As a full disk says it.
        sys::ENOSPC => sys::file_system_of(fd).map_or(false, |found| found.available_bytes > FREE_BYTES),
        _ => false,
    }
}

/// Gives something its owner, unless it has it or nobody's is kept; false where an id was not mapped.
pub fn is_given(
    wanted: (u32, u32),
    us: Option<(u32, u32)>,
    own: impl Fn(u32, u32) -> io::Result<()>,
) -> io::Result<bool> {
    if us.map_or(true, |us| us == wanted) {
        return Ok(true);
    }
    match own(wanted.0, wanted.1) {
        Err(error) if sys::number_of(&error) == sys::EINVAL => Ok(false),
        result => result.map(|()| true),
    }
}

/// Writes contents to their place; of zeros nothing.
fn put_contents(fd: &OwnedFd, data: &[u8], at: u64, written: &mut Written) -> io::Result<()> {
    let (mut begin, mut position) = (0, 0);
    while position < data.len() {
        let left = HOLE_BYTES - (at + position as u64) % HOLE_BYTES;
        let next = data.len().min(position + left as usize);
        let part = &data[position..next];
        // A file full of them takes no place on one side, and must not fill the other's disk.
        if part[0] == 0 && part[part.len() - 1] == 0 && part.iter().all(|byte| *byte == 0) {
            write_at(fd, &data[begin..position], at + begin as u64, written)?;
            begin = next;
        }
        position = next;
    }
    write_at(fd, &data[begin..], at + begin as u64, written)
}

fn write_at(fd: &OwnedFd, mut data: &[u8], mut at: u64, written: &mut Written) -> io::Result<()> {
    while !data.is_empty() {
        let count = sys::write_to(fd, data, at)?;
        data = &data[count..];
        at += count as u64;
        written.bytes += count as u64;
        written.end = at;
    }
    Ok(())
}
