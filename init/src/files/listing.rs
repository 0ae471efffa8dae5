//! What is at a path, what is in a directory, and making and removing directories.

use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

use crate::connection::HIGH_BYTES;
use crate::directory::{Names, RemoveTree};
use crate::errors::{Fields, Refused};
use crate::frames::{self, Head};
use crate::json::{object, Value};
use crate::limits::disk::SETTLE_SECONDS;
use crate::paths::{self, join, make_directories, open_path, split, without_slashes_at_its_end, Whose, DIRECTORY};
use crate::process_tree::Step;
use crate::supervisor::{Job, Supervisor};
use crate::sys::{self, Stat, AT_FDCWD, O_NOFOLLOW, O_PATH};

const MOST_ENTRIES: usize = 100_000;
const MOST_BYTES: usize = 32 << 20;
const ENTRIES_A_TURN: usize = 256;
const PIECE_BYTES: usize = 64 << 10;
const SLOW_READER_SECONDS: f64 = 0.005;

/// As `wire.files.FileStat`. Bytes that are no UTF-8, which only code inside makes, become U+FFFD.
pub fn describe(path: &[u8], found: &Stat, target: Option<Vec<u8>>) -> Value {
    let readable = |name: &[u8]| Value::from(String::from_utf8_lossy(name).as_ref());
    let kind = match found.kind() {
        sys::S_IFREG => "file",
        sys::S_IFDIR => "directory",
        sys::S_IFLNK => "symlink",
        _ => "other",
    };
    object([
        ("path", readable(path)),
        ("size_bytes", found.size.into()),
        ("mode", i64::from(found.permissions()).into()),
        ("mtime", (found.modified_nanoseconds as f64 / 1e9).into()),
        ("type", kind.into()),
        ("link_target", target.map_or(Value::Null, |target| readable(&target))),
    ])
}

fn describe_entry(folder: &OwnedFd, name: &[u8], path: &[u8]) -> io::Result<Value> {
    let found = sys::stat_at(folder.as_raw_fd(), name)?;
    let target = match found.kind() {
        sys::S_IFLNK => Some(sys::read_link(folder.as_raw_fd(), name)?),
        _ => None,
    };
    Ok(describe(path, &found, target))
}

/// What is at a path; a link at its end is not followed.
fn stat(path: &[u8]) -> Result<Value, Refused> {
    let (folder, name) = split(path);
    let whole = matches!(name, b"" | b"." | b"..");
    let described = if whole {
        open_path(path, DIRECTORY, AT_FDCWD, Whose::Anybodys)
            .and_then(|fd| Ok(describe(path, &sys::stat_open(&fd)?, None)))
    } else {
        open_path(folder, DIRECTORY, AT_FDCWD, Whose::TheSandboxs).and_then(|fd| describe_entry(&fd, name, path))
    };
    described.map_err(|error| Refused::os(path, &error))
}

/// Makes a directory and its parents; fine if it is there.
fn make_directory(path: &[u8], mode: u32) -> Result<(), Refused> {
    let made = match make_directories(path, AT_FDCWD, 0) {
        Err(error) if sys::number_of(&error) == sys::ENOTDIR => {
            // Itself, or something above it?
            let own = without_slashes_at_its_end(path);
            open_path(own, O_PATH | O_NOFOLLOW, AT_FDCWD, Whose::TheSandboxs)
                .and_then(|_| Err(io::Error::from_raw_os_error(sys::EEXIST)))
        }
        made => made,
    };
    let set = made.and_then(|(fd, is_new)| if is_new && mode != 0o755 { sys::set_mode(&fd, mode) } else { Ok(()) });
    set.map_err(|error| Refused::os(path, &error))
}

enum Listed {
    Reading(Names),
    Sending(usize),
}

/// Sends the entries of a directory, sorted by name, as one JSON array in pieces.
///
/// What code inside can make long, names and targets of links, is bounded: every piece fits a frame, the whole fits memory.
struct List {
    path: Vec<u8>,
    shown: Vec<u8>,
    channel: u16,
    connection: u64,
    entries: Vec<(Vec<u8>, Vec<u8>)>,
    size: usize,
    stage: Listed,
}

impl List {
    /// Whether all is read.
    fn read(&mut self) -> Result<bool, Refused> {
        let names = match &mut self.stage {
            Listed::Reading(names) => names,
            Listed::Sending(_) => return Ok(true),
        };
        for _ in 0..ENTRIES_A_TURN {
            let name = match names.next_name().map_err(|error| Refused::os(&self.path, &error))? {
                Some((name, _)) => name,
                None => return Ok(true),
            };
            if self.entries.len() >= MOST_ENTRIES {
                let message = format!("the directory has more than {MOST_ENTRIES} entries");
                return Err(Refused::file(&self.path, "too_large", message));
            }
            if let Ok(described) = describe_entry(&names.fd, &name, &join(&self.shown, &name)) {
                let text = described.to_bytes();
                self.size += text.len();
                self.entries.push((name, text));
            }
            if self.size > MOST_BYTES {
                let message = format!("the listing has more than {MOST_BYTES} bytes");
                return Err(Refused::file(&self.path, "too_large", message));
            }
        }
        Ok(false)
    }

    fn send(&mut self, supervisor: &mut Supervisor) -> Step {
        if supervisor.connection.as_ref().map_or(false, |connection| connection.is_full()) {
            return Step::After(SLOW_READER_SECONDS);
        }
        let mut sent = match self.stage {
            Listed::Sending(sent) => sent,
            Listed::Reading(_) => 0,
        };
        let mut piece = if sent == 0 { b"[".to_vec() } else { Vec::new() };
        while piece.len() < PIECE_BYTES.min(HIGH_BYTES) && sent < self.entries.len() {
            if sent > 0 {
                piece.push(b',');
            }
            piece.extend_from_slice(&self.entries[sent].1);
            sent += 1;
        }
        self.stage = Listed::Sending(sent);
        let is_last = sent == self.entries.len();
        if is_last {
            piece.push(b']');
        }
        supervisor.send(Head::of(frames::DATA, self.channel), &piece);
        if is_last {
            supervisor.send(Head::of(frames::END, self.channel), b"");
            return Step::Done;
        }
        Step::Again
    }
}

impl Job for List {
    fn step(&mut self, supervisor: &mut Supervisor) -> Step {
        if supervisor.connection_number() != self.connection {
            return Step::Done;
        }
        if let Listed::Reading(_) = self.stage {
            match self.read() {
                Ok(false) => return Step::Again,
                Ok(true) => {
                    self.entries.sort();
                    self.stage = Listed::Sending(0);
                }
                Err(refused) => {
                    supervisor.refuse(self.channel, &refused);
                    return Step::Done;
                }
            }
        }
        self.send(supervisor)
    }
}

enum Removal {
    ToBegin,
    Tree(RemoveTree),
    /// What is there now is being counted; whether that has begun.
    Settling(bool),
}

struct Remove {
    path: Vec<u8>,
    recursive: bool,
    key: Option<Vec<u8>>,
    channel: u16,
    connection: u64,
    stage: Removal,
}

impl Remove {
    /// Whether it is done.
    fn go_on(&mut self) -> Result<bool, Refused> {
        let path = &self.path;
        let refused = |error: io::Error| Refused::os(path, &error);
        if let Removal::Tree(tree) = &mut self.stage {
            return tree.step().map_err(refused);
        }
        if let Removal::Settling(_) = self.stage {
            return Ok(true);
        }
        let (folder, name) = split(without_slashes_at_its_end(path));
        if matches!(name, b"" | b"." | b"..") {
            let message = "the root, '.' and '..' cannot be removed";
            return Err(Refused::file(path, "permission_denied", message));
        }
        let folder = if folder.is_empty() { b"/" } else { folder };
        let parent = open_path(folder, DIRECTORY, AT_FDCWD, Whose::TheSandboxs).map_err(refused)?;
        let at = parent.as_raw_fd();
        if !sys::stat_at(at, name).map_err(refused)?.is_directory() {
            return sys::unlink(at, name).map(|()| true).map_err(refused);
        }
        if !self.recursive {
            return sys::remove_directory(at, name).map(|()| true).map_err(refused);
        }
        self.stage = Removal::Tree(RemoveTree::new(parent, name).map_err(refused)?);
        Ok(false)
    }
}

impl Remove {
    /// What is there now is known before it is said, if there is little room or it is soon done.
    fn has_settled(&mut self, supervisor: &mut Supervisor) -> bool {
        let is_counting = supervisor.watch.disk.is_counting();
        match self.stage {
            Removal::Settling(true) => !is_counting,
            _ if !supervisor.watch.disk.wants_to_settle() => {
                supervisor.watch.disk.touched(&mut supervisor.looper);
                true
            }
            _ => {
                self.stage = Removal::Settling(!is_counting);
                if !is_counting {
                    supervisor.count_disk();
                }
                false
            }
        }
    }
}

impl Job for Remove {
    fn step(&mut self, supervisor: &mut Supervisor) -> Step {
        let result = self.go_on();
        let answers = supervisor.connection_number() == self.connection;
        match result {
            Ok(false) => return Step::Again,
            Ok(true) => {
                supervisor.again.done(self.key.as_deref());
                if !self.has_settled(supervisor) {
                    return Step::After(SETTLE_SECONDS);
                }
                if answers {
                    supervisor.reply(self.channel, &object([]));
                }
            }
            Err(refused) if answers => supervisor.refuse(self.channel, &refused),
            Err(_) => {}
        }
        Step::Done
    }
}

impl Supervisor {
    pub fn stat(&mut self, channel: u16, fields: &Fields<'_>) -> Result<(), Refused> {
        let found = stat(&self.path_in(fields)?)?;
        self.reply(channel, &found);
        Ok(())
    }

    pub fn make_directory(&mut self, channel: u16, fields: &Fields<'_>) -> Result<(), Refused> {
        let path = self.path_in(fields)?;
        self.watch.disk.take(&path, 0, &mut self.looper)?;
        make_directory(&path, fields.size("mode")? as u32)?;
        self.reply(channel, &object([]));
        Ok(())
    }

    pub fn list(&mut self, channel: u16, fields: &Fields<'_>) -> Result<(), Refused> {
        let path = self.path_in(fields)?;
        let fd = paths::open_directory(&path).map_err(|error| Refused::os(&path, &error))?;
        let (folder, name) = split(&path);
        let shown = if name == b"." { folder.to_vec() } else { path.clone() };
        let job = List {
            path,
            shown,
            channel,
            connection: self.connection_number(),
            entries: Vec::new(),
            size: 0,
            stage: Listed::Reading(Names::new(fd)),
        };
        self.start_job(Box::new(job));
        Ok(())
    }

    pub fn remove(&mut self, channel: u16, fields: &Fields<'_>) -> Result<(), Refused> {
        let path = self.path_in(fields)?;
        let key = fields.text_or_none("key")?;
        let recursive = fields.flag("recursive")?;
        if self.again.is_done(key) {
            self.reply(channel, &object([]));
            return Ok(());
        }
        let job = Remove {
            path,
            recursive,
            key: key.map(<[u8]>::to_vec),
            channel,
            connection: self.connection_number(),
            stage: Removal::ToBegin,
        };
        self.start_job(Box::new(job));
        Ok(())
    }
}
