//! The tar format: heads out, and a reader that believes nothing.
//!
//! Written is GNU's form, since it takes names of any bytes and length; of layers it is pax, as their readers expect. Read are also
//! ustar and pax, so what common programs write is understood. Of the layers of images more is written and read than of trees that
//! are copied: owners, attributes and files with holes.

use std::collections::HashMap;

use super::sparse::{self, Lines, Pieces};
use super::Trouble;

pub const BLOCK_BYTES: usize = 512;
pub const LONGEST_NAME_BYTES: usize = 4095;
const MOST_EXTENSION_BYTES: u64 = 64 << 10;
/// Of a layer: extended attributes come that way. As much as that of all that stands before one member.
const MOST_LAYER_EXTENSION_BYTES: u64 = 1 << 20;
/// Programs fill up what follows the last member with zeros; more than this is an endless stream.
const LONGEST_END_BYTES: usize = 1 << 20;
const LONGEST_LAYER_END_BYTES: usize = 64 << 20;
/// What a key of pax begins with that has an extended attribute.
const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";
const WITH_HOLES: u8 = b'S';
const NAME_BYTES: usize = 100;
/// What has no room in a head's field of an id, or of a size.
const LARGE_ID: u32 = 1 << 21;
const LARGE_SIZE: u64 = 1 << 33;
/// What tells ustar and pax from GNU's form.
const OF_PAX: &[u8; 8] = b"ustar\x0000";
pub const END: [u8; 2 * BLOCK_BYTES] = [0; 2 * BLOCK_BYTES];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    HardLink,
    Link,
    Directory,
    /// A FIFO; written for whatever is of none of these kinds.
    Fifo,
    Device,
}

impl Kind {
    fn flag(self) -> u8 {
        match self {
            Kind::File => b'0',
            Kind::HardLink => b'1',
            Kind::Link => b'2',
            Kind::Directory => b'5',
            Kind::Fifo => b'6',
            Kind::Device => b'3',
        }
    }

    fn of(flag: u8) -> Option<Kind> {
        match flag {
            0 | b'0' | b'7' => Some(Kind::File),
            b'1' => Some(Kind::HardLink),
            b'2' => Some(Kind::Link),
            b'5' => Some(Kind::Directory),
            b'3' | b'4' => Some(Kind::Device),
            b'6' => Some(Kind::Fifo),
            _ => None,
        }
    }
}

pub type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// One entry of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Below the top; `.` is the top.
    pub name: Vec<u8>,
    pub kind: Kind,
    pub mode: u32,
    /// Read where owners are; what no number of 32 bits is becomes the largest one.
    pub uid: u32,
    pub gid: u32,
    /// Of a file, its holes included; 0 of anything else.
    pub size: u64,
    /// In whole seconds.
    pub mtime: i64,
    /// Of a link.
    pub target: Vec<u8>,
    /// Names and values of extended attributes, in the order of the names; read of layers only.
    pub attributes: Attributes,
    /// Of a file with holes: where what follows it belongs.
    pub pieces: Option<Pieces>,
}

/// How much follows contents of a size.
pub fn padding(size: u64) -> usize {
    ((BLOCK_BYTES as u64 - size % BLOCK_BYTES as u64) % BLOCK_BYTES as u64) as usize
}

/// The blocks that announce a member.
pub fn header(member: &Member) -> Vec<u8> {
    let mut name = member.name.clone();
    if member.kind == Kind::Directory {
        name.push(b'/');
    }
    let mut blocks = Vec::with_capacity(BLOCK_BYTES);
    if member.target.len() > NAME_BYTES {
        blocks.extend(extension(b'K', &member.target));
    }
    if name.len() > NAME_BYTES {
        blocks.extend(extension(b'L', &name));
    }
    blocks.extend(head_of(member, &name, member.size));
    blocks
}

fn head_of(member: &Member, name: &[u8], size: u64) -> [u8; BLOCK_BYTES] {
    let mut last = block(name, member.kind.flag(), member.mode, size, member.mtime, &member.target);
    if (member.uid, member.gid) != (0, 0) {
        last[108..116].copy_from_slice(&octal(member.uid.into(), 8));
        last[116..124].copy_from_slice(&octal(member.gid.into(), 8));
        sign(&mut last);
    }
    last
}

/// The blocks that announce a member of a layer, `nanoseconds` later than its whole second. Of a file with holes their map is among
/// them; its pieces follow. `None`: it has more attributes than can be read again.
pub fn layer_header(member: &Member, nanoseconds: u32) -> Option<Vec<u8>> {
    let mut name = member.name.clone();
    if member.kind == Kind::Directory {
        name.push(b'/');
    }
    let mut records = Vec::new();
    let mut put = |key: &[u8], value: &[u8]| records.extend(record(key, value));
    let mut size = member.size;
    let map = member.pieces.as_ref().map(|pieces| {
        let mut lines = sparse::lines_of(pieces);
        lines.resize(lines.len() + padding(lines.len() as u64), 0);
        size = lines.len() as u64 + pieces.iter().map(|(_, length)| length).sum::<u64>();
        put(b"GNU.sparse.major", b"1");
        put(b"GNU.sparse.minor", b"0");
        put(b"GNU.sparse.name", &name);
        put(b"GNU.sparse.realsize", member.size.to_string().as_bytes());
        lines
    });
    if map.is_none() && name.len() > NAME_BYTES {
        put(b"path", &name);
    }
    if member.target.len() > NAME_BYTES {
        put(b"linkpath", &member.target);
    }
    for (key, id) in [(&b"uid"[..], member.uid), (b"gid", member.gid)] {
        if id >= LARGE_ID {
            put(key, id.to_string().as_bytes());
        }
    }
    if size >= LARGE_SIZE {
        put(b"size", size.to_string().as_bytes());
    }
    if nanoseconds != 0 || member.mtime < 0 {
        put(b"mtime", seconds(member.mtime, nanoseconds).as_bytes());
    }
    for (key, value) in &member.attributes {
        put(&[ATTRIBUTE, key].concat(), value);
    }
    let mut blocks = Vec::with_capacity(BLOCK_BYTES);
    if !records.is_empty() {
        if records.len() as u64 > MOST_LAYER_EXTENSION_BYTES {
            return None;
        }
        blocks.extend(of_pax(block(b"./PaxHeaders/next", b'x', 0o644, records.len() as u64, 0, b"")));
        blocks.extend_from_slice(&records);
        blocks.resize(blocks.len() + padding(records.len() as u64), 0);
    }
    blocks.extend(of_pax(head_of(member, &name, size)));
    blocks.extend(map.unwrap_or_default());
    Some(blocks)
}

fn of_pax(mut block: [u8; BLOCK_BYTES]) -> [u8; BLOCK_BYTES] {
    block[257..265].copy_from_slice(OF_PAX);
    sign(&mut block);
    block
}

/// A line of an extended header, which says its own length.
fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length += 1;
    }
    [length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

/// As a number with a point; `nanoseconds` later than a whole second, which may be one before 1970.
fn seconds(whole: i64, nanoseconds: u32) -> String {
    match (whole, nanoseconds) {
        (whole, 0) => whole.to_string(),
        (0.., _) => format!("{whole}.{nanoseconds:09}"),
        _ => format!("-{}.{:09}", -(whole + 1), 1_000_000_000 - nanoseconds),
    }
}

fn extension(flag: u8, text: &[u8]) -> Vec<u8> {
    let content = [text, b"\0"].concat();
    let mut blocks = block(b"././@LongLink", flag, 0o644, content.len() as u64, 0, b"").to_vec();
    blocks.extend_from_slice(&content);
    blocks.resize(blocks.len() + padding(content.len() as u64), 0);
    blocks
}

fn block(name: &[u8], flag: u8, mode: u32, size: u64, mtime: i64, target: &[u8]) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    let mut put = |at: usize, data: &[u8], most: usize| {
        let count = data.len().min(most);
        block[at..at + count].copy_from_slice(&data[..count]);
    };
    put(0, name, NAME_BYTES);
    put(100, &octal(u64::from(mode & 0o7777), 8), 8);
    put(108, &octal(0, 8), 8);
    put(116, &octal(0, 8), 8);
    put(124, &octal(size, 12), 12);
    put(136, &octal(mtime.max(0) as u64, 12), 12);
    put(156, &[flag], 1);
    put(157, target, NAME_BYTES);
    put(257, b"ustar  \0", 8);
    sign(&mut block);
    block
}

/// Writes a head's sum into it.
fn sign(block: &mut [u8; BLOCK_BYTES]) {
    block[148..156].copy_from_slice(b"        ");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn octal(value: u64, width: usize) -> Vec<u8> {
    let digits = width - 1;
    if digits >= 22 || value < 1 << (3 * digits) {
        return format!("{value:0digits$o}\0").into_bytes();
    }
    let mut bytes = vec![0; width];
    bytes[width - 8..].copy_from_slice(&value.to_be_bytes());
    bytes[0] |= 0x80;
    bytes
}

/// What a stream consists of.
#[derive(Debug, PartialEq, Eq)]
pub enum Item<'a> {
    Member(Member),
    /// Of the contents of the last member.
    Contents(&'a [u8]),
}

/// Cuts a stream into members and their contents, however its pieces fall.
#[derive(Default)]
pub struct Reader {
    ended: bool,
    last: Vec<u8>,
    contents: u64,
    fill: usize,
    held: Vec<u8>,
    /// An extended head that is coming: its flag and size.
    extension: Option<(u8, usize)>,
    long: HashMap<Vec<u8>, Vec<u8>>,
    long_bytes: u64,
    after_end: usize,
    of_layers: bool,
    owners: bool,
    /// A file with holes whose map is not whole yet.
    coming: Option<Coming>,
}

/// What a head says of a file's holes.
struct Holes {
    /// As far as they are known.
    pieces: Pieces,
    size: u64,
    lines: Option<Lines>,
}

struct Coming {
    member: Member,
    /// What follows in the archive.
    contents: u64,
    pieces: Pieces,
    /// The map is lines at the beginning of the contents; if not, it goes on in another block of the head.
    lines: Option<Lines>,
}

impl Reader {
    /// One that reads what only layers have, and what Docker takes where an upload is refused: sizes of what has no contents, heads
    /// without an end behind them, and names of any length.
    pub fn of_layers() -> Reader {
        Reader { of_layers: true, owners: true, ..Reader::default() }
    }

    /// One that reads whose files are.
    pub fn with_owners() -> Reader {
        Reader { owners: true, ..Reader::default() }
    }

    /// The next item in data, which is cut by it; `None`: more is needed.
    ///
    /// # Errors
    /// This is no archive, or one that lies.
    pub fn next_item<'a>(&mut self, data: &mut &'a [u8]) -> Result<Option<Item<'a>>, Trouble> {
        while !data.is_empty() {
            if self.contents > 0 {
                let piece = take(data, self.contents.min(usize::MAX as u64) as usize);
                self.contents -= piece.len() as u64;
                return Ok(Some(Item::Contents(piece)));
            }
            if self.fill > 0 {
                self.fill -= take(data, self.fill).len();
                continue;
            }
            if self.ended {
                self.after_end += data.len();
                let most = if self.of_layers { LONGEST_LAYER_END_BYTES } else { LONGEST_END_BYTES };
                if self.after_end > most || data.iter().any(|byte| *byte != 0) {
                    return Err(Trouble::hostile(b"", "the archive goes on after its end"));
                }
                *data = &[];
                return Ok(None);
            }
            let wanted = self.extension.map_or(BLOCK_BYTES, |(_, size)| size + padding(size as u64));
            self.held.extend_from_slice(take(data, wanted - self.held.len()));
            if self.held.len() == wanted {
                let block = std::mem::take(&mut self.held);
                if let Some(member) = self.read(&block)? {
                    return Ok(Some(Item::Member(member)));
                }
            }
        }
        Ok(None)
    }

    /// No more bytes come.
    ///
    /// # Errors
    /// The end is missing.
    pub fn finish(&self) -> Result<(), Trouble> {
        let between = self.held.is_empty() && self.extension.is_none() && self.long.is_empty() && self.coming.is_none();
        let is_whole = between && self.contents == 0 && self.fill == 0 && !self.last.is_empty();
        if self.ended || (self.of_layers && is_whole) {
            Ok(())
        } else if self.last.is_empty() {
            Err(Trouble::hostile(b"", "no archive"))
        } else {
            Err(Trouble::hostile(&self.last, "is the last member of an archive that is cut off"))
        }
    }

    /// How much of the last member's contents is still to come.
    pub fn contents_left(&self) -> u64 {
        self.contents
    }

    fn read(&mut self, block: &[u8]) -> Result<Option<Member>, Trouble> {
        if let Some((flag, size)) = self.extension.take() {
            self.extend(flag, &block[..size])?;
            return Ok(None);
        }
        if let Some(coming) = self.coming.take() {
            return self.go_on(coming, block);
        }
        if block.iter().all(|byte| *byte == 0) {
            self.ended = true;
            return Ok(None);
        }
        let sum: i64 = block
            .iter()
            .enumerate()
            .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { i64::from(*byte) })
            .sum();
        if number(&block[148..156], &self.last)? != sum {
            return Err(Trouble::hostile(&self.last, "is followed by something that is no header of tar"));
        }
        let size = number(&block[124..136], &self.last)?;
        let flag = block[156];
        if matches!(flag, b'L' | b'K' | b'x' | b'g') {
            let most = if self.of_layers { MOST_LAYER_EXTENSION_BYTES } else { MOST_EXTENSION_BYTES };
            match u64::try_from(size) {
                Ok(size) if size > 0 && self.long_bytes + size <= most => self.extension = Some((flag, size as usize)),
                _ => return Err(Trouble::hostile(&self.last, format!("is followed by a name of {size} bytes"))),
            }
            return Ok(None);
        }
        self.long_bytes = 0;
        self.member(block, flag, size)
    }

    fn member(&mut self, block: &[u8], flag: u8, size: i64) -> Result<Option<Member>, Trouble> {
        let mut name = text(&block[..100]).to_vec();
        let mut target = text(&block[157..257]).to_vec();
        if &block[257..263] == b"ustar\0" && block[345] != 0 {
            name = [text(&block[345..500]), b"/", &name].concat();
        }
        let mut extended = std::mem::take(&mut self.long);
        if self.of_layers {
            // One without a value gives its place back to what the head says.
            extended.retain(|key, value| !value.is_empty() || key.starts_with(ATTRIBUTE));
        }
        name = extended.remove(&b"path"[..]).unwrap_or(name);
        target = extended.remove(&b"linkpath"[..]).unwrap_or(target);
        let holes = self.holes(block, flag, &mut name, &mut extended)?;
        let whole = |key: &[u8], field: &[u8]| match extended.get(key) {
            Some(value) => written(value).and_then(|text| text.parse::<i64>().ok()).ok_or_else(|| no_number(&name)),
            None => number(field, &name),
        };
        let size = if extended.contains_key(&b"size"[..]) { whole(b"size", b"0")? } else { size };
        let mtime = match extended.get(&b"mtime"[..]) {
            Some(value) => {
                let seconds =
                    written(value).and_then(|text| text.parse::<f64>().ok()).filter(|value| value.is_finite());
                seconds.ok_or_else(|| no_number(&name))? as i64
            }
            None => number(&block[136..148], &name)?,
        };
        let kind = match Kind::of(flag) {
            // As before POSIX.
            Some(Kind::File) if flag != b'7' && name.ends_with(b"/") => Kind::Directory,
            Some(kind) => kind,
            None if holes.is_some() => Kind::File,
            None => {
                return Err(Trouble::hostile(&name, format!("is of a kind that is not known ({:?})", char::from(flag))))
            }
        };
        // Of what has no contents a layer may say any size.
        let is_idle = self.of_layers && kind != Kind::File && Kind::of(flag) != Some(Kind::File);
        let size = if is_idle { 0 } else { size };
        if size < 0 || (size > 0 && kind != Kind::File) {
            return Err(Trouble::hostile(&name, format!("announces {size} bytes")));
        }
        if name.len().max(target.len()) > LONGEST_NAME_BYTES && !self.of_layers {
            let message = format!("has a name or target of more than {LONGEST_NAME_BYTES} bytes");
            return Err(Trouble::hostile(&name, message));
        }
        let mode = number(&block[100..108], &name)? as u32 & 0o7777;
        let id = |key: &[u8], field: &[u8]| match self.owners {
            true => whole(key, field).map(|id| u32::try_from(id).unwrap_or(u32::MAX)),
            false => Ok(0),
        };
        let (uid, gid) = (id(b"uid", &block[108..116])?, id(b"gid", &block[116..124])?);
        let mut attributes = Vec::new();
        if self.of_layers {
            attributes.extend(
                extended.into_iter().filter_map(|(key, value)| Some((key.strip_prefix(ATTRIBUTE)?.to_vec(), value))),
            );
            attributes.sort();
        }
        self.last = name.clone();
        let (mtime, size) = (mtime.clamp(0, 1 << 40), size as u64);
        let member = Member { name, kind, mode, uid, gid, size, mtime, target, attributes, pieces: None };
        let Holes { pieces, size: size_with_holes, lines } = match holes {
            None => return Ok(Some(self.announced(member, size))),
            Some(holes) => holes,
        };
        let goes_on = lines.is_some() || (flag == WITH_HOLES && block[482] != 0);
        let coming = Coming { member: Member { size: size_with_holes, ..member }, contents: size, pieces, lines };
        if goes_on {
            self.coming = Some(coming);
            return Ok(None);
        }
        self.mapped(coming).map(Some)
    }

    /// What is said of the holes of a file, whose name may be another one then.
    fn holes(
        &self,
        block: &[u8],
        flag: u8,
        name: &mut Vec<u8>,
        extended: &mut HashMap<Vec<u8>, Vec<u8>>,
    ) -> Result<Option<Holes>, Trouble> {
        let is_said = extended.keys().any(|key| key.starts_with(b"GNU.sparse"));
        if !self.of_layers || (flag != WITH_HOLES && !is_said) {
            return Ok(None);
        }
        if let Some(own) = extended.remove(&b"GNU.sparse.name"[..]) {
            *name = own;
        }
        let wrong = || Trouble::hostile(name, sparse::WRONG);
        if flag == WITH_HOLES {
            let mut pieces = Pieces::new();
            sparse::read_fields(&block[386..482], &mut pieces).ok_or_else(wrong)?;
            let size = u64::try_from(number(&block[483..495], name)?).map_err(|_| wrong())?;
            return Ok(Some(Holes { pieces, size, lines: None }));
        }
        let size = extended.get(&b"GNU.sparse.realsize"[..]).or_else(|| extended.get(&b"GNU.sparse.size"[..]));
        let size = size.and_then(|value| written(value)?.parse().ok()).ok_or_else(wrong)?;
        let major = extended.get(&b"GNU.sparse.major"[..]).map_or(&b""[..], Vec::as_slice);
        match (major, extended.get(&b"GNU.sparse.map"[..])) {
            (b"1", _) => Ok(Some(Holes { pieces: Pieces::new(), size, lines: Some(Lines::default()) })),
            (b"" | b"0", Some(map)) => {
                Ok(Some(Holes { pieces: sparse::read_map(map).ok_or_else(wrong)?, size, lines: None }))
            }
            _ => Err(Trouble::hostile(name, "is a file with holes in a form that is not read")),
        }
    }

    fn go_on(&mut self, mut coming: Coming, block: &[u8]) -> Result<Option<Member>, Trouble> {
        let wrong = |coming: &Coming| Trouble::hostile(&coming.member.name, sparse::WRONG);
        let is_whole = match &mut coming.lines {
            Some(lines) => {
                let (is_whole, left) =
                    (lines.read(block, &mut coming.pieces), coming.contents.checked_sub(BLOCK_BYTES as u64));
                coming.contents = left.ok_or_else(|| wrong(&coming))?;
                is_whole.ok_or_else(|| wrong(&coming))?
            }
            None => {
                sparse::read_fields(&block[..504], &mut coming.pieces).ok_or_else(|| wrong(&coming))?;
                block[504] == 0
            }
        };
        if is_whole {
            return self.mapped(coming).map(Some);
        }
        self.coming = Some(coming);
        Ok(None)
    }

    fn mapped(&mut self, coming: Coming) -> Result<Member, Trouble> {
        let Coming { member, contents, pieces, .. } = coming;
        if member.kind != Kind::File || !sparse::fits(&pieces, contents, member.size) {
            return Err(Trouble::hostile(&member.name, sparse::WRONG));
        }
        Ok(self.announced(Member { pieces: Some(pieces), ..member }, contents))
    }

    fn announced(&mut self, member: Member, contents: u64) -> Member {
        self.contents = contents;
        self.fill = padding(contents);
        member
    }

    fn extend(&mut self, flag: u8, content: &[u8]) -> Result<(), Trouble> {
        if self.of_layers && flag != b'g' {
            self.long_bytes += content.len() as u64;
        }
        match flag {
            b'L' => drop(self.long.insert(b"path".to_vec(), text(content).to_vec())),
            b'K' => drop(self.long.insert(b"linkpath".to_vec(), text(content).to_vec())),
            _ => {
                let records = records(content).ok_or_else(|| {
                    Trouble::hostile(&self.last, "is followed by an extended header that cannot be read")
                })?;
                if records.contains_key(&b"AVIATO.error"[..]) {
                    return Err(Trouble::hostile(b"", "the archive says that its sender failed"));
                }
                if flag == b'x' {
                    if !self.of_layers && records.keys().any(|key| key.starts_with(b"GNU.sparse")) {
                        let message = "is followed by a file with holes, a form that is not read";
                        return Err(Trouble::hostile(&self.last, message));
                    }
                    self.long.extend(records);
                }
            }
        }
        Ok(())
    }
}

fn take<'a>(data: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (piece, rest) = data.split_at(most.min(data.len()));
    *data = rest;
    piece
}

/// Of an extended header of pax: each line says its own length.
fn records(content: &[u8]) -> Option<HashMap<Vec<u8>, Vec<u8>>> {
    let mut records = HashMap::new();
    let mut rest = content;
    while !rest.is_empty() {
        let space = rest.iter().take(8).position(|byte| *byte == b' ')?;
        let digits = &rest[..space];
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let length: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
        let line = rest.get(space + 1..length)?;
        let (value, end) = line.split_at(line.len().checked_sub(1)?);
        let equals = value.iter().position(|byte| *byte == b'=')?;
        if end != b"\n" {
            return None;
        }
        records.insert(value[..equals].to_vec(), value[equals + 1..].to_vec());
        rest = &rest[length..];
    }
    Some(records)
}

/// Of a record of pax, where it is a number.
fn written(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value).ok().map(str::trim)
}

fn no_number(name: &[u8]) -> Trouble {
    Trouble::hostile(name, "has a size, time or owner that is no number")
}

fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or(field)
}

pub fn number(field: &[u8], name: &[u8]) -> Result<i64, Trouble> {
    if field[0] & 0x80 != 0 {
        // GNU's binary form; a negative one is no size, and no time that anybody needs.
        let (high, low) = field.split_at(field.len().saturating_sub(8));
        if field[0] != 0x80 || high.iter().skip(1).any(|byte| *byte != 0) {
            return Ok(-1);
        }
        let low = if high.is_empty() { &field[1..] } else { low };
        let value = low.iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        return Ok(i64::try_from(value).unwrap_or(-1));
    }
    let digits = std::str::from_utf8(field).unwrap_or("x").trim_matches(|character| matches!(character, ' ' | '\0'));
    if digits.is_empty() {
        return Ok(0);
    }
    let wrong = |_| Trouble::hostile(name, "has a header with something that is no number");
    u64::from_str_radix(digits, 8).map_err(wrong).map(|value| i64::try_from(value).unwrap_or(-1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &[u8], size: u64) -> Member {
        Member {
            name: name.to_vec(),
            kind: Kind::File,
            mode: 0o640,
            uid: 0,
            gid: 0,
            size,
            mtime: 7,
            target: Vec::new(),
            attributes: Vec::new(),
            pieces: None,
        }
    }

    fn read(stream: &[u8], size: usize) -> Result<Vec<(Member, Vec<u8>)>, Trouble> {
        read_by(Reader::default(), stream, size)
    }

    fn read_by(mut reader: Reader, stream: &[u8], size: usize) -> Result<Vec<(Member, Vec<u8>)>, Trouble> {
        let mut found: Vec<(Member, Vec<u8>)> = Vec::new();
        for mut piece in stream.chunks(size) {
            while let Some(item) = reader.next_item(&mut piece)? {
                match item {
                    Item::Member(member) => found.push((member, Vec::new())),
                    Item::Contents(data) => found.last_mut().unwrap().1.extend_from_slice(data),
                }
            }
        }
        reader.finish()?;
        Ok(found)
    }

    fn written(members: &[(Member, Vec<u8>)]) -> Vec<u8> {
        let mut stream = Vec::new();
        for (member, contents) in members {
            stream.extend(header(member));
            stream.extend_from_slice(contents);
            stream.resize(stream.len() + padding(member.size), 0);
        }
        stream.extend_from_slice(&END);
        stream
    }

    fn samples() -> Vec<(Member, Vec<u8>)> {
        let long = [&b"d/"[..], &[b'x'; 300]].concat();
        let link = Member { kind: Kind::Link, target: vec![b't'; 200], ..file(b"l", 0) };
        let directory = Member { kind: Kind::Directory, mode: 0o755, ..file(b"d", 0) };
        vec![
            (directory, Vec::new()),
            (file(&long, 700), vec![3; 700]),
            (link, Vec::new()),
            (file(b"\xff\xfe", 0), Vec::new()),
        ]
    }

    #[test]
    fn what_is_written_is_read_however_the_pieces_fall() {
        let stream = written(&samples());
        for size in [1, 7, 511, 512, 513, 4096, stream.len()] {
            let mut found = read(&stream, size).unwrap();
            found[0].0.name = b"d".to_vec(); // It is written with a slash.
            assert_eq!(found, samples(), "by {size}");
        }
    }

    #[test]
    fn archives_that_are_cut_or_go_on_are_refused() {
        let stream = written(&samples());
        for end in (0..stream.len() - 1024).step_by(101) {
            assert!(read(&stream[..end], 512).is_err(), "cut at {end}");
        }
        assert!(read(&[&stream[..], b"more"].concat(), 512).is_err());
        assert!(read(&[&stream[..], &[0; 2 << 20][..]].concat(), 4096).is_err());
    }

    #[test]
    fn no_byte_that_is_changed_does_more_than_be_refused_or_read() {
        let stream = written(&samples());
        let mut random = 12345_u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut changed = stream.clone();
            let at = (random >> 33) as usize % changed.len();
            changed[at] = (random >> 20) as u8;
            drop(read(&changed, 1000));
        }
    }

    /// A head, with fields at some places of it.
    fn head(name: &[u8], flag: u8, size: u64, fields: &[(usize, &[u8])]) -> Vec<u8> {
        let mut made = block(name, flag, 0o4755, size, 7, b"");
        for (at, field) in fields {
            made[*at..at + field.len()].copy_from_slice(field);
        }
        sign(&mut made);
        made.to_vec()
    }

    fn padded(mut content: Vec<u8>) -> Vec<u8> {
        content.resize(content.len() + padding(content.len() as u64), 0);
        content
    }

    fn pax(records: &[(&str, &str)]) -> Vec<u8> {
        let content: Vec<u8> =
            records.iter().flat_map(|(key, value)| record(key.as_bytes(), value.as_bytes())).collect();
        [head(b"pax", b'x', content.len() as u64, &[]), padded(content)].concat()
    }

    fn layer(stream: &[u8], size: usize) -> Result<Vec<(Member, Vec<u8>)>, Trouble> {
        read_by(Reader::of_layers(), stream, size)
    }

    #[test]
    fn layers_have_owners_and_attributes() {
        let records = [
            ("SCHILY.xattr.user.b", "2"),
            ("SCHILY.xattr.user.a", ""),
            ("uid", "70000"),
            ("mtime", "12.9"),
            ("linkpath", ""),
        ];
        let link = head(b"h", b'1', 99, &[(157, b"target"), (116, b"\x80\0\0\0\xff\xff\xff\xff")]);
        let stream = [pax(&records), link].concat();
        let found = &layer(&stream, 100).unwrap()[0].0;
        assert_eq!((found.uid, found.gid, found.mode, found.mtime), (70_000, u32::MAX, 0o4755, 12));
        assert_eq!((&found.target[..], found.size), (&b"target"[..], 0));
        assert_eq!(found.attributes, [(b"user.a".to_vec(), vec![]), (b"user.b".to_vec(), b"2".to_vec())]);
        assert!(read(&[&stream[..], &END].concat(), 100).is_err(), "an upload's is stricter");
        let wrong = [pax(&[("uid", "x")]), head(b"f", b'0', 0, &[])].concat();
        assert!(layer(&wrong, 512).is_err());
        let plain = head(b"f", b'0', 0, &[(108, b"0001750\0")]);
        assert_eq!(layer(&plain, 512).unwrap()[0].0.uid, 1000);
        assert_eq!(read(&[&plain[..], &END].concat(), 512).unwrap()[0].0.uid, 0);
    }

    #[test]
    fn a_layer_may_end_between_members_and_nowhere_else() {
        let stream = [pax(&[("uid", "1")]), head(b"f", b'0', 3, &[]), padded(vec![1; 3])].concat();
        for end in 0..stream.len() {
            assert!(layer(&stream[..end], 512).is_err(), "cut at {end}");
        }
        assert!(layer(&stream, 512).is_ok() && read(&stream, 512).is_err());
    }

    #[test]
    fn what_stands_before_a_member_is_bounded() {
        let large = pax(&[("SCHILY.xattr.user.a", &"x".repeat(600 << 10))]);
        let file = head(b"f", b'0', 0, &[]);
        assert!(layer(&[&large[..], &file, &large, &file].concat(), 4096).is_ok());
        assert!(layer(&[&large[..], &large, &file].concat(), 4096).is_err());
    }

    #[test]
    fn files_with_holes_are_read_in_each_form() {
        let old =
            head(b"s", WITH_HOLES, 6, &[(386, b"00000000010 00000000004 "), (482, b"\x01"), (483, b"00000000144\0")]);
        let more = padded([&b"00000000040 00000000002 "[..], &[0; 480]].concat());
        let map = [("GNU.sparse.size", "100"), ("GNU.sparse.map", "8,4,32,2"), ("GNU.sparse.name", "s")];
        let lines = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "100")];
        let text = padded(b"2\n8\n4\n32\n2\n".to_vec());
        let contents = padded(b"abcdef".to_vec());
        for stream in [
            [old, more, contents.clone()].concat(),
            [pax(&map), head(b"other", b'0', 6, &[]), contents.clone()].concat(),
            [pax(&lines), head(b"s", b'0', 518, &[]), text, contents].concat(),
        ] {
            for size in [1, 100, 512, stream.len()] {
                let (member, contents) = &layer(&stream, size).unwrap()[0];
                assert_eq!((&member.name[..], member.size, &contents[..]), (&b"s"[..], 100, &b"abcdef"[..]));
                assert_eq!(member.pieces.as_deref(), Some(&[(8, 4), (32, 2)][..]));
            }
            assert!(read(&[&stream[..], &END].concat(), 512).is_err(), "an upload has no holes");
        }
    }

    #[test]
    fn maps_of_holes_that_lie_are_refused() {
        for (size, map, follows) in [
            ("100", "8,4,6,2", 6),
            ("100", "8,4", 6),
            ("33", "8,4,32,2", 6),
            ("18446744073709551615", "8,4,32,2", 6),
            ("x", "8,4,32,2", 6),
        ] {
            let head = head(b"f", b'0', follows, &[]);
            let stream =
                [pax(&[("GNU.sparse.size", size), ("GNU.sparse.map", map)]), head, padded(vec![1; 6])].concat();
            assert!(layer(&stream, 512).is_err(), "{map} in {size}");
        }
        let directory =
            [pax(&[("GNU.sparse.size", "0"), ("GNU.sparse.map", "0,0")]), head(b"d", b'5', 0, &[])].concat();
        assert!(layer(&directory, 512).is_err());
    }

    #[test]
    fn a_layer_that_is_written_is_read_as_it_was() {
        let long = [&b"d/"[..], &[0xff; 300]].concat();
        let attributes = vec![(b"user.a".to_vec(), b"1\n=".to_vec()), (b"user.b".to_vec(), Vec::new())];
        let members = [
            Member { kind: Kind::Directory, mode: 0o3770, uid: 7, attributes, ..file(b"d", 0) },
            Member { uid: 1 << 30, gid: u32::MAX - 1, mode: 0o4711, ..file(&long, 700) },
            Member { kind: Kind::Link, target: vec![0xfe; 200], ..file(b"l", 0) },
            Member { kind: Kind::HardLink, target: long.clone(), ..file(b"h", 0) },
            Member { kind: Kind::Fifo, gid: 9, ..file(b"p", 0) },
            Member { pieces: Some(vec![(3, 4), (1 << 40, 5)]), ..file(&[&long[..], b"s"].concat(), 1 << 41) },
            Member { pieces: Some(vec![]), ..file(b"hole", 1 << 50) },
        ];
        let mut stream = Vec::new();
        for member in &members {
            stream.extend(layer_header(member, 5).unwrap());
            let size = member.pieces.as_ref().map_or(member.size, |pieces| pieces.iter().map(|(_, one)| one).sum());
            stream.resize(stream.len() + size as usize + padding(size), 0);
        }
        stream.extend_from_slice(&END);
        for size in [1, 511, stream.len()] {
            let mut found = layer(&stream, size).unwrap();
            found[0].0.name = b"d".to_vec(); // It is written with a slash.
            assert_eq!(found.into_iter().map(|(member, _)| member).collect::<Vec<_>>(), members, "by {size}");
        }
        let large = vec![(b"user.a".to_vec(), vec![0; 1 << 20])];
        assert!(layer_header(&Member { attributes: large, ..file(b"f", 0) }, 0).is_none());
    }

    #[test]
    fn times_are_written_to_the_nanosecond() {
        for (whole, nanoseconds, text) in [
            (12, 0, "12"),
            (12, 5, "12.000000005"),
            (0, 1, "0.000000001"),
            (-1, 500_000_000, "-0.500000000"),
            (-2, 0, "-2"),
            (-2, 999_999_999, "-1.000000001"),
        ] {
            assert_eq!(seconds(whole, nanoseconds), text);
        }
    }

    #[test]
    fn large_numbers_take_the_binary_form() {
        let member = file(b"large", 1 << 40);
        let block = header(&member);
        let mut reader = Reader::default();
        assert_eq!(reader.next_item(&mut &block[..]).unwrap(), Some(Item::Member(member)));
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"").unwrap(), -1);
        assert_eq!(number(b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", b"").unwrap(), i64::MAX);
        assert!(number(b"12345x78", b"").is_err());
    }

    #[test]
    fn extended_headers_are_read_and_bounded() {
        let mut stream = block(b"x", b'x', 0o644, 22, 0, b"").to_vec();
        let content = b"22 path=from/elsewhere"; // It says one byte less than it has.
        stream.extend_from_slice(content);
        stream.resize(1024, 0);
        assert!(read(&stream, 512).is_err());
        assert_eq!(records(b"12 path=a/b\n").unwrap()[&b"path"[..]], b"a/b");
        for wrong in [&b"x"[..], b"5 a", b"99 a=b\n", b" a=b\n", b"0 a=b\n", b"6 a=b!"] {
            assert!(records(wrong).is_none(), "{wrong:?}");
        }
        let huge = block(b"x", b'x', 0o644, 1 << 30, 0, b"");
        assert!(read(&huge, 512).is_err());
    }
}
