//! Directory trees as one stream of bytes: tar, without trust in what is read.

pub mod pack;
pub mod sparse;
pub mod tar;
pub mod unpack;

use std::io;

use crate::errors::Refused;
use crate::sys;

/// Names of directories that are still to be visited: more of them would not fit memory.
pub const MOST_PENDING_BYTES: usize = 32 << 20;

/// A tree that cannot be copied.
#[derive(Debug)]
pub enum Trouble {
    /// What is wrong with an entry, or with an empty name with the whole.
    Tree { member: Vec<u8>, reason: &'static str, message: String },
    /// What the kernel says of an entry.
    Os { member: Vec<u8>, error: io::Error },
}

impl Trouble {
    /// A member that no honest packer writes.
    pub fn hostile(member: &[u8], message: impl Into<String>) -> Trouble {
        Trouble::Tree { member: member.to_vec(), reason: "hostile_archive", message: message.into() }
    }

    pub fn os(member: &[u8]) -> impl FnOnce(io::Error) -> Trouble + '_ {
        move |error| Trouble::Os { member: member.to_vec(), error }
    }

    /// For whoever asked for a tree at a path.
    pub fn refusal(&self, path: &[u8]) -> Refused {
        match self {
            Trouble::Tree { member, reason, message } if member.is_empty() => Refused::file(path, reason, message),
            Trouble::Tree { member, reason, message } => {
                Refused::file(path, reason, format!("{} {message}", shown(member)))
            }
            Trouble::Os { member, error } if member.is_empty() => Refused::os(path, error),
            Trouble::Os { member, error } => {
                let reason = Refused::os(path, error).reason;
                let number = sys::number_of(error);
                Refused::file(path, reason, format!("{}: {}", shown(member), sys::describe(number)))
            }
        }
    }
}

/// A name for a message: of bounded length, with what is no UTF-8 escaped.
pub fn shown(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let short: String = text.chars().take(200).collect();
    let more = if short.len() < text.len() { "…" } else { "" };
    format!("'{}{more}'", short.escape_debug())
}
