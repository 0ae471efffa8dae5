//! A directory that was a dead sandbox's own layer becomes one of a store as it lies there: `aviato-init layer --adopt`.
//!
//! It has the form of overlayfs already. What a layer's tar leaves out goes, files get the ids that a store keeps, and all is counted.
//! The tree is as deep and as wide as somebody hostile liked, but nobody changes it any more.

use std::collections::HashSet;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

use super::Unpacked;
use crate::archive::Trouble;
use crate::directory;
use crate::sys::{self, Stat, O_NOFOLLOW, O_PATH};

/// Bits of a mode that a change of owner takes away.
const OF_OWNERS: u32 = 0o6000;

/// The ids that files have on disk: so many from the first one, which is 0 in a store.
#[derive(Clone, Copy)]
pub struct Ids {
    pub first: u32,
    pub count: u32,
}

impl Ids {
    /// What an id is in a store; it may be that already.
    fn stored(self, id: u32) -> u32 {
        match id.checked_sub(self.first) {
            Some(stored) if stored < self.count => stored,
            _ => id,
        }
    }
}

/// A directory on the way.
struct Folder {
    /// What is still to come, with the kinds that nobody asks for.
    names: Vec<(Vec<u8>, u8)>,
    /// When it was changed last, where something was taken out of it since.
    changed: Option<i128>,
}

impl Folder {
    fn enter(fd: &OwnedFd) -> io::Result<Folder> {
        let mut names = Vec::new();
        while sys::read_names(fd, &mut names)? {}
        Ok(Folder { names, changed: None })
    }
}

struct Adoption {
    ids: Option<Ids>,
    done: Unpacked,
    /// Files with several names that were counted.
    linked: HashSet<(u64, u64)>,
}

/// Does it. A second time does no harm, nor does the first one that was broken off.
pub fn adopt(top: OwnedFd, ids: Option<Ids>) -> Result<Unpacked, Trouble> {
    let mut adoption = Adoption { ids, done: Unpacked::default(), linked: HashSet::new() };
    adoption.walk(top).map_err(Trouble::os(b""))?;
    Ok(adoption.done)
}

impl Adoption {
    fn walk(&mut self, top: OwnedFd) -> io::Result<()> {
        let mut fd = sys::open_at(top.as_raw_fd(), b".", directory::OPEN, 0)?;
        let found = sys::stat_open(&fd)?;
        self.take(&found, |uid, gid| sys::own_open(&fd, uid, gid))?;
        let mut folder = Folder::enter(&fd)?;
        let mut above = Vec::new();
        loop {
            if let Some((name, _)) = folder.names.pop() {
                if let Some(below) = self.entry(&fd, &name, &mut folder)? {
                    fd = below;
                    above.push(std::mem::replace(&mut folder, Folder::enter(&fd)?));
                }
                continue;
            }
            if let Some(changed) = folder.changed {
                sys::set_both_times(&fd, changed)?;
            }
            // One descriptor does for any depth.
            folder = match above.pop() {
                Some(folder) => folder,
                None => return Ok(()),
            };
            fd = sys::open_at(fd.as_raw_fd(), b"..", directory::OPEN, 0)?;
        }
    }

    /// One entry; a directory is given back, open.
    fn entry(&mut self, fd: &OwnedFd, name: &[u8], folder: &mut Folder) -> io::Result<Option<OwnedFd>> {
        let at = fd.as_raw_fd();
        let found = sys::stat_at(at, name)?;
        match found.kind() {
            sys::S_IFDIR => {
                let below = sys::open_at(at, name, directory::OPEN, 0)?;
                self.take(&found, |uid, gid| sys::own_open(&below, uid, gid))?;
                return Ok(Some(below));
            }
            sys::S_IFCHR if found.number == 0 => return Ok(None), // It says that something below is not there.
            sys::S_IFREG | sys::S_IFLNK | sys::S_IFIFO => {}
            _ => {
                let changed = sys::stat_open(fd)?.modified_nanoseconds;
                sys::unlink(at, name)?;
                folder.changed.get_or_insert(changed);
                return Ok(None);
            }
        }
        if self.take(&found, |uid, gid| sys::own_name(at, name, uid, gid))?
            && found.kind() == sys::S_IFREG
            && found.mode & OF_OWNERS != 0
        {
            sys::set_mode(&sys::open_at(at, name, O_PATH | O_NOFOLLOW, 0)?, found.permissions())?;
        }
        Ok(None)
    }

    /// Counts something and gives it its owner; whether that changed.
    fn take(&mut self, found: &Stat, own: impl Fn(u32, u32) -> io::Result<()>) -> io::Result<bool> {
        let is_first = found.links < 2 || found.is_directory() || self.linked.insert((found.device, found.inode));
        if is_first {
            self.done.files += 1;
            self.done.size_bytes += if found.kind() == sys::S_IFREG { found.size } else { 0 };
        }
        let ids = match self.ids {
            Some(ids) => ids,
            None => return Ok(false),
        };
        let (uid, gid) = (ids.stored(found.uid), ids.stored(found.gid));
        if (uid, gid) == (found.uid, found.gid) {
            return Ok(false);
        }
        own(uid, gid).map(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};

    fn open(path: &std::path::Path) -> OwnedFd {
        sys::open_at(sys::AT_FDCWD, path.to_str().unwrap().as_bytes(), directory::OPEN, 0).unwrap()
    }

    #[test]
    fn a_tree_is_taken_as_it_is() {
        let top = std::env::temp_dir().join(format!("aviato-adopt-{}", std::process::id()));
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        std::fs::write(top.join("a/file"), "four").unwrap();
        std::fs::hard_link(top.join("a/file"), top.join("a/b/again")).unwrap();
        symlink("/etc/passwd", top.join("a/link")).unwrap();
        std::fs::set_permissions(top.join("a/file"), std::fs::Permissions::from_mode(0o4755)).unwrap();
        drop(std::os::unix::net::UnixListener::bind(top.join("a/socket")).unwrap());
        sys::set_both_times(&open(&top.join("a")), 5_000_000_001).unwrap();
        // Deeper than a path may be long, and than there are descriptors.
        let mut below = open(&top.join("a/b"));
        for _ in 0..1500 {
            sys::make_directory(below.as_raw_fd(), b"deep", 0o700).unwrap();
            below = sys::open_at(below.as_raw_fd(), b"deep", directory::OPEN, 0).unwrap();
        }
        let done = adopt(open(&top), None).unwrap();
        assert_eq!((done.files, done.size_bytes), (3 + 2 + 1500, 4));
        assert!(!top.join("a/socket").exists() && top.join("a/link").symlink_metadata().unwrap().is_symlink());
        assert_eq!((top.join("a").metadata().unwrap().mtime(), top.join("a").metadata().unwrap().mtime_nsec()), (5, 1));
        if sys::effective_user() == 0 {
            let owned = Ids { first: 7_000_000, count: 65_536 };
            for path in ["", "a", "a/file", "a/link"] {
                sys::own_name(
                    open(&top).as_raw_fd(),
                    if path.is_empty() { b"." } else { path.as_bytes() },
                    7_000_005,
                    7_000_000,
                )
                .unwrap();
            }
            std::fs::set_permissions(top.join("a/file"), std::fs::Permissions::from_mode(0o4755)).unwrap();
            for _ in 0..2 {
                adopt(open(&top), Some(owned)).unwrap();
                for path in ["", "a", "a/file", "a/link", "a/b/again"] {
                    let found = top.join(path).symlink_metadata().unwrap();
                    assert_eq!((found.uid(), found.gid()), (5, 0), "{path}");
                }
                assert_eq!(top.join("a/file").metadata().unwrap().mode() & 0o7777, 0o4755);
                assert!(top.join("a/file").metadata().unwrap().file_type().is_file());
            }
        }
        let parent = open(&std::env::temp_dir());
        let name = top.file_name().unwrap().to_str().unwrap().as_bytes();
        let mut removal = directory::RemoveTree::new(parent, name).unwrap();
        while !removal.step().unwrap() {}
    }
}
