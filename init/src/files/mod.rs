//! What a server asks of the files of a sandbox.

mod listing;
pub mod read;
pub mod write;

use crate::commands::path_of;
use crate::errors::{Fields, Refused};
use crate::frames::{self, Head};
use crate::json::object;
use crate::relayed::Relayed;
use crate::supervisor::Supervisor;

pub use read::Outgoing;
pub use write::{Incoming, TreeUpload};

/// A request that is not over.
pub enum Open {
    /// The bytes of a command's input are to follow.
    Input {
        exec_id: Vec<u8>,
        offset: u64,
        eof: bool,
    },
    Outgoing(Outgoing),
    Incoming(Incoming),
    /// A tree on its way in, by its number.
    Tree(u64),
    /// A connection to a port.
    Relayed(Box<Relayed>),
}

impl Open {
    /// Whether nothing more comes of it. What was read whole stays open until its channel is used again.
    pub fn is_over(&self) -> bool {
        match self {
            Open::Outgoing(outgoing) => outgoing.is_over(),
            Open::Relayed(relayed) => relayed.is_over(),
            Open::Input { .. } | Open::Incoming(_) | Open::Tree(_) => false,
        }
    }

    /// Whether the server has asked for it, and not the inside.
    pub fn is_asked(&self) -> bool {
        !matches!(self, Open::Relayed(relayed) if !relayed.is_asked())
    }

    /// Whether it counts as use of the sandbox.
    pub fn is_use(&self) -> bool {
        self.is_asked() && !self.is_over()
    }

    /// Whether everybody is to stand still for it.
    pub fn wants_pause(&self) -> bool {
        matches!(self, Open::Outgoing(outgoing) if outgoing.wants_pause())
    }
}

impl Supervisor {
    /// The path that a request names, from the root on.
    fn path_in(&self, fields: &Fields<'_>) -> Result<Vec<u8>, Refused> {
        let path = path_of(&self.commands.working_dir, fields.text("path")?);
        if path.contains(&0) {
            return Err(Refused::invalid("a malformed request: a path with a null byte"));
        }
        Ok(path)
    }

    /// Lets go of all that a request has, whole or not.
    pub fn close_channel(&mut self, channel: u16) {
        match self.shut(channel) {
            Some(Open::Incoming(incoming)) => incoming.close(&mut self.again, &mut self.watch.disk, &mut self.looper),
            Some(Open::Tree(number)) => self.close_tree(number),
            Some(Open::Relayed(relayed)) => relayed.close(&mut self.looper),
            Some(Open::Outgoing(_) | Open::Input { .. }) | None => {}
        }
    }

    /// A further frame of a transfer.
    pub fn continue_transfer(&mut self, head: Head, payload: &[u8]) -> Result<(), Refused> {
        match (self.open.get_mut(&head.channel), head.kind) {
            (Some(Open::Outgoing(outgoing)), frames::CREDIT) => {
                outgoing.credit(head.offset);
                self.feed_from(crate::connection::Source::Transfer(head.channel));
            }
            (Some(Open::Incoming(incoming)), frames::DATA) => {
                let disk = &mut self.watch.disk;
                if let Some(taken) = incoming.data(payload, disk, &mut self.looper)? {
                    self.send(Head { offset: taken, ..Head::of(frames::CREDIT, head.channel) }, b"");
                }
            }
            (Some(Open::Incoming(incoming)), frames::END) => {
                let done = incoming.end(&mut self.watch.disk, &mut self.looper)?;
                self.again.done(done.as_deref());
                self.reply(head.channel, &object([]));
            }
            (Some(Open::Tree(number)), frames::DATA | frames::END) => {
                let number = *number;
                self.feed_tree(number, (head.kind == frames::DATA).then_some(payload));
            }
            (Some(Open::Relayed(_)), _) => return self.continue_relayed(head, payload),
            _ => {}
        }
        Ok(())
    }
}
