//! One layer of an image, which comes as a tar, as a directory in the form that overlayfs takes: `aviato-init layer`.
//!
//! The archive is a stranger's. No name in it leads out of the directory, no link on the way is followed, and what it may take of
//! the disk and of memory is bounded.
//!
//! And the other way round: such a directory as a layer's tar (`pack`). One that a sandbox has left is a layer as it is, and counted (`count`).

mod count;
mod file;
pub mod pack;
mod places;
mod unpack;

use std::fs::File;
use std::io::Write;
use std::os::unix::io::OwnedFd;

use crate::archive::pack::Packer;
use crate::archive::{shown, Trouble};
use crate::json::{object, Value};
use crate::sys;
use crate::zygote::{become_root_of_own_id, take_subordinate_ids};

pub use unpack::Layer;

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE_DIRECTORY: &[u8] = b".wh..wh..opq";
const PIECE_BYTES: usize = 1 << 20;
const LONGEST_SHOWN_BYTES: usize = 1000;

/// What a layer may take.
#[derive(Clone, Copy)]
pub struct Limits {
    pub bytes: u64,
    pub files: u64,
}

/// How a layer is unpacked.
pub struct Settings {
    /// An empty directory.
    pub into: OwnedFd,
    /// The layers under it, the uppermost first: directories that the archive leaves out are made as they are there.
    pub below: Vec<OwnedFd>,
    /// Files get the owners that the archive says.
    pub owners: bool,
    pub limits: Limits,
}

/// What has become of a layer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Of its files, as far as they take place on the disk.
    pub size_bytes: u64,
    pub files: u64,
    pub implied: u64,
    pub left_out: u64,
    /// The archive says how the top itself is to be.
    pub says_top: bool,
}

/// Unpacks what comes on a stream; `control` leads to whoever maps subordinate ids.
pub fn run(stream: &OwnedFd, settings: Settings, control: Option<&OwnedFd>) -> Result<Unpacked, Trouble> {
    if let Some(control) = control {
        take_subordinate_ids(control).map_err(Trouble::os(b""))?;
    }
    sys::set_umask(0);
    sys::widen_pipe(stream, PIECE_BYTES);
    let mut layer = Layer::new(settings)?;
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        match sys::read_some(stream, &mut buffer).map_err(Trouble::os(b""))? {
            0 => return layer.finish(),
            count => layer.feed(&buffer[..count])?,
        }
    }
}

/// Whoever may not read each file of a store makes a user namespace first, in which he may: with `control` one that has subordinate
/// ids, else one of his own id alone.
fn see_all(control: Option<&OwnedFd>) -> Result<(), Trouble> {
    match control {
        Some(control) => take_subordinate_ids(control).map_err(Trouble::os(b""))?,
        // Where there are no user namespaces, files that their owner may not read are refused by name.
        None if sys::effective_user() != 0 => drop(become_root_of_own_id()),
        None => {}
    }
    Ok(())
}

/// Says how much is in a layer.
pub fn count(top: &OwnedFd, control: Option<&OwnedFd>) -> Result<Unpacked, Trouble> {
    see_all(control)?;
    count::count(top)
}

/// Writes the tar of a layer's directory to a stream.
pub fn pack(stream: OwnedFd, top: OwnedFd, owners: bool, control: Option<&OwnedFd>) -> Result<(), Trouble> {
    see_all(control)?;
    sys::widen_pipe(&stream, PIECE_BYTES);
    let (mut packer, mut stream) = (Packer::of_stored_layer(top, owners), File::from(stream));
    while let Some(piece) = packer.next_piece()? {
        stream.write_all(&piece).map_err(Trouble::os(b""))?;
    }
    Ok(())
}

/// What is said at the end.
pub fn answer(unpacked: &Result<Unpacked, Trouble>) -> Value {
    match unpacked {
        Ok(unpacked) => object([
            ("size_bytes", unpacked.size_bytes.into()),
            ("files", unpacked.files.into()),
            ("implied", unpacked.implied.into()),
            ("left_out", unpacked.left_out.into()),
            ("says_top", unpacked.says_top.into()),
        ]),
        Err(trouble) => error(trouble, "unpack_failed"),
    }
}

/// What is said of what went wrong; `otherwise` is the reason where the kernel's says nothing more.
pub fn error(trouble: &Trouble, otherwise: &'static str) -> Value {
    let (member, reason, said) = match trouble {
        Trouble::Tree { member, reason, message } => (member, *reason, format!(" {message}")),
        Trouble::Os { member, error } => {
            let number = sys::number_of(error);
            let said = if number == 0 { error.to_string() } else { sys::describe(number) };
            (member, reason_of(number).unwrap_or(otherwise), format!(": {said}"))
        }
    };
    let subject = if member.is_empty() { "the archive".to_owned() } else { shown(member) };
    let member = &member[..member.len().min(LONGEST_SHOWN_BYTES)];
    let message = format!("{subject}{said}");
    let error = [("reason", reason.into()), ("member", member.into()), ("message", message.as_str().into())];
    object([("error", object(error))])
}

fn reason_of(number: i32) -> Option<&'static str> {
    match number {
        sys::ENOSPC | sys::EDQUOT => Some("disk_full"),
        sys::EFBIG => Some("too_large"),
        _ => None,
    }
}
