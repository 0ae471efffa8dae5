//! How a layer's directory becomes its tar: what `archive::pack` has to know beside what it knows of trees.

use std::collections::HashMap;
use std::os::unix::io::OwnedFd;

use super::file::is_kept;
use super::places::{split, LONGEST_PART_BYTES, MOST_PARTS, OPAQUE, YES};
use super::unpack::{joined, too_large};
use super::{OPAQUE_DIRECTORY, WHITEOUT};
use crate::archive::sparse::Pieces;
use crate::archive::tar::{self, Attributes, Kind, Member, LONGEST_NAME_BYTES};
use crate::archive::{Trouble, MOST_PENDING_BYTES};
use crate::sys::{self, Stat};

/// What a name that is remembered takes beside its bytes.
const NAME_BYTES: usize = 100;
/// The contents of a file come in so many pieces at most. What follows them is one more, its holes included.
const MOST_PIECES: usize = 4096;

/// Files with several names: the first of each, by device and inode.
#[derive(Default)]
pub struct FirstNames {
    names: HashMap<(u64, u64), Vec<u8>>,
    bytes: usize,
}

impl FirstNames {
    /// The name under which this is in the archive already. If it is not, it is from now on under this one.
    pub fn of(&mut self, found: &Stat, path: &[u8]) -> Result<Option<Vec<u8>>, Trouble> {
        if found.links < 2 {
            return Ok(None);
        }
        let key = (found.device, found.inode);
        if let Some(first) = self.names.get(&key) {
            return Ok(Some(first.clone()));
        }
        self.bytes += path.len() + NAME_BYTES;
        if self.bytes > MOST_PENDING_BYTES {
            return Err(too_large(path, "is one file with several names too many".to_owned()));
        }
        self.names.insert(key, path.to_vec());
        Ok(None)
    }
}

/// Whether something can have this path in a layer.
pub fn check(path: &[u8]) -> Result<(), Trouble> {
    let (_, name) = split(path);
    if name.starts_with(WHITEOUT) {
        let message = "has a name by which a layer says that another one is not there".to_owned();
        return Err(Trouble::Tree { member: path.to_vec(), reason: "name", message });
    }
    check_length(path)
}

fn check_length(path: &[u8]) -> Result<(), Trouble> {
    if path.len() >= LONGEST_NAME_BYTES || path.iter().filter(|byte| **byte == b'/').count() >= MOST_PARTS {
        let message = format!("has a path of more than {MOST_PARTS} names or {LONGEST_NAME_BYTES} bytes");
        return Err(too_large(path, message));
    }
    Ok(())
}

/// The blocks that announce a member as it was found, but for whose it is; `whole_seconds` is how exact its time is.
pub fn announced(
    member: Member,
    found: &Stat,
    (uid, gid): (u32, u32),
    whole_seconds: bool,
) -> Result<Vec<u8>, Trouble> {
    const SECOND: i128 = 1_000_000_000;
    let member = Member {
        mode: found.permissions(),
        uid,
        gid,
        mtime: found.modified_nanoseconds.div_euclid(SECOND) as i64,
        ..member
    };
    let nanoseconds = if whole_seconds { 0 } else { found.modified_nanoseconds.rem_euclid(SECOND) as u32 };
    tar::layer_header(&member, nanoseconds).ok_or_else(|| {
        let message = "has more extended attributes than a layer can have of one file".to_owned();
        too_large(&member.name, message)
    })
}

/// The blocks of the empty file which says that what has this path is not there.
pub fn whiteout(path: &[u8]) -> Result<Vec<u8>, Trouble> {
    check(path)?;
    let (above, name) = split(path);
    if WHITEOUT.len() + name.len() > LONGEST_PART_BYTES {
        let message = "was removed, and has too long a name for a layer to say so".to_owned();
        return Err(Trouble::Tree { member: path.to_vec(), reason: "name", message });
    }
    hint(above, &[WHITEOUT, name].concat())
}

/// The same of all that is in a directory of the layers below; nothing where they are seen.
pub fn opaqueness(fd: &OwnedFd, path: &[u8]) -> Result<Vec<u8>, Trouble> {
    if sys::has_attribute(fd, OPAQUE, YES) {
        hint(path, OPAQUE_DIRECTORY)
    } else {
        Ok(Vec::new())
    }
}

fn hint(above: &[u8], name: &[u8]) -> Result<Vec<u8>, Trouble> {
    let name = joined(above, name);
    check_length(&name)?;
    let none = Member {
        name,
        kind: Kind::File,
        mode: 0o644,
        uid: 0,
        gid: 0,
        size: 0,
        mtime: 0,
        target: Vec::new(),
        attributes: Vec::new(),
        pieces: None,
    };
    Ok(tar::layer_header(&none, 0).unwrap_or_default())
}

/// Those extended attributes that are taken where the layer is unpacked.
pub fn attributes(fd: &OwnedFd, path: &[u8]) -> Result<Attributes, Trouble> {
    let names = sys::attribute_names(fd).map_err(Trouble::os(path))?;
    let mut found = Attributes::new();
    for name in names.split(|byte| *byte == 0).filter(|name| is_kept(name)) {
        if name.contains(&b'=') {
            let message = "has an extended attribute whose name no layer can have".to_owned();
            return Err(Trouble::Tree { member: path.to_vec(), reason: "name", message });
        }
        if let Some(value) = sys::attribute(fd, name).map_err(Trouble::os(path))? {
            found.push((name.to_vec(), value));
        }
    }
    found.sort();
    Ok(found)
}

/// Where the contents of a file lie, if it has holes.
pub fn pieces(fd: &OwnedFd, found: &Stat, on_disk: u64, path: &[u8]) -> Result<Option<Pieces>, Trouble> {
    if on_disk >= found.size {
        return Ok(None);
    }
    let (mut pieces, mut at) = (Pieces::new(), 0);
    while at < found.size {
        let (begin, end) = match sys::next_data(fd, at).map_err(Trouble::os(path))? {
            Some((begin, end)) if begin < found.size => (begin, end.min(found.size)),
            _ => break,
        };
        let end = if pieces.len() < MOST_PIECES { end } else { found.size };
        if end <= begin {
            break; // Somebody cuts it just now.
        }
        pieces.push((begin, end - begin));
        at = end;
    }
    if pieces == [(0, found.size)] {
        return Ok(None);
    }
    if at < found.size {
        pieces.push((found.size, 0)); // As GNU tar tells of a hole at the end.
    }
    Ok(Some(pieces))
}
