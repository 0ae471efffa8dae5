//! Whether a sandbox is at rest: nothing is there but its files, so that another process 1 in another place could go on with them; and what
//! that has to know.

use std::os::unix::io::AsRawFd;

use crate::directory::{self, Names};
use crate::errors::{Fields, Refused};
use crate::json::{object, Value};
use crate::limits::sysv;
use crate::supervisor::Supervisor;
use crate::sys::{self, Stat, AT_FDCWD};

/// What is in memory, and so in no layer.
const IN_MEMORY: [&[u8]; 2] = [b"/.aviato/own", b"/dev/shm"];
/// With more of them a sandbox counts as one that has put something there.
const MOST_ENTRIES: usize = 32;
/// Of commands and of calls that another place is told of: nobody asks again for what is older.
const MOST_REMEMBERED: usize = 4096;

/// What is in the directories that lie in memory. Names, sizes and times say whether it is what it was: it decides nothing that matters
/// to anybody but the sandbox itself.
#[derive(PartialEq, Eq)]
pub struct InMemory(Vec<(Vec<u8>, u64, u64, i128)>);

impl InMemory {
    /// `None` where there is too much, or it cannot be seen.
    pub fn look() -> Option<InMemory> {
        let mut found = Vec::new();
        let mut waiting: Vec<Vec<u8>> = IN_MEMORY.iter().map(|path| path.to_vec()).collect();
        while let Some(path) = waiting.pop() {
            let fd = sys::open_at(AT_FDCWD, &path, directory::OPEN, 0).ok()?;
            let top = sys::stat_open(&fd).ok()?;
            found.push((path.clone(), top.inode, top.size, top.changed_nanoseconds));
            let mut names = Names::new(fd);
            while let Some((name, _)) = names.next_name().ok()? {
                let entry = sys::stat_at(names.fd.as_raw_fd(), &name).ok()?;
                let below = [&path[..], b"/", &name].concat();
                if found.len() + waiting.len() >= MOST_ENTRIES {
                    return None;
                }
                if entry.is_directory() {
                    waiting.push(below);
                } else {
                    found.push((below, entry.inode, entry.size, entry.changed_nanoseconds));
                }
            }
        }
        found.sort();
        Some(InMemory(found))
    }

    /// Takes what process 1 has changed in a file for how it was, if nobody had changed that before.
    pub fn accept(&mut self, path: &[u8], before: &Stat, after: &Stat) {
        let of = |found: &Stat| (path.to_vec(), found.inode, found.size, found.changed_nanoseconds);
        if let Some(known) = self.0.iter_mut().find(|known| **known == of(before)) {
            *known = of(after);
        }
    }
}

impl Supervisor {
    /// Says whether it is at rest, and what has been done. As long as the server asks for nothing more it stays so: there is nobody else
    /// to change that.
    pub fn rest(&mut self, channel: u16, _: &Fields<'_>) -> Result<(), Refused> {
        let is_idle = !self.again.has_parts() && !self.open.values().any(|open| open.is_use());
        let rests = is_idle
            && self.has_layer()
            && self.processes.all().map_or(false, |others| others.is_empty())
            && !sysv::is_there(&self.processes)
            && self.in_memory.is_some()
            && self.in_memory == InMemory::look();
        let texts = |all: Vec<Vec<u8>>| Value::Array(all.into_iter().map(Value::Text).collect());
        let (commands, calls) = (texts(self.commands.known(MOST_REMEMBERED)), texts(self.again.keys(MOST_REMEMBERED)));
        self.reply(channel, &object([("rests", rests.into()), ("commands", commands), ("calls", calls)]));
        Ok(())
    }

    /// Takes what ran and was done before, in another place: none of it happens again.
    pub fn remember(&mut self, _: u16, fields: &Fields<'_>) -> Result<(), Refused> {
        let (commands, calls) = (fields.texts("commands")?, fields.texts("calls")?);
        self.commands.remember(commands);
        calls.iter().for_each(|key| self.again.done(Some(key)));
        Ok(())
    }
}
