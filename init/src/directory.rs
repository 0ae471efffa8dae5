//! The names in a directory, a few at a time, and removing a tree that someone hostile may have made: any depth and mode, no link
//! followed.

use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

use crate::sys::{self, O_DIRECTORY, O_NOFOLLOW, O_PATH, O_RDONLY};

pub const OPEN: i32 = O_RDONLY | O_DIRECTORY | O_NOFOLLOW;
const STEPS_A_TURN: usize = 256;
/// Deeper directories are moved up to the top first: neither descriptors nor recursion bound the depth.
const DEEPEST: usize = 48;
/// How often a directory may have got new entries meanwhile before that is an error.
const RESCANS: usize = 1000;
const IS_DIRECTORY: u8 = 4;
const IS_UNKNOWN: u8 = 0;

/// The names in an open directory.
pub struct Names {
    pub fd: OwnedFd,
    read: Vec<(Vec<u8>, u8)>,
}

impl Names {
    pub fn new(fd: OwnedFd) -> Names {
        Names { fd, read: Vec::new() }
    }

    /// All of them at once, which come in order.
    pub fn sorted(fd: OwnedFd) -> io::Result<Names> {
        let mut names = Names::new(fd);
        while sys::read_names(&names.fd, &mut names.read)? {}
        names.read.sort_by(|one, other| other.0.cmp(&one.0));
        Ok(names)
    }

    /// The next name, in no order unless they are sorted, with the kind that the directory says it has.
    pub fn next_name(&mut self) -> io::Result<Option<(Vec<u8>, u8)>> {
        loop {
            if let Some(entry) = self.read.pop() {
                return Ok(Some(entry));
            }
            if !sys::read_names(&self.fd, &mut self.read)? {
                return Ok(None);
            }
        }
    }

    fn begin_again(&mut self) -> io::Result<()> {
        self.read.clear();
        sys::seek(&self.fd, 0)
    }
}

/// A descriptor of a directory, made readable, writable and searchable for its owner if need be.
fn open_for_removal(parent: RawFd, name: &[u8]) -> io::Result<OwnedFd> {
    let fd = match sys::open_at(parent, name, OPEN, 0) {
        Err(error) if sys::number_of(&error) == sys::EACCES => {
            let named = sys::open_at(parent, name, O_PATH | O_DIRECTORY | O_NOFOLLOW, 0)?;
            sys::set_mode(&named, 0o700)?;
            return sys::open_at(parent, name, OPEN, 0);
        }
        other => other?,
    };
    if sys::stat_open(&fd)?.mode & 0o700 != 0o700 {
        sys::set_mode(&fd, 0o700)?;
    }
    Ok(fd)
}

struct Folder {
    name: Vec<u8>,
    names: Names,
    rescans: usize,
}

impl Folder {
    fn open(parent: RawFd, name: &[u8]) -> io::Result<Folder> {
        Ok(Folder { name: name.to_vec(), names: Names::new(open_for_removal(parent, name)?), rescans: 0 })
    }
}

/// Removes a directory and all that is in it, in bounded steps.
pub struct RemoveTree {
    parent: OwnedFd,
    stack: Vec<Folder>,
}

impl RemoveTree {
    /// The directory of this name in another one.
    pub fn new(parent: OwnedFd, name: &[u8]) -> io::Result<RemoveTree> {
        let folder = Folder::open(parent.as_raw_fd(), name)?;
        Ok(RemoveTree { parent, stack: vec![folder] })
    }

    /// Goes on; true once all is gone.
    pub fn step(&mut self) -> io::Result<bool> {
        for _ in 0..STEPS_A_TURN {
            let (depth, top) = (self.stack.len(), self.stack.first().map_or(-1, |folder| folder.names.fd.as_raw_fd()));
            let folder = match self.stack.last_mut() {
                Some(folder) => folder,
                None => return Ok(true),
            };
            let at = folder.names.fd.as_raw_fd();
            match folder.names.next_name()? {
                Some((name, kind)) => {
                    if remove_entry(at, &name, kind)? {
                        continue;
                    }
                    if depth < DEEPEST {
                        self.stack.push(Folder::open(at, &name)?);
                    } else {
                        // Its `..` changes, so it has to be writable; and no name that someone else could have taken.
                        drop(open_for_removal(at, &name)?);
                        sys::rename(at, &name, top, &hidden_name())?;
                    }
                }
                None => self.leave()?,
            }
        }
        Ok(self.stack.is_empty())
    }

    fn leave(&mut self) -> io::Result<()> {
        let above = match self.stack.len() {
            0 => return Ok(()),
            1 => self.parent.as_raw_fd(),
            depth => self.stack[depth - 2].names.fd.as_raw_fd(),
        };
        if let Some(folder) = self.stack.last_mut() {
            match sys::remove_directory(above, &folder.name) {
                Ok(()) => drop(self.stack.pop()),
                Err(error) => {
                    folder.rescans += 1;
                    let filled = matches!(sys::number_of(&error), sys::ENOTEMPTY | sys::EEXIST);
                    if !filled || folder.rescans > RESCANS {
                        return Err(error);
                    }
                    folder.names.begin_again()?;
                }
            }
        }
        Ok(())
    }
}

/// A name that nobody else takes.
pub fn hidden_name() -> Vec<u8> {
    let mut random = [0; 8];
    sys::random(&mut random);
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(".aviato-{digits}").into_bytes()
}

/// Removes one entry; false if it is a directory with something in it.
fn remove_entry(folder: RawFd, name: &[u8], kind: u8) -> io::Result<bool> {
    let is_directory = match kind {
        IS_UNKNOWN => sys::stat_at(folder, name).map_or(false, |found| found.is_directory()),
        kind => kind == IS_DIRECTORY,
    };
    let result = if is_directory { sys::remove_directory(folder, name) } else { sys::unlink(folder, name) };
    match result {
        Ok(()) => Ok(true),
        Err(error) => match sys::number_of(&error) {
            sys::ENOENT => Ok(true),
            sys::ENOTEMPTY | sys::EEXIST => Ok(false),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{symlink, PermissionsExt};

    #[test]
    fn a_tree_goes_whatever_its_depth_and_modes() {
        let top = std::env::temp_dir().join(format!("aviato-remove-{}", std::process::id()));
        std::fs::create_dir_all(&top).unwrap();
        let kept = top.join("kept");
        std::fs::write(&kept, "x").unwrap();
        let at = sys::open_at(sys::AT_FDCWD, top.to_str().unwrap().as_bytes(), OPEN, 0).unwrap();
        // Deeper than a path may be long.
        let mut below = sys::duplicate(&at).unwrap();
        for _ in 0..300 {
            sys::make_directory(below.as_raw_fd(), b"deep-and-deeper", 0o700).unwrap();
            below = sys::open_at(below.as_raw_fd(), b"deep-and-deeper", OPEN, 0).unwrap();
        }
        for number in 0..600 {
            std::fs::write(top.join("deep-and-deeper").join(format!("f{number}")), "x").unwrap();
        }
        symlink(&kept, top.join("deep-and-deeper/link")).unwrap();
        let closed = top.join("deep-and-deeper/closed");
        std::fs::create_dir(&closed).unwrap();
        std::fs::write(closed.join("inner"), "x").unwrap();
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
        let mut removal = RemoveTree::new(sys::duplicate(&at).unwrap(), b"deep-and-deeper").unwrap();
        let mut steps = 0;
        while !removal.step().unwrap() {
            steps += 1;
        }
        assert!(steps > 2 && kept.exists() && !top.join("deep-and-deeper").exists());
        std::fs::remove_dir_all(&top).unwrap();
    }
}
