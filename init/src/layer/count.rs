//! How much is in a layer that nobody has unpacked: `aviato-init layer --count`.
//!
//! It was a sandbox's own, so overlayfs alone has written to it and it is a layer as it lies there. The tree is as deep and as wide as
//! somebody hostile liked. Sandboxes may lie on it meanwhile: nothing is changed.

use std::collections::HashSet;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

use super::Unpacked;
use crate::archive::Trouble;
use crate::directory;
use crate::sys;

type Names = Vec<(Vec<u8>, u8)>;

/// The entries of a directory; those that are to be looked into are opened one below the other, and one descriptor does for any depth.
pub fn count(top: &OwnedFd) -> Result<Unpacked, Trouble> {
    counted(top).map_err(Trouble::os(b""))
}

fn counted(top: &OwnedFd) -> io::Result<Unpacked> {
    let mut done = Unpacked { files: 1, ..Unpacked::default() };
    let mut linked = HashSet::new();
    let mut fd = sys::open_at(top.as_raw_fd(), b".", directory::OPEN, 0)?;
    let mut names = names_of(&fd)?;
    let mut above: Vec<Names> = Vec::new();
    loop {
        let name = match names.pop() {
            Some((name, _)) => name,
            None => match above.pop() {
                Some(rest) => {
                    names = rest;
                    fd = sys::open_at(fd.as_raw_fd(), b"..", directory::OPEN, 0)?;
                    continue;
                }
                None => return Ok(done),
            },
        };
        let found = sys::stat_at(fd.as_raw_fd(), &name)?;
        let is_first = found.links < 2 || found.is_directory() || linked.insert((found.device, found.inode));
        match found.kind() {
            sys::S_IFCHR => {} // It says that something below is not there.
            kind if is_first => {
                done.files += 1;
                done.size_bytes += if kind == sys::S_IFREG { found.size } else { 0 };
            }
            _ => {}
        }
        if found.is_directory() {
            fd = sys::open_at(fd.as_raw_fd(), &name, directory::OPEN, 0)?;
            above.push(std::mem::replace(&mut names, names_of(&fd)?));
        }
    }
}

fn names_of(fd: &OwnedFd) -> io::Result<Names> {
    let mut names = Names::new();
    while sys::read_names(fd, &mut names)? {}
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn open(path: &std::path::Path) -> OwnedFd {
        sys::open_at(sys::AT_FDCWD, path.to_str().unwrap().as_bytes(), directory::OPEN, 0).unwrap()
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
