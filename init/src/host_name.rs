//! The name of a sandbox that was made before it was known whose it would be.

use std::io;

use crate::errors::{Fields, Refused};
use crate::paths::{open_path, reopen, Whose};
use crate::rest::InMemory;
use crate::supervisor::Supervisor;
use crate::sys::{self, AT_FDCWD, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK, O_PATH, O_RDONLY, O_WRONLY};

/// What the kernel takes.
const LONGEST: usize = 64;
/// In which it stands.
const FILES: [&[u8]; 4] = [b"/etc/hosts", b"/etc/hostname", b"/.aviato/own/hosts", b"/.aviato/own/hostname"];
/// What is longer was not made for the name.
const MOST_BYTES: u64 = 64 << 10;

/// The name that a request has, if any.
pub fn of(fields: &Fields<'_>) -> Result<Option<Vec<u8>>, Refused> {
    match fields.text_or_none("host_name")? {
        Some(name) if name.is_empty() || name.len() > LONGEST || name.iter().any(u8::is_ascii_whitespace) => {
            Err(Refused::invalid("a malformed request: \"host_name\""))
        }
        name => Ok(name.map(<[u8]>::to_vec)),
    }
}

impl Supervisor {
    /// Calls the sandbox so, for all that is started from here on: what runs has namespaces of its own, which nobody enters.
    pub fn be_named(&mut self, name: &[u8]) -> Result<(), Refused> {
        let trouble = |error: io::Error| Refused::new("EXECUTION", "host_name", format!("it cannot be named: {error}"));
        let before = self.own_name().map_err(trouble)?;
        // That of the last command, or one of before the last user namespace, which nothing from inside renames.
        sys::enter_fresh_uts().map_err(trouble)?;
        sys::name_host(name).map_err(trouble)?;
        for path in FILES {
            // Who has put something else in its place keeps that.
            drop(rename_in(path, &before, name, self.in_memory.as_mut()));
        }
        Ok(())
    }

    fn own_name(&self) -> io::Result<Vec<u8>> {
        let fd = sys::open_at(self.processes.directory(), b"sys/kernel/hostname", O_RDONLY, 0)?;
        let mut text = [0; LONGEST + 1];
        let count = sys::read_some(&fd, &mut text)?;
        Ok(text[..count].strip_suffix(b"\n").unwrap_or(&text[..count]).to_vec())
    }
}

/// Puts one name in the place of another, in the file itself. No link is followed: what one leads to may be anybody's.
fn rename_in(path: &[u8], before: &[u8], after: &[u8], known: Option<&mut InMemory>) -> io::Result<()> {
    // Looked at before it is opened, as whatever is not known to be a file.
    let named = open_path(path, O_PATH | O_NOFOLLOW, AT_FDCWD, Whose::TheSandboxs)?;
    let found = sys::stat_open(&named)?;
    if found.kind() != sys::S_IFREG || found.size > MOST_BYTES {
        return Ok(());
    }
    // One byte more tells of a file that grows meanwhile.
    let mut content = vec![0; found.size as usize + 1];
    let count = sys::read_some(&reopen(&named, O_RDONLY | O_NONBLOCK | O_NOCTTY)?, &mut content)?;
    let changed = match replaced(&content[..count], before, after) {
        Some(changed) if count as u64 == found.size => changed,
        _ => return Ok(()),
    };
    let fd = reopen(&named, O_WRONLY | O_NONBLOCK | O_NOCTTY)?;
    sys::write_all(&fd, &changed)?;
    sys::set_size(&fd, changed.len() as u64)?;
    if let Some(known) = known {
        known.accept(path, &found, &sys::stat_open(&fd)?);
    }
    Ok(())
}

/// The same with one word in the place of another; `None` where that does not stand in it.
fn replaced(content: &[u8], before: &[u8], after: &[u8]) -> Option<Vec<u8>> {
    if before.is_empty() {
        return None;
    }
    let mut changed = Vec::with_capacity(content.len());
    let mut any = false;
    for piece in content.split_inclusive(u8::is_ascii_whitespace) {
        let end = piece.iter().position(u8::is_ascii_whitespace).unwrap_or(piece.len());
        let (word, space) = piece.split_at(end);
        any |= word == before;
        changed.extend_from_slice(if word == before { after } else { word });
        changed.extend_from_slice(space);
    }
    any.then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_replaced_and_nothing_else_is() {
        let hosts = b"127.0.0.1 localhost\n127.0.1.1 sb-1\n10.0.0.1 sb-12 db\n";
        let changed = replaced(hosts, b"sb-1", b"sb-longer");
        assert_eq!(changed.as_deref(), Some(&b"127.0.0.1 localhost\n127.0.1.1 sb-longer\n10.0.0.1 sb-12 db\n"[..]));
        assert_eq!(replaced(b"a\tb  a", b"a", b"c").as_deref(), Some(&b"c\tb  c"[..]));
        for (content, before) in [(&b"a-b.c\n"[..], &b"b"[..]), (b"", b"a"), (b"a b", b""), (b"\n\n", b"a")] {
            assert_eq!(replaced(content, before, b"c"), None);
        }
    }
}
