//! Members of a layer become files below its top.
//!
//! What a name stands for in the end is known only when all members have come, so whiteouts are made then, and directories get
//! their modes and times.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

use super::file::{is_given, set_attributes, File, SPECIAL};
use super::places::{checked, find_below, split, Places, OPAQUE, ORIGIN, YES};
use super::{Limits, Settings, Unpacked, OPAQUE_DIRECTORY, WHITEOUT};
use crate::archive::tar::{Item, Kind, Member, Reader};
use crate::archive::{Trouble, MOST_PENDING_BYTES};
use crate::directory::{self, RemoveTree};
use crate::sys::{self, O_CREAT, O_EXCL, O_NOFOLLOW, O_WRONLY};

const NEW: i32 = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW;
/// Of what is for whoever keeps layers, and is no whiteout.
const OWN: &[u8] = b".wh..wh.";
/// What a name that is remembered takes beside its bytes.
const NAME_BYTES: usize = 150;
/// Files belong to one of so many users and groups; all others are nobody.
const IDS: u32 = 65_536;
const NOBODY: u32 = 65_534;
/// What members take in an archive beside their contents, and what an archive may have beside members.
const HEADS_BYTES: u64 = 4096;
const SURPLUS_BYTES: u64 = 64 << 20;

/// What is still to be done to a directory.
struct Directory {
    mode: u32,
    owner: (u32, u32),
    mtime: Option<i64>,
    /// The archive has it, rather than only something in it.
    is_announced: bool,
    is_opaque: bool,
    has_whiteouts: bool,
}

/// One of which neither the archive nor the layers below say anything.
const UNSAID: Directory =
    Directory { mode: 0o755, owner: (0, 0), mtime: None, is_announced: false, is_opaque: false, has_whiteouts: false };

pub struct Layer {
    places: Places,
    below: Vec<OwnedFd>,
    /// Who makes files, where they get other owners.
    owners: Option<(u32, u32)>,
    limits: Limits,
    reader: Reader,
    read_bytes: u64,
    /// What all files have, their holes included.
    announced_bytes: u64,
    /// All that are there.
    directories: BTreeMap<Vec<u8>, Directory>,
    whiteouts: BTreeSet<Vec<u8>>,
    names_bytes: usize,
    file: Option<File>,
    done: Unpacked,
}

impl Layer {
    pub fn new(settings: Settings) -> Result<Layer, Trouble> {
        // One that hands its group on would do so to all below it.
        sys::set_mode(&settings.into, 0o700).map_err(Trouble::os(b""))?;
        let us = (sys::effective_user(), sys::effective_group());
        Ok(Layer {
            places: Places::new(settings.into),
            below: settings.below,
            owners: settings.owners.then_some(us),
            limits: settings.limits,
            reader: Reader::of_layers(),
            read_bytes: 0,
            announced_bytes: 0,
            directories: BTreeMap::from([(Vec::new(), UNSAID)]),
            whiteouts: BTreeSet::new(),
            names_bytes: 0,
            file: None,
            done: Unpacked::default(),
        })
    }

    /// Takes the next bytes of the archive.
    pub fn feed(&mut self, mut data: &[u8]) -> Result<(), Trouble> {
        self.read_bytes += data.len() as u64;
        let Limits { bytes, files } = self.limits;
        if self.read_bytes > bytes.saturating_add(files.saturating_mul(HEADS_BYTES)).saturating_add(SURPLUS_BYTES) {
            return Err(too_large(b"", "has more bytes than such a layer has".to_owned()));
        }
        while let Some(item) = self.reader.next_item(&mut data).map_err(damaged)? {
            match item {
                Item::Member(member) => self.take(member)?,
                Item::Contents(piece) => self.write(piece)?,
            }
        }
        Ok(())
    }

    /// All has come.
    pub fn finish(mut self) -> Result<Unpacked, Trouble> {
        self.reader.finish().map_err(damaged)?;
        self.make_whiteouts()?;
        self.settle()?;
        self.done.implied = self.directories.values().filter(|directory| !directory.is_announced).count() as u64;
        self.done.says_top = self.directories[&b""[..]].is_announced;
        if !self.done.says_top {
            self.done.implied -= 1;
        }
        Ok(self.done)
    }

    fn take(&mut self, mut member: Member) -> Result<(), Trouble> {
        let path = checked(&member.name)?;
        let (above, last) = split(&path);
        if path.starts_with(WHITEOUT) || path.windows(5).any(|part| part == b"/.wh.") {
            return self.take_hint(above, last, &path);
        }
        if path.is_empty() && member.kind != Kind::Directory {
            return Err(Trouble::hostile(&member.name, "is in place of the layer's top, and no directory"));
        }
        let mode = member.mode;
        for id in [&mut member.uid, &mut member.gid] {
            *id = if *id < IDS { *id } else { NOBODY };
        }
        member.name = path.clone();
        match member.kind {
            Kind::Directory => self.take_directory(above, last, member),
            Kind::File => self.begin_file(above, last, member),
            Kind::HardLink => self.take_hard_link(above, last, &path, &member),
            Kind::Link => {
                if member.target.is_empty() || member.target.len() > 4095 || member.target.contains(&0) {
                    return Err(Trouble::hostile(&path, "is a link that leads to no possible path"));
                }
                self.put(above, last, &path, |parent, last| sys::make_link(&member.target, parent, last))?;
                self.give(above, last, &member)
            }
            Kind::Fifo => {
                let is_simple = self.owners.is_none() && mode & SPECIAL == 0;
                let first = if is_simple { mode } else { 0o600 };
                self.put(above, last, &path, |parent, last| sys::make_fifo(parent, last, first))?;
                self.give(above, last, &member)?;
                if is_simple {
                    return Ok(());
                }
                let parent = self.places.open(above).map_err(Trouble::os(&path))?;
                sys::open_at(parent, last, sys::O_PATH | O_NOFOLLOW, 0)
                    .and_then(|fd| sys::set_mode(&fd, mode))
                    .and_then(|()| sys::set_time(parent, last, member.mtime))
                    .map_err(Trouble::os(&path))
            }
            Kind::Device => {
                self.done.left_out += 1;
                Ok(())
            }
        }
    }

    /// A name that says what is not in the layer.
    fn take_hint(&mut self, above: &[u8], last: &[u8], path: &[u8]) -> Result<(), Trouble> {
        if above.split(|byte| *byte == b'/').any(|part| part.starts_with(OWN)) {
            return Ok(());
        }
        if above.split(|byte| *byte == b'/').any(|part| part.starts_with(WHITEOUT)) {
            return Err(Trouble::hostile(path, "lies in something that is said not to be there"));
        }
        if last == OPAQUE_DIRECTORY {
            self.parent_of(above, path)?;
            if let Some(directory) = self.directories.get_mut(above) {
                directory.is_opaque = true;
            }
            return Ok(());
        }
        let name = last.strip_prefix(WHITEOUT).unwrap_or(last);
        if last.starts_with(OWN) {
            return Ok(());
        }
        if matches!(name, b"" | b"." | b"..") {
            return Err(Trouble::hostile(path, "says of no possible name that it is not there"));
        }
        self.parent_of(above, path)?;
        let hidden = joined(above, name);
        if !self.whiteouts.contains(&hidden) {
            self.count(path)?;
            self.remember(&hidden)?;
            self.whiteouts.insert(hidden);
        }
        Ok(())
    }

    fn take_directory(&mut self, above: &[u8], last: &[u8], member: Member) -> Result<(), Trouble> {
        let Member { name: path, mode, uid, gid, mtime, attributes, .. } = member;
        if !self.directories.contains_key(&path) {
            self.put(above, last, &path, |parent, last| sys::make_directory(parent, last, 0o700))?;
            self.remember(&path)?;
        }
        if !attributes.is_empty() {
            let fd = self.places.open(&path).and_then(|fd| sys::open_at(fd, b".", directory::OPEN, 0));
            let fd = fd.map_err(Trouble::os(&path))?;
            set_attributes(&fd, &path, &attributes)?;
        }
        let is_opaque = self.directories.get(&path).map_or(false, |known| known.is_opaque);
        let owner = (uid, gid);
        let directory = Directory { mode, owner, mtime: Some(mtime), is_announced: true, is_opaque, ..UNSAID };
        self.directories.insert(path, directory);
        Ok(())
    }

    fn begin_file(&mut self, above: &[u8], last: &[u8], member: Member) -> Result<(), Trouble> {
        self.count_bytes(&member.name, member.size)?;
        let first = File::first_mode(&member);
        let fd = self.put(above, last, &member.name, |parent, last| sys::open_at(parent, last, NEW, first))?;
        self.file = Some(File::new(member, fd));
        if self.reader.contents_left() == 0 {
            self.end_file()?;
        }
        Ok(())
    }

    fn write(&mut self, data: &[u8]) -> Result<(), Trouble> {
        if let Some(file) = &mut self.file {
            file.write(data)?;
            if self.reader.contents_left() == 0 {
                self.end_file()?;
            }
        }
        Ok(())
    }

    fn end_file(&mut self) -> Result<(), Trouble> {
        if let Some(file) = self.file.take() {
            self.done.size_bytes = self.done.size_bytes.saturating_add(file.finish(self.owners)?);
        }
        Ok(())
    }

    fn take_hard_link(&mut self, above: &[u8], last: &[u8], path: &[u8], member: &Member) -> Result<(), Trouble> {
        let target = checked(&member.target)?;
        let (from, old) = split(&target);
        let missing = || Trouble::hostile(path, "is a second name of something that is not in the layer before it");
        if target == path || !self.directories.contains_key(from) || self.directories.contains_key(&target) {
            return Err(missing());
        }
        // Of its own: the directory of the new name is opened meanwhile.
        let source = self.places.open(from).and_then(|fd| sys::open_at(fd, b".", directory::OPEN, 0));
        let source = source.map_err(Trouble::os(path))?;
        sys::stat_at(source.as_raw_fd(), old).map_err(|_| missing())?;
        match self.put(above, last, path, |parent, last| sys::make_hard_link(source.as_raw_fd(), old, parent, last)) {
            // It was in the directory whose place this name takes.
            Err(Trouble::Os { error, .. }) if sys::number_of(&error) == sys::ENOENT => Err(missing()),
            made => made,
        }
    }

    /// Gives what has no descriptor its owner and time.
    fn give(&mut self, above: &[u8], last: &[u8], member: &Member) -> Result<(), Trouble> {
        let parent = self.places.open(above).map_err(Trouble::os(&member.name))?;
        is_given((member.uid, member.gid), self.owners, |uid, gid| sys::own_name(parent, last, uid, gid))
            .and_then(|_| sys::set_time(parent, last, member.mtime))
            .map_err(Trouble::os(&member.name))
    }

    /// Makes something of a name; what is there already goes.
    fn put<T>(
        &mut self,
        above: &[u8],
        last: &[u8],
        path: &[u8],
        make: impl Fn(RawFd, &[u8]) -> io::Result<T>,
    ) -> Result<T, Trouble> {
        self.count(path)?;
        let parent = self.parent_of(above, path)?;
        match make(parent, last) {
            Err(error) if sys::number_of(&error) == sys::EEXIST => {
                self.remove(above, last, path)?;
                let parent = self.parent_of(above, path)?;
                make(parent, last).map_err(|error| refusal(error, path))
            }
            made => made.map_err(|error| refusal(error, path)),
        }
    }

    fn remove(&mut self, above: &[u8], last: &[u8], path: &[u8]) -> Result<(), Trouble> {
        let parent = self.places.open(above).map_err(Trouble::os(path))?;
        if !self.directories.contains_key(path) {
            return sys::unlink(parent, last).map_err(Trouble::os(path));
        }
        let removed = sys::open_at(parent, b".", directory::OPEN, 0).and_then(|parent| {
            let mut removal = RemoveTree::new(parent, last)?;
            while !removal.step()? {}
            Ok(())
        });
        removed.map_err(Trouble::os(path))?;
        let (first, behind) = ([path, b"/"].concat(), [path, b"0"].concat());
        let mut gone: Vec<Vec<u8>> = self.whiteouts.range(first.clone()..behind.clone()).cloned().collect();
        for name in &gone {
            self.whiteouts.remove(name);
        }
        let directories: Vec<Vec<u8>> = self.directories.range(first..behind).map(|(name, _)| name.clone()).collect();
        gone.extend(directories);
        gone.push(path.to_vec());
        for name in gone {
            self.directories.remove(&name);
            self.names_bytes -= name.len() + NAME_BYTES;
        }
        Ok(())
    }

    /// The directory that something is put into. What of it the archive has left out is made as it is in the layers below.
    fn parent_of(&mut self, above: &[u8], path: &[u8]) -> Result<RawFd, Trouble> {
        if !self.directories.contains_key(above) {
            let ends = above.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
            for end in ends.chain(Some(above.len())) {
                if !self.directories.contains_key(&above[..end]) {
                    self.imply(&above[..end], path)?;
                }
            }
        }
        self.places.open(above).map_err(|error| refusal(error, path))
    }

    fn imply(&mut self, wanted: &[u8], path: &[u8]) -> Result<(), Trouble> {
        self.count(path)?;
        self.remember(wanted)?;
        let (above, last) = split(wanted);
        let made = self.places.open(above).and_then(|parent| sys::make_directory(parent, last, 0o700));
        made.map_err(|error| refusal(error, path))?;
        let directory = match find_below(&self.below, wanted) {
            Some(found) => Directory {
                mode: found.permissions(),
                owner: (found.uid, found.gid),
                mtime: Some((found.modified_nanoseconds / 1_000_000_000) as i64),
                ..UNSAID
            },
            None => UNSAID,
        };
        self.directories.insert(wanted.to_vec(), directory);
        Ok(())
    }

    fn make_whiteouts(&mut self) -> Result<(), Trouble> {
        for path in std::mem::take(&mut self.whiteouts) {
            if let Some(directory) = self.directories.get_mut(&path) {
                directory.is_opaque = true;
                continue;
            }
            let (above, last) = split(&path);
            if !self.directories.contains_key(above) {
                continue;
            }
            let parent = self.places.open(above).map_err(Trouble::os(&path))?;
            match sys::make_whiteout(parent, last) {
                // The layer has something of this name itself.
                Err(error) if sys::number_of(&error) == sys::EEXIST => continue,
                made => made.map_err(Trouble::os(&path))?,
            }
            if let Some(directory) = self.directories.get_mut(above) {
                directory.has_whiteouts = true;
            }
        }
        Ok(())
    }

    /// Directories last: a mode may forbid to put anything into them. Those in one come before it.
    fn settle(&mut self) -> Result<(), Trouble> {
        for (path, directory) in self.directories.iter().rev() {
            let fd = self.places.open(path).and_then(|fd| sys::open_at(fd, b".", directory::OPEN, 0));
            let fd = fd.map_err(Trouble::os(path))?;
            if directory.is_opaque {
                sys::set_attribute(&fd, OPAQUE, YES).map_err(Trouble::os(path))?;
            }
            // Where nothing is below, or it is hidden, whiteouts would be seen as names of nothing. Below the top there always is something.
            if directory.has_whiteouts && !path.is_empty() {
                match sys::set_attribute(&fd, ORIGIN, b"") {
                    Err(error) if sys::number_of(&error) == sys::EOPNOTSUPP => {}
                    set => set.map_err(Trouble::os(path))?,
                }
            }
            let owned = is_given(directory.owner, self.owners, |uid, gid| sys::own_open(&fd, uid, gid));
            let is_owned = owned.map_err(Trouble::os(path))?;
            let mode = if is_owned { directory.mode } else { directory.mode & !SPECIAL };
            sys::set_mode(&fd, mode)
                .and_then(|()| directory.mtime.map_or(Ok(()), |mtime| sys::set_time_of(&fd, mtime)))
                .map_err(Trouble::os(path))?;
        }
        Ok(())
    }

    fn count(&mut self, path: &[u8]) -> Result<(), Trouble> {
        self.done.files += 1;
        if self.done.files > self.limits.files {
            return Err(too_large(path, format!("is one file too many: a layer may have {}", self.limits.files)));
        }
        Ok(())
    }

    fn count_bytes(&mut self, path: &[u8], size: u64) -> Result<(), Trouble> {
        self.announced_bytes = self.announced_bytes.saturating_add(size);
        if self.announced_bytes > self.limits.bytes {
            let most = self.limits.bytes;
            return Err(too_large(path, format!("is one file too many: a layer may have {most} bytes")));
        }
        Ok(())
    }

    fn remember(&mut self, name: &[u8]) -> Result<(), Trouble> {
        self.names_bytes += name.len() + NAME_BYTES;
        if self.names_bytes > 4 * MOST_PENDING_BYTES {
            return Err(too_large(name, "is one directory or whiteout too many".to_owned()));
        }
        Ok(())
    }
}

pub fn joined(above: &[u8], name: &[u8]) -> Vec<u8> {
    if above.is_empty() {
        name.to_vec()
    } else {
        [above, b"/", name].concat()
    }
}

pub fn too_large(member: &[u8], message: String) -> Trouble {
    Trouble::Tree { member: member.to_vec(), reason: "too_large", message }
}

/// What the reader finds is the form of the archive.
fn damaged(trouble: Trouble) -> Trouble {
    match trouble {
        Trouble::Tree { member, message, .. } => {
            // Of the whole it speaks in sentences of its own.
            let message = if member.is_empty() { format!("is damaged: {message}") } else { message };
            Trouble::Tree { member, reason: "damaged_archive", message }
        }
        other => other,
    }
}

fn refusal(error: io::Error, name: &[u8]) -> Trouble {
    match sys::number_of(&error) {
        sys::EEXIST | sys::ELOOP | sys::ENOTDIR => {
            Trouble::hostile(name, "leads through something that is no directory")
        }
        _ => Trouble::Os { member: name.to_vec(), error },
    }
}
