//! Control groups by which sandboxes share out the processors.
//!
//! Without groups the kernel shares them out by session (`sched_autogroup_enabled`) or by process, and code inside has as many of both as it
//! likes. So each sandbox is born in a group of its own, process 1 included, and whatever it starts stays there. A group is made once and had
//! by one sandbox after the other. In version 1 it is the zygote that goes there for the moment of the clone: to move oneself takes
//! microseconds, where to move another process waits for every processor of the machine.

use std::os::unix::io::{AsRawFd, OwnedFd};

use super::milliseconds_until;
use crate::directory::Names;
use crate::paths::join;
use crate::sys::{self, AT_FDCWD, O_DIRECTORY, O_PATH, O_RDONLY, O_WRONLY};

const NAME: &str = "aviato-share-";
const KEPT_NANOSECONDS: u64 = 2_000_000_000;
/// Between two looks at what other zygotes left while sandboxes live in it.
const LEFT_NANOSECONDS: u64 = 5_000_000_000;
const MOST_GROUPS: usize = 4096;

/// Who has a group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Nobody,
    Sandbox(i32),
    /// It is not there, or somebody is on the way to it.
    Removed,
}

#[derive(Default)]
pub struct Processors {
    /// Of the controller, where they are made; none where processors are not shared out.
    directory: Option<Vec<u8>>,
    unified: bool,
    /// The zygote's own list of tasks, in version 1.
    home: Option<OwnedFd>,
    owners: Vec<Owner>,
    entered: Option<usize>,
    /// When somebody left one the last time.
    ended: u64,
    /// When it was looked at what others left, if something of that stayed.
    left: Option<u64>,
}

/// Also who is dead and not collected: in many a container nobody collects what has lost its parent.
fn is_gone(pid: i32) -> bool {
    let mut text = [0; 512];
    let read = sys::open_at(AT_FDCWD, format!("/proc/{pid}/stat").as_bytes(), O_RDONLY, 0)
        .and_then(|fd| sys::read_some(&fd, &mut text));
    match read {
        Err(error) => matches!(sys::number_of(&error), sys::ENOENT | sys::ESRCH),
        Ok(count) => {
            let at = text[..count].iter().rposition(|byte| *byte == b')').unwrap_or(0);
            matches!(text.get(at + 2), Some(b'Z' | b'X'))
        }
    }
}

/// Whose group has this name.
fn maker_of(name: &[u8]) -> Option<i32> {
    let rest = name.strip_prefix(NAME.as_bytes())?;
    let digits = rest.split(|byte| *byte == b'-').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok().filter(|pid| *pid > 0)
}

impl Processors {
    /// Shares processors out from now on; once.
    pub fn share(&mut self, directory: &[u8], unified: bool) {
        if self.directory.is_some() {
            return;
        }
        if !unified {
            self.home = sys::open_at(AT_FDCWD, &join(directory, b"tasks"), O_WRONLY, 0).ok();
            if self.home.is_none() {
                return;
            }
        }
        self.directory = Some(directory.to_vec());
        self.unified = unified;
        self.remove_left();
    }

    /// Takes away the groups of zygotes that are gone.
    fn remove_left(&mut self) {
        self.left = None;
        let directory = match &self.directory {
            Some(directory) => directory,
            None => return,
        };
        let mut names = match sys::open_at(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY, 0) {
            Ok(fd) => Names::new(fd),
            Err(_) => return,
        };
        const EBUSY: i32 = 16;
        while let Ok(Some((name, _))) = names.next_name() {
            if maker_of(&name).map_or(false, is_gone) {
                if let Err(error) = sys::remove_directory(names.fd.as_raw_fd(), &name) {
                    if sys::number_of(&error) == EBUSY {
                        // Its sandbox lives, and is no child of this zygote that would be told its end.
                        self.left = Some(sys::now());
                    }
                }
            }
        }
    }

    fn path(&self, number: usize) -> Option<Vec<u8>> {
        let name = format!("{NAME}{}-{number}", sys::process_id());
        self.directory.as_ref().map(|directory| join(directory, name.as_bytes()))
    }

    fn open(&self, number: usize) -> Option<OwnedFd> {
        let path = self.path(number)?;
        if self.unified {
            return sys::open_at(AT_FDCWD, &path, O_PATH | O_DIRECTORY, 0).ok();
        }
        sys::open_at(AT_FDCWD, &join(&path, b"tasks"), O_WRONLY, 0).ok()
    }

    fn make(&self, number: usize) -> Option<OwnedFd> {
        match sys::make_directory(AT_FDCWD, &self.path(number)?, 0o755) {
            Err(error) if sys::number_of(&error) != sys::EEXIST => None,
            _ => self.open(number),
        }
    }

    /// Is in one that nobody has, in version 1; in version 2 the descriptor of one that a child is born in.
    pub fn enter(&mut self) -> Option<OwnedFd> {
        self.directory.as_ref()?;
        let of = |wanted: Owner| self.owners.iter().position(|owner| *owner == wanted);
        let number = of(Owner::Nobody).or_else(|| of(Owner::Removed)).unwrap_or(self.owners.len());
        if number >= MOST_GROUPS {
            return None;
        }
        // One that was there may have been taken away.
        let fd = self.open(number).or_else(|| self.make(number))?;
        if number == self.owners.len() {
            self.owners.push(Owner::Removed);
        }
        self.owners[number] = Owner::Removed; // Until somebody has it.
        self.entered = Some(number);
        if self.unified {
            return Some(fd);
        }
        if sys::write_some(&fd, b"0").is_err() {
            self.owners[number] = Owner::Nobody;
            self.entered = None;
        }
        None
    }

    /// Is at home again; the group is a child's, or nobody's where there is none.
    pub fn leave(&mut self, pid: i32) {
        let number = match self.entered.take() {
            Some(number) => number,
            None => return,
        };
        self.owners[number] = if pid > 0 { Owner::Sandbox(pid) } else { Owner::Nobody };
        if let Some(home) = &self.home {
            if sys::write_some(home, b"0").is_err() {
                // Nothing is shared out by a zygote that cannot come back.
                self.directory = None;
            }
        }
    }

    pub fn ended(&mut self, pid: i32) {
        if let Some(owner) = self.owners.iter_mut().find(|owner| **owner == Owner::Sandbox(pid)) {
            *owner = Owner::Nobody;
            self.ended = sys::now();
        }
    }

    pub fn expire(&mut self) -> Option<i32> {
        let mut next = None;
        if self.owners.contains(&Owner::Nobody) {
            let until = self.ended + KEPT_NANOSECONDS;
            if until > sys::now() {
                next = Some(milliseconds_until(until));
            } else {
                self.remove_free();
            }
        }
        if let Some(looked) = self.left {
            if looked + LEFT_NANOSECONDS <= sys::now() {
                self.remove_left();
            }
            let of_left = self.left.map(|looked| milliseconds_until(looked + LEFT_NANOSECONDS));
            next = next.into_iter().chain(of_left).min();
        }
        next
    }

    fn remove_free(&mut self) {
        for number in 0..self.owners.len() {
            if self.owners[number] == Owner::Nobody {
                self.remove(number);
                self.owners[number] = Owner::Removed;
            }
        }
    }

    fn remove(&self, number: usize) {
        if let Some(path) = self.path(number) {
            // Where a sandbox lives it stays, for a later zygote to find.
            drop(sys::remove_directory(AT_FDCWD, &path));
        }
    }

    /// Takes away all that nobody lives in: this zygote ends.
    pub fn remove_all(&self) {
        for number in 0..self.owners.len() {
            self.remove(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_their_makers() {
        for (name, maker) in [
            ("aviato-share-12-0", Some(12)),
            ("aviato-share--1-0", None),
            ("aviato-share-x-0", None),
            ("other-12-0", None),
            ("aviato-share-0-1", None),
        ] {
            assert_eq!(maker_of(name.as_bytes()), maker, "{name}");
        }
    }

    #[test]
    fn who_lives_is_not_gone() {
        assert!(!is_gone(sys::process_id()) && is_gone(i32::MAX));
    }
}
