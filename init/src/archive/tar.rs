//! The tar format: heads out, and a reader that believes nothing.
//!
//! Written is GNU's form, since it takes names of any bytes and length. Read are also ustar and pax, so what common programs write
//! is understood.

use std::collections::HashMap;

use super::Trouble;

pub const BLOCK_BYTES: usize = 512;
pub const LONGEST_NAME_BYTES: usize = 4095;
const MOST_EXTENSION_BYTES: u64 = 64 << 10;
/// Programs fill up what follows the last member with zeros; more than this is an endless stream.
const LONGEST_END_BYTES: usize = 1 << 20;
pub const END: [u8; 2 * BLOCK_BYTES] = [0; 2 * BLOCK_BYTES];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    HardLink,
    Link,
    Directory,
    /// A FIFO or a device.
    Other,
}

impl Kind {
    fn flag(self) -> u8 {
        match self {
            Kind::File => b'0',
            Kind::HardLink => b'1',
            Kind::Link => b'2',
            Kind::Directory => b'5',
            Kind::Other => b'6',
        }
    }

    fn of(flag: u8) -> Option<Kind> {
        match flag {
            0 | b'0' | b'7' => Some(Kind::File),
            b'1' => Some(Kind::HardLink),
            b'2' => Some(Kind::Link),
            b'5' => Some(Kind::Directory),
            b'3' | b'4' | b'6' => Some(Kind::Other),
            _ => None,
        }
    }
}

/// One entry of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Below the top; `.` is the top.
    pub name: Vec<u8>,
    pub kind: Kind,
    pub mode: u32,
    /// Of what follows it; 0 unless it is a file.
    pub size: u64,
    /// In whole seconds.
    pub mtime: i64,
    /// Of a link.
    pub target: Vec<u8>,
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
    if member.target.len() > 100 {
        blocks.extend(extension(b'K', &member.target));
    }
    if name.len() > 100 {
        blocks.extend(extension(b'L', &name));
    }
    blocks.extend(block(&name, member.kind.flag(), member.mode, member.size, member.mtime, &member.target));
    blocks
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
    put(0, name, 100);
    put(100, &octal(u64::from(mode & 0o7777), 8), 8);
    put(108, &octal(0, 8), 8);
    put(116, &octal(0, 8), 8);
    put(124, &octal(size, 12), 12);
    put(136, &octal(mtime.max(0) as u64, 12), 12);
    put(148, b"        ", 8);
    put(156, &[flag], 1);
    put(157, target, 100);
    put(257, b"ustar  \0", 8);
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

fn octal(value: u64, width: usize) -> Vec<u8> {
    let digits = width - 1;
    if digits >= 22 || value < 1 << (3 * digits) {
        return format!("{value:0digits$o}\0").into_bytes();
    }
    let mut bytes = vec![0; width];
    bytes[0] = 0x80;
    bytes[width - 8..].copy_from_slice(&value.to_be_bytes());
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
    after_end: usize,
}

impl Reader {
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
                if self.after_end > LONGEST_END_BYTES || data.iter().any(|byte| *byte != 0) {
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
        if self.ended {
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
            match u64::try_from(size) {
                Ok(size @ 1..=MOST_EXTENSION_BYTES) => self.extension = Some((flag, size as usize)),
                _ => return Err(Trouble::hostile(&self.last, format!("is followed by a name of {size} bytes"))),
            }
            return Ok(None);
        }
        self.member(block, flag, size).map(Some)
    }

    fn member(&mut self, block: &[u8], flag: u8, size: i64) -> Result<Member, Trouble> {
        let mut name = text(&block[..100]).to_vec();
        let mut target = text(&block[157..257]).to_vec();
        if &block[257..263] == b"ustar\0" && block[345] != 0 {
            name = [text(&block[345..500]), b"/", &name].concat();
        }
        let mut extended = std::mem::take(&mut self.long);
        name = extended.remove(&b"path"[..]).unwrap_or(name);
        target = extended.remove(&b"linkpath"[..]).unwrap_or(target);
        let no_number = || Trouble::hostile(&name, "has a size or time that is no number");
        let written = |value: &[u8]| std::str::from_utf8(value).ok().map(|text| text.trim().to_owned());
        let size = match extended.get(&b"size"[..]) {
            Some(value) => written(value).and_then(|text| text.parse::<i64>().ok()).ok_or_else(no_number)?,
            None => size,
        };
        let mtime = match extended.get(&b"mtime"[..]) {
            Some(value) => {
                let seconds =
                    written(value).and_then(|text| text.parse::<f64>().ok()).filter(|value| value.is_finite());
                seconds.ok_or_else(no_number)? as i64
            }
            None => number(&block[136..148], &name)?,
        };
        let kind = match Kind::of(flag) {
            // As before POSIX.
            Some(Kind::File) if flag != b'7' && name.ends_with(b"/") => Kind::Directory,
            Some(kind) => kind,
            None => {
                return Err(Trouble::hostile(&name, format!("is of a kind that is not known ({:?})", char::from(flag))))
            }
        };
        if size < 0 || (size > 0 && kind != Kind::File) {
            return Err(Trouble::hostile(&name, format!("announces {size} bytes")));
        }
        if name.len().max(target.len()) > LONGEST_NAME_BYTES {
            let message = format!("has a name or target of more than {LONGEST_NAME_BYTES} bytes");
            return Err(Trouble::hostile(&name, message));
        }
        let mode = number(&block[100..108], &name)? as u32 & 0o7777;
        self.last = name.clone();
        self.contents = size as u64;
        self.fill = padding(size as u64);
        Ok(Member { name, kind, mode, size: size as u64, mtime: mtime.clamp(0, 1 << 40), target })
    }

    fn extend(&mut self, flag: u8, content: &[u8]) -> Result<(), Trouble> {
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
                    if records.keys().any(|key| key.starts_with(b"GNU.sparse")) {
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

fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or(field)
}

fn number(field: &[u8], name: &[u8]) -> Result<i64, Trouble> {
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
        Member { name: name.to_vec(), kind: Kind::File, mode: 0o640, size, mtime: 7, target: Vec::new() }
    }

    fn read(stream: &[u8], size: usize) -> Result<Vec<(Member, Vec<u8>)>, Trouble> {
        let mut reader = Reader::default();
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
