//! A control group in which the kernel keeps the limit of memory, and whom it has killed there.
//!
//! The kernel kills one process, and does not say which: it is told by how much each command had shortly before.

use std::collections::HashMap;
use std::os::unix::io::OwnedFd;

use crate::limits::memory::{parsed, resident_bytes, tag_of};
use crate::process_tree::Processes;
use crate::sys;

/// Who had this part of the limit when it was looked at last is to blame; else it was too quick to be seen, and is new.
const LARGE: u64 = 4;
const LIMIT_PARTS: u64 = 16;

/// The group of all commands.
pub struct Group {
    /// In bytes.
    pub limit: u64,
    /// `memory.oom_control`, or `memory.events` in version 2.
    control: OwnedFd,
    /// What tells the most memory that there ever was, in version 1.
    most: Option<OwnedFd>,
    killed: u64,
    full: u64,
    shares: HashMap<Option<u64>, u64>,
}

impl Group {
    pub fn new(control: OwnedFd, most: Option<OwnedFd>) -> Group {
        Group { limit: 0, control, most, killed: 0, full: 0, shares: HashMap::new() }
    }

    /// Remembers how much each command has.
    pub fn look(&mut self, processes: &Processes, pids: &[i32]) {
        let mut shares: HashMap<Option<u64>, u64> = HashMap::new();
        for pid in pids {
            *shares.entry(tag_of(processes, *pid)).or_default() += resident_bytes(processes, *pid);
        }
        // The dead are seen without their memory: what they had before still counts.
        for (tag, size) in &mut shares {
            *size = (*size).max(self.shares.get(tag).copied().unwrap_or(0) / 2);
        }
        self.shares = shares;
    }

    /// Whether the kernel has killed something since the last time, at this limit and not because the machine was full.
    pub fn has_killed(&mut self) -> bool {
        let mut text = [0; 512];
        let count = sys::read_from(&self.control, &mut text, 0).unwrap_or(0);
        let killed = count_of(&text[..count], b"oom_kill ").unwrap_or(0);
        // How often the group's own limit was met without a way out, where the kernel tells (version 2).
        let full = count_of(&text[..count], b"\noom ");
        let rose = killed > self.killed && full.map_or_else(|| self.was_full(), |full| full > self.full);
        if killed > self.killed {
            self.full = full.unwrap_or(0);
        }
        self.killed = killed;
        rose
    }

    /// Whether there was ever as much as the limit, but for what is charged at once.
    fn was_full(&self) -> bool {
        let mut text = [0; 32];
        match &self.most {
            None => true,
            Some(most) => {
                let count = sys::read_from(most, &mut text, 0).unwrap_or(0);
                parsed(&text[..count]).unwrap_or(0) >= self.limit - self.limit / LIMIT_PARTS
            }
        }
    }

    /// The tag of the command that it must have been, out of those that run, the newest last.
    pub fn suspect(&self, running: &[Option<u64>]) -> Option<u64> {
        let largest = self.shares.iter().max_by_key(|(_, size)| **size);
        if let Some((Some(tag), _)) = largest.filter(|(_, size)| **size * LARGE >= self.limit) {
            return Some(*tag);
        }
        running.last().copied().flatten()
    }
}

fn count_of(text: &[u8], name: &[u8]) -> Option<u64> {
    let at = text.windows(name.len()).position(|part| part == name)?;
    text[at + name.len()..].split(u8::is_ascii_whitespace).next().and_then(parsed)
}
