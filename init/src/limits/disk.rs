//! What a sandbox has on disk: counted in small steps, and a limit that writing through the file calls meets at once.
//!
//! The writable layer is seen through a mount of its own, without anything that is mounted in it inside.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

use crate::directory::{self, Names};
use crate::errors::Refused;
use crate::event_loop::{Call, EventLoop, Timer};
use crate::paths::reopen;
use crate::process_tree::Processes;
use crate::sys::{self, Stat, AT_FDCWD, O_DIRECTORY, O_NOFOLLOW, O_PATH, O_RDONLY};

const HOST_FULL_BYTES: u64 = 1 << 20;
/// A disk that is full is the machine's failure if less than this part of its own limit can be in the sandbox.
const SMALL_PART: u64 = 10;
const SAMPLE_SECONDS: f64 = 0.1;
pub const SETTLE_SECONDS: f64 = 0.005;
const SETTLE_AT_MOST_SECONDS: f64 = 0.02;
/// So many times as long as a count took nothing is counted after it.
const REST: f64 = 20.0;
/// The same while the disk's free space dwindles as fast as this sandbox would have to write to reach its limit soon.
const SHORT_REST: f64 = 3.0;
const ENTRIES_A_TURN: usize = 256;
/// Directories at multiples of this depth wait for their turn, with a descriptor each.
const DEEPEST: usize = 32;
/// Where so many wait, those that follow are counted at once, with all that is below them.
const MOST_WAITING: usize = 192;
/// More descriptors it does not take: a tree that is as wide where it is deep, and as much deeper there, has too many directories.
const MOST_OPEN: usize = 320;
const BLOCK_BYTES: u64 = 512;
const NO_LIMIT: u64 = u64::MAX;

/// A directory that is being counted, readable for as long as that takes.
struct Folder {
    names: Names,
    /// To give back where it had to be made readable.
    mode: Option<u32>,
}

impl Folder {
    fn open(named: &OwnedFd) -> io::Result<Folder> {
        // By way of /proc: where the root itself cannot be searched, there is no other.
        let open = || reopen(named, O_RDONLY | O_DIRECTORY);
        let mode = sys::stat_open(named)?.permissions();
        // Who may read everything has no need to change anything, which others could see.
        let (fd, is_readable) = match open() {
            Ok(fd) if mode & 0o100 != 0 || sys::stat_at(fd.as_raw_fd(), b".").is_ok() => (fd, true),
            Err(error) if sys::number_of(&error) != sys::EACCES => return Err(error),
            _ => {
                sys::set_mode(named, mode | 0o500)?;
                (open()?, false)
            }
        };
        Ok(Folder { names: Names::new(fd), mode: (!is_readable).then_some(mode) })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(mode) = self.mode {
            // Unless somebody has given it another one meanwhile.
            if sys::stat_open(&self.names.fd).map_or(false, |found| found.permissions() == mode | 0o500) {
                drop(sys::set_mode(&self.names.fd, mode));
            }
        }
    }
}

/// A count of a tree that changes meanwhile, of any depth, and of files without names.
struct Count {
    bytes: u64,
    inodes: u64,
    /// Bytes in files in memory that have no name, by the process that holds them open.
    nameless: HashMap<i32, u64>,
    ceiling: (u64, u64),
    linked: HashSet<(u64, u64)>,
    waiting: Vec<OwnedFd>,
    stack: Vec<Folder>,
    /// Whose descriptors are still to be looked at.
    pids: Vec<i32>,
    current: Option<(i32, Names)>,
    /// Files that are counted, or are not theirs.
    seen: HashSet<(u64, u64)>,
    settled: bool,
    began: f64,
}

impl Count {
    /// Whether it is more than allowed.
    fn is_over(&self) -> bool {
        self.bytes > self.ceiling.0 || self.inodes > self.ceiling.1
    }

    /// One entry; a file with many names counts once.
    fn add(&mut self, found: &Stat) {
        if found.links != 1 && !found.is_directory() && !self.linked.insert((found.device, found.inode)) {
            return;
        }
        self.inodes += 1;
        self.bytes += found.blocks * BLOCK_BYTES;
    }

    /// Goes on; true once all is counted, or more was found than the ceiling allows.
    fn step(&mut self, processes: &Processes, on_disk: &HashSet<u64>, in_memory: u64) -> io::Result<bool> {
        for _ in 0..ENTRIES_A_TURN {
            if self.is_over() {
                return Ok(true);
            }
            if let Some(folder) = self.stack.last_mut() {
                match folder.names.next_name()? {
                    None => drop(self.stack.pop()),
                    Some((name, _)) => self.entry(&name)?,
                }
            } else if let Some(top) = self.waiting.pop() {
                self.stack.push(Folder::open(&top)?);
            } else {
                return self.nameless_step(processes, on_disk, in_memory);
            }
        }
        Ok(false)
    }

    fn entry(&mut self, name: &[u8]) -> io::Result<()> {
        let at = match self.stack.last() {
            Some(folder) => folder.names.fd.as_raw_fd(),
            None => return Ok(()),
        };
        let result = sys::stat_at(at, name).and_then(|found| {
            self.add(&found);
            if !found.is_directory() {
                return Ok(());
            }
            let named = sys::open_at(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW, 0)?;
            let waits = self.stack.len() >= DEEPEST && self.waiting.len() < MOST_WAITING;
            if waits {
                self.waiting.push(named);
            } else if self.stack.len() + self.waiting.len() < MOST_OPEN {
                self.stack.push(Folder::open(&named)?);
            } else {
                self.inodes = NO_LIMIT - 1;
            }
            Ok(())
        });
        match result {
            Err(error) if is_no_room(&error) => Err(error),
            // Gone meanwhile, or another thing by now.
            _ => Ok(()),
        }
    }

    /// Adds files which have lost their names, or never had one, and that somebody holds open.
    fn nameless_step(&mut self, processes: &Processes, on_disk: &HashSet<u64>, in_memory: u64) -> io::Result<bool> {
        let (pid, mut names) = match self.current.take() {
            Some(current) => current,
            None => match self.pids.pop() {
                None => return Ok(true),
                Some(pid) => match descriptors_of(processes, pid)? {
                    Some(fd) => (pid, Names::new(fd)),
                    None => return Ok(false),
                },
            },
        };
        for _ in 0..ENTRIES_A_TURN {
            let name = match names.next_name() {
                Ok(Some((name, _))) => name,
                Ok(None) | Err(_) => return Ok(false),
            };
            let found = match sys::stat_path(names.fd.as_raw_fd(), &name) {
                Ok(found) => found,
                Err(_) => continue,
            };
            let is_nameless = found.links == 0 && found.kind() == sys::S_IFREG;
            if !is_nameless || !self.seen.insert((found.device, found.inode)) {
                continue;
            }
            if on_disk.contains(&found.device) {
                self.bytes += found.blocks * BLOCK_BYTES;
                self.inodes += 1;
            } else if found.device == in_memory {
                *self.nameless.entry(pid).or_default() += found.blocks * BLOCK_BYTES;
            }
        }
        self.current = Some((pid, names));
        Ok(false)
    }
}

fn is_no_room(error: &io::Error) -> bool {
    matches!(sys::number_of(error), sys::EMFILE | sys::ENFILE | sys::ENOMEM)
}

/// The directory of a process's descriptors.
fn descriptors_of(processes: &Processes, pid: i32) -> io::Result<Option<OwnedFd>> {
    for place in processes.places(pid) {
        match sys::open_at(processes.directory(), format!("{place}/fd").as_bytes(), O_RDONLY | O_DIRECTORY, 0) {
            Ok(fd) => {
                let mut names = Vec::new();
                if matches!(sys::read_names(&fd, &mut names), Ok(true)) && !names.is_empty() {
                    sys::seek(&fd, 0)?;
                    return Ok(Some(fd));
                }
            }
            Err(error) if is_no_room(&error) => return Err(error),
            Err(_) => {}
        }
    }
    Ok(None)
}

/// The writable layer, watched.
pub struct Disk {
    /// The limit that is passed, in words.
    full: Option<String>,
    /// Bytes in files in memory that have no name, by the process that holds them open; in no measure of its memory.
    pub nameless: HashMap<i32, u64>,
    layer: Option<OwnedFd>,
    limits: (u64, u64),
    ceiling: (u64, u64),
    used: u64,
    /// What file calls have written since the last count, less what went.
    coming: i64,
    seen_coming: i64,
    inodes: u64,
    free: (u64, u64),
    /// Who was killed for the last excess, and may still finish a write.
    dying: HashSet<i32>,
    ended: f64,
    took: f64,
    count: Option<Count>,
    again: bool,
    timer: Option<Timer>,
    /// Of the layer's files, seen from inside and from beside, and of files that never had a name.
    devices: Option<(HashSet<u64>, u64)>,
}

impl Disk {
    pub fn new(layer: Option<OwnedFd>) -> Disk {
        Disk {
            full: None,
            nameless: HashMap::new(),
            layer,
            limits: (NO_LIMIT, NO_LIMIT),
            ceiling: (NO_LIMIT, NO_LIMIT),
            used: 0,
            coming: 0,
            seen_coming: 0,
            inodes: 0,
            free: (0, 0),
            dying: HashSet::new(),
            ended: 0.0,
            took: 0.0,
            count: None,
            again: false,
            timer: None,
            devices: None,
        }
    }

    pub fn layer(&self) -> Option<&OwnedFd> {
        self.layer.as_ref()
    }

    /// Keeps these from now on.
    pub fn limit(&mut self, bytes: Option<u64>, inodes: Option<u64>) {
        if self.layer.is_some() {
            self.limits = (bytes.unwrap_or(NO_LIMIT), inodes.unwrap_or(NO_LIMIT));
            self.ceiling = self.limits;
        }
    }

    /// Whether there is a limit at all.
    pub fn is_limited(&self) -> bool {
        self.limits != (NO_LIMIT, NO_LIMIT)
    }

    fn now_used(&self) -> u64 {
        (self.used as i64).saturating_add(self.coming).max(0) as u64
    }

    /// So much is about to be written by a file call.
    ///
    /// # Errors
    /// There is no room for it within the limit.
    pub fn take(&mut self, path: &[u8], size: u64, looper: &mut EventLoop) -> Result<(), Refused> {
        if !self.is_limited() {
            return Ok(());
        }
        if self.full.is_some() || self.now_used().saturating_add(size) > self.limits.0 {
            let what = self.full.clone().unwrap_or_else(|| words_of_bytes(self.limits.0));
            return Err(Refused::file(path, "disk_full", format!("the sandbox's limit of {what} is reached")));
        }
        self.coming += size as i64;
        self.touched(looper);
        Ok(())
    }

    /// So much of what was taken is gone again, or has replaced as much.
    pub fn give_back(&mut self, size: u64) {
        self.coming -= size as i64;
    }

    /// What an error of the kernel means to a file call: whether it is the machine's disk that is full.
    pub fn error_of(&self, path: &[u8], error: &io::Error) -> Refused {
        if sys::number_of(error) == sys::ENOSPC && self.is_host_full() {
            let message = "the disk of the machine that sandboxes lie on is full";
            return Refused { is_infrastructure: true, ..Refused::file(path, "host_disk_full", message) };
        }
        Refused::os(path, error)
    }

    /// Whether it is, and cannot be for what is in here: at most a small part of what this sandbox may have.
    fn is_host_full(&self) -> bool {
        let found = match self.layer.as_ref().and_then(|layer| sys::file_system_of(layer).ok()) {
            Some(found) if self.is_limited() => found,
            _ => return false,
        };
        // What the disk lost since the last count may all be ours.
        let own = self.now_used() + self.free.0.saturating_sub(found.free_bytes);
        found.available_bytes < HOST_FULL_BYTES && own < self.limits.0 / SMALL_PART
    }

    /// Whether something that was removed is to be counted before that is said: there is little room, or it is soon done.
    pub fn wants_to_settle(&self) -> bool {
        let little = self.full.is_some() || self.now_used() > self.limits.0 / 2;
        self.is_limited() && (little || self.took <= SETTLE_AT_MOST_SECONDS)
    }

    pub fn is_counting(&self) -> bool {
        self.count.is_some()
    }

    /// Something may have been written or removed: counts, when it is time.
    pub fn touched(&mut self, looper: &mut EventLoop) {
        if !self.is_limited() {
            return;
        }
        if self.count.is_some() {
            self.again = true;
            return;
        }
        let rest = self.took * if self.dwindles() { SHORT_REST } else { REST };
        let due = self.ended + rest.max(SAMPLE_SECONDS);
        if let Some(timer) = self.timer {
            if looper.due_of(timer).map_or(false, |earlier| earlier <= due) {
                return;
            }
            looper.cancel(timer);
        }
        self.timer = Some(looper.after(due - looper.now(), Call::CountDisk));
    }

    /// Whether the disk lost half as much as this sandbox may still take; others may have taken it.
    fn dwindles(&self) -> bool {
        if self.took <= SAMPLE_SECONDS / REST {
            return false;
        }
        let free = self.free_now();
        self.free.0.saturating_sub(free.0) > self.limits.0.saturating_sub(self.used) / 2
            || self.free.1.saturating_sub(free.1) > self.limits.1.saturating_sub(self.inodes) / 2
    }

    fn free_now(&self) -> (u64, u64) {
        let found = self.layer.as_ref().and_then(|layer| sys::file_system_of(layer).ok());
        found.map_or((0, 0), |found| (found.free_bytes, found.free_inodes))
    }

    /// Begins to count; `not_theirs` are files without a name that the processes have open and that are not counted.
    pub fn begin(&mut self, pids: Vec<i32>, not_theirs: HashSet<(u64, u64)>, looper: &mut EventLoop) {
        if let Some(timer) = self.timer.take() {
            looper.cancel(timer);
        }
        let layer = match self.layer.as_ref().and_then(|layer| sys::duplicate(layer).ok()) {
            Some(layer) if self.count.is_none() => layer,
            _ => return,
        };
        self.again = false;
        self.seen_coming = self.coming;
        self.free = self.free_now();
        self.count = Some(Count {
            bytes: 0,
            inodes: 0,
            nameless: HashMap::new(),
            ceiling: self.ceiling,
            linked: HashSet::new(),
            waiting: vec![layer],
            stack: Vec::new(),
            settled: !pids.iter().any(|pid| self.dying.contains(pid)),
            pids,
            current: None,
            seen: not_theirs,
            began: looper.now(),
        });
    }

    /// Goes on with a count; true once it is over. The limit that it finds passed, in words.
    pub fn step(&mut self, processes: &Processes, pids: &[i32], looper: &mut EventLoop) -> (bool, Option<String>) {
        let mut count = match self.count.take() {
            Some(count) => count,
            None => return (true, None),
        };
        let result = self.devices().and_then(|(on_disk, in_memory)| count.step(processes, &on_disk, in_memory));
        if let Ok(false) = result {
            self.count = Some(count);
            return (false, None);
        }
        self.ended = looper.now();
        self.took = self.ended - count.began;
        // Without a descriptor left, or where somebody moved things about, the next one will do.
        let passed = if result.is_ok() { self.counted(&count, pids) } else { None };
        drop(count);
        if self.again {
            self.touched(looper);
        }
        (true, passed)
    }

    fn counted(&mut self, count: &Count, pids: &[i32]) -> Option<String> {
        self.coming -= self.seen_coming;
        self.used = count.bytes;
        self.inodes = count.inodes;
        self.nameless = count.nameless.clone();
        if count.is_over() {
            let by_bytes = count.bytes > self.ceiling.0;
            let words = if by_bytes {
                words_of_bytes(self.limits.0)
            } else {
                format!("{} files and directories", self.limits.1)
            };
            // What there is once the killed are gone may stay: a command that removes some of it must live to do so. Only more is too
            // much.
            self.ceiling = (count.bytes.saturating_add(self.limits.0), count.inodes.saturating_add(self.limits.1));
            self.dying = pids.iter().copied().collect();
            self.again = true;
            self.ended = 0.0;
            self.full = Some(words.clone());
            return Some(words);
        }
        let ceiling = (self.limits.0.max(count.bytes), self.limits.1.max(count.inodes));
        if ceiling == self.limits {
            self.full = None;
        } else if !count.settled {
            self.again = true;
            return None;
        }
        self.dying.clear();
        self.ceiling = ceiling;
        None
    }

    fn devices(&mut self) -> io::Result<(HashSet<u64>, u64)> {
        if let Some(devices) = &self.devices {
            return Ok(devices.clone());
        }
        let in_memory = sys::stat_open(&sys::make_memory_file()?)?.device;
        let mut on_disk = HashSet::from([sys::stat_path(AT_FDCWD, b"/")?.device]);
        if let Some(layer) = &self.layer {
            let inside = sys::open_at(layer.as_raw_fd(), b".", directory::OPEN | O_PATH, 0)?;
            on_disk.insert(sys::stat_open(&inside)?.device);
        }
        Ok(self.devices.insert((on_disk, in_memory)).clone())
    }
}

fn words_of_bytes(bytes: u64) -> String {
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    // As many digits as it takes, and no more than six.
    let digits = format!("{mebibytes:.6}");
    let short = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{short} MiB of disk")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(top: &std::path::Path) -> (u64, u64) {
        let layer = sys::open_at(AT_FDCWD, top.to_str().unwrap().as_bytes(), O_PATH | O_DIRECTORY, 0).unwrap();
        let mut disk = Disk::new(Some(layer));
        let (mut looper, processes) = (EventLoop::new().unwrap(), Processes::new().unwrap());
        disk.limit(Some(1 << 40), Some(1 << 20));
        disk.begin(Vec::new(), HashSet::new(), &mut looper);
        while !disk.step(&processes, &[], &mut looper).0 {}
        (disk.used, disk.inodes)
    }

    #[test]
    fn a_tree_is_counted_whatever_its_depth_and_modes() {
        let top = std::env::temp_dir().join(format!("aviato-count-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&top));
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        std::fs::write(top.join("a/file"), vec![1; 100_000]).unwrap();
        std::fs::hard_link(top.join("a/file"), top.join("a/b/same")).unwrap();
        let (bytes, inodes) = counted(&top);
        assert!(inodes == 3 && (100_000..200_000).contains(&bytes), "{bytes} {inodes}");
        let mut deep = top.join("a");
        for _ in 0..100 {
            deep = deep.join("d");
            std::fs::create_dir(&deep).unwrap();
        }
        assert_eq!(counted(&top).1, 103);
        // Many directories where others wait, and a deep one below each.
        let mut wide = top.join("a");
        for _ in 2..DEEPEST {
            wide = wide.join("d");
        }
        for number in 0..400 {
            std::fs::create_dir_all(wide.join(format!("{number}/e/f/g"))).unwrap();
        }
        assert_eq!(counted(&top).1, 103 + 400 * 4);
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn the_limit_is_met_at_once_and_told_in_words() {
        let layer = sys::open_at(AT_FDCWD, b"/tmp", O_PATH | O_DIRECTORY, 0).unwrap();
        let (mut disk, mut looper) = (Disk::new(Some(layer)), EventLoop::new().unwrap());
        disk.limit(Some(3 << 19), None);
        disk.take(b"f", 1 << 20, &mut looper).unwrap();
        let refused = disk.take(b"f", 1 << 20, &mut looper).unwrap_err();
        assert_eq!(refused.message, b"'f': the sandbox's limit of 1.5 MiB of disk is reached");
        disk.give_back(1 << 20);
        disk.take(b"f", 1 << 20, &mut looper).unwrap();
    }
}
