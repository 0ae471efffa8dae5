//! How much memory the processes of a sandbox use, and whose they are.
//!
//! The rough measure is cheap and never too small: the resident pages of every process, shared ones counted each time. Only where that
//! reaches the limit are pages divided among those who share them, which takes the kernel a walk of all page tables.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::io::OwnedFd;

use crate::process_tree::{List, Processes};
use crate::sys::{self, FileSystem, AT_FDCWD, O_NOFOLLOW, O_PATH};

/// Where the file systems in memory are.
const IN_MEMORY: [&[u8]; 4] = [b"/dev/shm", b"/.aviato/own", b"/etc", b"/.aviato"];
const PAGE_BYTES: u64 = 4096;
/// So many are looked at before anything else has its turn.
pub const PROCESSES_A_TURN: usize = 64;
/// Of a file in memory, with a long name, beside what is in it. Extended attributes count as such ones.
const INODE_BYTES: u64 = 1280;
const PAGE_TABLES: &[u8] = b"\nVmPTE:";

/// Everything alive but process 1, and whether it has run since the last look.
#[derive(Default)]
pub struct Alive {
    newest: Vec<u8>,
    /// How long each had run, in nanoseconds.
    pub ran: BTreeMap<i32, u64>,
    /// Whether somebody had gone between the list and the look, and may have left a child.
    pub has_lost: bool,
    look: Option<Look>,
}

/// A look under way.
struct Look {
    newest: Vec<u8>,
    /// Whether anybody was born since the last; then they are listed first.
    born: bool,
    list: Option<List>,
    left: Vec<i32>,
    listed: usize,
    ran: BTreeMap<i32, u64>,
}

impl Alive {
    /// Goes on to find out who lives; when that is known, whether anybody ran since the last time. Who has not run has neither taken nor
    /// written.
    ///
    /// Where many live it is done in parts: the end of a command's time does not wait for all of them.
    pub fn look(&mut self, processes: &Processes) -> io::Result<Option<bool>> {
        let mut look = match self.look.take() {
            Some(look) => look,
            None => self.begin(processes)?,
        };
        while let Some(list) = &mut look.list {
            if !processes.list_on(list)? {
                look.left = std::mem::take(&mut list.found);
                look.listed = look.left.len();
                look.list = None;
            } else if list.found.len() > PROCESSES_A_TURN {
                self.look = Some(look);
                return Ok(None);
            }
        }
        let rest = look.left.len().saturating_sub(PROCESSES_A_TURN);
        look.ran.extend(look.left.drain(rest..).filter_map(|pid| sys::processor_time(pid).map(|time| (pid, time))));
        if !look.left.is_empty() {
            self.look = Some(look);
            return Ok(None);
        }
        processes.are(look.ran.len());
        self.newest = look.newest;
        self.has_lost = look.ran.len() < look.listed;
        let changed = look.born || look.ran != self.ran;
        self.ran = look.ran;
        Ok(Some(changed))
    }

    fn begin(&self, processes: &Processes) -> io::Result<Look> {
        // Unchanged, nothing was born.
        let newest = processes.newest()?;
        let born = newest != self.newest;
        let list = if born { Some(processes.list()?) } else { None };
        let left: Vec<i32> = if born { Vec::new() } else { self.ran.keys().copied().collect() };
        Ok(Look { newest, born, list, listed: left.len(), left, ran: BTreeMap::new() })
    }

    pub fn pids(&self) -> Vec<i32> {
        self.ran.keys().copied().collect()
    }
}

/// The file systems in memory that a sandbox can write to.
pub struct Stores(Vec<OwnedFd>);

impl Stores {
    /// Without `own` it has none at the usual places.
    pub fn new(own: bool) -> Stores {
        let device = sys::stat_path(AT_FDCWD, b"/").map_or(0, |found| found.device);
        let is_another = |path: &&&[u8]| sys::stat_at(AT_FDCWD, path).map_or(false, |found| found.device != device);
        let paths = IN_MEMORY.iter().filter(|_| own);
        Stores(
            paths
                .filter(is_another)
                .filter_map(|path| sys::open_at(AT_FDCWD, path, O_PATH | O_NOFOLLOW, 0).ok())
                .collect(),
        )
    }

    pub fn add(&mut self, fd: &OwnedFd) {
        self.0.extend(sys::duplicate(fd));
    }

    /// What their files take.
    pub fn used_bytes(&self) -> u64 {
        let bytes = |found: FileSystem| found.used_bytes + found.used_inodes * INODE_BYTES;
        self.0.iter().filter_map(|fd| sys::file_system_of(fd).ok()).map(bytes).sum()
    }
}

/// What a process has resident and in tables of its pages, at most too much; with `swap` also what is not resident.
pub fn rough_bytes(processes: &Processes, pid: i32, swap: bool) -> u64 {
    let text = processes.told(pid, "status").unwrap_or_default();
    let swapped = if swap { kibibytes(&text, b"\nVmSwap:") } else { 0 };
    kibibytes(&text, PAGE_TABLES).saturating_add(swapped).saturating_add(resident_bytes(processes, pid))
}

/// What a process has in memory, shared or not; 0 of one that is gone.
pub fn resident_bytes(processes: &Processes, pid: i32) -> u64 {
    for place in processes.places(pid) {
        let text = processes.text(&format!("{place}/statm")).unwrap_or_default();
        let pages = text.split(|byte| *byte == b' ').nth(1).and_then(parsed).unwrap_or(0);
        if pages > 0 {
            return pages.saturating_mul(PAGE_BYTES);
        }
    }
    0
}

/// The tag of a process's command; `None` of one that is gone or hides it.
pub fn tag_of(processes: &Processes, pid: i32) -> Option<u64> {
    processes.tag_of(pid).ok().flatten()
}

/// What each command has, by its tag, pages divided by how many share them; `None` is the tag of what hides it.
#[derive(Default)]
pub struct Shares {
    pub bytes: HashMap<Option<u64>, u64>,
    pub pids: HashMap<Option<u64>, Vec<i32>>,
    /// How many children of each process have been found to have its memory.
    borrowers: HashMap<i32, usize>,
    private_bytes: u64,
    shared_bytes: u64,
}

impl Shares {
    /// Adds a process, with what it holds in files in memory without a name, and what the kernel holds for it.
    pub fn add(&mut self, processes: &Processes, pid: i32, nameless: u64, kernel: u64) {
        let lender = processes.lender(pid);
        let text = processes.told(pid, "smaps_rollup").unwrap_or_default();
        let mut private = kibibytes(&text, b"\nPss_Anon:").saturating_add(kibibytes(&text, b"\nSwapPss:"));
        let mut shared = kibibytes(&text, b"\nPss_Shmem:");
        if private == 0 && shared == 0 {
            private = resident_bytes(processes, pid);
        }
        let status = processes.told(pid, "status").unwrap_or_default();
        private = private.saturating_add(kernel).saturating_add(kibibytes(&status, PAGE_TABLES));
        if lender.map_or(false, |lender| self.is_lent(processes, pid, lender)) {
            (private, shared) = (0, 0);
        }
        let tag = tag_of(processes, pid);
        self.private_bytes = self.private_bytes.saturating_add(private);
        self.shared_bytes = self.shared_bytes.saturating_add(shared);
        let bytes = self.bytes.entry(tag).or_default();
        *bytes = bytes.saturating_add(private).saturating_add(shared.max(nameless));
        self.pids.entry(tag).or_default().push(pid);
    }

    /// Whether a process has the memory of its parent, which counts there, until it runs a program of its own. Which of the children it is nobody
    /// tells; it is one for each thread that waits, and another one that has no more makes no less of the sum.
    fn is_lent(&mut self, processes: &Processes, pid: i32, (lender, count): (i32, usize)) -> bool {
        let has_no_more = resident_bytes(processes, pid) <= resident_bytes(processes, lender);
        let borrowers = self.borrowers.entry(lender).or_default();
        let is_lent = has_no_more && *borrowers < count;
        *borrowers += usize::from(is_lent);
        is_lent
    }

    /// Of the sandbox, with the files in memory: what is mapped of those was counted with who maps it.
    pub fn total(&self, stored_bytes: u64) -> u64 {
        self.private_bytes.saturating_add(self.shared_bytes.max(stored_bytes))
    }

    /// Whose share is the largest; nothing where nobody has any.
    pub fn largest(&self) -> Option<Option<u64>> {
        self.bytes.iter().max_by_key(|(_, bytes)| **bytes).map(|(tag, _)| *tag)
    }
}

/// That follows a name in a text of /proc; 0 where the name is not in it.
pub fn number(text: &[u8], name: &[u8]) -> u64 {
    let start = text.windows(name.len()).position(|part| part == name);
    let line = start.and_then(|start| text[start + name.len()..].split(|byte| *byte == b'\n').next());
    line.and_then(|line| line.split(|byte| byte.is_ascii_whitespace()).find(|word| !word.is_empty()).and_then(parsed))
        .unwrap_or(0)
}

/// The same of a number of KiB, in bytes.
fn kibibytes(text: &[u8], name: &[u8]) -> u64 {
    number(text, name).saturating_mul(1024)
}

pub fn parsed(word: &[u8]) -> Option<u64> {
    std::str::from_utf8(word).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_behind_their_names() {
        let text = b"Name:\tsh\nVmPTE:\t      48 kB\nThreads:\t3\n";
        assert_eq!((number(text, PAGE_TABLES), number(text, b"\nThreads:"), number(text, b"\nNone:")), (48, 3, 0));
        assert_eq!((number(b"", b"\nA:"), number(b"\nA:", b"\nA:"), number(b"\nA:x", b"\nA:")), (0, 0, 0));
    }

    #[test]
    fn what_is_too_much_to_count_is_the_most_that_there_is() {
        let text = b"\nA:\t18446744073709551615 kB\nB:\t18014398509481984 kB\nC: 2 kB";
        assert_eq!([b"\nA:", b"\nB:", b"\nC:"].map(|name| kibibytes(text, name)), [u64::MAX, u64::MAX, 2048]);
    }

    #[test]
    fn who_runs_is_seen() {
        let processes = Processes::new().unwrap();
        let mut alive = Alive::default();
        let whole = |alive: &mut Alive| loop {
            if let Some(changed) = alive.look(&processes).unwrap() {
                return changed;
            }
        };
        assert!(whole(&mut alive));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(whole(&mut alive) && alive.ran.contains_key(&(child.id() as i32)));
        assert!(resident_bytes(&processes, child.id() as i32) > 0);
        child.kill().unwrap();
        child.wait().unwrap();
        whole(&mut alive);
        assert!(!alive.ran.contains_key(&(child.id() as i32)));
    }
}
