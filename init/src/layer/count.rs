//! How much is in a layer that nobody has unpacked: `aviato-init layer --count`.
//!
//! It was a sandbox's own, so overlayfs alone has written to it and it is a layer as it lies there. The tree is as deep and as wide as
//! somebody hostile liked. Sandboxes may lie on it meanwhile: nothing is changed.

use std::collections::HashSet;
use std::os::unix::io::{AsRawFd, OwnedFd};

use super::unpack::too_large;
use super::Unpacked;
use crate::archive::{Trouble, MOST_PENDING_BYTES};
use crate::directory::{self, Names};
use crate::sys;

/// What something that is remembered takes beside its bytes: the name of a directory, and a file that has several names.
const REMEMBERED_BYTES: usize = 50;
/// As stat(2) counts them, whatever the file system.
const BLOCK_BYTES: u64 = 512;

/// Directories are opened one below the other, and one descriptor does for any depth. What is remembered is which of them are still to
/// be looked into, and which files have been counted by another name.
pub fn count(top: &OwnedFd) -> Result<Unpacked, Trouble> {
    count_within(top, 4 * MOST_PENDING_BYTES)
}

fn count_within(top: &OwnedFd, most_bytes: usize) -> Result<Unpacked, Trouble> {
    let mut count =
        Count { done: Unpacked { files: 1, ..Unpacked::default() }, linked: HashSet::new(), left_bytes: most_bytes };
    let open = |at: &OwnedFd, name: &[u8]| {
        sys::open_at(at.as_raw_fd(), name, directory::OPEN, 0).map(Names::new).map_err(Trouble::os(b""))
    };
    let mut here = open(top, b".")?;
    let mut pending = vec![count.directories_of(&mut here)?];
    while let Some(names) = pending.last_mut() {
        match names.pop() {
            Some(name) => {
                count.left_bytes += name.len() + REMEMBERED_BYTES;
                here = open(&here.fd, &name)?;
                pending.push(count.directories_of(&mut here)?);
            }
            None => {
                pending.pop();
                if !pending.is_empty() {
                    here = open(&here.fd, b"..")?;
                }
            }
        }
    }
    Ok(count.done)
}

struct Count {
    done: Unpacked,
    linked: HashSet<(u64, u64)>,
    left_bytes: usize,
}

impl Count {
    /// Counts what is in a directory, and says which of it are directories.
    fn directories_of(&mut self, names: &mut Names) -> Result<Vec<Vec<u8>>, Trouble> {
        let mut found = Vec::new();
        while let Some((name, _)) = names.next_name().map_err(Trouble::os(b""))? {
            let status = sys::stat_at(names.fd.as_raw_fd(), &name).map_err(Trouble::os(&name))?;
            match status.kind() {
                sys::S_IFCHR => continue, // It says that something below is not there.
                sys::S_IFDIR => {
                    self.remember(&name, name.len())?;
                    found.push(name);
                }
                kind => {
                    if status.links > 1 {
                        if !self.linked.insert((status.device, status.inode)) {
                            continue;
                        }
                        self.remember(&name, 0)?;
                    }
                    // A file that is all holes is as long as somebody hostile likes, and takes nothing.
                    let taken = status.size.min(status.blocks.saturating_mul(BLOCK_BYTES));
                    self.done.size_bytes += if kind == sys::S_IFREG { taken } else { 0 };
                }
            }
            self.done.files += 1;
        }
        Ok(found)
    }

    fn remember(&mut self, name: &[u8], bytes: usize) -> Result<(), Trouble> {
        match self.left_bytes.checked_sub(bytes + REMEMBERED_BYTES) {
            Some(left) => self.left_bytes = left,
            None => {
                let message = "is one directory, or one file with several names, too many to be counted".to_owned();
                return Err(too_large(name, message));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn open(path: &std::path::Path) -> OwnedFd {
        sys::open_at(sys::AT_FDCWD, path.to_str().unwrap().as_bytes(), directory::OPEN, 0).unwrap()
    }

    #[test]
    fn what_is_remembered_is_bounded_and_any_number_of_files_is_counted() {
        let top = std::env::temp_dir().join(format!("aviato-layer-count-many-{}", std::process::id()));
        for folder in ["files", "folders", "names"] {
            std::fs::create_dir_all(top.join(folder)).unwrap();
        }
        for number in 0..500 {
            std::fs::write(top.join(format!("files/{:0>200}", number)), "x").unwrap();
            std::fs::create_dir(top.join(format!("folders/{:0>200}", number))).unwrap();
            std::fs::write(top.join(format!("names/{}", number)), "x").unwrap();
            std::fs::hard_link(top.join(format!("names/{}", number)), top.join(format!("names/{}.again", number)))
                .unwrap();
        }
        let done = count_within(&open(&top.join("files")), 1000).unwrap();
        assert_eq!((done.files, done.size_bytes), (501, 500));
        for folder in ["folders", "names"] {
            assert!(count_within(&open(&top.join(folder)), 500 * 250 + 1).is_ok());
            match count_within(&open(&top.join(folder)), 20_000) {
                Err(Trouble::Tree { reason: "too_large", .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        // What has been looked into is remembered no more.
        std::fs::remove_dir_all(top.join("names")).unwrap();
        for number in 0..500 {
            std::fs::create_dir_all(top.join(format!("names/a/{}", "b/".repeat(number % 5)))).unwrap();
        }
        assert!(count_within(&open(&top.join("names")), 1000).is_ok());
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn a_hole_takes_no_place() {
        let top = std::env::temp_dir().join(format!("aviato-layer-count-holes-{}", std::process::id()));
        std::fs::create_dir_all(&top).unwrap();
        std::fs::write(top.join("whole"), vec![b'x'; 10_000]).unwrap();
        let hollow = std::fs::File::create(top.join("hollow")).unwrap();
        std::os::unix::fs::FileExt::write_at(&hollow, b"x", 4_000_000_000).unwrap();
        std::fs::File::create(top.join("empty")).unwrap().set_len(1 << 40).unwrap();
        let done = count(&open(&top)).unwrap();
        std::fs::remove_dir_all(&top).unwrap();
        assert_eq!(done.files, 4);
        assert!((1..10_000 + (1 << 20)).contains(&done.size_bytes), "{}", done.size_bytes);
    }

    #[test]
    fn a_tree_is_counted_whatever_its_depth_and_no_link_is_followed() {
        let top = std::env::temp_dir().join(format!("aviato-layer-count-{}", std::process::id()));
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        std::fs::write(top.join("a/file"), "four").unwrap();
        std::fs::hard_link(top.join("a/file"), top.join("a/b/again")).unwrap();
        symlink("/etc", top.join("a/link")).unwrap();
        sys::make_whiteout(open(&top.join("a")).as_raw_fd(), b"gone").unwrap();
        // Deeper than a path may be long, and than there are descriptors.
        let mut below = open(&top.join("a/b"));
        for _ in 0..1500 {
            sys::make_directory(below.as_raw_fd(), b"deep", 0o700).unwrap();
            below = sys::open_at(below.as_raw_fd(), b"deep", directory::OPEN, 0).unwrap();
        }
        let done = count(&open(&top)).unwrap();
        assert_eq!((done.files, done.size_bytes), (3 + 2 + 1500, 4));
        let parent = open(&std::env::temp_dir());
        let name = top.file_name().unwrap().to_str().unwrap().as_bytes();
        let mut removal = directory::RemoveTree::new(parent, name).unwrap();
        while !removal.step().unwrap() {}
    }
}
