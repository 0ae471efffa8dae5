//! Directories below the top of a layer, each name on the way opened by itself and no link followed.

use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

use crate::archive::tar::LONGEST_NAME_BYTES;
use crate::archive::Trouble;
use crate::directory;
use crate::sys::{self, Stat};

pub const LONGEST_PART_BYTES: usize = 255;
/// So many parts a path may have: each directory on the way is kept open for the next one.
pub const MOST_PARTS: usize = 256;
pub const OPAQUE: &[u8] = b"user.overlay.opaque";
pub const YES: &[u8] = b"y";
/// With it overlayfs looks for whiteouts in a directory that lies over no other, too: empty, it says no more than that.
pub const ORIGIN: &[u8] = b"user.overlay.origin";

/// A member's name as a path below the top, which is empty for the top itself.
///
/// # Errors
/// It leads out of the layer, or can be no name.
pub fn checked(name: &[u8]) -> Result<Vec<u8>, Trouble> {
    let mut path = Vec::with_capacity(name.len());
    for part in name.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
        if part == b".." {
            return Err(Trouble::hostile(name, "leads out of the layer"));
        }
        if part.len() > LONGEST_PART_BYTES {
            return Err(Trouble::hostile(name, "can be no name of a file: a part of it is too long"));
        }
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(part);
    }
    if name.is_empty() || name.contains(&0) {
        return Err(Trouble::hostile(name, "can be no name of a file"));
    }
    if path.iter().filter(|byte| **byte == b'/').count() >= MOST_PARTS {
        return Err(Trouble::hostile(name, format!("lies more than {MOST_PARTS} directories deep")));
    }
    if path.len() > LONGEST_NAME_BYTES {
        let message = format!("can be no name of a file: it is longer than {LONGEST_NAME_BYTES} bytes");
        return Err(Trouble::hostile(name, message));
    }
    Ok(path)
}

/// The directory that a path is in, and its name there.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty())
}

/// Opens directories; those on the way to the last one stay open.
pub struct Places {
    top: OwnedFd,
    /// The last one, if it could be opened.
    path: Option<Vec<u8>>,
    opened: Vec<(Vec<u8>, OwnedFd)>,
}

impl Places {
    pub fn new(top: OwnedFd) -> Places {
        Places { top, path: None, opened: Vec::new() }
    }

    /// A descriptor of a directory, good until the next call. Nothing below it stays open, and may be another directory then.
    pub fn open(&mut self, path: &[u8]) -> io::Result<RawFd> {
        if self.path.as_deref() != Some(path) {
            self.path = None;
            let known = self.opened.iter().zip(parts(path)).take_while(|((own, _), part)| own == part).count();
            self.opened.truncate(known);
            for part in parts(path).skip(known) {
                let fd = sys::open_at(self.last(), part, directory::OPEN, 0)?;
                self.opened.push((part.to_vec(), fd));
            }
            self.path = Some(path.to_vec());
        }
        Ok(self.last())
    }

    fn last(&self) -> RawFd {
        self.opened.last().map_or(&self.top, |(_, fd)| fd).as_raw_fd()
    }
}

/// What is known of a directory in layers, of which the uppermost comes first. `None`: in none of them can it be seen.
pub fn find_below(layers: &[OwnedFd], path: &[u8]) -> Option<Stat> {
    for layer in layers {
        let mut current = sys::duplicate(layer).ok()?;
        let mut is_there = true;
        let mut hides = false;
        for part in parts(path) {
            match sys::open_at(current.as_raw_fd(), part, directory::OPEN, 0) {
                Ok(fd) => current = fd,
                Err(error) if sys::number_of(&error) == sys::ENOENT => {
                    is_there = false;
                    break;
                }
                // Another thing is there, or a whiteout: whatever lies deeper is not seen through it.
                Err(_) => return None,
            }
            hides = hides || sys::has_attribute(&current, OPAQUE, YES);
        }
        if is_there {
            return sys::stat_open(&current).ok();
        }
        if hides {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_below_the_top_or_nowhere() {
        for (name, path) in [
            (&b"./a//b/./c/"[..], &b"a/b/c"[..]),
            (b"/etc/passwd", b"etc/passwd"),
            (b"./", b""),
            (b"/", b""),
            (b"a..b/...", b"a..b/..."),
            (b"\xff", b"\xff"),
        ] {
            assert_eq!(checked(name).unwrap(), path);
        }
        let (part, long) = (vec![b'x'; 256], [&[b'x'; 200][..], b"/"].concat().repeat(21));
        for name in [&b""[..], b"..", b"a/../b", b"/..", b"a/..", b"a\0b", b"\0", &part, &long] {
            assert!(checked(name).is_err(), "{}", String::from_utf8_lossy(name));
        }
        assert!(checked(&b"d/".repeat(256)).is_ok() && checked(&b"d/".repeat(257)).is_err());
        assert_eq!(split(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(split(b"c"), (&b""[..], &b"c"[..]));
    }

    #[test]
    fn directories_are_opened_by_themselves_and_links_are_not() {
        let top = std::env::temp_dir().join(format!("aviato-places-{}", std::process::id()));
        std::fs::create_dir_all(top.join("a/b/c")).unwrap();
        std::os::unix::fs::symlink("a", top.join("link")).unwrap();
        std::os::unix::fs::symlink("b", top.join("a/link")).unwrap();
        let open = || sys::open_at(sys::AT_FDCWD, top.to_str().unwrap().as_bytes(), directory::OPEN, 0).unwrap();
        let (mut places, found) = (Places::new(open()), open());
        let number = |fd: RawFd| sys::stat_at(fd, b".").unwrap().inode;
        for path in [&b"a/b/c"[..], b"a/b", b"", b"a", b"a/b/c", b"a/b/c"] {
            let fd = places.open(path).unwrap();
            let expected = sys::stat_at(found.as_raw_fd(), if path.is_empty() { b"." } else { path }).unwrap().inode;
            assert_eq!(number(fd), expected, "{}", String::from_utf8_lossy(path));
        }
        for path in [&b"link"[..], b"link/b", b"a/link", b"a/link/c", b"a/none"] {
            assert!(places.open(path).is_err() && find_below(&[open()], path).is_none());
        }
        assert_eq!(number(places.open(b"a/b").unwrap()), sys::stat_at(found.as_raw_fd(), b"a/b").unwrap().inode);
        assert!(find_below(&[open()], b"a/b/c").is_some());
        std::fs::remove_dir_all(&top).unwrap();
    }
}
