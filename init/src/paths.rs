//! Paths that process 1 opens for others.
//!
//! It sees /proc with its own eyes: a link to `/proc/self/fd/6` that code inside has left on the way would lead it through a
//! descriptor of its own, and `/proc/self/maps` tells of its memory. So no link is followed that only the kernel can follow, and
//! what lies on the kernel's own file systems is no file of the sandbox: such files may never end. Whatever is looked at is opened
//! first, so that nobody swaps it meanwhile.

use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

use crate::errors::of_the_kernel;
use crate::sys::{self, AT_FDCWD, O_DIRECTORY, O_NOFOLLOW, O_PATH, O_RDONLY};

pub const DIRECTORY: i32 = O_PATH | O_DIRECTORY;
/// As many links as the kernel follows.
const MOST_LINKS: usize = 40;
/// By the number that statfs(2) tells.
const KERNEL_FILE_SYSTEMS: [i64; 10] = [
    0x9FA0,      // proc
    0x6265_6572, // sysfs
    0x0027_E0EB, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0x6265_6570, // configfs
    0x6165_676C, // pstore
    0xCAFE_4A11, // bpf
];

/// Whether what may be opened is the kernel's, by its own path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    TheSandboxs,
    Anybodys,
}

/// A descriptor of what is at a path, absolute or counted from `at`.
///
/// # Errors
/// It is the kernel's, or one of its links is on the way; and as of open(2).
pub fn open_path(path: &[u8], flags: i32, at: RawFd, whose: Whose) -> io::Result<OwnedFd> {
    if path.contains(&0) {
        return Err(io::Error::from_raw_os_error(sys::ENOENT));
    }
    let fd = match sys::open_no_magic(at, path, flags) {
        Ok(fd) => fd,
        Err(error) => match sys::number_of(&error) {
            // Linux 5.5 and older; and filters of some containers.
            sys::ENOSYS | sys::EPERM => walk(path, flags, at)?,
            sys::ELOOP if !is_a_loop(path, at) => return Err(of_the_kernel()),
            _ => return Err(error),
        },
    };
    if whose == Whose::TheSandboxs && is_of_the_kernel(&fd) {
        return Err(of_the_kernel());
    }
    Ok(fd)
}

/// Whether what is open lies on one of the kernel's own file systems.
pub fn is_of_the_kernel(fd: &OwnedFd) -> bool {
    sys::file_system_of(fd).map_or(true, |found| KERNEL_FILE_SYSTEMS.contains(&found.kind))
}

/// Whether a path leads nowhere, also by links of the kernel.
fn is_a_loop(path: &[u8], at: RawFd) -> bool {
    matches!(sys::stat_path(at, path), Err(error) if sys::number_of(&error) == sys::ELOOP)
}

/// As `open_path`, name by name, where the kernel cannot be told which links to follow.
fn walk(path: &[u8], flags: i32, at: RawFd) -> io::Result<OwnedFd> {
    if path.is_empty() {
        return Err(io::Error::from_raw_os_error(sys::ENOENT));
    }
    let start = |path: &[u8], at: RawFd| {
        let begin: &[u8] = if path.starts_with(b"/") { b"/" } else { b"." };
        sys::open_at(at, begin, DIRECTORY, 0)
    };
    let mut current = start(path, at)?;
    let mut pending: Vec<Vec<u8>> = Vec::new();
    let mut ends_in_directory = false;
    let mut links = 0;
    let mut take = |way: &[u8], pending: &mut Vec<Vec<u8>>| {
        let names: Vec<&[u8]> = way.split(|byte| *byte == b'/').collect();
        // Of the last name alone: before others, a directory is what it has to be in any case.
        let last = names.last().copied().unwrap_or(b"");
        ends_in_directory |= pending.is_empty() && (last.is_empty() || last == b"." || last == b"..");
        pending.extend(names.into_iter().rev().filter(|name| !name.is_empty() && *name != b".").map(<[u8]>::to_vec));
        ends_in_directory
    };
    let mut must_be_directory = take(path, &mut pending);
    while let Some(name) = pending.pop() {
        let inner = sys::open_at(current.as_raw_fd(), &name, O_PATH | O_NOFOLLOW, 0)?;
        let is_link = sys::stat_open(&inner)?.kind() == sys::S_IFLNK;
        if !is_link || (flags & O_NOFOLLOW != 0 && pending.is_empty() && !must_be_directory) {
            current = inner;
            continue;
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(io::Error::from_raw_os_error(sys::ELOOP));
        }
        if is_of_the_kernel(&inner) {
            return Err(of_the_kernel());
        }
        let target = sys::read_link(inner.as_raw_fd(), b"")?;
        must_be_directory = take(&target, &mut pending);
        if target.starts_with(b"/") {
            current = start(&target, AT_FDCWD)?;
        }
    }
    if (must_be_directory || flags & O_DIRECTORY != 0) && !sys::stat_open(&current)?.is_directory() {
        return Err(io::Error::from_raw_os_error(sys::ENOTDIR));
    }
    if flags & O_PATH != 0 {
        return Ok(current);
    }
    reopen(&current, flags & !O_NOFOLLOW)
}

/// Opens what a descriptor only names.
pub fn reopen(fd: &OwnedFd, flags: i32) -> io::Result<OwnedFd> {
    sys::open_at(AT_FDCWD, format!("/proc/self/fd/{}", fd.as_raw_fd()).as_bytes(), flags, 0)
}

/// A path in what leads to its last name, and that.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        None => (b"", path),
        Some(at) => {
            let head = &path[..=at];
            let end = head.iter().rposition(|byte| *byte != b'/').map_or(head.len(), |last| last + 1);
            (&head[..end], &path[at + 1..])
        }
    }
}

pub fn without_slashes_at_its_end(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    &path[..end]
}

/// A path counted from another one.
pub fn join(base: &[u8], path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"/") || base.is_empty() {
        return path.to_vec();
    }
    let mut joined = base.to_vec();
    if !base.ends_with(b"/") {
        joined.push(b'/');
    }
    joined.extend_from_slice(path);
    joined
}

fn or_here(path: &[u8]) -> &[u8] {
    if path.is_empty() {
        b"."
    } else {
        path
    }
}

/// A name in a directory that is open.
pub struct Place {
    pub directory: OwnedFd,
    pub name: Vec<u8>,
}

/// Where a file is, or would be made: links at the end of its path are followed, and directories above it are made.
///
/// # Errors
/// `EISDIR` where the path can be nothing else; there is no such directory, or none that can be used.
pub fn find_place(path: &[u8]) -> io::Result<Place> {
    let mut path = path.to_vec();
    let mut above: Option<OwnedFd> = None;
    for _ in 0..MOST_LINKS {
        let at = above.as_ref().map_or(AT_FDCWD, AsRawFd::as_raw_fd);
        let (head, name) = split(&path);
        if matches!(name, b"" | b"." | b"..") {
            return Err(io::Error::from_raw_os_error(sys::EISDIR));
        }
        let directory = make_directories(or_here(head), at, MOST_LINKS)?.0;
        match sys::read_link(directory.as_raw_fd(), name) {
            Ok(target) => {
                path = target;
                above = Some(directory);
            }
            Err(error) if matches!(sys::number_of(&error), sys::EINVAL | sys::ENOENT) => {
                return Ok(Place { directory, name: name.to_vec() });
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(sys::ELOOP))
}

/// A directory, made with those above it if it is missing, and whether it was; so many links that lead to what is missing are
/// followed.
///
/// # Errors
/// `EEXIST` where something that is none has the name of a missing one; it cannot be made, or opened.
pub fn make_directories(path: &[u8], at: RawFd, links: usize) -> io::Result<(OwnedFd, bool)> {
    let mut missing: Vec<&[u8]> = Vec::new();
    let mut above = path;
    let mut current = loop {
        match open_path(above, DIRECTORY, at, Whose::TheSandboxs) {
            Ok(fd) => break fd,
            Err(error) if sys::number_of(&error) == sys::ENOENT && !path.contains(&0) => {
                let (outer, name) = split(without_slashes_at_its_end(above));
                if name.is_empty() || above == b"." {
                    return Err(error);
                }
                missing.push(name);
                above = or_here(outer);
            }
            Err(error) => return Err(error),
        }
    };
    for name in missing.iter().rev() {
        current = made(&current, name, links)?;
    }
    Ok((current, !missing.is_empty()))
}

/// A directory in another one, made if it is missing.
fn made(directory: &OwnedFd, name: &[u8], links: usize) -> io::Result<OwnedFd> {
    let at = directory.as_raw_fd();
    if let Err(error) = sys::make_directory(at, name, 0o755) {
        if sys::number_of(&error) != sys::EEXIST {
            return Err(error);
        }
        if links > 0 {
            if let Ok(target) = sys::read_link(at, name) {
                return make_directories(&target, at, links - 1).map(|(fd, _)| fd);
            }
        }
        if !sys::stat_at(at, name)?.is_directory() {
            return Err(error);
        }
    }
    sys::open_at(at, name, DIRECTORY | O_NOFOLLOW, 0)
}

/// Opens a directory to list it.
pub fn open_directory(path: &[u8]) -> io::Result<OwnedFd> {
    open_path(path, O_RDONLY | O_DIRECTORY, AT_FDCWD, Whose::TheSandboxs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("aviato-paths-{}-{name}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn bytes(path: &std::path::Path) -> Vec<u8> {
        path.to_str().unwrap().into()
    }

    #[test]
    fn paths_are_cut_as_posix_cuts_them() {
        for (path, head, name) in [
            ("a", "", "a"),
            ("/a", "/", "a"),
            ("a//b", "a", "b"),
            ("/a/b/", "/a/b", ""),
            ("//", "//", ""),
            ("a/..", "a", ".."),
        ] {
            assert_eq!(split(path.as_bytes()), (head.as_bytes(), name.as_bytes()), "{path}");
        }
        assert_eq!(join(b"/w", b"a"), b"/w/a");
        assert_eq!(join(b"/w/", b"/a"), b"/a");
    }

    #[test]
    fn what_is_the_kernels_is_refused_by_both_ways() {
        let top = folder("kernel");
        symlink("/proc/self/maps", top.join("maps")).unwrap();
        symlink("/proc/self/fd/0", top.join("magic")).unwrap();
        symlink("loop", top.join("loop")).unwrap();
        for name in ["maps", "magic"] {
            let path = bytes(&top.join(name));
            assert_eq!(
                open_path(&path, O_PATH, AT_FDCWD, Whose::TheSandboxs).unwrap_err().kind(),
                io::ErrorKind::Unsupported
            );
        }
        let path = bytes(&top.join("magic"));
        assert_eq!(walk(&path, O_PATH, AT_FDCWD).unwrap_err().kind(), io::ErrorKind::Unsupported);
        for result in [
            open_path(&bytes(&top.join("loop")), O_PATH, AT_FDCWD, Whose::TheSandboxs),
            walk(&bytes(&top.join("loop")), O_PATH, AT_FDCWD),
        ] {
            assert_eq!(sys::number_of(&result.unwrap_err()), sys::ELOOP);
        }
        assert!(open_path(b"/proc", DIRECTORY, AT_FDCWD, Whose::Anybodys).is_ok());
    }

    #[test]
    fn walking_finds_what_the_kernel_finds() {
        let top = folder("walk");
        std::fs::create_dir_all(top.join("d/e")).unwrap();
        std::fs::write(top.join("d/f"), "x").unwrap();
        symlink("d", top.join("to-d")).unwrap();
        symlink("../d/f", top.join("d/to-f")).unwrap();
        symlink(top.join("d"), top.join("d/absolute")).unwrap();
        for name in
            ["d/f", "to-d/f", "to-d/to-f", "d/absolute/e", "d/../to-d/e/", "to-d", "to-d/", "nothing", "d/f/", "d/f/x"]
        {
            for flags in [O_PATH, O_PATH | O_NOFOLLOW, DIRECTORY, O_RDONLY] {
                let path = bytes(&top.join(name));
                let name = [name.as_bytes(), b""].concat();
                let path =
                    if name.ends_with(b"/") && !path.ends_with(b"/") { [&path[..], b"/"].concat() } else { path };
                let inode = |result: io::Result<OwnedFd>| {
                    result.map(|fd| sys::stat_open(&fd).unwrap().inode).map_err(|error| sys::number_of(&error))
                };
                let kernels = inode(sys::open_no_magic(AT_FDCWD, &path, flags));
                assert_eq!(inode(walk(&path, flags, AT_FDCWD)), kernels, "{path:?} {flags:o}");
            }
        }
    }

    #[test]
    fn places_are_made_and_links_to_what_is_missing_followed() {
        let top = folder("place");
        symlink("later/file", top.join("link")).unwrap();
        let place = find_place(&bytes(&top.join("link"))).unwrap();
        assert_eq!((place.name, top.join("later").is_dir()), (b"file".to_vec(), true));
        let place = find_place(&bytes(&top.join("a/b/c"))).unwrap();
        assert_eq!((place.name, top.join("a/b").is_dir()), (b"c".to_vec(), true));
        for path in [top.join("a/.."), PathBuf::from("/")] {
            assert_eq!(sys::number_of(&find_place(&bytes(&path)).err().unwrap()), sys::EISDIR);
        }
        std::fs::write(top.join("file"), "").unwrap();
        assert_eq!(sys::number_of(&find_place(&bytes(&top.join("file/x/y"))).err().unwrap()), sys::ENOTDIR);
    }
}
