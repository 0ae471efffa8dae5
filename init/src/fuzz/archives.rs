//! Archives: read, written again, and unpacked beside what they must not reach, as trees and as layers of images.

use std::collections::BTreeMap;
use std::fs::{self, Metadata, Permissions};
use std::os::unix::fs::{symlink, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::io::OwnedFd;
use std::path::{Path, PathBuf};

use super::mutate::Random;
use super::{held, Kind, SCRATCHES};
use crate::archive::pack::Packer;
use crate::archive::tar::{self, Item, Member, Reader, BLOCK_BYTES, LONGEST_NAME_BYTES};
use crate::archive::unpack::Arrival;
use crate::archive::Trouble;
use crate::directory::{self, RemoveTree};
use crate::layer::{Layer, Limits, Settings};
use crate::paths::Place;
use crate::sys;

/// A directory of its own, which goes with it.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let name = [name.as_bytes(), &directory::hidden_name()].concat();
        // In memory where that can be: a disk is far slower.
        let memory = PathBuf::from("/dev/shm");
        let above = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let path = above.join(String::from_utf8_lossy(&name).into_owned());
        fs::create_dir(&path).unwrap();
        held(&SCRATCHES).push(path.clone());
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

pub fn opened(path: &Path) -> OwnedFd {
    sys::open_at(sys::AT_FDCWD, path.to_str().unwrap().as_bytes(), directory::OPEN, 0).unwrap()
}

/// `outside/canary`, and `inside` with what was there before.
pub struct Archives {
    scratch: Scratch,
}

impl Archives {
    pub fn new() -> Archives {
        let scratch = Scratch::new("aviato-fuzz");
        fs::create_dir(scratch.0.join("outside")).unwrap();
        fs::write(scratch.0.join("outside/canary"), "alive").unwrap();
        Archives { scratch }
    }

    /// All that can be seen of what lies outside; of `inside` only that it is there.
    fn outside(&self) -> Vec<String> {
        let top = &self.scratch.0;
        let mut seen = Vec::new();
        for entry in fs::read_dir(top).unwrap().chain(fs::read_dir(top.join("outside")).unwrap()) {
            let path = entry.unwrap().path();
            let found = fs::symlink_metadata(&path).unwrap();
            let content = if found.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            if path.ends_with("inside") {
                seen.push(format!("{path:?}"));
            } else {
                let shape = (found.mode(), found.ino(), found.uid(), found.nlink(), found.mtime(), found.mtime_nsec());
                seen.push(format!("{path:?} {shape:?} {content:?}"));
            }
        }
        seen.sort();
        seen
    }

    fn unpack(&self, input: &[u8], random: &mut Random) {
        let inside = self.scratch.0.join("inside");
        fs::create_dir(&inside).unwrap();
        fs::create_dir(inside.join("old")).unwrap();
        fs::write(inside.join("old/file"), "older").unwrap();
        symlink("../outside", inside.join("link")).unwrap();
        let before = self.outside();
        let name = if random.one_in(2) { &b"."[..] } else { b"tree" };
        let exact = random.one_in(2);
        let mut arrival = Arrival::new(Place { directory: opened(&inside), name: name.to_vec() }, exact).unwrap();
        let arrived = arrive(&mut arrival, input, random);
        if arrived.is_err() {
            while !arrival.abort() {}
        }
        drop(arrival);
        check_tree(&inside, exact);
        let mut names: Vec<_> = fs::read_dir(&inside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert!(!names.iter().any(|name| name.to_string_lossy().starts_with(".aviato-")), "it left {names:?}");
        if name != b"." {
            let expected: &[&str] = if arrived.is_ok() { &["link", "old", "tree"] } else { &["link", "old"] };
            assert_eq!(names, expected);
        }
        assert_eq!(self.outside(), before, "it reached what lies outside");
        self.remove_inside();
    }

    /// As a layer over one that has links out of it.
    fn unpack_layer(&self, input: &[u8], random: &mut Random) {
        let inside = self.scratch.0.join("inside");
        for name in ["", "layer", "below", "below/old"] {
            fs::create_dir(inside.join(name)).unwrap();
        }
        symlink("../../outside", inside.join("below/link")).unwrap();
        let before = self.outside();
        let settings = Settings {
            into: opened(&inside.join("layer")),
            below: vec![opened(&inside.join("below"))],
            owners: sys::effective_user() == 0 && random.one_in(2),
            limits: Limits { bytes: 64 << 20, files: 1000 },
        };
        let mut layer = Layer::new(settings).unwrap();
        let mut rest = input;
        let mut is_sound = true;
        while is_sound && !rest.is_empty() {
            let (piece, behind) = rest.split_at((1 + random.below(2000)).min(rest.len()));
            rest = behind;
            is_sound = layer.feed(piece).is_ok();
        }
        drop(layer.finish());
        check_layer(&inside.join("layer"));
        unpack_again(&inside);
        assert_eq!(self.outside(), before, "it reached what lies outside");
        self.remove_inside();
    }

    fn remove_inside(&self) {
        let mut removal = RemoveTree::new(opened(&self.scratch.0), b"inside").unwrap();
        while !removal.step().unwrap() {}
    }
}

/// Whatever was unpacked is packed, and that is what was packed.
fn unpack_again(inside: &Path) {
    let packed = packed(Packer::of_layer(opened(&inside.join("layer"))));
    unpack_whole(&packed, &inside.join("again"));
    let forms = |stream| members_by(Reader::of_layers(), stream, || usize::MAX).0.into_iter().map(|(member, _)| member);
    let by_name = |stream| forms(stream).map(|member| (member.name.clone(), member)).collect::<BTreeMap<_, _>>();
    let (first, second) = (by_name(&packed), by_name(&self::packed(Packer::of_layer(opened(&inside.join("again"))))));
    for (name, member) in &first {
        // Which of several names comes first is not said.
        let alike = |one: &Member| (one.mode, one.uid, one.gid, one.mtime);
        assert_eq!(second.get(name).map(alike), Some(alike(member)), "{}", String::from_utf8_lossy(name));
    }
    assert_eq!(first.len(), second.len());
    let stored = |name: &str| self::packed(Packer::of_stored_layer(opened(&inside.join(name)), true));
    unpack_whole(&stored("again"), &inside.join("stored"));
    assert_eq!(stored("again"), stored("stored"), "the same files make another archive");
}

fn unpack_whole(archive: &[u8], into: &Path) {
    fs::create_dir(into).unwrap();
    let mut layer = Layer::new(Settings {
        into: opened(into),
        below: Vec::new(),
        owners: sys::effective_user() == 0,
        limits: Limits { bytes: u64::MAX, files: u64::MAX },
    })
    .unwrap();
    layer.feed(archive).unwrap();
    assert_eq!(layer.finish().unwrap().implied, 0);
}

fn packed(mut packer: Packer) -> Vec<u8> {
    let mut stream = Vec::new();
    while let Some(piece) = packer.next_piece().unwrap() {
        stream.extend(piece);
    }
    stream
}

fn arrive(arrival: &mut Arrival, input: &[u8], random: &mut Random) -> Result<(), Trouble> {
    let mut rest = input;
    while !rest.is_empty() {
        let (mut piece, behind) = rest.split_at((1 + random.below(2000)).min(rest.len()));
        rest = behind;
        while !piece.is_empty() {
            arrival.feed(&mut piece)?;
        }
    }
    while !arrival.finish()? {}
    Ok(())
}

/// Files, directories and links of an ordinary kind; makes it one that can be looked at.
fn check_tree(directory: &Path, exact: bool) {
    fs::set_permissions(directory, Permissions::from_mode(0o700)).unwrap();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let found = match fs::symlink_metadata(&path) {
            Ok(found) => found,
            // Longer than a path may be.
            Err(error) if error.raw_os_error() == Some(36) => continue,
            Err(error) => panic!("{}: {error}", path.display()),
        };
        let kind = found.file_type();
        assert!(kind.is_file() || kind.is_dir() || kind.is_symlink(), "{}", path.display());
        assert!(
            exact || kind.is_symlink() || found.mode() & 0o7000 == 0,
            "{} has a mode of {:o}",
            path.display(),
            found.mode()
        );
        assert!(exact || !kind.is_file() || found.nlink() == 1, "{} has two names", path.display());
        if kind.is_dir() && path.as_os_str().len() < 3000 {
            check_tree(&path, exact);
        }
    }
}

/// Only what overlayfs takes, and nothing by which it leads elsewhere.
fn check_layer(directory: &Path) {
    fs::set_permissions(directory, Permissions::from_mode(0o700)).unwrap();
    check_attributes(directory);
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.as_os_str().len() > 3000 {
            continue;
        }
        let found = fs::symlink_metadata(&path).unwrap();
        let kind = found.file_type();
        let is_plain = kind.is_file() || kind.is_dir() || kind.is_symlink() || kind.is_fifo();
        assert!(is_plain || is_whiteout(&found), "{}", path.display());
        assert!(!path.file_name().unwrap().to_string_lossy().starts_with(".wh."), "{}", path.display());
        if kind.is_dir() {
            check_layer(&path);
        } else if kind.is_file() {
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            check_attributes(&path);
        }
    }
}

fn is_whiteout(found: &Metadata) -> bool {
    found.file_type().is_char_device() && found.rdev() == 0
}

fn has_whiteouts(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().any(|entry| is_whiteout(&entry.unwrap().metadata().unwrap()))
}

fn check_attributes(path: &Path) {
    let fd = fs::File::open(path).unwrap().into();
    // Some have more than are asked for.
    for name in sys::attribute_names(&fd).unwrap_or_default().split(|byte| *byte == 0) {
        let is_ours = match name {
            b"user.overlay.opaque" => path.is_dir(),
            b"user.overlay.origin" => path.is_dir() && has_whiteouts(path) && sys::has_attribute(&fd, name, b""),
            _ => false,
        };
        assert!(is_ours || !name.starts_with(b"user.overlay."), "{} has {name:?}", path.display());
    }
}

type Members = Vec<(Member, Vec<u8>)>;

/// What is in an archive that comes in pieces of such sizes, as far as it can be read, and whether it can.
fn members(input: &[u8], size: impl FnMut() -> usize) -> (Members, bool) {
    members_by(Reader::default(), input, size)
}

fn members_by(mut reader: Reader, input: &[u8], mut size: impl FnMut() -> usize) -> (Members, bool) {
    let (mut found, mut rest) = (Members::new(), input);
    while !rest.is_empty() {
        let (mut piece, behind) = rest.split_at(size().clamp(1, rest.len()));
        rest = behind;
        loop {
            match reader.next_item(&mut piece) {
                Ok(Some(Item::Member(member))) => found.push((member, Vec::new())),
                Ok(Some(Item::Contents(data))) => found.last_mut().unwrap().1.extend_from_slice(data),
                Ok(None) => break,
                Err(_) => return (found, false),
            }
        }
    }
    (found, reader.finish().is_ok())
}

/// Whether the form that is written has room for it: a packer reads no such names.
fn can_be_written((member, contents): &(Member, Vec<u8>)) -> bool {
    let is_odd = member.name.contains(&0) || member.target.contains(&0) || member.name.len() >= LONGEST_NAME_BYTES;
    let is_file = member.kind == tar::Kind::File;
    !(is_odd || is_file && member.name.ends_with(b"/")) && member.size == contents.len() as u64
}

fn sum(block: &[u8]) -> u32 {
    block.iter().enumerate().map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) }).sum()
}

impl Kind for Archives {
    fn name(&self) -> &'static str {
        "archives"
    }

    fn repair(&self, input: &mut Vec<u8>, random: &mut Random) {
        let whole = input.len() / BLOCK_BYTES * BLOCK_BYTES;
        if random.one_in(2) {
            input.truncate(whole);
            input.extend_from_slice(&tar::END);
        }
        let mut at = 0;
        while at + BLOCK_BYTES <= input.len() {
            let block = &mut input[at..at + BLOCK_BYTES];
            if block.iter().any(|byte| *byte != 0) {
                let digits = format!("{:06o}\0 ", sum(block));
                block[148..156].copy_from_slice(digits.as_bytes());
            }
            let size = String::from_utf8_lossy(&block[124..135]).into_owned();
            let size = u64::from_str_radix(&size, 8).unwrap_or(0).min(1 << 20);
            at += BLOCK_BYTES + size as usize + tar::padding(size);
        }
    }

    fn run(&mut self, input: &[u8]) {
        let mut random = Random::of(input);
        let (found, sound) = members(input, || usize::MAX);
        assert_eq!(members(input, || random.below(700)), (found.clone(), sound), "in pieces");
        let mut expected: Members = found.into_iter().filter(can_be_written).collect();
        let mut written = Vec::new();
        for (member, contents) in &mut expected {
            written.extend(tar::header(member));
            written.extend_from_slice(contents);
            written.resize(written.len() + tar::padding(member.size), 0);
            if member.kind == tar::Kind::Directory {
                member.name.push(b'/');
            }
        }
        if !expected.is_empty() {
            written.extend_from_slice(&tar::END);
            assert_eq!(members(&written, || usize::MAX), (expected, true), "written again it is another");
        }
        self.unpack(input, &mut random);
        let of_layer = members_by(Reader::of_layers(), input, || usize::MAX);
        assert_eq!(members_by(Reader::of_layers(), input, || random.below(700)), of_layer, "a layer in pieces");
        self.unpack_layer(input, &mut random);
    }
}
