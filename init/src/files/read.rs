//! Files and trees on their way out.

use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

use super::listing::describe;
use super::Open;
use crate::archive::pack::Packer;
use crate::connection::Source;
use crate::directory;
use crate::errors::{Fields, Refused};
use crate::frames::{self, Head};
use crate::json::Value;
use crate::paths::{open_directory, open_path, reopen, Whose};
use crate::shared_memory;
use crate::supervisor::Supervisor;
use crate::sys::{self, Stat, AT_FDCWD, O_NOCTTY, O_NONBLOCK, O_PATH, O_RDONLY};

const PIECE_BYTES: usize = 256 << 10;
/// What no file that was made inside can pass; one of an image may.
const MOST_BYTES: u64 = 4 << 30;
/// The file system that has several others as one.
const OVERLAY: i64 = 0x794C_7630;

enum Contents {
    /// The rest of a file, which code inside may write to as fast as it is read; so many bytes at most.
    File {
        fd: OwnedFd,
        position: u64,
        most: u64,
    },
    Tree(Box<Packer>),
    /// Of the sandbox's layer, for which everybody stands still; nothing until they do.
    Layer(Option<Box<Packer>>),
    Over,
}

/// Pieces on their way to the server, no more of them ahead than its window.
pub struct Outgoing {
    contents: Contents,
    path: Vec<u8>,
    window: u64,
    sent: u64,
    credit: u64,
}

impl Outgoing {
    fn new(contents: Contents, path: &[u8], window: u64) -> Outgoing {
        Outgoing { contents, path: path.to_vec(), window, sent: 0, credit: 0 }
    }

    /// Whether nothing more will be sent, though the channel has not been closed.
    pub fn is_over(&self) -> bool {
        matches!(self.contents, Contents::Over)
    }

    /// Whether there may be something to send.
    fn has_begun(&self) -> bool {
        !matches!(self.contents, Contents::Over | Contents::Layer(None))
    }

    /// Whether what it reads must not change meanwhile.
    pub fn wants_pause(&self) -> bool {
        matches!(self.contents, Contents::Layer(_))
    }

    /// The server has taken this much.
    pub fn credit(&mut self, taken: u64) {
        self.credit = self.credit.max(taken);
    }

    fn next_piece(&mut self) -> Result<Option<Vec<u8>>, Refused> {
        match &mut self.contents {
            Contents::Over | Contents::Layer(None) => Ok(None),
            Contents::Tree(packer) | Contents::Layer(Some(packer)) => {
                packer.next_piece().map_err(|trouble| trouble.refusal(&self.path))
            }
            Contents::File { fd, position, most } => {
                let mut piece = vec![0; PIECE_BYTES];
                let count = sys::read_some(fd, &mut piece).map_err(|error| Refused::os(&self.path, &error))?;
                *position += count as u64;
                if *position > *most {
                    return Err(too_large(&self.path, *most));
                }
                piece.truncate(count);
                Ok((count > 0).then_some(piece))
            }
        }
    }
}

fn too_large(path: &[u8], most: u64) -> Refused {
    Refused::file(path, "too_large", format!("larger than {most} bytes"))
}

/// What another content of a file, or another file of its name, would change.
fn version_of(found: &Stat) -> String {
    let Stat { device, inode, size, modified_nanoseconds, changed_nanoseconds, .. } = found;
    format!("{device:x}.{inode:x}.{size:x}.{modified_nanoseconds:x}.{changed_nanoseconds:x}")
}

fn open_file(path: &[u8], most: Option<u64>) -> Result<(OwnedFd, Stat), Refused> {
    let refused = |error: io::Error| Refused::os(path, &error);
    // Looked at before it is opened: opening a FIFO or a device does something to whoever is at its other end.
    let named = open_path(path, O_PATH, AT_FDCWD, Whose::TheSandboxs).map_err(refused)?;
    let found = sys::stat_open(&named).map_err(refused)?;
    if found.is_directory() {
        return Err(refused(io::Error::from_raw_os_error(sys::EISDIR)));
    }
    if found.kind() != sys::S_IFREG {
        return Err(Refused::file(path, "not_a_regular_file", "Not a regular file"));
    }
    if let Some(most) = most.filter(|most| found.size > *most) {
        return Err(too_large(path, most));
    }
    let fd = reopen(&named, O_RDONLY | O_NONBLOCK | O_NOCTTY).map_err(refused)?;
    Ok((fd, found))
}

/// Goes to where its contents are wanted from, if it is the file that is meant; what is said of it.
fn begin_contents(
    fd: &OwnedFd,
    found: &Stat,
    path: &[u8],
    offset: u64,
    wanted: Option<&[u8]>,
) -> Result<Value, Refused> {
    let version = version_of(found);
    if wanted.map_or(false, |wanted| wanted != version.as_bytes()) {
        let message = "it was changed while it was read, and its connection was cut; read it again";
        return Err(Refused::file(path, "changed", message));
    }
    if offset > 0 {
        sys::seek(fd, offset).map_err(|error| Refused::os(path, &error))?;
    }
    Ok(describe(path, found, None).with([("version", version.as_str().into())]))
}

impl Supervisor {
    pub fn begin_read(&mut self, channel: u16, fields: &Fields<'_>) -> Result<(), Refused> {
        let path = &self.path_in(fields)?[..];
        fields.value("max_bytes")?;
        let most = fields.size_or_none("max_bytes")?;
        let window = fields.size("window")?;
        let offset = fields.size_or_none("offset")?.unwrap_or(0);
        let wanted = fields.text_or_none("version")?;
        if let Some(memory) = self.memory_of(fields)? {
            if self.read_into(&memory, path, channel, offset, wanted)? {
                return Ok(());
            }
        }
        let (fd, found) = open_file(path, most)?;
        let said = begin_contents(&fd, &found, path, offset, wanted)?;
        let most = most.unwrap_or_else(|| found.size.max(MOST_BYTES));
        self.send(Head::of(frames::REPLY, channel), &said.to_bytes());
        self.read_on(Contents::File { fd, position: offset, most }, path, channel, window);
        Ok(())
    }

    /// Puts a file into memory that came for it; false where it is so small or so large that it goes by the connection.
    fn read_into(
        &mut self,
        memory: &OwnedFd,
        path: &[u8],
        channel: u16,
        offset: u64,
        wanted: Option<&[u8]>,
    ) -> Result<bool, Refused> {
        let (fd, found) = open_file(path, None)?;
        let said = begin_contents(&fd, &found, path, offset, wanted)?;
        if !(shared_memory::LEAST_BYTES..=shared_memory::MOST_BYTES).contains(&found.size.saturating_sub(offset)) {
            return Ok(false);
        }
        let size = match shared_memory::fill(memory, &fd).map_err(|error| Refused::os(path, &error))? {
            Some(size) => size,
            None => return Ok(false),
        };
        let said = said.with([("memory_bytes", size.into())]);
        self.send(Head::of(frames::REPLY, channel), &said.to_bytes());
        self.send(Head::of(frames::END, channel), b"");
        Ok(true)
    }

    pub fn begin_read_tree(&mut self, channel: u16, fields: &Fields<'_>) -> Result<(), Refused> {
        let path = &self.path_in(fields)?[..];
        let window = fields.size("window")?;
        let exact = fields.flag_or("exact", Some(false))?;
        let refused = |error: io::Error| Refused::os(path, &error);
        let (packer, found) = match open_directory(path) {
            Err(error) if exact && sys::number_of(&error) == sys::ENOTDIR => {
                let (fd, found) = open_file(path, None)?;
                (Packer::exact_file(fd), found)
            }
            opened => {
                let top = opened.map_err(refused)?;
                let found = sys::stat_open(&top).map_err(refused)?;
                (if exact { Packer::exact(top) } else { Packer::new(top) }, found)
            }
        };
        self.send(Head::of(frames::REPLY, channel), &describe(path, &found, None).to_bytes());
        self.read_on(Contents::Tree(Box::new(packer)), path, channel, window);
        Ok(())
    }

    pub fn begin_read_layer(&mut self, channel: u16, fields: &Fields<'_>) -> Result<(), Refused> {
        let window = fields.size("window")?;
        if !self.has_layer() {
            let message = "the sandbox has no layer of its own over those of an image";
            return Err(Refused::new("VALIDATION", "no_layer", message));
        }
        self.pause()?;
        let outgoing = Outgoing::new(Contents::Layer(None), b"/", window);
        self.open.insert(channel, Open::Outgoing(outgoing));
        if self.pause.is_still() {
            self.begin_layers();
        }
        Ok(())
    }

    /// Whether what it writes lies over what others have, too, and alone.
    pub fn has_layer(&self) -> bool {
        let is_overlay = |fd: &OwnedFd| sys::file_system_of(fd).map(|found| found.kind == OVERLAY);
        let root = sys::open_at(AT_FDCWD, b"/", O_PATH, 0).and_then(|fd| is_overlay(&fd));
        let layer = self.watch.disk.layer().map(is_overlay);
        let is_own = self.commands.subreapers.is_none();
        is_own && matches!((root, layer), (Ok(true), Some(Ok(false))))
    }

    /// Everybody stands still: begins to send what waits for that.
    pub fn begin_layers(&mut self) {
        let is_waiting = |open: &Open| matches!(open, Open::Outgoing(Outgoing { contents: Contents::Layer(None), .. }));
        let waiting: Vec<u16> =
            self.open.iter().filter(|(_, open)| is_waiting(open)).map(|(channel, _)| *channel).collect();
        for channel in waiting {
            if let Err(error) = self.begin_layer(channel) {
                self.refuse(channel, &Refused::os(b"/", &error));
            }
        }
    }

    fn begin_layer(&mut self, channel: u16) -> io::Result<()> {
        let layer = self.watch.disk.layer().ok_or_else(|| io::Error::from_raw_os_error(sys::ENOENT))?;
        let top = sys::open_at(layer.as_raw_fd(), b".", directory::OPEN, 0)?;
        let said = describe(b"/", &sys::stat_open(&top)?, None);
        if let Some(Open::Outgoing(outgoing)) = self.open.get_mut(&channel) {
            outgoing.contents = Contents::Layer(Some(Box::new(Packer::of_layer(top))));
            self.send(Head::of(frames::REPLY, channel), &said.to_bytes());
            self.feed_from(Source::Transfer(channel));
        }
        Ok(())
    }

    fn read_on(&mut self, contents: Contents, path: &[u8], channel: u16, window: u64) {
        self.open.insert(channel, Open::Outgoing(Outgoing::new(contents, path, window)));
        self.feed_from(Source::Transfer(channel));
    }

    /// Sends a piece of what a request reads, if there is one and it may be; true to be asked again.
    pub fn pump_transfer(&mut self, channel: u16) -> bool {
        let outgoing = match self.open.get_mut(&channel) {
            Some(Open::Outgoing(outgoing)) if outgoing.has_begun() => outgoing,
            Some(Open::Relayed(_)) => return self.pump_relayed(channel),
            _ => return false,
        };
        if outgoing.sent.saturating_sub(outgoing.credit) >= outgoing.window {
            return false;
        }
        let (head, payload, more) = match outgoing.next_piece() {
            Ok(Some(piece)) => {
                let head = Head { offset: outgoing.sent, ..Head::of(frames::DATA, channel) };
                outgoing.sent += piece.len() as u64;
                (head, piece, true)
            }
            Ok(None) => (Head { offset: outgoing.sent, ..Head::of(frames::END, channel) }, Vec::new(), false),
            Err(refused) => (Head::of(frames::ERROR, channel), refused.body(), false),
        };
        if !more {
            outgoing.contents = Contents::Over;
        }
        if !more || !payload.is_empty() {
            self.send(head, &payload);
        }
        more
    }
}
